"""The life of a run: epochs, iteration, closing, forks, interrupts, and what is left behind."""

import _thread
import gc
import operator
import os
import sys
import threading
import weakref

import pytest

import nbpipe
from tests.gates import (
    Calls,
    Gate,
    at_once,
    consumer_waits,
    delivered,
    drained,
    finished,
    quiet,
    said_in_a_fork,
    stage,
    still_alive,
    until,
)
from tests.run.inner import iterator

FINE_S = 0.005  # CPython's own switch interval


@pytest.fixture(autouse=True)
def switch_interval():
    """Every test begins and ends with the interpreter's own switch interval."""
    sys.setswitchinterval(FINE_S)
    yield
    found = sys.getswitchinterval()
    sys.setswitchinterval(FINE_S)
    assert found == pytest.approx(FINE_S)


def chain(count=50, **calls):
    """Make a chain of numbers and one stage, "w"."""
    return nbpipe.source(range(count)).map(stage("thread", **calls), concurrency=2, name="w")


# -- epochs ----------------------------------------------------------------------------------------


ISOLATED = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("isolate", ISOLATED)
def test_a_loop_inside_a_loop_ends_the_outer_one_with_an_error(isolate):
    """The inner loop has every item; the outer one says where that began."""
    outer, inner = [], []

    def loop():
        for item in run:
            outer.append(item)
            if item == 9:
                inner.extend(run)

    line = r"began at line [0-9]+ of test_run.py, `inner.extend\(run\)`; .* pipe.start\(\)"
    run = nbpipe.source(range(50)).start(isolate=isolate)
    with run, pytest.raises(nbpipe.EpochClosedError, match=line):
        loop()
    assert (outer, inner) == ([*range(10)], [*range(50)])


@pytest.mark.parametrize("isolate", ISOLATED)
def test_two_loops_side_by_side_are_an_error(isolate):
    """`zip(run, run)` is no loop over nothing."""
    with nbpipe.source(range(5)).start(isolate=isolate) as run:
        with pytest.raises(nbpipe.EpochClosedError, match=r"`list\(zip\(run, run"):
            list(zip(run, run, strict=True))
        assert drained(run) == [*range(5)]


SECOND_LOOPS = {
    "iter": iter,
    "progress": lambda run: next(nbpipe.progress(run)),
    "iterate": lambda run: run.iterate([3]),
    "open_epoch": lambda run: run.open_epoch(),
    "train": lambda run: run.train(abs).wait(),
}


@pytest.mark.parametrize("second", SECOND_LOOPS)
@pytest.mark.parametrize("first", [iter, nbpipe.progress])
def test_whatever_begins_a_second_loop_is_said_by_the_first(first, second):
    """The first one raises the error each time it is asked for an item."""
    with nbpipe.source(range(5)).start() as run:
        old = first(run)
        next(old)
        begun = SECOND_LOOPS[second](run)
        with pytest.raises(nbpipe.EpochClosedError, match="ended by a second loop"):
            next(old)
        if first is iter:
            with pytest.raises(nbpipe.EpochClosedError, match="ended by a second loop"):
                list(old)
        del begun


def test_a_loop_that_was_left_makes_room_in_silence():
    """After `break`, `close()` or its end, an iterator that is kept raises nothing."""
    with nbpipe.source(range(5)).start() as run:
        kept = [iter(run)]
        for _ in kept[0]:
            break
        kept[0].close()
        kept.append(iter(run))
        assert drained(kept[1]) == [*range(5)]
        for _ in run:
            break
        assert drained(run) == [*range(5)]
        assert [drained(one) for one in kept] == [[], []]


def test_an_epoch_of_which_nothing_was_taken_counts():
    """It has begun with its iterator; the next one is another."""
    with chain().start() as run:
        iter(run).close()
        assert (drained(run), run.epoch) == (list(range(50)), 1)


def test_workers_are_kept_between_epochs():
    """The same threads serve every epoch."""
    with chain().start() as run:
        drained(run)
        quiet(run)
        before = {t for t in threading.enumerate() if t.name.startswith("nbpipe-worker")}
        for _ in range(20):
            drained(run)
        quiet(run)
        after = {t for t in threading.enumerate() if t.name.startswith("nbpipe-worker")}
        assert before <= after
        assert len(after) <= 2 + 1 + 1


