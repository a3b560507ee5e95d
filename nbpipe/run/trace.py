"""Trace: a file for Perfetto of what a run did and when."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast, final

from ..base.checks import integer
from ..base.format import shortened
from ..base.knobs import KnobChange
from ..engine.engine import Engine
from ..engine.record import RunRecord
from ..engine.trace import EVENT_LOOP, TraceEvents, TraceSlice
from ..errors import ArgumentError, ArgumentTypeError, RunError
from ..ops.stage import LOOP

MOST_EVENTS = 200_000
_LIMIT = 5_000_000
_NAME = 120
_GZIP = ".gz"
Json = dict[str, Any]


@final
class Trace:
    """A trace that is being recorded; `close()` writes its file. Start one with `run.trace(path)`.

    Args:
        path: the file.
        events: the most calls, and waits of the loop, that are kept.
        engine: the stages.
        record: of the run; it has the waits of the loop and the knob changes.

    Attributes:
        path: the file.
        closed: whether it was written.

    Examples:
        >>> import nbpipe, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "trace.json")
        ...     with nbpipe.source(range(4)).map(abs).start() as run, run.trace(path) as trace:
        ...         numbers = list(run)
        ...     trace.closed, path.is_file()
        (True, True)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        events: int,
        engine: Engine,
        record: RunRecord,
    ) -> None:
        if engine.isolated_stages:
            raise RunError(
                "trace cannot see the stages of an isolated run: they are in a process of their "
                "own; start the run without isolate=True"
            )
        self.path = _file(path)
        self.closed = False
        self._events = TraceEvents(
            integer("trace events", events, minimum=1, maximum=_LIMIT, unit="calls")
        )
        self._engine, self._record = engine, record
        record.consumer.trace = self._events
        engine.scheduler.trace_to(self._events)

    def close(self) -> None:
        """End the trace and write its file; a second call does nothing.

        Raises:
            OSError: the file cannot be written.

        Examples:
            >>> import nbpipe, tempfile
            >>> with nbpipe.source(range(4)).start() as run, tempfile.TemporaryDirectory() as here:
            ...     trace = run.trace(f"{here}/trace.json.gz")
            ...     numbers = list(run)
            ...     trace.close()
        """
        if self.closed:
            return
        self.closed = True
        self._engine.scheduler.trace_to(None)
        self._record.consumer.trace = None
        with self._engine.scheduler.lock:
            changes = self._record.events.copy()
        with _replaced(self.path) as out:
            _write(out, self._events, changes)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "written" if self.closed else "recording; close() writes the file"
        return f"Trace({str(self.path)!r}, {self._events.calls:,} calls, {state})"


def _file(path: object) -> Path:
    """Check where a trace is to be written."""
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes) or not os.fspath(path):
        raise ArgumentTypeError(
            f'trace path must be a file, as a str or a Path, got {path!r}; write "trace.json"'
        )
    file = Path(os.fspath(path)).absolute()
    if file.is_dir():
        raise ArgumentError(f"trace path must be a file, got the folder {str(path)!r}")
    if not file.parent.is_dir():
        raise ArgumentError(
            f"trace path must be in a folder that exists, got {str(path)!r}; make it first"
        )
    if not os.access(file.parent, os.W_OK):
        raise ArgumentError(f"trace path must be in a folder that can be written, got {path!r}")
    return file


@contextmanager
def _replaced(file: Path) -> Iterator[TextIO]:
    """Open a file to write; it is written whole, or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as raw:
            packed = gzip.open(raw, "wb") if file.name.endswith(_GZIP) else raw  # noqa: SIM115
            with io.TextIOWrapper(cast("BinaryIO", packed), encoding="ascii") as out:
                yield out
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# -- The format: Trace Event JSON ------------------------------------------------------------------
# A process has tracks; a slice ("X") lies on a track, with its start and length in microseconds.
_LOOP_TRACK = 1  # Perfetto takes thread 0 for the idle one


def _write(out: TextIO, events: TraceEvents, changes: Iterable[KnobChange]) -> None:
    """Write a trace as Perfetto, chrome://tracing and torch's tools read it."""
    slices, waits = sorted(events.slices.copy(), key=itemgetter(1)), events.waits.copy()
    left_out = events.calls - len(slices), events.waited - len(waits)
    about = {"calls_left_out": left_out[0], "waits_left_out": left_out[1]}
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
    found = _EventWriter(out, events.begun_ns)
    found.process(os.getpid(), "nbpipe", 0)
    found.track(_LOOP_TRACK, LOOP)
    for begun_ns, ended_ns in waits:
        found.slice(_LOOP_TRACK, "waits for data", begun_ns, ended_ns)
    threads = {thread: number for number, thread in enumerate(events.threads, _LOOP_TRACK + 1)}
    for thread, number in threads.items():
        found.track(number, events.threads[thread])
    local = [one for one in slices if one.thread != EVENT_LOOP]
    for one in local:
        found.call(threads[one.thread], one, one.started_ns, one.ended_ns)
    remote = [one for one in slices if one.thread == EVENT_LOOP]
    for number, lane in enumerate(_lanes(remote), 1):
        track = _LOOP_TRACK + len(threads) + number
        found.track(track, f"coroutine {number}")
        for one in lane:
            found.call(track, one, one.started_ns, one.ended_ns)
    _add_workers(found, local)
    for change in changes:
        at_ns = round(1e9 * change.when_s) - events.begun_unix_ns
        if at_ns >= 0:
            found.mark(change, at_ns)
    if any(left_out):
        found.note(f"{left_out[0]:,} earlier calls and {left_out[1]:,} earlier waits left out")
    out.write("\n]}\n")


