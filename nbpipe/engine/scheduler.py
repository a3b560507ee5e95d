"""Scheduler: one lock, one pool of threads, limits that are plain integers."""

from __future__ import annotations

import dataclasses
import threading
from _thread import allocate_lock
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, perf_counter_ns

from ..base.threads import Latch, holds, in_new_thread, no_thread, uninterrupted
from ..executors.coroutine import EventLoop
from ..executors.interface import Work
from ..executors.thread import ThreadPool, WorkerThread
from ..ops.device import Devices
from ..ops.stage import Chain, Stage
from .build import Builder
from .epoch import LOG, Epoch, Memory, discard
from .expand import Readers
from .external import ExternalOrder, Feed, external_chain
from .failures import Failure
from .fused import FusedStages
from .node import MEASURE_NS, Node, StageStates, Task
from .read_ahead import NextEpoch
from .stats import BLOCKED, PACE_NS, SLOW_NS, StageRuntime, StageStats
from .step import EpochContext

# -- Ticker: looks after cheap tasks that turned slow; alive only while such tasks run -------------
_PERIOD_S = 0.01


class Ticker:
    """A thread that calls `tick` every 10 ms while there is something to look after.

    Attributes:
        asleep: nothing is looked after; `attend` wakes the thread.

    `attend`, `recover`, `sleep` and `dismiss` are called under the scheduler's lock.
    """

    period_ns = int(_PERIOD_S * 1e9)

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._gate = allocate_lock()
        self._gate.acquire()
        self.asleep = False
        self._leave = Latch()
        self._entering = threading.Lock()
        self._thread: threading.Thread | None = None

    def attend(self) -> None:
        """Start ticking, unless it is under way."""
        if self.asleep:
            self.asleep = False
            self._wake()

    def recover(self) -> None:
        """Wake a thread that an interrupt of `attend` left asleep."""
        if not self.asleep:
            self._wake()

    def _wake(self) -> None:
        if self._gate.locked():  # open where the thread had not noticed that it may sleep
            self._gate.release()

    def sleep(self) -> None:
        """Stop ticking when the tick in progress is over."""
        self.asleep = True

    def start(self) -> None:
        """Start the thread at the first epoch; called without the lock."""
        if self._thread is None:
            uninterrupted(self._start)

    def _start(self) -> None:
        with self._entering:
            if self._thread is None:  # an interrupt may have ended the wait of an earlier call
                thread = threading.Thread(target=self._serve, name="nbpipe-ticker", daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while not self._leave.wait(_PERIOD_S):
            self._tick()
            while self.asleep and not self._leave.is_open:
                self._gate.acquire()

    def dismiss(self) -> None:
        """Tell the thread to leave."""
        self._leave.open()
        self.asleep = False
        self._wake()

    def close(self, timeout_s: float) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)


# -- Look at a scheduler: counters of every stage, and what is in progress, at one moment ----------
def snapshot(scheduler: Scheduler, now_ns: int) -> list[tuple[StageRuntime, int, int]]:
    """Return the runtime of every stage, the results behind it, the time of its running calls [ns].

    The states of cheap stages are up to date then. Called under the lock.
    """
    waiting: dict[int, int] = {}
    if scheduler.epoch is not None:
        for node in scheduler.epoch.order:
            node.runtime.account(now_ns)
            node.runtime.state = node.state()
            waiting[id(node.runtime)] = node.queued()
    spent: dict[int, int] = {}
    for task in scheduler.at_work():
        if task.started_ns and not task.ended_ns and not task.node.shares_workers:
            key = id(task.node.runtime)
            spent[key] = spent.get(key, 0) + max(0, now_ns - task.started_ns)
    return [
        (runtime, waiting.get(id(runtime), 0), spent.get(id(runtime), 0))
        for runtime in scheduler.runtimes.values()
    ]