class Told:
    """A source that gives the number of its epoch."""

    def set_epoch(self, number):
        self.epoch = number

    def __iter__(self):
        return iter([self.epoch])


@pytest.mark.parametrize("isolate", [False, True])
def test_set_epoch_gives_the_next_epoch_its_number(isolate):
    """`set_epoch` acts on the next epoch alone; `.epoch` is that of the one in progress."""
    with nbpipe.source(Told()).start(isolate=isolate) as run:
        seen = [drained(run), run.epoch]
        run.set_epoch(7)
        seen.append(run.epoch)
        seen += [drained(run), run.epoch, drained(run), run.epoch]
    assert seen == [[0], 0, 0, [7], 7, [8], 8]


@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
def test_set_epoch_refuses_what_is_no_number(number):
    """An epoch's number is an int of at least 0."""
    with chain().start() as run:
        with pytest.raises(nbpipe.ArgumentError, match="epoch must be an int"):
            run.set_epoch(number)
        assert drained(run) == list(range(50))


def test_length_hint_counts_down_in_every_epoch():
    """`tqdm` gets the number of items left, in later epochs too."""
    with chain(10).start() as run:
        hints = []
        for _ in range(2):
            items = iter(run)
            hints.append(operator.length_hint(items))
            next(items)
            hints.append(operator.length_hint(items))
            drained(items)
        items = iter(run)
        items.close()
        hints.append(operator.length_hint(items))
        assert (hints, len(run)) == ([10, 9, 10, 9, 0], 10)


