"""An iterator of the user's belongs to one thread and one context, from its opening to its end."""

import contextvars
import decimal
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

import nbpipe
from nbpipe import WorkerStartError
from tests.engine.test_threads import at_most
from tests.gates import Calls, Gate, delivered, drained, epochs, quiet, until

NOTE = contextvars.ContextVar("NOTE", default="blank")


class Seen:
    """The threads in which each iterator was opened, read and closed, and the notes it saw."""

    def __init__(self, count=40):
        self.count = count
        self.threads = []
        self.notes = []
        self.closed = []

    def items(self, start=0):
        """Yield numbers; note each time which thread runs this, and what the context holds."""
        threads, notes = set(), []
        self.threads.append(threads)
        self.notes.append(notes)
        try:
            for number in range(self.count):
                threads.add(threading.get_ident())
                notes.append(NOTE.get())
                NOTE.set(start)
                yield start + number
        finally:
            threads.add(threading.get_ident())
            notes.append(NOTE.get())
            self.closed.append(start)

    def assert_alone(self, iterators):
        """Say that each had one thread, and a context that no other has changed."""
        assert [len(threads) for threads in self.threads] == [1] * iterators
        for notes in self.notes:
            assert notes[0] == "blank"
            assert len(set(notes[1:])) <= 1
            assert "blank" not in notes[1:]


class AnIterable:
    """What `Seen.items` gives, as an iterable."""

    def __init__(self, seen, start=0):
        self.seen = seen
        self.start = start

    def __iter__(self):
        return self.seen.items(self.start)


def worked(pipe, **options):
    """Append a stage of several threads, which come and go between two items of what is above."""
    both = threading.Barrier(2)

    def meet(item):
        both.wait(40)
        return item

    return pipe.map(meet, concurrency=2, prefetch=2, **options)


CHAINS = {
    "source": lambda seen: nbpipe.source(seen.items, prefetch=1),
    "iterable": lambda seen: nbpipe.source(AnIterable(seen), prefetch=1),
    "flat_map": lambda seen: nbpipe.source([0]).flat_map(seen.items, prefetch=1),
    "side by side": lambda seen: nbpipe.source([0, 100, 200, 300]).flat_map(
        seen.items, concurrency=4, prefetch=2
    ),
    "unordered": lambda seen: nbpipe.source([0, 100, 200, 300]).flat_map(
        seen.items, concurrency=4, prefetch=2, ordered=False
    ),
    "interleave": lambda seen: nbpipe.interleave(
        [nbpipe.source(AnIterable(seen, start), prefetch=1) for start in (0, 100, 200)], cycle=2
    ),
    "zip": lambda seen: nbpipe.zip(
        nbpipe.source(seen.items, prefetch=1), nbpipe.source(AnIterable(seen, 100), prefetch=1)
    ),
    "repeat": lambda seen: nbpipe.source(seen.items, prefetch=1).repeat(3),
}
ITERATORS = {"side by side": 4, "unordered": 4, "interleave": 3, "zip": 2, "repeat": 3}


@pytest.mark.parametrize("name", CHAINS)
def test_an_iterator_is_read_in_one_thread_and_one_context(name):
    """Whatever opens it, all of it runs in one thread, though the stages below have several."""
    seen = Seen()
    count = ITERATORS.get(name, 1)
    items = drained(worked(CHAINS[name](seen)))
    assert len(items) == (40 if name == "zip" else 40 * count)
    seen.assert_alone(count)
    assert len(seen.closed) == count


@pytest.mark.parametrize("name", CHAINS)
def test_an_iterator_that_is_left_is_closed_in_its_thread(name):
    """Where the loop leaves the epoch, its `finally` has run in that thread when the loop ends."""
    seen = Seen(count=10_000)
    with CHAINS[name](seen).start() as run:
        items = iter(run)
        next(items)
        quiet(run)  # one in the middle of a call is closed when that ends
        items.close()
        assert len(seen.closed) == len(seen.threads)
        seen.assert_alone(len(seen.threads))
        quiet(run)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["source", "flat_map"])
def test_a_connection_of_sqlite_that_is_opened_inside(kind, isolate):
    """It may be used in the generator that opens it, whatever else the pipeline does."""

    def rows(_=None):
        own = sqlite3.connect(":memory:")
        for number in range(30):
            yield own.execute("select ?", (number,)).fetchone()[0]
        own.close()

    pipe = nbpipe.source(rows) if kind == "source" else nbpipe.source([0]).flat_map(rows)
    pipe = pipe.map(int, concurrency=4, prefetch=2) if isolate else worked(pipe)
    with pipe.start(isolate=isolate) as run:
        assert drained(run) == list(range(30))


