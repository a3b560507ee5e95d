"""`nbpipe export`: run a notebook, and export a pipeline from where it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..base.format import shortened
from ..base.names import own_kind
from ..errors import ArgumentError, ArgumentTypeError, ModuleEditedError, NbpipeError, near_match
from ..export.reachable import secret_in
from ..export.secrets import know, redacted, secret_in_text, secrets_in_source
from ..export.store import module_path
from ..pipeline import Pipeline
from ..show.terminal import printable
from .kernel import CellError, Kernel, KernelDiedError, kernel_command
from .notebook import PARAMETERS, CodeCell, Notebook, read_notebook
from .terminal import (
    DONE,
    BadUsageError,
    FailedError,
    emit,
    log,
    printable_lines,
    settings,
)

# The kernel may have another nbpipe than the command has: names and JSON are all they share.
_ASK = "__import__('nbpipe.cli.export', fromlist=['answer']).answer({})"
_NUMBERED = re.compile(r"^([ >-]*\d+ )(.*)$")  # a line of source in a traceback
_LONGEST_ERROR = 400


def export(options: Namespace) -> int:
    """Do what the command line asks for."""
    plan = _plan(options)
    know(text for cell in plan.notebook.cells for text in secrets_in_source(cell.text))
    if not options.execute:
        emit(explained(plan))
        return DONE
    for warning in plan.warnings():
        log(f"note: {printable(warning)}")
    emit(printable_lines(asyncio.run(_NotebookRun(plan).run())))
    return DONE


def _plan(options: Namespace) -> Plan:
    notebook = read_notebook(options.notebook)
    if not options.pipeline.isidentifier():
        raise BadUsageError(f"--pipeline must be the name of a variable, got {options.pipeline!r}")
    try:
        target = module_path(options.output)
    except (ArgumentError, ArgumentTypeError) as error:
        raise BadUsageError(str(error)) from error
    kernel = options.kernel or notebook.kernel
    return Plan(
        notebook=notebook,
        pipeline=options.pipeline,
        target=target,
        sets=settings(options.set),
        kernel=(kernel, kernel_command(kernel)),
        overwrite=options.overwrite,
        check_items=options.check_items,
        assets=options.assets,
        limit_s=options.timeout,
    )


@final
class _NotebookRun:
    """One run of a notebook, as a plan asks for it.

    Args:
        plan: what to run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._doing = "starting the kernel"
        self._cell = ""

    async def run(self) -> str:
        """Run the cells, export; return what the export says of itself.

        Raises:
            FailedError: a cell failed, the export was refused, or the time is over.
        """
        _cancel_when_terminated()
        limit_s = self._plan.limit_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._run()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise FailedError(
                f"the time limit of {limit_s:g} s is over, while {self._doing}"
                f"{self._cell}; --timeout sets another"
            ) from error
        except KernelDiedError as error:
            words = f"; its last words: {error.last_words}" if error.last_words else ""
            raise FailedError(
                redacted(f"{error}, while {self._doing}{self._cell}{words}")
            ) from error

    async def _run(self) -> str:
        plan = self._plan
        name, _ = plan.kernel
        async with Kernel(name, plan.notebook.path.absolute().parent) as kernel:
            for cell in plan.notebook.cells:
                await self._run_cell(kernel, cell)
            self._doing, self._cell = "exporting", ""
            log("exporting")
            return await self._export(kernel)

    async def _run_cell(self, kernel: Kernel, cell: CodeCell) -> None:
        place = f"cell {cell.number} of {len(self._plan.notebook.cells)}"
        self._doing, self._cell = f"running {place}", f": {cell.first_line}"
        log(f"{place}: {cell.first_line}")
        try:
            await kernel.run(cell.text, cell.tags)
        except CellError as error:
            raise _failed(f"{place} failed: {cell.first_line}", error) from error
        if lines := self._plan.assignments_after(cell):
            await kernel.ask(lines)

    async def _export(self, kernel: Kernel) -> str:
        plan = self._plan
        options = {
            "overwrite": plan.overwrite,
            "check_items": plan.check_items,
            "assets": plan.assets,
        }
        request = {"name": plan.pipeline, "path": str(plan.target), "options": options}
        try:
            answer = await kernel.ask("", _ASK.format(repr(json.dumps(request))))
        except CellError as error:
            if error.kind in ("ModuleNotFoundError", "AttributeError"):
                raise FailedError(
                    f"the kernel {plan.kernel[0]!r} ({printable(plan.kernel[1])}) has "
                    "no nbpipe, or an older one; install the one that this command belongs to"
                ) from error
            raise _failed("the export failed", error) from error
        if "wrote" in answer:
            return str(answer["wrote"])
        raise FailedError(
            printable_lines(redacted(str(answer["refused"]))), _readable(answer.get("details", ""))
        )


