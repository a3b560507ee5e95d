"""What the tests of runs share: gates instead of sleeps, counted calls, an end to every hang."""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from tests import post

HANG_S = 40.0  # what takes longer hangs; nothing else is decided by this time


class HangError(AssertionError):
    """Something did not end; the message shows where every thread stood."""


def finished(function, *args):
    """Call a function in a thread and give what it returns or raises.

    Where it hangs, the time limit of the test ends the wait and shows where every thread stood.
    """
    outcome = []

    def call():
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, name="test-consumer", daemon=True)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def at_once(function, count):
    """Call a function in so many threads, and wait until all have ended."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: function(), range(count)))


def said_in_a_fork(function):
    """Call a function in a forked process; give the text it returns, or "hangs"."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:  # a copy of the tests that run: nothing may leave this block
        try:
            os.write(write, function().encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.close(write)
        ready, _, _ = select.select([read], [], [], HANG_S)
        return os.read(read, 10_000).decode() if ready else "hangs"
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def epochs(pipe, count=2):
    """Give the items of some epochs of one run."""
    with pipe.start() as run:
        return [list(run) for _ in range(count)]


def drained(items):
    """Give the list of all items, taken in a thread of its own."""
    return finished(list, items)


def delivered(items):
    """Give all items that came before the end, and the error that ended them, or None."""
    got = []

    def drain():
        for item in items:
            got.append(item)  # noqa: PERF402 - what came before an error counts

    try:
        finished(drain)
    except HangError:
        raise
    except Exception as error:
        return got, error
    return got, None


def stacks():
    """Give the stacks of all threads as text."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


def still_alive(threads, limit_s=HANG_S):
    """Wait for the end of threads, of those that only start too; give the names of those alive."""
    end_s = monotonic() + limit_s
    for thread in threads:
        while thread.ident is None and thread in threading.enumerate():  # it cannot be joined yet
            threading.Event().wait(0.001)
        if thread.ident is not None:
            thread.join(max(0, end_s - monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


class Gate:
    """Closed until it is opened; threads and coroutines wait at it."""

    def __init__(self, *, opened=False):
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._futures = []
        if opened:
            self._event.set()

    @property
    def is_open(self):
        return self._event.is_set()

    def open(self):
        with self._lock:
            self._event.set()
            futures, self._futures = self._futures, []
        for loop, future in futures:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future)

    def wait(self):
        if not self._event.wait(HANG_S):
            raise HangError(f"a gate was never opened\n{stacks()}")

    def __reduce__(self):
        return post.reach(self)  # in a worker process it is this very gate

    async def wait_async(self):
        import asyncio

        with self._lock:
            if self._event.is_set():
                return
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._futures.append((loop, future))
        await future


def _settle(future):
    if not future.done():
        future.set_result(None)


class Bell:
    """Rung by workers; the test waits for it and hears who rang: a number, and the process."""

    def __init__(self):
        self._changed = threading.Condition()
        self._rings = []

    def __reduce__(self):
        return post.reach(self)  # a worker rings this very bell

    def ring(self, word=0):
        """Say a number, and who rings."""
        self.rung(word, os.getpid())

    def rung(self, word, pid):
        """Hear that it is rung."""
        with self._changed:
            self._rings.append((word, pid))
            self._changed.notify_all()

    def wait(self, count=1):
        """Wait until it was rung so often; give the words and the processes of those who did."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._rings) >= count, HANG_S):
                raise HangError(f"a bell was not rung {count} times: {self._rings}\n{stacks()}")
            rings, self._rings = self._rings[:count], self._rings[count:]
        return rings

    def rings(self):
        """Give the rings that were not waited for so far."""
        with self._changed:
            rings, self._rings = self._rings, []
        return rings


class Calls:
    """Counts calls: begun, in progress, the most at once, and how often for each item."""

    def __init__(self):
        self._changed = threading.Condition()
        self.begun = 0
        self.running = 0
        self.peak = 0
        self.of = Counter()
        self.threads = set()

    def __reduce__(self):
        return post.reach(self)  # in a worker process it counts here

    def enter(self, item):
        with self._changed:
            self.begun += 1
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.of[item] += 1
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def leave(self):
        with self._changed:
            self.running -= 1
            self._changed.notify_all()

    def wait_begun(self, count):
        """Wait until `count` calls have begun."""
        self._wait(lambda: self.begun >= count, f"{count} calls begun")

    def wait_running(self, count):
        """Wait until exactly `count` calls are in progress."""
        self._wait(lambda: self.running == count, f"{count} calls in progress")

    def _wait(self, holds, what):
        with self._changed:
            if not self._changed.wait_for(holds, HANG_S):
                raise HangError(
                    f"never {what}: begun {self.begun}, running {self.running}\n{stacks()}"
                )


def stage(kind, *, result=lambda item: item, gate=lambda item: None, calls=None):
    """Make a stage's function that counts itself, waits at the item's gate, gives a result.

    Args:
        kind: one that ends with "coroutine" for an async function, another for a plain one.
        result: gives the result of an item, or raises.
        gate: gives the gate of an item, or None.
        calls: counts the calls.
    """
    calls = calls or Calls()

    def plain(item):
        calls.enter(item)
        try:
            if (closed := gate(item)) is not None:
                closed.wait()
            return result(item)
        finally:
            calls.leave()

    async def coroutine(item):
        calls.enter(item)
        try:
            if (closed := gate(item)) is not None:
                await closed.wait_async()
            return result(item)
        finally:
            calls.leave()

    return coroutine if kind.endswith("coroutine") else plain


def options(kind, **knobs):
    """Give the arguments of a stage of this kind; inline ones have no knobs."""
    return {"executor": "inline"} if kind == "inline" else knobs


def until(holds):
    """Wait until something holds that nobody tells of: ask again and again; give the answer."""

    def wait():
        while not (answer := holds()):
            threading.Event().wait(0.001)
        return answer

    return finished(wait)


def consumer_waits(items):
    """Wait until a loop, in another thread, waits for the next item of an iterator."""
    until(lambda: items._waits)


def in_force(run, stage, concurrency):
    """Wait until a limit is in force: a run in a process of its own takes a moment."""
    until(lambda: run.stats()[stage].concurrency == concurrency)


def seen_at_work(run, stage):
    """Wait until the stats show a call; a run in a process of its own answers from then on."""
    until(lambda: run.stats()[stage].running)


def held(run, stage, item):
    """Wait until the only call in progress is one of this stage on this item; give the stats."""

    def rows():
        rows = run.stats()
        working = {name: row.oldest_item for name, row in rows.items() if row.oldest_item}
        first, _, last = working.get(stage, "").partition(" to ")
        return [*working] == [stage] and int(first) <= item <= int(last or first) and rows

    return until(rows)


def set_clock(monkeypatch, clock, name="perf_counter_ns"):
    """Have all of nbpipe that is loaded take its time from a function.

    By the name of the clock that it replaces: `perf_counter_ns` gives times of stages [ns],
    `monotonic` limits [s].
    """
    for module_name, module in tuple(sys.modules.items()):
        if module_name.partition(".")[0] == "nbpipe" and hasattr(module, name):
            monkeypatch.setattr(module, name, clock)


def quiet(run):
    """Wait until no call is in progress and every thread of the run is parked."""
    until(lambda: _is_quiet(run))


def _is_quiet(run):
    if run._core.engine.isolated_stages:
        return _rests(run)
    scheduler = run._core.life.scheduler
    with scheduler.lock:
        rests = scheduler._pool.rests
        return rests and not any(runtime.active for runtime in scheduler.runtimes.values())


def _rests(run):
    """Say whether a run in another process does nothing, as far as it can be asked."""
    before = [(row.items_in, row.running) for row in run.stats().values()]
    threading.Event().wait(0.1)
    after = [(row.items_in, row.running) for row in run.stats().values()]
    return before == after and not any(running for _, running in after)