def test_an_iterator_and_its_connection_from_a_plain_function():
    """The function that opens is called in the thread that reads, too."""

    def rows(_):
        own = sqlite3.connect(":memory:")

        def read():
            with closing(own):
                yield from (own.execute("select ?", (k,)).fetchone()[0] for k in range(30))

        return read()

    assert drained(worked(nbpipe.source([0]).flat_map(rows))) == list(range(30))


def test_an_async_iterator_that_a_plain_function_gives():
    """It is read in one task of an event loop of its own, and closed there."""
    import asyncio

    tasks, closed = [], []

    async def numbers():
        try:
            for number in range(30):
                tasks.append(asyncio.current_task())
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            tasks.append(asyncio.current_task())
            closed.append(True)

    with nbpipe.source(lambda: numbers(), prefetch=1).start() as run:  # noqa: PLW0108  a plain one
        assert drained(run) == list(range(30))
        assert len(set(tasks)) == len(closed) == 1
        items = iter(run)
        assert next(items) == 0
        quiet(run)
        items.close()
        assert len(set(tasks)) == len(closed) == 2


def test_a_decimal_context_in_a_generator():
    """What `decimal.localcontext` sets inside holds for all its items, and for no stage."""

    def thirds():
        with decimal.localcontext() as context:
            context.prec = 3
            for _ in range(30):
                yield str(decimal.Decimal(1) / 3)

    pipe = worked(nbpipe.source(thirds, prefetch=1))
    pipe = pipe.map(lambda item: (item, len(str(decimal.Decimal(1) / 3))))
    assert set(drained(pipe)) == {("0.333", 30)}


@pytest.mark.parametrize("executor", ["thread", "inline"])
@pytest.mark.parametrize("kind", ["source", "flat_map"])
def test_modes_that_a_generator_sets_hold_in_no_stage(kind, executor, torch):
    """`torch.no_grad` and `numpy.errstate` inside a generator end at its `yield`."""

    def modes(_=None):
        with torch.no_grad(), np.errstate(divide="raise"):
            for _ in range(30):
                yield torch.is_grad_enabled(), np.geterr()["divide"]

    pipe = nbpipe.source(modes, prefetch=1)
    if kind == "flat_map":
        pipe = nbpipe.source([0]).flat_map(modes, prefetch=1)
    pipe = pipe.map(
        lambda item: (*item, torch.is_grad_enabled(), np.geterr()["divide"]), executor=executor
    )
    assert set(drained(pipe)) == {(False, "raise", True, "warn")}


def test_short_iterators_share_threads():
    """Thousands of iterators need no more threads than are read at once."""
    seen = Seen(count=3)
    with at_most(1000, "nbpipe-worker") as started:
        pipe = nbpipe.source(range(0, 6000, 3)).flat_map(seen.items, concurrency=4)
        assert drained(pipe) == list(range(6000))
    seen.assert_alone(2000)
    assert len(started) <= 2 * 4 + 3


def test_open_iterators_are_no_more_than_the_calls_allowed():
    """With concurrency n, n iterators are open at most; also where n was more before."""
    calls, gate = Calls(), Gate()

    def children(item):
        calls.enter(item)
        try:
            for number in range(50):
                if number:
                    gate.wait()
                yield 100 * item + number
        finally:
            calls.leave()

    pipe = nbpipe.source(range(12)).flat_map(children, concurrency=6, prefetch=8, name="open")
    with pipe.start() as run:
        items = iter(run)
        calls.wait_running(6)
        pipe["open"].concurrency = 1
        gate.open()
        assert list(items) == [100 * item + number for item in range(12) for number in range(50)]
        assert calls.peak == 6
        calls.peak = 0
        assert len(drained(run)) == 600
        assert calls.peak == 1


def test_iterators_of_passes_that_end_early_are_closed_at_once():
    """`repeat` over `take` leaves no open iterator behind, nor its thread."""
    seen = Seen(count=1000)
    with at_most(1000, "nbpipe-worker") as started:
        pipe = nbpipe.source(seen.items, prefetch=1).take(3).repeat(300)
        assert drained(pipe) == [0, 1, 2] * 300
    seen.assert_alone(300)
    assert len(seen.closed) == 300
    assert len(started) < 20