def test_a_pipeline_is_one_epoch_and_closes():
    """`for item in pipe` leaves nothing running, also after `break` and errors."""
    before = threading.active_count()
    for item in chain():
        if item == 3:
            break
    _, error = delivered(nbpipe.source([0]).map(lambda n: 1 // n))
    whole = drained(chain())
    assert (whole, type(error.__cause__)) == (list(range(50)), ZeroDivisionError)
    assert threading.active_count() == before


def test_run_is_true_and_shows_itself():
    """A run is true; its text tells its stages and state."""
    with chain().start() as run:
        texts = [repr(run)]
        items = iter(run)
        next(items)
        run.pause()
        texts.append(repr(run))
        run.resume()
        items.close()
    texts.append(repr(run))
    assert bool(run)
    assert texts == [
        "Run(source > w; open)",
        "Run(source > w; paused, epoch 0 in progress)",
        "Run(source > w; closed)",
    ]


class Measured:
    """A data set that is asked for its length as an epoch begins, and then looks at the run."""

    run = None

    def __init__(self):
        self.seen = []

    def __len__(self):
        run, self.run = self.run, None  # once: a status, too, asks for the length
        if run is not None:
            self.seen.append((run.status().state, run.epoch, run.state_dict()))
        return 3

    def __getitem__(self, index):
        return index


def test_an_epoch_that_begins_is_said_to_run():
    """From the first moment on, and whoever goes on from there has all of its items."""
    items = Measured()
    with nbpipe.source(items).map(abs, name="same").start() as run:
        for _ in range(2):
            items.run = run
            assert drained(run) == [0, 1, 2]
    (*first, begun), (*second, again) = items.seen
    assert (first, second) == (["running", 0], ["running", 1])
    for state, epoch in ((begun, 0), (again, 1)):
        with nbpipe.source(items).map(abs, name="same").start() as run:
            run.load_state_dict(state)
            assert (drained(run), run.epoch) == ([0, 1, 2], epoch)


class Asked:
    """A data set that does something when it is asked for its length, once."""

    def __init__(self, count=3):
        self.count = count
        self.then = None
        self.reads = 0

    def __len__(self):
        then, self.then = self.then, None
        if then is not None:
            then()
        return self.count

    def __getitem__(self, index):
        self.reads += 1
        return index


def test_an_epoch_that_begins_is_stopped():
    """Its loop has nothing, and the next epoch all; nothing is to be said twice."""
    items = Asked()
    with nbpipe.source(items).map(abs).start() as run:
        items.then = run.stop
        assert (drained(run), run.status().state) == ([], "stopped")
        assert (drained(run), run.epoch) == ([0, 1, 2], 1)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_training_is_stopped_as_an_epoch_begins(epoch):
    """That epoch and all behind it: the loop ends without another item."""
    items, got = Asked(), []
    with nbpipe.source(items).map(abs).start() as run:

        def step(item):
            got.append(item)
            items.then = run.stop if item == items.count - 1 else None

        items.then = None if epoch else run.stop
        assert finished(run.train(step, 3).wait)
        assert (got, run.status().state) == ([0, 1, 2] * epoch, "stopped")


@pytest.mark.parametrize("close", [lambda run: run.close(), lambda run: finished(run.close)])
def test_a_run_that_is_closed_as_an_epoch_begins_begins_none(close):
    """Whoever closes it, that loop's own thread or another one; no thread is left."""
    items = Asked()
    run = nbpipe.source(items).map(abs).start()
    items.then = lambda: close(run)
    with pytest.raises(nbpipe.RunClosedError):
        drained(run)
    assert run.status().state == "closed"


def test_what_an_epoch_left_out_is_not_said_of_the_next():
    """Nor is it said to be read ahead, when it begins, or not to be in progress."""
    items, seen, errors = Asked(), [], iter([ValueError("once")])

    def fails_once(item):
        for error in errors:
            raise error
        return item

    pipe = nbpipe.source(items).map(fails_once, on_error="skip", name="once", concurrency=1)
    with pipe.start(read_ahead=True) as run:
        loop = iter(run)
        assert next(loop) == 1
        until(lambda: items.reads == 2 * items.count)  # the epoch behind it, too: read ahead
        quiet(run)  # it has asked for the length, and will not again
        assert ([*loop], run.status().skipped) == ([2], 1)
        items.then = lambda: seen.append((run.status().skipped, run.status().ahead, repr(run)))
        assert drained(run) == [0, 1, 2]
    assert seen == [(0, False, "Run(source > once; open, epoch 1 in progress)")]


def test_what_is_told_in_an_epoch_left_untouched_holds():
    """The number of the next epoch, or another state, is not taken back when that one ends."""
    with nbpipe.source(range(3)).map(abs, name="same").start() as run:
        first = iter(run)
        assert next(first) == 0
        inside = run.state_dict()
        for tell, expected in (
            (lambda: run.set_epoch(5), ([0, 1, 2], 5)),
            (lambda: run.set_epoch(0), ([1, 2], 0)),
            (lambda: run.load_state_dict({**inside, "epoch": 3, "seal": None}), ([1, 2], 3)),
        ):
            run.load_state_dict(inside)
            loop = iter(run)
            tell()
            loop.close()
            assert (drained(run), run.epoch) == expected


# -- two threads -----------------------------------------------------------------------------------
def test_iterating_from_two_threads_is_refused():
    """While one thread iterates, another one is told so; afterwards it may."""
    with chain().start() as run:
        items = iter(run)
        next(items)
        with pytest.raises(nbpipe.ConcurrentIterationError, match="MainThread"):
            finished(iter, run)
        rest = drained(items)
        assert (rest, drained(run)) == (list(range(1, 50)), list(range(50)))


def test_two_threads_that_begin_at_once_get_one_epoch():
    """Of two threads that start to iterate at the same moment, exactly one is refused."""
    outcomes = []
    for _ in range(50):
        with chain().start() as run:
            begin, hold, found = threading.Barrier(2), threading.Barrier(2), []

            def iterate(run=run, begin=begin, hold=hold, found=found):
                begin.wait()
                try:
                    items = iter(run)
                except nbpipe.ConcurrentIterationError:
                    items = None
                found.append(items)
                hold.wait()

            at_once(iterate, 2)
            outcomes.append(sum(items is None for items in found))
    assert outcomes == [1] * 50


def test_waiting_in_one_iterator_from_two_threads_is_refused():
    """An iterator is for one thread at a time."""
    gate = Gate()
    with chain(gate=lambda _: gate).start() as run:
        items = iter(run)
        first = threading.Thread(target=lambda: next(items))
        first.start()
        consumer_waits(items)
        with pytest.raises(nbpipe.ConcurrentIterationError):
            finished(next, items)
        gate.open()
        first.join()
        assert drained(items) == list(range(1, 50))


def test_the_epoch_of_a_thread_that_ended_may_be_cancelled():
    """A thread that left its epoch unfinished and ended holds nobody up."""
    with chain().start() as run:
        kept = []
        finished(lambda: kept.append(iter(run)))
        assert drained(run) == list(range(50))


# -- closed, reentrant, forked ---------------------------------------------------------------------
def test_closed_run_refuses_with_the_way_out():
    """A closed run says how to get another; reading numbers is still allowed."""
    run = chain().start()
    drained(run)
    run.close()
    run.close()
    for use in (iter, nbpipe.Run.pause, nbpipe.Run.resume):
        with pytest.raises(nbpipe.RunClosedError, match=r"start another with pipe\.start"):
            use(run)
    run.stop()
    assert run.stats()["w"].items_out == 50


def test_with_closes_on_an_error():
    """Leaving `with` closes the run, whatever happened inside."""
    run = chain().start()

    def use():
        with run:
            next(iter(run))
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert run.closed


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
@pytest.mark.parametrize("use", [iter, next, nbpipe.Run.close])
def test_stage_that_calls_into_its_own_run_is_refused(kind, use):
    """A stage may not iterate or close the run that runs it; it hears so, and nothing hangs."""
    box, ready = [], Gate()

    def result(item):
        if item == 3:
            use(box[1] if use is next else box[0])
        return item

    fn = stage(kind, result=result, gate=lambda _: ready)
    with nbpipe.source(range(9)).map(fn).start() as run:
        items = iter(run)
        box += [run, items]
        ready.open()
        got, error = delivered(items)
        box.clear()
        assert got == [0, 1, 2]
        refusal = nbpipe.RunError if use is next else nbpipe.ReentrantRunError
        assert isinstance(error.__cause__, refusal)


def test_stage_may_run_another_pipeline():
    """A pipeline inside a stage's function is no reentrance."""

    def inner(item):
        return sum(nbpipe.source(range(item)).map(lambda n: n))

    assert drained(nbpipe.source(range(6)).map(inner, concurrency=2)) == [0, 0, 1, 3, 6, 10]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_with_a_live_run():
    """In a forked child the run refuses, starts nothing, and closing it is harmless."""
    with chain(1000).start() as run:
        items = iter(run)
        next(items)
        said = said_in_a_fork(lambda: _in_child(run, items))
        assert said == "closed closed closed threads 1"
        assert drained(items) == list(range(1, 1000))


def _in_child(run, items):
    said = []
    for use in (lambda: iter(run), lambda: next(items), run.pause):
        try:
            use()
        except nbpipe.RunClosedError:
            said.append("closed")
        except BaseException as error:
            said.append(repr(error))
    try:
        run["w"].concurrency = 7  # starts no thread here
        run["w"].prefetch = 70
        run.stats()
        run.close()
    except BaseException as error:
        said.append(repr(error))
    return " ".join([*said, "threads", str(threading.active_count())])


# -- the switch interval ---------------------------------------------------------------------------
def test_switch_interval_is_lowered_while_an_epoch_is_in_progress():
    """Two runs count together: the interval is back when the last epoch ended."""
    seen = [sys.getswitchinterval()]
    with chain().start() as one, chain().start() as two:
        seen.append(sys.getswitchinterval())
        first, second = iter(one), iter(two)
        seen.append(sys.getswitchinterval())
        drained(first)
        seen.append(sys.getswitchinterval())
        second.close()
        seen.append(sys.getswitchinterval())
    assert seen == pytest.approx([FINE_S, FINE_S, 0.0002, 0.0002, FINE_S])


def test_switch_interval_may_be_left_alone(monkeypatch):
    """A switch in the environment turns the lowering off."""
    monkeypatch.setenv("NBPIPE_SWITCH_INTERVAL", "off")
    with chain().start() as run:
        items = iter(run)
        during = sys.getswitchinterval()
        drained(items)
    assert during == pytest.approx(FINE_S)


def test_switch_interval_set_by_others_is_kept():
    """What somebody set during an epoch is not undone after it."""
    with chain().start() as run:
        items = iter(run)
        sys.setswitchinterval(0.003)
        drained(items)
        after = sys.getswitchinterval()
    sys.setswitchinterval(FINE_S)
    assert after == pytest.approx(0.003)


# -- dropped ---------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("taken", [None, 0, 3])
def test_collected_run_closes_itself(taken):
    """A run that nobody holds ends its threads, in mid-epoch too."""
    run = chain(1000).start()
    if taken is not None:
        items = iter(run)
        for _ in range(taken):
            next(items)
        items = None
    threads = [t for t in threading.enumerate() if t.name.startswith("nbpipe")]
    gone = weakref.ref(run)
    run = items = None
    gc.collect()
    assert (still_alive(threads), gone()) == ([], None)


@pytest.mark.slow
def test_a_forgotten_run_blames_nobody(caplog):
    """The calls of a run that is forgotten in mid-epoch may end; no thread is left, or known."""
    gate, calls = Gate(), Calls()

    def work(item):
        calls.enter(item)
        if item:
            gate.wait()
        return item

    known = set(threading.enumerate())
    run = nbpipe.source(range(50)).map(work, concurrency=2).start()
    items = iter(run)
    next(items)
    calls.wait_begun(2)
    life, run, items = run._core.life, None, None
    gc.collect()

    def others():
        return set(threading.enumerate()) - known - {threading.current_thread()}

    until(lambda: life.closed and not life.scheduler._pool._workers)
    gate.open()
    until(lambda: all(isinstance(one, threading._DummyThread) for one in others()))
    assert (others(), caplog.messages) == (set(), [])


@pytest.mark.slow
def test_pipeline_whose_epoch_cannot_begin_is_let_go():
    """A loop over a pipeline that is refused as it begins leaves nothing open, nothing held."""
    lock = threading.Lock()

    def guarded(item):
        with lock:
            return item

    gone = weakref.ref(guarded)  # a run that is open holds its functions
    pipe = nbpipe.source(range(3)).map(guarded, executor="process")
    with pytest.raises(nbpipe.UnpicklableError, match="lock"):
        list(pipe)
    del guarded, pipe
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_iterator_keeps_its_run():
    """`iter(pipe.start())` goes on though nobody holds the run."""
    items = iter(chain().start())
    gc.collect()
    assert drained(items) == list(range(50))
    items = None
    gc.collect()


@pytest.mark.slow
def test_iterator_collected_in_a_worker_thread():
    """Garbage found by one of the run's own threads is closed as well, without a word."""
    gate, collected = Gate(), threading.Event()

    class Cycle:
        pass

    def work(item):
        if item == 2:
            gate.wait()
            gc.collect()
            collected.set()
        return item

    gc.disable()
    try:
        cycle = Cycle()
        cycle.items = iter(nbpipe.source(range(10_000)).map(work, prefetch=2))
        cycle.self = cycle
        next(cycle.items)
        threads = [t for t in threading.enumerate() if t.name.startswith("nbpipe")]
        gone = weakref.ref(cycle)
        cycle = None
        gate.open()
        finished(collected.wait)
    finally:
        gc.enable()
    gc.collect()
    assert (still_alive(threads), gone()) == ([], None)


def test_threads_that_share_an_iterator_get_each_item_once():
    """Whoever comes next gets what is next; one that comes while another waits is refused."""
    with nbpipe.source(range(3000)).map(abs, concurrency=2).start() as run:
        items, got = iter(run), []

        def take():
            while (item := attempt()) is not None:
                got.extend(item)

        def attempt():
            try:
                return [next(items)]
            except nbpipe.ConcurrentIterationError:
                return []
            except StopIteration:
                return None

        at_once(take, 3)
    assert sorted(got) == list(range(3000))


def test_an_interrupt_that_wakes_nobody_ends_the_wait(monkeypatch):
    """One that only sets a flag, as when it comes just as the wait begins, is seen all the same."""
    monkeypatch.setattr(iterator, "LOOK_UP_S", 0.02)
    gate, calls = Gate(), Calls()
    fn = stage("thread", gate=lambda _: gate, calls=calls)
    with nbpipe.source(range(3)).map(fn).start() as run:
        items = iter(run)

        def interrupt():
            consumer_waits(items)
            _thread.interrupt_main()

        calls.wait_running(1)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(items)
        thread.join()
        gate.open()
        assert drained(items) == [0, 1, 2]
