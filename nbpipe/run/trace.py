"""Trace: a file for Perfetto of what a run did and when."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO, cast, final

from ..base.checks import integer
from ..base.format import shortened
from ..base.knobs import KnobChange
from ..engine.epoch import LOG
from ..engine.measures.trace import EVENT_LOOP, TracedCall, TracedCalls, TraceEvents
from ..errors import ArgumentError, ArgumentTypeError, RunError
from ..ops.stage import LOOP

MOST_EVENTS = 200_000
_LIMIT = 5_000_000
_NAME = 120
_GZIP = ".gz"
Json = dict[str, Any]
Track = tuple[int, int]  # process id, number of the track


class Traceable(Protocol):
    """What a trace records."""

    def begin_trace(self, trace: TraceEvents) -> None:
        """Give a trace the calls of the stages and the waits of the loop."""

    def end_trace(self) -> list[TracedCalls]:
        """Give it no more; return the calls of other processes that run stages."""


@final
class Trace:
    """A trace that is being recorded; `close()` writes its file. Start one with `run.trace(path)`.

    Args:
        path: the file.
        events: the most calls of a process, and waits of the loop, that are kept.
        changes: gives the knob changes.

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
        changes: Callable[[], Iterable[KnobChange]],
    ) -> None:
        self.path = _file(path)
        self.closed = False
        self._events = TraceEvents(
            integer("trace events", events, minimum=1, maximum=_LIMIT, unit="calls")
        )
        self._changes = changes
        self._traced: weakref.WeakSet[Traceable] = weakref.WeakSet()

    def _follow(self, traced: Traceable) -> None:
        self._traced.add(traced)
        traced.begin_trace(self._events)

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
        others = [calls for one in tuple(self._traced) for calls in one.end_trace()]
        with _replaced(self.path) as out:
            _write(out, self._events, others, self._changes())

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "written" if self.closed else "recording; close() writes the file"
        return f"Trace({str(self.path)!r}, {state})"


@final
class Traces:
    """The traces of a run, one after the other."""

    def __init__(self) -> None:
        self._newest: Trace | None = None

    def begin(
        self,
        path: str | os.PathLike[str],
        events: int,
        changes: Callable[[], Iterable[KnobChange]],
        traced: Iterable[Traceable],
    ) -> Trace:
        """Begin a trace.

        Raises:
            RunError: one is in progress.
            ArgumentError, ArgumentTypeError: the file cannot be written there, or `events` is out
                of range.
        """
        before = self._newest
        if before is not None and not before.closed:
            raise RunError(
                f"this run already records a trace to {str(before.path)!r}; close() it first"
            )
        self._newest = trace = Trace(path, events, changes)
        for one in traced:
            trace._follow(one)
        return trace

    def follow(self, traced: Traceable) -> None:
        """Record that as well, if a trace is in progress."""
        if self._newest is not None and not self._newest.closed:
            self._newest._follow(traced)

    def close(self) -> None:
        """Write the trace in progress: the run has ended."""
        try:
            if self._newest is not None:
                self._newest.close()
        except OSError as error:
            LOG.warning("the trace cannot be written: %s", error)


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


def _write(
    out: TextIO, events: TraceEvents, others: Iterable[TracedCalls], changes: Iterable[KnobChange]
) -> None:
    """Write a trace as Perfetto, chrome://tracing and torch's tools read it."""
    own, waits = events.traced(), events.waits.copy()
    processes = [own, *others]
    calls_left_out = sum(one.left_out for one in processes)
    waits_left_out = events.waited - len(waits)
    about = {"calls_left_out": calls_left_out, "waits_left_out": waits_left_out}
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
    found = _EventWriter(out, events.begun_ns, own.pid)
    found.process(own.pid, "nbpipe")
    found.track(own.pid, _LOOP_TRACK, LOOP)
    for begun_ns, ended_ns in waits:
        found.slice((own.pid, _LOOP_TRACK), "waits for data", begun_ns, ended_ns)
    for one in processes:
        if one is not own:
            found.process(one.pid, f"stages {one.pid}")
        _add_threads(found, one)
    for one in processes:
        _add_workers(found, one.calls)
    for change in changes:
        at_ns = round(1e9 * change.when_s) - events.begun_unix_ns
        if at_ns >= 0:
            found.mark(change, at_ns)
    if calls_left_out or waits_left_out:
        found.note(
            f"{calls_left_out:,} earlier calls and {waits_left_out:,} earlier waits left out"
        )
    out.write("\n]}\n")


