"""`nbpipe run`: run the pipeline of an exported module, and show how it goes."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from ..base.format import shortened
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    NbpipeError,
    UnknownKnobError,
    UnknownStageError,
    near_match,
)
from ..export.secrets import redacted
from ..loading import PipelineBuilder, file_of, module_of
from ..pipeline import Pipeline
from ..progress import progress
from ..run.run import Run
from ..show.snapshot import snapshot
from ..show.terminal import printable
from ..show.verdict.hang import hang_of
from .terminal import (
    DONE,
    BadUsageError,
    FailedError,
    emit,
    is_live,
    printable_lines,
    settings,
)

_LINE_S = 2.0  # between two lines of JSON [s]
_REFUSALS = (ArgumentError, ArgumentTypeError, UnknownStageError, UnknownKnobError)


def run(options: Namespace) -> int:
    """Do what the command line asks for."""
    pipe = pipeline_in(options.module, settings(options.set))
    try:
        way = _run_for_machines if options.json else _run_live if is_live() else _run_plainly
        way(pipe, options.epochs, autotune=options.autotune)
    except Exception as error:
        raise failed(error) from error
    return DONE


def pipeline_in(module: Path, changes: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline of a module, with these values for parameters and knobs."""
    if not module.is_file():
        raise BadUsageError(printable(_no_file(module)))
    knobs = {name: value for name, value in changes.items() if "." in name}
    try:
        builder = PipelineBuilder.of(file := file_of(module), _ran(file))
        given = {name: changes[name] for name in changes if name not in knobs}
        builder.check(given)
        pipe = _built(builder, given)
        for name, value in knobs.items():
            address, _, knob = name.rpartition(".")
            setattr(pipe[address], knob, value)
    except _REFUSALS as error:
        raise BadUsageError(str(error)) from error
    return pipe


def _ran(file: Path) -> ModuleType:
    try:
        return module_of(file)
    except (Exception, SystemExit) as error:
        raise failed(error) from error


def _built(builder: PipelineBuilder, given: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline; if it can be built without the settings, these are the cause."""
    try:
        return builder.pipeline(given)
    except _REFUSALS as error:
        if given and _builds(builder):
            raise
        raise failed(error) from error
    except (Exception, SystemExit) as error:
        raise failed(error) from error


def _builds(builder: PipelineBuilder) -> bool:
    try:
        builder.pipeline({})
    except Exception:  # noqa: BLE001  of the user's
        return False
    return True


def _no_file(module: Path) -> str:
    """Explain why a path is not a file, and suggest the path that may be meant."""
    if module.is_dir():
        return f"{module} is a folder; give the file in it, as {module / 'loader.py'}"
    return f"no file {module}{near_match(str(module), map(str, module.parent.glob('*.py')))}"


def failed(error: BaseException) -> FailedError:
    """Return an error of the user's code as the command shows it."""
    words = str(error) if isinstance(error, NbpipeError) else f"{type(error).__name__}: {error}"
    cause = error.__cause__
    told = "" if cause is None else f"{type(cause).__name__}: {cause}"
    if told not in words:
        words += f" (cause: {told})"
    details = "".join(traceback.format_exception(error))
    return FailedError(printable(shortened(redacted(words), 600)), printable_lines(details))


def _run_plainly(pipe: Pipeline, epochs: int, *, autotune: bool) -> None:
    with pipe.start(autotune=autotune) as started, telling_tuned(started), telling_hangs(started):
        for _ in progress(started, epochs=epochs):
            pass


@contextmanager
def telling_tuned(started: Run) -> Iterator[None]:
    """Report on stderr, at the end, what the tuner of a run did: values for `--set`."""
    yield
    tuner = started.tuner
    if tuner is None:
        return
    state = tuner.state
    tuner.stop()  # a trial in progress is taken back
    knobs = {
        f"{address}.{name}": knob
        for address, stage in started.stages.items()
        for name, knob in stage.knobs.items()
    }
    values = " ".join(
        f"--set {place}={knob.value}" for place, knob in knobs.items() if knob.value != knob.default
    )
    sys.stderr.write(f"{printable(f'autotune: {state}; {values}'.removesuffix('; '))}\n")
    sys.stderr.flush()


@contextmanager
def telling_hangs(started: Run, every_s: float = 2.0) -> Iterator[None]:
    """Report on stderr, once for each, that a call hangs: meanwhile there are no other lines.

    Args:
        started: the run that is iterated inside the `with` block.
        every_s: time between two looks [s].
    """
    over = threading.Event()

    def watch() -> None:
        last: object = None
        while not over.wait(every_s):
            hang = hang_of(started.stages, started.stats())
            which = None if hang is None else (hang.stages, hang.item)
            if hang is not None and which != last:
                last, place = which, started._core.place(hang.stages[-1])
                found = hang.diagnosis(started.stages, started.status(), place)
                sys.stderr.write(f"{printable(str(found))}\n")
                sys.stderr.flush()

    watcher = threading.Thread(target=watch, name="nbpipe-hangs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _run_live(pipe: Pipeline, epochs: int, *, autotune: bool) -> None:
    from .screen import Screen

    with pipe.start(autotune=autotune) as started, telling_tuned(started):
        screen = Screen(started, epochs)
        with screen.shown():
            while screen.table.begun < epochs and not screen.quitting:
                screen.table.begun += 1
                for _ in started:
                    if screen.quitting:  # pressed where `stop` found no epoch in progress
                        break


def _run_for_machines(pipe: Pipeline, epochs: int, *, autotune: bool) -> None:
    """Write a line of JSON now and then, and at the end of each epoch."""
    with pipe.start(autotune=autotune) as started, telling_tuned(started), telling_hangs(started):
        for _ in range(epochs):
            next_s = monotonic() + _LINE_S
            try:
                for _ in started:
                    if monotonic() >= next_s:
                        next_s = monotonic() + _LINE_S
                        _emit_snapshot(started)
            except Exception:
                _emit_snapshot(started)
                raise
            _emit_snapshot(started)


def _emit_snapshot(started: Run) -> None:
    emit(json.dumps(snapshot(started, changes=False, failures=False), allow_nan=False))