def test_a_pause_in_the_middle():
    """While the run is paused nothing is read; then the same thread reads on."""
    seen = Seen()
    with nbpipe.source(seen.items, prefetch=1).map(int, prefetch=1).start() as run:
        items = iter(run)
        assert next(items) == 0
        run.pause()
        quiet(run)
        read = len(seen.notes[0])
        quiet(run)
        assert len(seen.notes[0]) == read
        run.resume()
        assert list(items) == list(range(1, 40))
    seen.assert_alone(1)


def test_a_state_in_the_middle():
    """A new run continues after the delivered items, in one thread."""
    first, second = Seen(), Seen()
    with nbpipe.source(first.items, prefetch=1).map(int).start() as run:
        items = iter(run)
        had = [next(items) for _ in range(7)]
        state = run.state_dict()
    with nbpipe.source(second.items, prefetch=1).map(int).start() as run:
        run.load_state_dict(state)
        assert had + drained(run) == list(range(40))
    first.assert_alone(1)
    second.assert_alone(1)


@pytest.mark.parametrize("options", [{"memory": 4096}, {"read_ahead": True}])
def test_options_of_a_run(options):
    """A budget for memory, or a read-ahead of the next epoch, does not change the thread."""
    seen = Seen()
    with nbpipe.source(seen.items, prefetch=1).map(int, concurrency=2).start(**options) as run:
        assert [drained(run) for _ in range(3)] == [list(range(40))] * 3
    seen.assert_alone(len(seen.threads))
    assert len(seen.closed) == len(seen.threads)


def test_an_error_names_its_item_and_closing_it_is_quiet(caplog):
    """What the generator raises in the middle comes behind the items before, and names the next."""

    def numbers():
        yield from range(20)
        raise ValueError("broken")

    items, error = delivered(worked(nbpipe.source(numbers, prefetch=1)))
    assert items == list(range(20))
    assert error.path == 20
    assert caplog.messages == []


def test_an_error_while_it_is_closed_is_logged(caplog):
    """No other stage sees it: the epoch is over."""

    def numbers():
        try:
            yield from range(1000)
        finally:
            raise ValueError("broken")

    with nbpipe.source(numbers, prefetch=1).start() as run:
        items = iter(run)
        next(items)
        quiet(run)
        items.close()
    assert caplog.messages == ["closing an iterator of an abandoned epoch failed"]


def test_the_iterator_of_an_order_from_outside():
    """A generator of indices is read in one thread, too."""
    seen = Seen()
    with worked(nbpipe.source([n * 10 for n in range(40)], prefetch=1)).start() as run:
        assert drained(run.iterate(seen.items())) == [n * 10 for n in range(40)]
    seen.assert_alone(1)


def test_where_the_only_thread_is_that_of_an_iterator(caplog):
    """No other thread can be started for the stages: the epoch says so, and does not hang."""
    seen = Seen(count=100)
    with worked(nbpipe.source(seen.items, prefetch=1)).start() as run:
        with at_most(1, "nbpipe-worker"):
            _, error = delivered(run)
        assert isinstance(error, WorkerStartError)
        assert drained(run) == list(range(100))
    assert caplog.messages == []


def test_a_stage_may_stop_the_run_while_an_iterator_waits():
    """`run.stop()` in a stage closes the generator in its own thread."""
    seen = Seen(count=1000)
    runs = []

    def stop(item):
        if item == 5:
            runs[0].stop()
        return item

    with nbpipe.source(seen.items, prefetch=1).map(stop).start() as run:
        runs.append(run)
        assert len(drained(run)) <= 6
        until(lambda: seen.closed)
    seen.assert_alone(1)


def test_a_generator_may_stop_the_run():
    """`run.stop()` in the generator, or in its `finally`, ends the epoch."""
    runs, closed = [], []

    def numbers():
        try:
            for number in range(1000):
                if number == 5:
                    runs[0].stop()
                yield number
        finally:
            runs[0].stop()
            closed.append(threading.get_ident())

    with nbpipe.source(numbers, prefetch=1).start() as run:
        runs.append(run)
        assert len(drained(run)) <= 6
        items = iter(run)
        next(items)
        quiet(run)
        items.close()
    assert len(closed) == 2


def test_epochs_reuse_the_threads():
    """A thread whose iterator has ended does other work again."""
    seen = Seen(count=30)
    with at_most(1000, "nbpipe-worker") as started:
        assert epochs(nbpipe.source(seen.items, prefetch=1).map(int), 20) == [list(range(30))] * 20
    seen.assert_alone(20)
    assert len(started) <= 4
