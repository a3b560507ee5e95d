"""Plan: what a notebook's export would run, set and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.format import shortened
from ..errors import near_match
from ..export.held import secret_in
from .notebook import PARAMETERS, CodeCell, Notebook
from .terminal import BadUsageError, printable


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

        That is the one tagged `parameters` where it assigns the variable, else the first that
        does.
        """
        found = [cell for cell in self.notebook.cells if name in cell.assigns]
        if not found:
            known = {one for cell in self.notebook.cells for one in cell.assigns}
            raise BadUsageError(
                f"no cell of {printable(self.notebook.path.name)} assigns {name!r}"
                f"{near_match(name, known)}; --set gives another value to a variable that a cell "
                "assigns outside of functions"
            )
        return next((cell for cell in found if PARAMETERS in cell.tags), found[0])

    def assignments_after(self, cell: CodeCell) -> str:
        """Return the lines to run after a cell: those that set variables, or nothing.

        Their text is to leave no trace: a module then has the new value in the place of the old
        one, with the comment that stands there.
        """
        names = [name for name in self.sets if self._setter(name) == cell]
        return "\n".join(f"{name} = {self.sets[name]!r}" for name in names)

    def warnings(self) -> Iterator[str]:
        """Tell what may not be as it was meant."""
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
    """Tell in words what would be run, set and written."""
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
