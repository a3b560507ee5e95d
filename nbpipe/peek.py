"""Peek: a few items through a pipeline, in the calling thread, and what each stage made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import html
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, final

from .base.describe import Description, describe, thumbnail_png
from .base.format import format_seconds, html_table, shortened, text_table
from .base.gil import LockProbe, LockUse, is_locked
from .base.seeding import Entry
from .base.tree import children
from .engine.build import Builder
from .engine.epoch import Epoch
from .engine.measures.counters import StageRuntime
from .engine.nodes.failures import Failure
from .engine.nodes.map import CallRunner
from .engine.nodes.node import Task
from .engine.nodes.pumps import PumpNode, Selector
from .engine.nodes.step import EpochContext
from .executors.coroutine import EventLoop
from .executors.interface import Work
from .ops.cache import MemoryStore
from .ops.chain import absorbed
from .ops.index import LocalStore
from .ops.stage import Chain, Stage, address_book, addresses, changed

_HEAD = {  # by column, what it holds
    "stage": "name of the stage",
    "operation": "method that added it",
    "items": "items that it gave",
    "output": "type, shape and dtype of its first item",
    "range": "smallest and largest value of the arrays in it",
    "per call": "mean time of a call, without the first one",
    "note": "items that were skipped or tried again, and what was not run",
}
_FIELDS = 8  # fields of an item that are looked through for a picture
_WARM_UP_S = 1.0  # one more item is run for its times where all before took less [s]
_MOST_ITEMS = 1000  # run in order to see how long calls hold the interpreter lock,
_MOST_S = 2.0  # and for so long for each stage, but for the call in progress then [s]
_NAME = 60
_CLOSE_S = 5.0  # how long a coroutine may take to end once it is cancelled


def peek(chain: Chain, n: int, *, lock: bool = False) -> Peek:
    """Run items through `chain` until `n` came out; leave nothing running.

    It is the beginning of epoch 0 with seed 0. A cache is read, never written. Where a stage was
    called once, one more item is run, unless that takes long or may be waited for: the first call
    of a function opens, imports and compiles what later ones have. With `lock`, items are run again
    to see how long each function holds the interpreter lock.

    Raises:
        StageError: a stage failed before the last of the items, as in a run.
    """
    table = _Table(chain)
    engine = InlineEngine(chain, table)
    items = engine.items(n)
    uses = lock_uses(chain) if lock else {}
    return Peek(items=tuple(items), stages=tuple(table.rows(engine.runtimes, uses)))


# -- how long calls hold the interpreter lock ------------------------------------------------------
_NO_LOCK = "this Python has no interpreter lock: threads run side by side"
_ELSEWHERE = {  # why calls that are made elsewhere have no figure
    "process": "it runs in processes, which have a lock each",
    "dask": "it runs in the processes of a cluster",
    "coroutine": "its calls take turns on the event loop, in one thread",
    "device": "it is done for one batch after the other",
    "inline": "it is a part of the calls of the stage before it",
}


def lock_uses(chain: Chain, most_s: float = _MOST_S) -> dict[str, LockUse]:
    """Run the first items again, up to 1,000, and return the finding for each function's stage.

    Args:
        chain: the stages.
        most_s: longest time for each stage [s]; the call in progress then may take longer.
    """
    called = {name: one for name, one in addresses(chain).items() if one.spec.runs == "call"}
    if not is_locked():
        return dict.fromkeys(called, LockUse(why_none=_NO_LOCK))
    in_threads = [name for name, stage in called.items() if stage.executor == "thread"]
    found: Mapping[str, LockUse] = {}
    if in_threads:
        with LockProbe(in_threads) as probe:
            if probe.can_tell():
                _run_again(chain, probe, most_s * len(in_threads))
            found = probe.uses()
    return {name: found.get(name) or _no_use(stage) for name, stage in called.items()}


def _no_use(stage: Stage) -> LockUse:
    return LockUse(why_none=_ELSEWHERE.get(stage.executor, "it runs in an executor of yours"))


def _run_again(chain: Chain, probe: LockProbe, limit_s: float) -> None:
    """Run the epoch's items until enough is known, and begin again where there are few."""
    until_ns, left = perf_counter_ns() + int(1e9 * limit_s), _MOST_ITEMS

    def goes_on() -> bool:
        return not probe.is_over and perf_counter_ns() < until_ns

    with contextlib.suppress(Exception):  # a failure of a further item does not matter
        while left > 0 and goes_on():
            given = InlineEngine(chain, _Table(chain), probe.make).run(left, goes_on)
            left -= given or _MOST_ITEMS