def oldest(
    scheduler: Scheduler, now_ns: int, epoch: Epoch | None = None
) -> dict[str, tuple[int, str]]:
    """Return for each stage with calls in progress the time of the oldest [ns], and its item.

    With `epoch`, only the calls of that epoch count. Called under the lock.
    """
    found: dict[str, tuple[int, Task]] = {}
    for task in scheduler.at_work():
        if not task.started_ns or task.ended_ns or epoch not in (None, task.node.epoch):
            continue
        node, runtime = task.node, task.node.runtime
        if task.step and not node.shares_workers:
            runtimes = (runtime, *node.rest_runtimes)
            runtime = runtimes[min(task.step, len(runtimes) - 1)]
        since_ns = max(task.started_ns, task.seen_ns)
        if since_ns < (found[runtime.address][0] if runtime.address in found else now_ns):
            found[runtime.address] = since_ns, task
    return {
        address: (now_ns - since_ns, task.node.item_of(task))
        for address, (since_ns, task) in found.items()
    }


def rows_of(
    scheduler: Scheduler, now_ns: int, ages: Mapping[str, tuple[int, str]]
) -> dict[str, StageStats]:
    """Return the stats of every stage that was built; `ages` are what `oldest` found. Locked."""
    return {
        runtime.address: runtime.stats(
            now_ns, queued, running_ns, ages.get(runtime.address, _NOTHING_RUNS)
        )
        for runtime, queued, running_ns in snapshot(scheduler, now_ns)
    }


_NOTHING_RUNS = (0, "")


def stats(scheduler: Scheduler, now_ns: int) -> dict[str, StageStats]:
    """Return the stats of every stage that was built.

    Between epochs they are those at the end of the last one, whatever is turned since then; the
    limits in force and the calls in progress are those of now.
    """
    with scheduler.lock:
        if scheduler.epoch is not None:
            rows = rows_of(scheduler, now_ns, oldest(scheduler, now_ns))
        else:
            for runtime in scheduler.runtimes.values():
                runtime.skip_time(now_ns)
            ages = oldest(scheduler, perf_counter_ns())  # what is in progress may be younger
            past = scheduler.past
            rows = _afterwards(scheduler, ages) if past else rows_of(scheduler, now_ns, ages)
    if not scheduler.fused_stages.serves:
        return rows
    return {address: _with_workers(scheduler, address, row) for address, row in rows.items()}


def _afterwards(scheduler: Scheduler, ages: Mapping[str, tuple[int, str]]) -> dict[str, StageStats]:
    """Return the stats at the end of the last epoch, with what is in force and in progress now."""
    rows = {}
    for address, runtime in scheduler.runtimes.items():
        past = scheduler.past[address]
        left = round(1e9 * past.oldest_s), past.oldest_item  # it may have been ended since
        age_ns, item = ages.get(address, left)
        rows[address] = dataclasses.replace(
            past,
            running=runtime.active,
            concurrency=runtime.concurrency,
            queued=0,
            prefetch=runtime.prefetch,
            oldest_s=age_ns / 1e9,
            oldest_item=item,
        )
    return rows


def _with_workers(scheduler: Scheduler, address: str, row: StageStats) -> StageStats:
    """Add the workers of a fused stage to the row of its first stage."""
    fused_stages = scheduler.fused_stages
    executor = fused_stages.executor(address)
    if executor is None:
        return row
    if not row.items_out and executor.starting >= max(1, executor.workers):
        # Their calls are in progress, but nothing is inside a function yet.
        row = dataclasses.replace(row, busy=0.0, starved=0.0, blocked=0.0, waiting=1.0)
    if fused_stages.head(address) != address:
        return row
    return dataclasses.replace(
        row,
        workers=executor.workers,
        worker_threads=executor.worker_threads,
        starting=executor.starting,
        memory_bytes=executor.memory_bytes,
    )


# -- Scheduler: one lock, one pool of threads, limits that are plain integers ----------------------
# A thread comes back once for each task. Under the lock it hands over its results, counts, and
# takes the next task: of the most downstream stage that has input, a free slot and room. A task
# that was taken has a place for its results, so no thread ever waits on a full queue, and to change
# a limit is an assignment and a wake-up.
FOUND, WAIT, OVER = "found", "wait", "over"
_ENOUGH, _FEW = 3, 2  # batches ready where a rest may begin, and where it ends
_LAST_TICK_S = 1.0  # a tick never takes so long: it holds no user code


