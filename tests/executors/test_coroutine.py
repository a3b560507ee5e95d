"""The event loop of a run, by itself."""

import asyncio
import gc
import threading

from nbpipe.executors.coroutine import EventLoop


class Source:
    """Gives no work."""

    def exchange(self, done):
        return ()


class Quick:
    """A call that ends at once."""

    async def begin(self):
        pass


def test_loop_that_is_closed_again_and_again(caplog):
    """However often it is told to end while it ends, it leaves no task behind."""
    for _ in range(20):
        loop = EventLoop(Source())
        loop.submit([Quick()])
        (thread,) = (one for one in threading.enumerate() if one.name == "nbpipe-event-loop")
        while thread.is_alive():
            loop.close(0)
    del loop
    gc.collect()
    assert caplog.messages == []


class Named:
    """A call that notes in which asyncio task it ran."""

    def __init__(self, tasks):
        self.tasks = tasks

    async def begin(self):
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)


class Bursts:
    """Gives work in bursts, whenever what it gave last has ended."""

    def __init__(self, bursts):
        self.bursts = bursts
        self.handed_in = []
        self.left = 0
        self.over = threading.Event()

    def exchange(self, done):
        self.handed_in += done
        self.left -= len(done)
        if self.left > 0:
            return ()
        following = self.bursts.pop(0) if self.bursts else ()
        self.left = len(following)
        if not following:
            self.over.set()
        return following


def run_bursts(*bursts):
    """Have a loop do all work of all bursts; return what was handed in."""
    first, *others = bursts
    source = Bursts(others)
    source.left = len(first)
    loop = EventLoop(source)
    loop.submit(first)
    source.over.wait()
    assert loop.close(10) == []
    return source.handed_in


def test_tasks_are_used_again():
    """What begins when other calls have ended runs in their tasks, the oldest work first."""
    tasks = []
    bursts = [[Named(tasks) for _ in range(5)] for _ in range(3)]
    assert run_bursts(*bursts) == [work for burst in bursts for work in burst]
    assert len(tasks) == 15
    assert len(set(tasks)) == 5


class Canceller(Named):
    """A call that cancels every other task of the loop."""

    async def begin(self):
        await asyncio.sleep(0.01)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def test_task_that_a_stranger_cancelled():
    """Where user code cancels a task that waits for work, the work begins in another one."""
    tasks = []
    burst, canceller = [Named(tasks) for _ in range(3)], Canceller(tasks)
    following = [Named(tasks) for _ in range(4)]
    handed_in = run_bursts([*burst, canceller], following)
    assert set(handed_in) == {*burst, canceller, *following}
    assert len(tasks) == 7