@final
@dataclass(frozen=True, slots=True)
class StagePeek:
    """What one stage did.

    Attributes:
        address: name of the stage in its pipeline.
        op: word for its operation.
        items: items that it gave.
        calls: calls of its function, or reads of its source.
        time_s: mean time of a call [s], without the first one where there were others; 0.0 where
            there was none.
        output: type, shape, dtype and range of the first item, or the ranges of the arrays in it;
            None where there was none.
        thumbnail: PNG of the image in the first item, or None.
        note: what else there is to know: items skipped, calls tried again; "first call" where the
            time is that of the first; "not run" where a cache has what it would make, or a join
            after it reads by index.
        lock: how long a call holds the interpreter lock, of a stage that calls a function where
            that was asked for; else None.
    """

    address: str
    op: str
    items: int
    calls: int
    time_s: float
    output: Description | None
    thumbnail: bytes | None
    note: str
    lock: LockUse | None = None

    def row(self) -> list[str]:
        """Return the cells of a table."""
        shown = self.output
        return [
            self.address,
            self.op,
            str(self.items),
            "" if shown is None else shown.text,
            "" if shown is None else _range(shown),
            format_seconds(self.time_s) if self.time_s else "",
            self.note,
        ]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Peek:
    """What came out, and what each stage did; prints as a table.

    Attributes:
        items: the items that came out.
        stages: for each stage what it gave and how long a call took.
    """

    items: tuple[Any, ...]
    stages: tuple[StagePeek, ...]

    def _caption(self) -> str:
        counted = f"{_counted(self.items, 'item')} through {_counted(self.stages, 'stage')}"
        return counted if self.items else f"{counted}: {self._why_empty()}"

    def _why_empty(self) -> str:
        """Name the stage that gave nothing for its inputs."""
        giving = [place for place, stage in enumerate(self.stages) if stage.items]
        if not giving or giving[-1] + 1 == len(self.stages):
            return f"{self.stages[0].address} gave none"
        before, lost = self.stages[giving[-1] : giving[-1] + 2]
        return f"{lost.address} gave none for the {before.items:,} of {before.address}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        noted = any(stage.note for stage in self.stages)
        end = len(_HEAD) if noted else -1
        return list(_HEAD)[:end], [stage.row()[:end] for stage in self.stages]

    def _lock_lines(self) -> list[str]:
        """Return a sentence for each stage that was asked how long it holds the lock."""
        known = ((one.lock, shortened(one.address, _NAME)) for one in self.stages)
        return [lock.sentence(name) for lock, name in known if lock is not None]

    def __repr__(self) -> str:
        return "\n".join((self._caption(), text_table(*self._table()), *self._lock_lines()))

    def _repr_html_(self) -> str:
        pictures = [stage.thumbnail for stage in self.stages]
        caption = self._caption()
        table = html_table(*self._table(), caption=caption, pictures=pictures, hints=_HEAD)
        return table + "".join(f"<div>{html.escape(line)}</div>" for line in self._lock_lines())


def _counted(things: tuple[Any, ...], word: str) -> str:
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _range(shown: Description) -> str:
    """Tell the range of an array, or those of the arrays in an item."""
    if shown.shape is not None and shown.low is not None and shown.high is not None:
        return f"{shown.low:g} to {shown.high:g}"
    words = [f"{key} {low:g} to {high:g}".strip() for key, low, high in shown.parts]
    return ", ".join(words)


# -- what the stages made of the items -------------------------------------------------------------
@dataclass
class _StageNotes:
    """What is known of one stage so far."""

    items: int = 0
    output: Description | None = None
    thumbnail: bytes | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    calls: int = 0
    retries: int = 0
    first_ns: int | None = None  # time of the first call