def _failed(what: str, error: CellError) -> FailedError:
    words = redacted(str(error))
    if error.kind == "StdinNotImplementedError":
        words = "it asks for input; pass a value with --set instead"
    elif error.kind not in ("ExportError", "ModuleEditedError"):  # they have lines to read
        words = shortened(words, _LONGEST_ERROR)
    details = _readable(error.traceback)
    return FailedError(f"{what}\n  {printable_lines(words)}", details)


def _readable(traceback: str) -> str:
    """Return a traceback as plain text; lines of source with a secret in them are left out."""
    lines = printable_lines(redacted(traceback)).splitlines()
    return "\n".join(map(_without_secret, lines))


def _without_secret(line: str) -> str:
    found = _NUMBERED.match(line)
    if found is None or not secret_in_text(found[2].strip()):
        return line
    return f"{found[1]}(a line that looks like a secret)"


def _cancel_when_terminated() -> None:
    """End the task at SIGTERM, so that it ends its kernel."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows knows no signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


# -- What runs in the notebook's kernel after its last cell ----------------------------------------
class ExportReply:
    """What became of a request; a kernel shows it as JSON."""

    def __init__(self, **content: object) -> None:
        self._content = content

    def _repr_json_(self) -> dict[str, object]:
        return self._content


def answer(request: str) -> ExportReply:
    """Export a pipeline or a loader from the variables of the kernel that this runs in.

    Args:
        request: JSON: `name` of the variable, `path` of the file, and `options` of `export`.

    Returns:
        `wrote` with what the export says of itself, or `refused` with the reason.
    """
    asked = json.loads(request)
    variables = sys.modules["IPython"].get_ipython().user_ns
    pipe: Any = variables.get(asked["name"])
    if not _can_be_exported(pipe):
        return ExportReply(refused=_no_pipeline(asked["name"], variables))
    try:
        report = pipe.export(asked["path"], **asked["options"])
    except ModuleEditedError as error:
        return ExportReply(refused=error.told("give --overwrite"))
    except NbpipeError as error:
        return ExportReply(refused=str(error))
    except Exception as error:  # noqa: BLE001  the caller is another process
        words = f"{type(error).__name__}: {error}"
        return ExportReply(refused=words, details="".join(traceback.format_exception(error)))
    return ExportReply(wrote=str(report))


def _can_be_exported(value: object) -> bool:
    """Return whether a value is a pipeline or a `DataLoader`."""
    return isinstance(value, Pipeline) or own_kind(type(value)) == "loader"


def _no_pipeline(name: str, variables: Mapping[str, Any]) -> str:
    known = [
        key
        for key, value in variables.items()
        if _can_be_exported(value) and not key.startswith("_")
    ]
    is_what = f"there is no such variable{near_match(name, known)}"
    if name in variables:
        is_what = f"it is of type {type(variables[name]).__name__!r}"
    there = "the notebook holds no pipeline in a variable"
    if known:
        there = f"the pipelines are in {', '.join(map(repr, known))}"
    return f"--pipeline must name a pipeline, got {name!r}: {is_what}; {there}"


# -- Plan: what a notebook's export would run, set and write ---------------------------------------
@dataclass(frozen=True, slots=True)
class Plan:
    """All that is asked of an export from a notebook.

    Attributes:
        notebook: what is run.
        pipeline: name of the variable that holds the pipeline.
        target: the file to write, absolute.
        sets: values of variables, by name.
        kernel: name of the kernel, and what it is.
        overwrite: replace a file that was edited.
        check_items: items that are compared.
        assets: how large arrays are saved beside the module, or None.
        limit_s: the time that all of it may take [s].
    """

    notebook: Notebook
    pipeline: str
    target: Path
    sets: Mapping[str, Any]
    kernel: tuple[str, str]
    overwrite: bool
    check_items: int
    assets: str | None
    limit_s: float

    def __post_init__(self) -> None:
        for name in self.sets:
            self._setter(name)

    def _setter(self, name: str) -> CodeCell:
        """Return the cell after which a variable is set.

        That is the last of those tagged `parameters` or, by papermill, `injected-parameters` that
        assigns the variable, else the first that does.
        """
        found = [cell for cell in self.notebook.cells if name in cell.assigns]
        if not found:
            known = {one for cell in self.notebook.cells for one in cell.assigns}
            raise BadUsageError(
                f"no cell of {printable(self.notebook.path.name)} assigns {name!r}"
                f"{near_match(name, known)}; --set gives another value to a variable that a cell "
                "assigns outside of functions"
            )
        tagged = [cell for cell in found if not PARAMETERS.isdisjoint(cell.tags)]
        return tagged[-1] if tagged else found[0]

    def assignments_after(self, cell: CodeCell) -> str:
        """Return the lines to run after a cell: those that set variables, or nothing.

        Their text is to leave no trace: a module then has the new value in the place of the old
        one, with the comment that stands there.
        """
        names = [name for name in self.sets if self._setter(name) == cell]
        return "\n".join(f"{name} = {self.sets[name]!r}" for name in names)

    def warnings(self) -> Iterator[str]:
        """Yield warnings of settings that may have no effect."""
        for name in self.sets:
            setter = self._setter(name)
            if name in setter.reads:
                yield (
                    f"cell {setter.number} assigns {name!r} and reads it in the same cell, before "
                    "--set acts; assign it in a cell of its own"
                )
            for cell in self.notebook.cells:
                if cell.number > setter.number and name in cell.assigns:
                    yield f"cell {cell.number} assigns {name!r} again, and its value counts then"


def explained(plan: Plan) -> str:
    """Return in words what would be run, set and written."""
    rows = [
        ("kernel", "{} ({})".format(*map(printable, plan.kernel))),
        ("folder", printable(str(plan.notebook.path.absolute().parent))),
        *_cell_rows(plan),
        ("pipeline", plan.pipeline),
        ("writes", _target_words(plan)),
        ("time limit", f"{plan.limit_s:g} s for all of it"),
    ]
    lines = [f"  {title:<11} {words}".rstrip() for title, words in rows]
    notes = [f"  note: {warning}" for warning in plan.warnings()]
    return "\n".join(
        [
            f"{printable(str(plan.notebook.path))} would be run, and the pipeline exported.",
            "Nothing was run. The notebook's code can do whatever you can: read it first.",
            "",
            *lines,
            *notes,
            "",
            "To run it, type the same command with --execute.",
        ]
    )


def _cell_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    cells = plan.notebook.cells
    width = len(str(len(cells)))
    yield "code cells", str(len(cells))
    for cell in cells:
        yield "", f"{cell.number:>{width}}  {cell.first_line}"
        for name in plan.sets:
            if plan._setter(name) == cell:
                yield "", f"{'':>{width}}  --set {_shown_setting(name, plan.sets[name])}"


def _shown_setting(name: str, value: object) -> str:
    """Show what `--set` gives a variable, without secrets."""
    hidden = secret_in(name, value) is not None
    return f"{name} = {'***' if hidden else printable(shortened(repr(value)))}"


def _target_words(plan: Plan) -> str:
    shown = printable(str(plan.target))
    if not plan.target.exists():
        return shown
    if plan.overwrite:
        return f"{shown}, replacing the file that is there"
    return f"{shown}, replacing the file that is there if it is as nbpipe wrote it"
