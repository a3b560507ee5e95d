"""Scheduler: one lock, one pool of threads, limits that are plain integers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter_ns

from ..base.threads import no_thread
from ..executors.coroutine import EventLoop
from ..executors.interface import Work
from ..executors.stack import Place
from ..executors.thread import ThreadPool, WorkerThread
from .epoch import LOG, Epoch, discard
from .measures.counters import BLOCKED, SLOW_NS, StageRuntime
from .measures.trace import TraceEvents
from .nodes.expand import Readers
from .nodes.node import MEASURE_NS, Task
from .read_ahead import NextEpoch
from .ticker import Ticker
from .wakeups import is_attended, take_again

# A thread comes back once for each task. Under the lock it hands in the results, updates the
# counters and takes the next task: that of the most downstream stage that has input, a free slot
# and room. Each task that was taken has a place for its results, so no thread ever waits on a full
# queue, and a limit changes by an assignment and a wake-up.
FOUND, WAIT, OVER = "found", "wait", "over"
_FEW = 2  # batches that are ready when a rest of the workers ends
_LAST_TICK_S = 1.0  # a tick takes less: it runs no user code


class Scheduler:
    """Moves the items of one run: a thread hands in a task, takes the next one, and runs it.

    Attributes:
        lock: held for every change of the engine's state.
        runtimes: limits and counters by address.
        epoch: the epoch in progress, or None.
        ahead: the one after it, if that is read ahead; else None.
        epochs: those of the two that there are, in the order in which they get threads.
        paused: nothing may start.
        held: workers rest for a moment: no call of a function may start.
        sample: keeps the counters now and then; returns when it is due again [ns].
        ticker: looks after tasks that may hold results back.
        loop: runs the coroutines.
        trace: takes every task that ends; None without a trace.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # garbage that is found below us may look at the run
        self.runtimes: dict[str, StageRuntime] = {}
        self.epoch: Epoch | None = None
        self.ahead: NextEpoch | None = None
        self.epochs: tuple[Epoch, ...] = ()
        self.paused = self.held = False
        self.sample: Callable[..., int] = lambda now_ns, **_: now_ns + (1 << 62)
        self.trace: TraceEvents | None = None
        self._held_until_ns = self._next_sample_ns = 0
        self._due_ns = 0  # from here on, something is to be done when a task ends
        self._pool = ThreadPool(self)
        self._dismissed: list[WorkerThread] = []
        self._readers = Readers(self._pool.bind)
        self.loop = EventLoop(self)
        self.ticker = Ticker(lambda: self.change(self._tick))
        self._running: set[Task] = set()  # on the event loop
        self._left_waiting = False  # since the last tick

    # -- what there is to work on ---------------------------------------------------------
    def work_on(self, epoch: Epoch | None, ahead: NextEpoch | None) -> None:
        """Take work from these epochs from here on; under the lock."""
        self.epochs = tuple(one for one in (epoch, ahead) if one is not None)
        self.epoch, self.ahead = epoch, ahead

    def limit_threads(self) -> None:
        """Let there be as many threads as the limits ask for; under the lock.

        An interrupt may have kept some from starting, or left the ticker asleep.
        """
        self.ticker.recover()
        self._pool.recover()
        runtimes = self.runtimes.values()
        local = [one.concurrency for one in runtimes if one.stage.executor != "coroutine"]
        self._pool.limit = sum(local) + 1

    def hold(self, until_ns: int) -> None:
        """Let no call of a function begin until then; 0 lets them begin; under the lock."""
        self._held_until_ns = until_ns
        self.held = until_ns > 0
        for epoch in self.epochs:
            epoch.hold(held=self.held)
        if self.held:
            self.ticker.attend()

    def note_states(self, now_ns: int) -> None:
        """Note why the slots of each stage are idle; under the lock."""
        for node in () if self.epoch is None else self.epoch.order:
            node.runtime.account(now_ns)
            node.runtime.state = node.state()

    # -- a task's way: handed in, the next one taken --------------------------------------
    def advance(self, done: Work | None, worker: WorkerThread) -> Work | None:
        """Hand in a task and take the next one; called by the pool's threads."""
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
                elif following.watched and self.ticker.asleep:
                    self.ticker.attend()
                if following is None:
                    others = worker.bound  # they continue with the items it gave
                else:
                    others = not (again or following.cheap or following.node.remote)
                if others and not self._pool.coming:
                    new_worker = self._wake(now_ns)
                elif self._readers.of:
                    self._readers.call()
                epoch = self.epoch
                if epoch is not None:
                    if epoch.output.waiting:
                        epoch.output.notify()
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
        """Complete the task of a thread, or note that the thread is awake; return the time [ns]."""
        if task is None:
            self._pool.woken(worker)
            return perf_counter_ns()
        now_ns, past = task.ended_ns, task.node.epoch
        task.node.complete(task)
        if past.tended or now_ns >= self._due_ns or past is not self.epoch:
            self._completed(task, now_ns)
        if task.iterator is not None:
            self._readers.complete(task.node, task.iterator, worker)
        return now_ns

    def _next(
        self, task: Task | None, worker: WorkerThread, now_ns: int
    ) -> tuple[Task | None, bool]:
        """Return the next task of a thread, and whether the thread stays at its stage."""
        following, epoch = task and task.following, self.epoch
        if following or worker.dismissed or self.paused:
            return following, False
        if worker.bound:
            return None if self.held else self._read_on(worker, now_ns), False
        if task and task.node.epoch is epoch and not self.held:
            again = take_again(task.node, now_ns)
            if again is not None:
                return again, True
        for one in self.epochs:
            following = one.take(now_ns)
            if following is not None:
                break
        return following, False

    def _read_on(self, worker: WorkerThread, now_ns: int) -> Task | None:
        """Choose the next task of the iterator that a thread has open."""
        node, iterator = self._readers.of[worker]
        for epoch in self.epochs:
            if epoch is node.epoch and not iterator.unwanted:
                return epoch.read_on(node, iterator, now_ns)
        return None

    def _let_go(self, worker: WorkerThread) -> bool:
        """Close the iterator of this thread if it is unwanted; return whether it was."""
        _, iterator = self._readers.of[worker]
        if not (iterator.unwanted or worker.dismissed):
            return False
        discard(iterator.close_here)
        with self.lock:
            self._readers.release(worker)
        return True

    def _submit(self, first: Task, now_ns: int) -> None:
        """Send a task to the event loop, with all others that may start there."""
        with self.lock:
            remote = [first, *self._take_remote(now_ns)]
            self._running.add(first)
        try:
            self.loop.submit(remote)
        except RuntimeError as error:
            with self.lock:
                for task in remote:
                    self._running.discard(task)
                    task.node.runtime.occupy(-1, perf_counter_ns())
                    task.node.running -= 1
                self._fail(no_thread("the event loop of this run", error))

    def exchange(self, done: Sequence[Work]) -> Sequence[Work]:
        """Hand in the tasks that ended in a turn of the event loop, and return the next tasks."""
        tasks: Sequence[Task] = done  # type: ignore[assignment]
        for task in tasks:
            task.let_go()
        following: list[Task] = []

        def hand_in(now_ns: int) -> None:
            for task in tasks:
                self._running.discard(task)
                task.node.complete(task)
                past = task.node.epoch
                if past.tended or now_ns >= self._due_ns or past is not self.epoch:
                    self._completed(task, now_ns)
            following.extend(self._take_remote(now_ns))

        self.change(hand_in)
        return following

    def _take_remote(self, now_ns: int) -> list[Task]:
        """Take all tasks that may start on the event loop."""
        taken: list[Task] = []
        for epoch in () if self.paused or self.held else self.epochs:
            while (task := epoch.take(now_ns, remote=True)) is not None:
                taken.append(task)
                if task.watched and self.ticker.asleep:
                    self.ticker.attend()
        self._running.update(taken)
        return taken

    def _completed(self, task: Task, now_ns: int) -> None:
        """Do what is due after a task has ended."""
        node = task.node
        past, epoch = node.epoch, self.epoch
        if self.trace is not None:
            self.trace.add(task)
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
            self._due_ns = self._next_sample_ns if self.trace is None else 0
            epoch.forget()

    def trace_to(self, trace: TraceEvents | None) -> None:
        """Begin to give ended tasks to a trace, or end it."""
        with self.lock:
            self.trace, self._due_ns = trace, 0

    # -- waking ---------------------------------------------------------------------------
    def _wake(self, now_ns: int) -> WorkerThread | None:
        """Wake a thread if there is work for it; return a worker if a new thread has to start."""
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
                    continue  # the next thread to come back does it, as no stage below starves
                if is_attended(node, now_ns):
                    self._leave_waiting()
                elif node.runnable():
                    return self._pool.unpark()
        return None

    def _leave_waiting(self) -> None:
        """Leave what may start to a thread that is about to come back; see at a tick if it did."""
        self._left_waiting = True
        if self.ticker.asleep:
            self.ticker.attend()

    def change(self, change: Callable[[int], object]) -> None:
        """Change something under the lock, and wake the threads that may continue."""
        now_ns = perf_counter_ns()
        with self.lock:
            change(now_ns)
            worker = self._wake(now_ns)
            if self.epoch is not None:
                self.epoch.output.notify()
            dropped = [one for epoch in self.epochs for one in epoch.take_deferred()]
        del dropped  # without the lock
        if worker is not None:
            self._pool.start(worker)

    def _tick(self, now_ns: int) -> None:
        """Publish the results that long tasks hold back; called at each tick."""
        watched = [task for task in self.at_work() if task.watched]
        for task in watched:
            if task.started_ns and now_ns - task.started_ns > self.ticker.period_ns // 2:
                task.node.publish_partial(task, now_ns)
                if task.node.epoch.memory is not None:
                    task.node.epoch.memory.reestimate(task.node)
        epoch = self.epoch
        if epoch is not None and not epoch.over:
            epoch.output.recount()
            if epoch.pumps:
                epoch.pump(now_ns)
        if self.held and now_ns >= self._held_until_ns:
            self.hold(0)
        if not (watched or self._left_waiting or self.held):
            self.note_states(now_ns)
            self.ticker.sleep()
        self._left_waiting = False

    # -- the loop -------------------------------------------------------------------------
    def have_next(self, epoch: Epoch) -> str:
        """Make the next item ready for the loop.

        Returns:
            FOUND: it is ready. WAIT: wait at the gate of the output and ask again. OVER: there is
            none.
        """
        now_ns, output = perf_counter_ns(), epoch.output
        worker = dropped = None
        with self.lock:
            if output.at < output.until:  # an interrupt came before the loop had it
                return FOUND
            if output.is_over:
                return OVER
            found = output.hand_out(now_ns)
            if self.held and not (found and output.ready >= _FEW):
                self.hold(0)
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
        if last.runtime.state == BLOCKED:
            last.note_state(now_ns)
        worker = self._wake(now_ns)
        epoch.output.notify()  # a join may have moved items
        return worker

    # -- looking in -----------------------------------------------------------------------
    def at_work(self) -> list[Task]:
        """Return the tasks in progress, in the threads and on the event loop; under the lock."""
        in_threads = [work for work in self._pool.at_work() if isinstance(work, Task)]
        in_threads += [task.following for task in in_threads if task.following is not None]
        if not self._running:
            return in_threads
        return list({*in_threads, *self._running})  # one may be on its way to the event loop

    def threads_of(self, address: str) -> list[int]:
        """Return the threads in which calls of a stage are in progress."""

        def counts(work: Work) -> bool:
            if not isinstance(work, Task) or not work.started_ns or work.ended_ns:
                return False
            return work.node.runtime.address == address

        with self.lock:
            return self._pool.idents(counts)

    def place(self, task: Task) -> Place | None:
        """Return where in user code a task of a thread or of the event loop is."""
        return self.loop.place(task) if task.node.remote else self._pool.place(task)

    # -- the end --------------------------------------------------------------------------
    def crashed(self, error: BaseException) -> None:
        """End the epoch, as the engine itself failed: the loop must not wait for ever."""
        with self.lock:
            self._fail(error)
        if "interpreter shutdown" not in str(error):  # then no thread may start any more
            LOG.error("a worker failed outside user code: %s", type(error).__name__)

    def refused(self, worker: WorkerThread, error: RuntimeError) -> None:
        """Continue without a thread that could not be started; fail if there is no other."""
        with self.lock:
            if not self._pool.give_up(worker):
                self._fail(no_thread("the stages of this run", error))

    def _fail(self, error: BaseException) -> None:
        """End the epochs with an error of the engine; under the lock."""
        for epoch in self.epochs:
            epoch.fail_at_once(error)
            epoch.output.wake()

    def disown(self) -> None:
        """Do nothing any more: this process is a fork, and has no threads to release the lock."""
        self.lock = threading.RLock()
        self.work_on(None, None)

    def is_own_thread(self, ident: int) -> bool:
        """Return whether a thread works for this run."""
        return self._pool.has(ident) or self.loop.has(ident)

    def close(self, timeout_s: float) -> list[Task]:
        """End all threads; return the tasks of those that have not ended in time."""
        with self.lock:
            self._dismissed += self._pool.dismiss()
            self.ticker.dismiss()
        deadline_s = monotonic() + timeout_s
        late = self._pool.close(timeout_s, self._dismissed)
        late += self.loop.close(max(0.0, deadline_s - monotonic()))
        self.ticker.close(max(_LAST_TICK_S, deadline_s - monotonic()))
        return [work for work in late if isinstance(work, Task)]