class _Table:
    """Notes what each stage gives."""

    def __init__(self, chain: Chain) -> None:
        self._stages = addresses(chain)
        self._book = address_book(chain)
        self._notes = {address: _StageNotes() for address in self._stages}
        self._full = False
        # A source reads in the order that the stages right after it ask for: those have no work
        # of their own. By the source's address, each of them and how to get at its own item.
        self._together: dict[str, list[tuple[str, int]]] = {}
        for part, place in _parts(chain, ""):
            self._note_absorbed(part, place)

    def _note_absorbed(self, chain: Chain, place: str) -> None:
        _, used = absorbed(chain)
        group: list[tuple[str, int]] = []
        wrapped = 0
        for stage in reversed(chain[:used]):
            group.append((self._book[place + stage.name], wrapped))
            wrapped += stage.spec.numbers
        if used:
            self._together[self._book[place + chain[0].name]] = group

    def on_items(self, address: str, entries: Iterable[Entry]) -> None:
        """Note what a stage gave; the first item is described before anyone changes it."""
        for entry in () if self._full else entries:
            for name, wrapped in self._together.get(address, ((address, 0),)):
                noted = self._notes[name]
                noted.items += 1
                if noted.output is None:
                    value = entry[1]
                    for _ in range(wrapped):
                        value = value[1]
                    noted.output, noted.thumbnail = describe(value), _picture(value)

    def on_failure(self, failure: Failure) -> None:
        """Note an item that failed."""
        if not self._full:
            self._notes[failure.stage].failures.append(failure)

    def on_calls(self, runtimes: Mapping[str, StageRuntime]) -> None:
        """Note how often each stage was called by now, and how long the first call took."""
        for address, runtime in runtimes.items():
            counters, noted = runtime.counters, self._notes[address]
            if counters.busy_ns and noted.first_ns is None:
                noted.first_ns = counters.busy_ns // max(1, counters.items_in)
            if not self._full:
                noted.calls = counters.items_in if counters.busy_ns else 0
                noted.retries = counters.retries

    def fill(self) -> bool:
        """Note no more items, only times; return whether a stage was called but once."""
        self._full = True
        return any(noted.calls == 1 for noted in self._notes.values())

    def rows(
        self, runtimes: dict[str, StageRuntime], uses: Mapping[str, LockUse]
    ) -> Iterator[StagePeek]:
        """Return what was noted, stage by stage."""
        came = any(noted.items for noted in self._notes.values())
        for address, stage in self._stages.items():
            noted, time_s = self._notes[address], 0.0
            if noted.calls:
                counters = runtimes[address].counters
                later = counters.items_in - 1
                first_ns = noted.first_ns or 0
                time_s = (counters.busy_ns - first_ns) / later / 1e9 if later else first_ns / 1e9
                if not later:
                    noted.notes.append("first call")
            if noted.retries:
                noted.notes.append(f"{noted.retries} tried again")
            if came and not (noted.items or noted.calls or noted.failures):
                noted.notes.append("not run")
            if noted.failures:
                noted.notes.append(
                    f"{len(noted.failures)} skipped, last: {noted.failures[-1].error}"
                )
            yield StagePeek(
                address=address,
                op=stage.op,
                items=noted.items,
                calls=noted.calls,
                time_s=time_s,
                output=noted.output,
                thumbnail=noted.thumbnail,
                note="; ".join(noted.notes),
                lock=uses.get(address),
            )


def _parts(chain: Chain, place: str) -> Iterator[tuple[Chain, str]]:
    """Return a chain and all chains that are joined in it, with their places."""
    yield chain, place
    for stage in chain:
        for number, inner in enumerate(stage.inputs):
            yield from _parts(inner, place if stage.spec.branches else f"{place}{number}/")


def _picture(value: Any) -> bytes | None:
    """Draw the image that an item is, or the first one in its fields."""
    png = thumbnail_png(value)
    held = () if png else (child for _, child in (children(value) or [])[:_FIELDS])
    return png or next(filter(None, map(thumbnail_png, held)), None)