class Scheduler:
    """Moves the items of one run, from its first epoch until it is closed.

    Attributes:
        runtimes: limits and counters by address.
        epoch: the epoch in progress, or None.
        ahead: the one after it, if that is read ahead; else None.
        epochs: those of the two that there are, in the order in which they get threads.
        paused: nothing may start.
        held: workers rest for a moment: no call of a function may start.
        memory_bytes: budget for what all buffers hold [bytes], or None.
        past: stats of all stages at the end of the last epoch; empty before.
    """

    def __init__(self, chain: Chain, *, seed: int, memory_bytes: int | None) -> None:
        self.lock = threading.RLock()  # garbage that is found below us may look at the run
        self.runtimes: dict[str, StageRuntime] = {}
        self.epoch: Epoch | None = None
        self.ahead: NextEpoch | None = None
        self.epochs: tuple[Epoch, ...] = ()
        self.paused = self.held = False
        self._held_ns = self._held_until_ns = 0
        self._before_pause: dict[str, StageStats] = {}  # when the last pause of the epoch began
        self._resumed_ns = 0
        self.remember: Callable[[Failure], None] = lambda _: None
        self.sample: Callable[..., int] = lambda now_ns, **_: now_ns + (1 << 62)
        self._chain = chain
        self._seed = seed
        self.memory_bytes = memory_bytes
        self.past: dict[str, StageStats] = {}
        self._next_sample_ns = 0
        self._pool = ThreadPool(self)
        self._readers = Readers(self._pool.bind)
        self._loop = EventLoop(self)
        self._ticker = Ticker(lambda: self._change(self._free))
        self._running: set[Task] = set()  # on the event loop
        self._left_waiting = False  # since the last tick
        self.fused_stages = FusedStages(seed, memory_bytes)
        self.devices = Devices()
        # So every runtime is there, and a cache of another chain is refused.
        self._build(self._new(0))

    def _new(self, number: int, *, external: bool = False) -> Epoch:
        memory = Memory(self.memory_bytes) if self.memory_bytes is not None else None
        remember = self._remember_external if external else self.remember
        context = EpochContext(self._seed, number)
        return Epoch(context, memory=memory, remember=remember, lock=self.lock)

    def _build(
        self,
        epoch: Epoch,
        external: ExternalOrder | None = None,
        node_state: StageStates | None = None,
    ) -> Builder:
        """Make the nodes of an epoch."""
        epoch.at_work = self.at_work
        chain = self._chain if external is None else external_chain(self._chain, external)
        builder = Builder(
            chain, epoch, self._runtime, self.fused_stages, node_state, devices=self.devices
        )
        builder.build()
        return builder

    def _remember_external(self, failure: Failure) -> None:
        """Remember a failed item of an epoch in an order from outside."""
        self.remember(failure.changed(external=True))

    def _next_epoch(self, before: Epoch) -> NextEpoch | None:
        """Build the epoch after this one; None if a cache must be complete before it."""
        context = EpochContext(self._seed, before.context.epoch + 1)
        epoch = NextEpoch(before, context, self.memory_bytes, self.lock)
        return epoch if self._build(epoch).replays else None

    def _runtime(self, address: str, stage: Stage, prefetch: int) -> StageRuntime:
        runtime = self.runtimes.get(address)
        if runtime is None:
            runtime = StageRuntime(address, stage, prefetch=prefetch, now_ns=perf_counter_ns())
            self.runtimes[address] = runtime
        elif not {"prefetch", "depth"} & stage.knobs.keys():
            runtime.prefetch = prefetch
        return runtime

    # -- epochs ---------------------------------------------------------------------------
    def start_epoch(
        self,
        number: int,
        external: ExternalOrder | None = None,
        node_state: StageStates | None = None,
        *,
        reads_ahead: bool = False,
    ) -> Epoch:
        """Build an epoch and let it begin, or let the one begin that was read ahead.

        Args:
            number: of the epoch.
            external: takes the place of the source's own order.
            node_state: where the stages stand, for an epoch that goes on in its middle.
            reads_ahead: the epoch behind it begins to fill when this one drains.
        """
        if self.epoch is not None:  # an interrupt hit its start or its end
            self.end_epoch(self.epoch)
        self.drop_ahead(unless=None if external is not None or node_state else number)
        self.fused_stages.prepare()
        with self.lock:  # what others drop from now on is not the epoch that begins
            ready = self.ahead
            self._work_on(None, None)
        try:
            epoch: Epoch | None = ready
            if epoch is None:
                epoch = self._new(number, external=external is not None)
                self._build(epoch, external, node_state)
            following = self._next_epoch(epoch) if reads_ahead else None
            if isinstance(external, Feed):
                external.wake = lambda: self._change(self._note_states)
            self._start_ticker()
            self._begin(epoch, following)
        except BaseException:
            if self.epoch is None:
                self._work_on(None, ready)
            raise
        return epoch

    def _work_on(self, epoch: Epoch | None, ahead: NextEpoch | None) -> None:
        """Take work from these epochs from here on."""
        self.epochs = tuple(one for one in (epoch, ahead) if one is not None)
        self.epoch, self.ahead = epoch, ahead

    def _start_ticker(self) -> None:
        try:
            self._ticker.start()
        except RuntimeError as error:
            raise no_thread("this run", error) from error

    def _begin(self, epoch: Epoch, following: NextEpoch | None) -> None:
        """Let an epoch begin; the one after it fills once this one drains."""
        now_ns = perf_counter_ns()
        with self.lock:
            self._work_on(epoch, following)
            for runtime in self.runtimes.values():
                counters = runtime.counters
                counters.before = counters.items_in, counters.items_out
            if isinstance(epoch, NextEpoch):
                epoch.promote(self.remember)
            for runtime in self.runtimes.values():
                runtime.skip_time(now_ns)
                runtime.counters.first_ns = runtime.counters.first_ns or now_ns
            self.held = False
            self._before_pause = {}
            self._hold_back()
            self._ticker.recover()
            self._limit_team()
            worker = self._wake(now_ns)
        self._start(worker)

    def end_epoch(self, epoch: Epoch) -> None:
        """Let nothing of this epoch start any more, and close the iterators it left open.

        To end it again does what an interrupt left undone; not while the next one is in progress.
        """
        now_ns, starting = perf_counter_ns(), self._starting()
        with self.lock:
            if not epoch.over:
                for runtime in self.runtimes.values():
                    runtime.account(now_ns)
                if self.epoch is epoch:
                    self.sample(now_ns, last=True)
                    self.past = self._last_rows(now_ns, starting)
            epoch.end()
            if self.epoch is epoch:
                self._hold(held=False)
                self._work_on(None, self.ahead)
                if self.ahead is not None:
                    self.ahead.rest(self.runtimes.values())
            epoch.output.wake()
            dropped = epoch.take_deferred()
        self._clear_up(epoch)
        del dropped
        if self.ahead is not None:
            self.ahead.before = None
        self._change(self._note_states)

    def _starting(self) -> set[str]:
        """Return the stages of which workers only start; without the lock: a pool has its own."""
        if not self.fused_stages.serves:
            return set()
        executors = {address: self.fused_stages.executor(address) for address in self.runtimes}
        return {
            address for address, executor in executors.items() if executor and executor.starting
        }

    def _last_rows(self, now_ns: int, starting: set[str]) -> dict[str, StageStats]:
        """Return the stats at the end of an epoch; in a pause, or just behind it, as before it."""
        ages, before = oldest(self, now_ns, self.epoch), self._before_pause
        ages = {address: age for address, age in ages.items() if address not in starting}
        rows = rows_of(self, now_ns, ages)
        if not (self.paused or now_ns - self._resumed_ns < PACE_NS):
            return rows
        return {
            name: row.at_the_pace_of(before[name]) if name in before else row
            for name, row in rows.items()
        }

    def drop_ahead(self, *, unless: int | None = None) -> None:
        """Let nothing of the epoch that is read ahead start any more, and forget it.

        Args:
            unless: where that is its number it stays.
        """
        ahead = self.ahead
        if ahead is None or (ahead.context.epoch == unless and not ahead.over):
            return
        with self.lock:
            ahead.end()
            dropped = ahead.take_deferred()
        self._clear_up(ahead)
        with self.lock:
            if self.ahead is ahead:  # else an interrupt came in between, and it is another one
                self._work_on(self.epoch, None)
        del dropped

    def _clear_up(self, epoch: Epoch) -> None:
        """Take back the calls of an epoch that is over, and close the iterators it left open."""
        self._loop.cancel(lambda work: isinstance(work, Task) and work.node.epoch is epoch)
        self.fused_stages.each(lambda executor: executor.cancel(epoch.context.epoch))
        epoch.clear_up()

    def _limit_team(self) -> None:
        self._pool.recover()
        local = [
            runtime for runtime in self.runtimes.values() if runtime.stage.executor != "coroutine"
        ]
        self._pool.limit = sum(runtime.concurrency for runtime in local) + 1

    # -- the source of tasks --------------------------------------------------------------
    def advance(self, done: Work | None, worker: WorkerThread) -> Work | None:
        """Hand in a task and take the next; called by the pool's threads."""
        task: Task | None = done  # type: ignore[assignment]
        if task is not None and task.ended_ns - task.node.runtime.measured_ns > MEASURE_NS:
            task.measure()
        while True:
            new_worker = _dropped = None
            with self.lock:
                now_ns = self._hand_in(task, worker)
                following, again = self._next(task, worker, now_ns)
                worker.work = following
                if following is None:
                    self._pool.park(worker)
                elif following.watched and self._ticker.asleep:
                    self._ticker.attend()
                if following is None:
                    others = worker.bound  # they go on with what it gave
                else:
                    others = not (again or following.cheap or following.node.remote)
                if others and not self._pool.coming:
                    new_worker = self._wake(now_ns)
                elif self._readers.of:
                    self._readers.call()
                epoch = self.epoch
                if epoch is not None:
                    if epoch.output.waiting:
                        epoch.output.notify(following, now_ns)
                    _dropped = epoch.take_deferred() if epoch.deferred_release else None
            if new_worker is not None:
                self._pool.start(new_worker)
            if task is not None and task.iterator is not None and task.node.epoch.over:
                discard(task.iterator.close_here)
            if following is None and worker.bound and self._let_go(worker):
                task = None
                continue
            if following is None or not following.node.remote:
                return following
            self._submit(following, now_ns)
            task = None

    def _hand_in(self, task: Task | None, worker: WorkerThread) -> int:
        """Settle what a thread has done, or note that it is awake; return the time [ns]."""
        if task is None:
            self._pool.woken(worker)
            return perf_counter_ns()
        now_ns, past = task.ended_ns, task.node.epoch
        task.node.complete(task)
        if past.tended or now_ns >= self._next_sample_ns or past is not self.epoch:
            self._completed(task.node, now_ns)
        if task.iterator is not None:
            self._readers.complete(task.node, task.iterator, worker)
        return now_ns

    def _next(
        self, task: Task | None, worker: WorkerThread, now_ns: int
    ) -> tuple[Task | None, bool]:
        """Choose what a thread does next, and tell whether it stays at the stage it was at."""
        following, epoch = task and task.following, self.epoch
        if following or worker.dismissed or self.paused:
            return following, False
        if worker.bound:
            return None if self.held else self._read_on(worker, now_ns), False
        if task and task.node.epoch is epoch and not self.held:
            again = task.node.take_again(now_ns)
            if again is not None:
                return again, True
        for one in self.epochs:
            following = one.take(now_ns)
            if following is not None:
                break
        return following, False

    def _read_on(self, worker: WorkerThread, now_ns: int) -> Task | None:
        """Choose the next task of the iterator that a thread is bound to."""
        node, iterator = self._readers.of[worker]
        for epoch in self.epochs:
            if epoch is node.epoch and not iterator.unwanted:
                return epoch.read_on(node, iterator, now_ns)
        return None

    def _let_go(self, worker: WorkerThread) -> bool:
        """Close the iterator of a thread, in it, if it is not wanted; tell whether it was."""
        _, iterator = self._readers.of[worker]
        if not (iterator.unwanted or worker.dismissed):
            return False
        discard(iterator.close_here)
        with self.lock:
            self._readers.release(worker)
        return True

    def _submit(self, first: Task, now_ns: int) -> None:
        """Send a task, and what else may start there, on to the event loop."""
        with self.lock:
            remote = [first, *self._take_remote(now_ns)]
            self._running.add(first)
        try:
            self._loop.submit(remote)
        except RuntimeError as error:
            with self.lock:
                for task in remote:
                    self._running.discard(task)
                    task.node.runtime.occupy(-1, perf_counter_ns())
                    task.node.running -= 1
                self._fail(no_thread("the event loop of this run", error))

    def exchange(self, done: Sequence[Work]) -> Sequence[Work]:
        """Hand in what ended in one turn of the event loop, take what may start; in its thread."""
        tasks: Sequence[Task] = done  # type: ignore[assignment]
        for task in tasks:
            task.let_go()
        following: list[Task] = []

        def hand_in(now_ns: int) -> None:
            for task in tasks:
                self._running.discard(task)
                task.node.complete(task)
                past = task.node.epoch
                if past.tended or now_ns >= self._next_sample_ns or past is not self.epoch:
                    self._completed(task.node, now_ns)
            following.extend(self._take_remote(now_ns))

        self._change(hand_in)
        return following

    def _take_remote(self, now_ns: int) -> list[Task]:
        """Take all that may start on the event loop."""
        taken: list[Task] = []
        for epoch in () if self.paused or self.held else self.epochs:
            while (task := epoch.take(now_ns, remote=True)) is not None:
                taken.append(task)
                if task.watched and self._ticker.asleep:
                    self._ticker.attend()
        self._running.update(taken)
        return taken

    def _completed(self, node: Node, now_ns: int) -> None:
        """Do what is due once a task was settled."""
        past, epoch = node.epoch, self.epoch
        if past.over:
            return
        if past.memory is not None:
            past.memory.ended(node)
        if epoch is None or past is not epoch:  # it is read ahead
            return
        if epoch.pumps:
            epoch.pump(now_ns)
        if now_ns >= self._next_sample_ns:
            self._next_sample_ns = self.sample(now_ns)
            epoch.forget()

    # -- waking ---------------------------------------------------------------------------
    def _wake(self, now_ns: int) -> WorkerThread | None:
        """Wake one thread if there is work for it; give a worker if a new one is to start."""
        if self.paused:
            return None
        if self._readers.of and not self.held:
            self._readers.call()
        if self._pool.coming is not None:
            return None
        for epoch in self.epochs:
            if not epoch.may_start:
                continue
            if epoch.pumps:
                epoch.pump(now_ns)
            for node in epoch.offered:
                if node.inbox.count < node.needs and not node.active_without_input:
                    continue
                runtime = node.runtime
                if runtime.active >= runtime.concurrency:
                    continue
                ready = node.out.count - node.gathers
                if ready > 0 and runtime.cost_ns <= SLOW_NS:
                    continue  # whoever comes next does it, unless what takes from it starves
                if node.is_attended(now_ns):
                    self._leave_waiting()
                elif node.runnable():
                    return self._pool.unpark()
        return None

    def _leave_waiting(self) -> None:
        """Leave what may start to a thread that is about to come back; see at a tick if it did."""
        self._left_waiting = True
        if self._ticker.asleep:
            self._ticker.attend()

    def _start(self, worker: WorkerThread | None) -> None:
        if worker is not None:
            self._pool.start(worker)

    def _change(self, change: Callable[[int], object]) -> None:
        """Change something under the lock, and wake whoever may go on."""
        now_ns = perf_counter_ns()
        with self.lock:
            change(now_ns)
            worker = self._wake(now_ns)
            if self.epoch is not None:
                self.epoch.output.notify(None, now_ns)
            dropped = [one for epoch in self.epochs for one in epoch.take_deferred()]
        del dropped  # without the lock
        self._start(worker)

    def _free(self, now_ns: int) -> None:
        """Free what is stuck in long tasks; called at each tick."""
        watched = [task for task in self.at_work() if task.watched]
        for task in watched:
            if task.started_ns and now_ns - task.started_ns > self._ticker.period_ns // 2:
                task.node.publish_partial(task, now_ns)
                if task.node.epoch.memory is not None:
                    task.node.epoch.memory.reestimate(task.node)
        epoch = self.epoch
        if epoch is not None and not epoch.over:
            epoch.output.recount()
            if epoch.pumps:
                epoch.pump(now_ns)
        if self.held and now_ns >= self._held_until_ns:
            self._hold(held=False)
        if not (watched or self._left_waiting or self.held):
            self._note_states(now_ns)
            self._ticker.sleep()
        self._left_waiting = False

    # -- live changes, from any thread ----------------------------------------------------
    def refresh(self) -> None:
        """Take over the knobs' values and wake whoever may go on."""
        if holds(self.lock):  # garbage has turned a knob, in the midst of something
            in_new_thread(self.refresh)
            return
        self._change(self._read_knobs)
        self.fused_stages.each(lambda executor: executor.trim())

    def _read_knobs(self, now_ns: int) -> None:
        for runtime in self.runtimes.values():
            if self.epoch is None:
                runtime.skip_time(now_ns)
            else:
                runtime.account(now_ns)
            runtime.read_knobs()
        self._limit_team()
        self._note_states(now_ns)

    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it go on."""
        self.paused = paused
        if holds(self.lock):
            in_new_thread(lambda: self._change(self._pause))
        else:
            self._change(self._pause)

    def _pause(self, now_ns: int) -> None:
        """Do what was said last: of two threads, either may come first."""
        epoch = self.epoch
        self._hold(held=False)
        if epoch is not None:
            if self.paused and not epoch.output.paused:
                self._before_pause = rows_of(self, now_ns, {})
            if epoch.output.paused and not self.paused:
                self._resumed_ns = now_ns
            if epoch.output.paused != self.paused:
                for runtime, _, running_ns in snapshot(self, now_ns):
                    runtime.counters.begin_window(now_ns, running_ns)
        self._hold_back()
        self._note_states(now_ns)

    def _hold_back(self) -> None:
        """Let nothing start in a pause, and let the loop have nothing."""
        for epoch in self.epochs:
            epoch.output.pause(paused=self.paused)

    # -- a rest of the workers ------------------------------------------------------------
    def hold(self, most_ns: int) -> bool:
        """Begin no further call for so long at most; return False where few items are ready."""
        now_ns = perf_counter_ns()
        with self.lock:
            if self.epoch is None or self.paused or self.epoch.output.ready < _ENOUGH:
                return False
            self._held_ns, self._held_until_ns = now_ns, now_ns + most_ns
            self._hold(held=True)
            self._ticker.attend()
        return True

    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while some are in progress, None if it is over."""
        with self.lock:
            if not self.held or self.epoch is None:
                return None
            at_work = [node.runtime for node in self.epoch.order if node not in self.epoch.offered]
            if any(runtime.active for runtime in at_work):
                return 0
            return max([self._held_ns, *(runtime.ended_ns for runtime in at_work)])

    def release(self) -> None:
        """Let calls begin again."""
        if self.held:
            self._change(lambda _: self._hold(held=False))

    def _hold(self, *, held: bool) -> None:
        self.held = held
        for epoch in self.epochs:
            epoch.hold(held=held)

    def _note_states(self, now_ns: int) -> None:
        if self.epoch is not None:
            for node in self.epoch.order:
                node.runtime.account(now_ns)
                node.runtime.state = node.state()

    # -- the consumer ---------------------------------------------------------------------
    def have_next(self, epoch: Epoch) -> str:
        """Have the next item FOUND at hand; WAIT: wait at the epoch's gate and ask again; OVER."""
        now_ns, output = perf_counter_ns(), epoch.output
        worker = dropped = None
        with self.lock:
            if output.at < output.until:  # an interrupt came before the loop had it
                return FOUND
            if output.is_over:
                return OVER
            found = output.hand_out(now_ns)
            if self.held and not (found and output.ready >= _FEW):
                self._hold(held=False)
                worker = self._wake(now_ns)
            elif not found or output.made_room():
                worker = self._room_made(epoch, now_ns)
            if epoch.deferred_release:
                dropped = epoch.take_deferred()
        del dropped
        if worker is not None:
            self._pool.start(worker)
        return FOUND if found else WAIT

    def _room_made(self, epoch: Epoch, now_ns: int) -> WorkerThread | None:
        last = epoch.output.last
        assert last is not None
        if last.comes_in_chunks(SLOW_NS) and any(task.cheap for task in self.at_work()):
            return None  # a thread is about to come back from cheap work, and will see
        if last.runtime.state == BLOCKED:
            last.note_state(now_ns)
        worker = self._wake(now_ns)
        epoch.output.notify(None, now_ns)  # a join may have moved items
        return worker

    # -- looking in -----------------------------------------------------------------------
    def at_work(self) -> list[Task]:
        """Return the tasks in progress, in the threads and on the event loop; under the lock."""
        in_threads = [work for work in self._pool.at_work() if isinstance(work, Task)]
        in_threads += [task.following for task in in_threads if task.following is not None]
        if not self._running:
            return in_threads
        return list({*in_threads, *self._running})  # one may be on its way to the event loop

    # -- the end --------------------------------------------------------------------------
    def crashed(self, error: BaseException) -> None:
        """Called when the machine itself failed: the consumer must not wait for ever."""
        with self.lock:
            self._fail(error)
        if "interpreter shutdown" not in str(error):  # then no thread may start any more
            LOG.error("a worker failed outside user code: %s", type(error).__name__)

    def refused(self, worker: WorkerThread, error: RuntimeError) -> None:
        """Called when a thread could not be started: go on with those there are, if any."""
        with self.lock:
            if not self._pool.give_up(worker):
                self._fail(no_thread("the stages of this run", error))

    def _fail(self, error: BaseException) -> None:
        """End the epoch in progress with an error of the machine; under the lock."""
        for epoch in self.epochs:
            epoch.fail_at_once(error)
            epoch.output.wake()

    def disown(self) -> None:
        """Do nothing any more: the threads, and whoever held the lock, are in another process."""
        self.lock = threading.RLock()
        self._work_on(None, None)

    def is_own_thread(self, ident: int) -> bool:
        """Tell whether a thread does work for this run."""
        return self._pool.has(ident) or self._loop.has(ident)

    def close(self, timeout_s: float) -> list[str]:
        """End everything; give the addresses of stages still inside user code."""
        self.drop_ahead()
        epoch = self.epoch
        if epoch is not None:
            self.end_epoch(epoch)
        with self.lock:
            workers = self._pool.dismiss()
            self._ticker.dismiss()
        deadline = monotonic() + timeout_s
        late = self._pool.close(timeout_s, workers)
        late += self._loop.close(max(0.0, deadline - monotonic()))
        self._ticker.close(max(_LAST_TICK_S, deadline - monotonic()))
        tasks = (work for work in late if isinstance(work, Task))
        inside = [task for task in tasks if task.started_ns and not task.ended_ns]
        killed = self.fused_stages.close(0 if late else timeout_s)  # it ends calls of its workers
        if killed:
            self._pool.close(_LAST_TICK_S, workers)
        for device in self.devices:
            device.close()
        return sorted({task.node.runtime.address for task in inside})
