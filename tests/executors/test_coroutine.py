"""Coroutines: the context of each call, tasks in the background, cleaning up, the loop itself."""

import asyncio
import contextvars
import gc
import threading

import pytest

import nbpipe
from tests.executors.inner import EventLoop, ThreadSettings
from tests.gates import drained

NOTE = contextvars.ContextVar("NOTE", default="blank")


class Source:
    """Gives no work."""

    def exchange(self, done):
        return ()


class Quick:
    """A call that ends at once."""

    reads = None

    def __init__(self):
        self.settings = ThreadSettings()

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


async def noted(item):
    """Give the note of before, and leave one."""
    before = NOTE.get()
    NOTE.set(item)
    await asyncio.sleep(0)
    return before


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_call_has_a_context_of_its_own(isolate):
    """A context variable that one call sets is not seen by another call."""
    pipe = nbpipe.source(range(12)).map(noted, concurrency=2)
    with pipe.start(isolate=isolate) as run:
        assert drained(run) == ["blank"] * 12
        assert drained(run) == ["blank"] * 12


def test_calls_see_the_context_of_the_thread_that_starts_the_epoch():
    """Each epoch sees the context variables of the loop that iterates it."""
    with nbpipe.source(range(3)).map(noted).start() as run:
        notes = []
        for word in ("first", "second"):
            token = NOTE.set(word)
            notes.append(list(run))
            NOTE.reset(token)
    assert notes == [["first"] * 3, ["second"] * 3]


def test_a_task_in_the_background_is_cancelled_at_close(caplog):
    """`close` cancels what a coroutine started, and waits until it has cleaned up."""
    ended, tasks = [], []

    async def kept_alive():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def fetch(item):
        if not tasks:
            tasks.append(asyncio.create_task(kept_alive()))
        await asyncio.sleep(0)
        return item

    with nbpipe.source(range(4)).map(fetch).start() as run:
        assert drained(run) == [0, 1, 2, 3]
        assert drained(run) == [0, 1, 2, 3]  # it lives on between epochs
        assert ended == []
    assert ended == ["cleaned up"]
    assert tasks[0].cancelled()
    assert caplog.messages == []


def test_a_task_in_the_background_that_fails_at_close_is_logged(caplog):
    """What its cleaning up raises is not lost."""

    async def broken():
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("connection lost")

    tasks = []

    async def fetch(item):
        tasks.append(asyncio.create_task(broken()))
        await asyncio.sleep(0)
        return item

    assert drained(nbpipe.source(range(1)).map(fetch)) == [0]
    assert caplog.messages == ["a task that a coroutine started failed"]


def test_cleaning_up_is_not_cancelled_again():
    """A call of an epoch that is left may await in its `finally`, also where the run is closed."""
    begun, cleaned = [], []

    async def fetch(item):
        if not item:
            return item
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned.append(item)

    items = iter(nbpipe.source(range(8)).map(fetch, concurrency=3))
    assert next(items) == 0
    items.close()
    assert sorted(cleaned) == sorted(begun)


class RunView:
    """An async generator that notes in which task and with which note each part of it ran."""

    def __init__(self, count):
        self.count = count
        self.tasks = []
        self.notes = []
        self.closed = threading.Event()

    def _note(self):
        self.tasks.append(asyncio.current_task())
        self.notes.append(NOTE.get())

    async def items(self, start=0):
        self._note()
        NOTE.set(start)
        try:
            for number in range(self.count):
                yield start + number
                self._note()
        finally:
            await asyncio.sleep(0)
            self._note()
            self.closed.set()


@pytest.mark.parametrize("kind", ["source", "flat_map"])
def test_an_async_generator_is_read_and_closed_in_one_task(kind):
    """From its first item to its end it has one task and one context."""
    watched = RunView(40)
    source = nbpipe.source(watched.items, prefetch=1)
    flat = nbpipe.source([0]).flat_map(watched.items, prefetch=1)
    assert drained(source if kind == "source" else flat) == list(range(40))
    assert len(set(watched.tasks)) == 1
    assert watched.notes == ["blank", *[0] * 41]


@pytest.mark.parametrize("kind", ["source", "flat_map"])
def test_an_async_generator_that_is_left_is_closed_in_its_task(kind):
    """Where the loop leaves the epoch, its `finally` runs where it was read, to its end."""
    watched = RunView(40)
    source = nbpipe.source(watched.items, prefetch=1)
    flat = nbpipe.source([0]).flat_map(watched.items, prefetch=1)
    with (source if kind == "source" else flat).start() as run:
        for _ in run:
            break
        assert watched.closed.wait(40)
        assert len(set(watched.tasks)) == 1
        assert set(watched.notes[1:]) == {0}


def test_async_generators_of_passes_that_end_early_are_closed_at_once():
    """`repeat` over `take` leaves no open generator behind, nor its task."""
    watched, most = RunView(1000), []

    async def items():
        most.append(len(asyncio.all_tasks()))
        async for item in watched.items():
            yield item

    pipe = nbpipe.source(items, prefetch=1).take(3).repeat(100)
    assert drained(pipe) == [0, 1, 2] * 100
    assert max(most) < 20


def test_async_generators_side_by_side_have_contexts_of_their_own():
    """Those of one `flat_map` do not see each other's context variables."""
    watched = RunView(3)
    pipe = nbpipe.source([10, 20, 30, 40]).flat_map(watched.items, concurrency=4, prefetch=1)
    assert drained(pipe) == [start + n for start in (10, 20, 30, 40) for n in range(3)]
    assert len(set(watched.tasks)) == 4
    assert watched.notes.count("blank") == 4


def test_a_stage_that_cancels_all_tasks_ends_no_source():
    """An async source whose task waits is read on, though user code cancels it."""

    async def numbers():
        for number in range(20):
            yield number

    async def cancel_others(item):
        for task in asyncio.all_tasks() - {asyncio.current_task()} if item == 5 else ():
            task.cancel()
        return item

    pipe = nbpipe.source(numbers, prefetch=1).map(cancel_others, concurrency=1, prefetch=1)
    assert drained(pipe) == list(range(20))