def _lanes(slices: Sequence[TraceSlice]) -> Iterator[list[TraceSlice]]:
    """Lay out slices that overlap in as many tracks as there were at once."""
    lanes: list[list[TraceSlice]] = []
    for one in slices:
        free = (lane for lane in lanes if lane[-1].ended_ns <= one.started_ns)
        lane = next(free, None)
        if lane is None:
            lanes.append([one])
        else:
            lane.append(one)
    return iter(lanes)


def _add_workers(found: _EventWriter, slices: Sequence[TraceSlice]) -> None:
    """Add a process for each worker: its calls end when their results came."""
    by_worker: dict[int, list[TraceSlice]] = {}
    for one in slices:
        if one.worker[0]:
            by_worker.setdefault(one.worker[0], []).append(one)
    for number, (pid, calls) in enumerate(by_worker.items(), 1):
        found.process(pid, f"worker {pid}", number)
        found.track(pid, calls[0].name, pid)
        until_ns = 0
        for one in sorted(calls, key=lambda call: call.worker[1]):
            ended_ns = one.worker[1]
            started_ns = max(until_ns, ended_ns - one.busy_ns)
            found.call(pid, one, started_ns, ended_ns, pid)
            until_ns = ended_ns


@final
class _EventWriter:
    """Writes the events of a file, one a line.

    Args:
        out: where to.
        zero_ns: its time 0; what began earlier begins there.
    """

    def __init__(self, out: TextIO, zero_ns: int) -> None:
        self._out = out
        self._between = ""
        self._zero_ns = zero_ns
        self._pid = os.getpid()

    def _put(self, event: Json) -> None:
        self._out.write(self._between + json.dumps(event, separators=(",", ":")))
        self._between = ",\n"

    def process(self, pid: int, name: str, place: int) -> None:
        """Name a process, and say where it is shown."""
        self._about(pid, _LOOP_TRACK, "process_name", name=name)
        self._about(pid, _LOOP_TRACK, "process_sort_index", sort_index=place)

    def track(self, number: int, name: str, pid: int | None = None) -> None:
        """Name a track; those of this process are shown by their numbers."""
        pid = self._pid if pid is None else pid
        self._about(pid, number, "thread_name", name=shortened(name, _NAME))
        self._about(pid, number, "thread_sort_index", sort_index=number)

    def _about(self, pid: int, track: int, what: str, **args: object) -> None:
        self._put({"ph": "M", "pid": pid, "tid": track, "name": what, "args": args})

    def call(
        self, track: int, one: TraceSlice, started_ns: int, ended_ns: int, pid: int | None = None
    ) -> None:
        """Add a call."""
        args: Json = {"items": one.items}
        if one.path is not None:
            args["item" if one.items <= 1 else "first item"] = str(one.path)
        self.slice(track, shortened(one.name, _NAME), started_ns, ended_ns, args, pid)

    def slice(  # noqa: PLR0917
        self,
        track: int,
        name: str,
        started_ns: int,
        ended_ns: int,
        args: Json | None = None,
        pid: int | None = None,
    ) -> None:
        """Add a slice; one that began before the trace begins with it."""
        begin_ns = max(0, started_ns - self._zero_ns)
        found = {
            "ph": "X",
            "pid": self._pid if pid is None else pid,
            "tid": track,
            "ts": begin_ns / 1e3,
            "dur": max(0, ended_ns - self._zero_ns - begin_ns) / 1e3,
            "name": name,
            "cat": "nbpipe",
        }
        self._put(found | ({"args": args} if args else {}))

    def mark(self, change: KnobChange, at_ns: int) -> None:
        """Mark a knob change."""
        args = {"by": shortened(change.by, _NAME), "why": shortened(change.why, _NAME)}
        name = f"{shortened(change.knob, _NAME)} {change.old} → {change.new}"
        self._instant(name, at_ns / 1e3, args)

    def note(self, text: str) -> None:
        """Write a note at the beginning."""
        self._instant(text, 0.0, {})

    def _instant(self, name: str, at_us: float, args: Json) -> None:
        found = {"ph": "i", "s": "p", "pid": self._pid, "tid": _LOOP_TRACK, "ts": at_us}
        self._put(found | {"name": name, "cat": "nbpipe", "args": args})