def _add_threads(found: _EventWriter, traced: TracedCalls) -> None:
    """Add a track for each thread of a process, and as many as coroutines need."""
    pid, tracks = traced.pid, itertools.count(_LOOP_TRACK + 1)
    threads = dict(zip(traced.threads, tracks, strict=False))
    for thread, track in threads.items():
        found.track(pid, track, traced.threads[thread])
    for call in traced.calls:
        if call.thread != EVENT_LOOP:
            found.call((pid, threads[call.thread]), call, call.started_ns, call.ended_ns)
    lanes = _lanes([one for one in traced.calls if one.thread == EVENT_LOOP])
    for number, (lane, track) in enumerate(zip(lanes, tracks, strict=False), 1):
        found.track(pid, track, f"coroutine {number}")
        for call in lane:
            found.call((pid, track), call, call.started_ns, call.ended_ns)


def _lanes(calls: Iterable[TracedCall]) -> list[list[TracedCall]]:
    """Lay out calls that overlap in as many tracks as there were at once."""
    lanes: list[list[TracedCall]] = []
    for one in calls:
        free = (lane for lane in lanes if lane[-1].ended_ns <= one.started_ns)
        lane = next(free, None)
        if lane is None:
            lanes.append([one])
        else:
            lane.append(one)
    return lanes


def _add_workers(found: _EventWriter, calls: Iterable[TracedCall]) -> None:
    """Add a process for each worker: its calls end when their results came."""
    by_worker: dict[int, list[TracedCall]] = {}
    for one in calls:
        if one.worker[0]:
            by_worker.setdefault(one.worker[0], []).append(one)
    for pid, own in by_worker.items():
        found.process(pid, f"worker {pid}")
        found.track(pid, pid, own[0].name)
        until_ns = 0
        for one in sorted(own, key=lambda call: call.worker[1]):
            ended_ns = one.worker[1]
            started_ns = max(until_ns, ended_ns - one.busy_ns)
            found.call((pid, pid), one, started_ns, ended_ns)
            until_ns = ended_ns


@final
class _EventWriter:
    """Writes the events of a file, one a line.

    Args:
        out: where to.
        zero_ns: its time 0; what began earlier begins there.
        pid: of the process with the training loop.
    """

    def __init__(self, out: TextIO, zero_ns: int, pid: int) -> None:
        self._out = out
        self._between = ""
        self._zero_ns = zero_ns
        self._pid = pid
        self._processes = itertools.count()

    def _put(self, event: Json) -> None:
        self._out.write(self._between + json.dumps(event, separators=(",", ":")))
        self._between = ",\n"

    def process(self, pid: int, name: str) -> None:
        """Name a process; they are shown in this order."""
        self._about(pid, _LOOP_TRACK, "process_name", name=name)
        self._about(pid, _LOOP_TRACK, "process_sort_index", sort_index=next(self._processes))

    def track(self, pid: int, number: int, name: str) -> None:
        """Name a track; those of a process are shown by their numbers."""
        self._about(pid, number, "thread_name", name=shortened(name, _NAME))
        self._about(pid, number, "thread_sort_index", sort_index=number)

    def _about(self, pid: int, track: int, what: str, **args: object) -> None:
        self._put({"ph": "M", "pid": pid, "tid": track, "name": what, "args": args})

    def call(self, track: Track, one: TracedCall, started_ns: int, ended_ns: int) -> None:
        """Add a call."""
        args: Json = {"items": one.items}
        if one.place:
            args["item" if one.items <= 1 else "first item"] = one.place
        self.slice(track, shortened(one.name, _NAME), started_ns, ended_ns, args)

    def slice(
        self, track: Track, name: str, started_ns: int, ended_ns: int, args: Json | None = None
    ) -> None:
        """Add a slice; one that began before the trace begins with it."""
        begin_ns = max(0, started_ns - self._zero_ns)
        found = {
            "ph": "X",
            "pid": track[0],
            "tid": track[1],
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