# -- one epoch worked off in the calling thread ----------------------------------------------------
# The nodes are built as for a run. Only, no threads ask them for work: one loop does, which always
# takes the most downstream work there is and lets no stage hold anything ready. So it does what a
# run does, and no more of it than the items need.
class InlineEngine:
    """Works off epoch 0 with seed 0; coroutines run on a loop that it closes again.

    Caches are read, but never written.

    Args:
        chain: the stages.
        table: notes what they do.
        around: makes a call of a stage, given its address; None makes it as it is.

    Attributes:
        runtimes: counters by address.
    """

    def __init__(
        self,
        chain: Chain,
        table: _Table,
        around: Callable[[str, Callable[[], object]], object] | None = None,
    ) -> None:
        self.runtimes: dict[str, StageRuntime] = {}
        self._table = table
        self._around = around
        self._loop = EventLoop(self)
        self._answered = allocate_lock()
        self._answered.acquire()
        self._crash: BaseException | None = None
        self._task: Task | None = None
        self._epoch = Epoch(EpochContext(0, 0), memory=None, remember=table.on_failure)
        sources = [stage for stage in addresses(chain).values() if stage.spec.runs == "source"]
        self._is_at_hand = all(one.inputs or one.spec.rows is not None for one in sources)
        Builder(read_only(chain), self._epoch, self._runtime).build()

    def _runtime(self, address: str, stage: Stage, prefetch: int) -> StageRuntime:
        runtime = self.runtimes.get(address)
        if runtime is None:
            runtime = StageRuntime(address, stage, prefetch=0, now_ns=perf_counter_ns())
            # One item at a time, whatever the knobs say.
            runtime.concurrency, runtime.prefetch = 1, 0
            self.runtimes[address] = runtime
        return runtime

    def items(self, n: int) -> list[Any]:
        """Return the first `n` items, or fewer where the epoch has fewer; then close everything."""
        given: list[Any] = []
        try:
            while len(given) < n and (entry := self._next()) is not None:
                given.append(entry[1])
            if len(given) == n and self._table.fill() and self._is_at_hand:
                self._warm_up()
        finally:
            self._close()
        return given

    def run(self, n: int, goes_on: Callable[[], bool]) -> int:
        """Run at most `n` items and note nothing; return how many came. Then close everything."""
        count = 0
        self._table.fill()
        try:
            while count < n and self._next(goes_on) is not None:
                count += 1
        finally:
            self._close()
        return count

    def _warm_up(self) -> None:
        """Run one more item, unless that takes long; what becomes of it is no matter."""
        busy_ns = sum(runtime.counters.busy_ns for runtime in self.runtimes.values())
        if busy_ns < _WARM_UP_S * 1e9:
            with contextlib.suppress(Exception):
                self._next()

    def _next(self, goes_on: Callable[[], bool] = lambda: True) -> Entry | None:
        epoch, output = self._epoch, self._epoch.output
        while goes_on():
            epoch.changed = False
            self._pump()
            if output.queue.count and not output.urgent:
                return output.queue.popleft()
            if output.exhausted:
                if output.error is not None:
                    raise output.error
                return None
            task = self._take()
            if task is not None:
                self._do(task)
            elif not epoch.changed:
                raise RuntimeError("no stage can continue, and none has ended: please report this")
        return None

    def _pump(self) -> None:
        """Make the joins move what they can, and note it."""
        epoch = self._epoch
        now_ns = epoch.now_ns = perf_counter_ns()
        moved = True
        while moved:
            moved = False
            for pump in tuple(epoch.pumps):
                before = pump.runtime.counters.items_out
                moved = pump.pump(now_ns) or moved
                fresh = pump.runtime.counters.items_out - before
                if fresh:
                    self._table.on_items(pump.runtime.address, list(pump.out)[-fresh:])

    def _take(self) -> Task | None:
        """Choose the most downstream work, but none for a join that waits for another input."""
        for runtime in self.runtimes.values():
            runtime.cost_ns = float("inf")  # or a task would be a chunk of several items
        now_ns = perf_counter_ns()
        wanted = {id(self._epoch.output.last)}
        for node in self._epoch.order:
            if id(node) not in wanted:
                continue
            task = node.take(now_ns)
            if task is not None:
                return task
            joins = isinstance(node, PumpNode)
            wanted.update(id(above) for above in node.upstream if not (joins and above.out))
        return None

    def _do(self, task: Task) -> None:
        node = task.node
        self._task = task
        if node.remote:
            self._loop.submit((task,))
            self._answered.acquire()
            if self._crash is not None:
                raise self._crash
        elif self._around is not None:
            self._around(node.runtime.address, task.run)
        else:
            task.run()
        for result in task.results:
            _raise_interrupt(result)
        runner = node.runner
        chooses = isinstance(runner, CallRunner) and isinstance(runner.first.fn, Selector)
        if not chooses:  # the items of a route show after what finds their branches
            self._table.on_items(node.runtime.address, runner.made(task))
        node.complete(task)
        self._table.on_calls(self.runtimes)
        self._task = None

    # -- what the event loop calls, in its thread
    def exchange(self, _done: Sequence[Work]) -> Sequence[Work]:
        """Called when the one call in progress has ended."""
        self._answered.release()
        return ()

    def crashed(self, error: BaseException) -> None:
        """Called when the loop itself failed."""
        self._crash = error

    def _close(self) -> None:
        epoch = self._epoch
        epoch.end()
        if self._task is not None and self._task.iterator is not None:
            epoch.pending_close.append(self._task.iterator)
        self._loop.close(_CLOSE_S)
        epoch.clear_up("a peek")


def _raise_interrupt(result: Any) -> None:
    """Raise the interrupt that hit a function: it was meant for this thread."""
    cause = getattr(getattr(result, "exception", None), "__cause__", None)
    if isinstance(cause, KeyboardInterrupt):
        raise cause


# -- caches are read, and never written ------------------------------------------------------------
def read_only(chain: Chain) -> Chain:
    """Return a chain that writes to caches of its own, and takes from no cursor of the ranks."""
    return tuple(map(_harmless, chain))


def _harmless(stage: Stage) -> Stage:
    spec: Any = stage.spec
    if spec.kept_in is not None and not spec.kept_in.complete:
        spec = dataclasses.replace(spec, store=MemoryStore())
    elif spec.claims:  # the other ranks keep what it would take
        spec = dataclasses.replace(spec, store=LocalStore())
    inputs = tuple(map(read_only, stage.inputs))
    if spec is stage.spec and inputs == stage.inputs:
        return stage
    return changed(stage, spec=spec, inputs=inputs)
