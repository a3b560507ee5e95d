"""`start(read_ahead=True)`: the next epoch begins to fill while the loop ends this one."""

import gc
import itertools
import threading
from time import perf_counter_ns

import numpy as np
import pytest

import nbpipe
from tests.chains import build, outcome
from tests.gates import Calls, Gate, drained, held, quiet, set_clock, stage, still_alive, until

COUNT = 10


def noisy(item, rng):
    """Add a random number to an item."""
    return int(item) * 1000 + int(rng.integers(1000))


def waits(gates):
    """Give the gate of each call: the first call of an item has the first of its gates."""
    left = {item: iter(each) for item, each in gates.items()}
    lock = threading.Lock()

    def gate(item):
        with lock:
            return next(left.get(item, iter(())), None)

    return gate


def chain(calls, gate=lambda _: None, **options):
    """Make a chain of numbers and one stage, "w"."""
    function = stage("thread", calls=calls, gate=gate)
    knobs = {"concurrency": 2, "prefetch": 3} | options
    return nbpipe.source(range(COUNT), prefetch=2).map(function, name="w", **knobs)


def ahead(pipe, **options):
    """Start a run that reads ahead."""
    return pipe.start(read_ahead=True, **options)


def workers():
    """Give the threads of all runs."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("nbpipe")]


# -- what comes is what came -----------------------------------------------------------------------
RECIPES = {
    "map": [["range", 12], ["map", 1]],
    "shuffled": [["range", 13], ["shuffle", 3, None], ["batch", 4, False]],
    "buffered": [["generator", 11], ["shuffle", 1, 4], ["window", 2, 1]],
    "expanded": [["generator", 7], ["flat_map", 3], ["filter", 2], ["batch", 3, True]],
    "zipped": [["zip", [[["range", 8], ["map", 1]], [["generator", 8]]]], ["batch", 3, False]],
    "mixed": [["mix", [[["range", 9]], [["generator", 6]]], [1, 2], "longest", 0], ["map", 2]],
    "joined": [["concat", [[["range", 5], ["map", 1]], [["generator", 4]]]], ["map", 2]],
    "interleaved": [["interleave", [[["range", 5]], [["generator", 4]]], 2], ["map", 2]],
    "repeated": [["range", 5], ["map", 1], ["repeat", 3], ["batch", 4, False]],
    "taken": [["generator", 30], ["map", 1], ["take", 9], ["batch", 2, False]],
    "failing": [["range", 12], ["failing", 7]],
    "drawn": [["range", 6], ["sample", 6], ["map", 1]],
    "routed": [["range", 10], ["route", 1]],
}


@pytest.mark.parametrize("name", RECIPES)
def test_items_are_the_same(name):
    """Three epochs give what they give without reading ahead, be the buffers full or empty."""
    with build(RECIPES[name]).start() as run:
        expected = [outcome(run) for _ in range(3)]
    with ahead(build(RECIPES[name])) as run:
        rested = []
        for _ in range(3):
            rested.append(outcome(run))
            quiet(run)
    with ahead(build(RECIPES[name])) as run:
        at_once = [outcome(run) for _ in range(3)]
    assert rested == at_once == expected


@pytest.mark.slow
@pytest.mark.parametrize("executor", [None, "inline", "process"])
def test_random_generators_are_those_of_the_epoch(executor):
    """`rng` depends on the number of the epoch that an item is read ahead for."""
    pipe = nbpipe.source(range(20)).shuffle(seed=1).map(noisy, executor=executor).batch(3)
    with pipe.start(seed=5) as run:
        expected = [np.concatenate(list(run)).tolist() for _ in range(3)]
    with ahead(pipe, seed=5) as run:
        got = []
        for _ in range(3):
            got.append(np.concatenate(list(run)).tolist())
            quiet(run)
    assert got == expected
    assert len(set(map(tuple, got))) == 3


def test_coroutines_read_ahead():
    """Calls on the event loop begin ahead, within their limit."""
    calls = Calls()
    pipe = nbpipe.source(range(COUNT)).map(stage("coroutine", calls=calls), concurrency=3)
    with ahead(pipe) as run:
        for _ in range(3):
            assert drained(run) == list(range(COUNT))
            quiet(run)
        begun = calls.begun
    assert calls.peak <= 3
    assert begun > 3 * COUNT


# -- when it begins, and how much it holds ---------------------------------------------------------


def test_it_begins_when_the_source_is_through():
    """Slots that this epoch has no use for are taken by the next one, while calls still run."""
    calls, gate = Calls(), Gate()
    with ahead(chain(calls, waits({COUNT - 1: [gate]}), concurrency=2)) as run:
        items = iter(run)
        first = [next(items) for _ in range(COUNT - 1)]
        calls.wait_begun(COUNT + 3)  # the last call of this epoch is in progress
        state, status = run.state_dict(), run.status()
        gate.open()
        assert (first, list(items)) == (list(range(COUNT - 1)), [COUNT - 1])
        assert (state["epoch"], status.delivered) == (0, COUNT - 1)


def test_nothing_begins_before_the_source_is_through():
    """While the source has items for this epoch, none is read for the next."""
    calls = Calls()
    with ahead(chain(calls)) as run:
        items = iter(run)
        got = [next(items) for _ in range(3)]
        quiet(run)
        assert max(calls.of.values()) == 1
        assert got + list(items) == list(range(COUNT))


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_limits_hold_for_both_epochs(concurrency):
    """Calls of both epochs together stay below `concurrency`, also while it is turned."""
    calls = Calls()
    pipe = chain(calls, concurrency=concurrency)
    with ahead(pipe) as run:
        for _ in range(5):
            assert drained(run) == list(range(COUNT))
        peak = calls.peak
        pipe["w"].concurrency = 1
        drained(run)
        quiet(run)
        calls.peak = 0
        for _ in range(3):
            assert drained(run) == list(range(COUNT))
        assert (peak <= concurrency, calls.peak) == (True, 1)


def test_places_hold_for_both_epochs(monkeypatch):
    """What both epochs hold behind a stage is never more than one may hold."""
    calls, taken = Calls(), 0
    # Each call takes a tenth of a second more: cheap calls may come in chunks, with more places.
    set_clock(monkeypatch, lambda: perf_counter_ns() + calls.begun * 10**8)
    with ahead(chain(calls, concurrency=1, prefetch=3)) as run:
        for _ in range(3):
            for _item in run:
                taken += 1
                quiet(run)
                assert calls.begun - taken <= 3 + 1
        quiet(run)
        assert calls.begun - taken == 3 + 1


def test_turned_while_it_reads_ahead():
    """A knob acts on what is read ahead: more places are filled at once."""
    calls = Calls()
    pipe = chain(calls, concurrency=1, prefetch=1)
    with ahead(pipe) as run:
        drained(run)
        quiet(run)
        before = calls.begun
        pipe["w"].prefetch = 5
        calls.wait_begun(COUNT + 6)
        quiet(run)
        assert (before, calls.begun) == (COUNT + 2, COUNT + 6)
        assert drained(run) == list(range(COUNT))


def test_pause_holds_both():
    """A paused run starts no call of either epoch."""
    calls, gate = Calls(), Gate()
    with ahead(chain(calls, waits({COUNT - 1: [gate]}), concurrency=1, prefetch=20)) as run:
        items = iter(run)
        held(run, "w", COUNT - 1)
        run.pause()
        gate.open()
        quiet(run)
        assert calls.begun == COUNT
        run.resume()
        calls.wait_begun(COUNT + 1)
        assert list(items) == list(range(COUNT))


def test_memory_holds_for_both_epochs():
    """With a budget the items of both epochs fit in it, and none is lost."""
    pipe = nbpipe.source(range(20)).map(lambda n: np.full(25_000, n, np.uint8), prefetch=20)
    with ahead(pipe, memory="200 kB") as run:
        held_bytes = []
        for _ in range(3):
            got = []
            for item in run:
                got.append(int(item[0]))
                held_bytes.append(run.status().held_bytes)
            quiet(run)
            held_bytes.append(run.status().held_bytes)
            assert got == list(range(20))
    assert held_bytes[-1] > 0
    assert max(held_bytes) <= 200_000


# -- what is thrown away ---------------------------------------------------------------------------
def epoch_of_numbers(seen):
    """Make a source that notes the numbers of its epochs, and which of its iterators are open."""

    class Numbered:
        def set_epoch(self, number):
            self.number = number

        def __iter__(self):
            number = self.number
            seen.append(("open", number))
            try:
                for item in range(COUNT):
                    yield number * 100 + item
            finally:
                seen.append(("closed", number))

    return nbpipe.source(Numbered(), prefetch=1).map(lambda n: n, name="w", prefetch=1)


def test_set_epoch_throws_it_away():
    """Another number is another epoch; the number that comes anyway keeps what is there."""
    seen = []
    with ahead(epoch_of_numbers(seen)) as run:
        drained(run)
        quiet(run)
        run.set_epoch(1)
        kept = list(seen)
        run.set_epoch(7)
        dropped = list(seen)
        assert drained(run) == [700 + n for n in range(COUNT)]
    assert kept == [("open", 0), ("closed", 0), ("open", 1)]
    assert dropped == [*kept, ("closed", 1)]


def test_an_order_from_outside_throws_it_away():
    """`iterate` and `open_epoch` read their own order, and nothing behind it."""
    calls = Calls()
    with ahead(chain(calls)) as run:
        drained(run)
        quiet(run)
        calls.of.clear()
        assert list(run.iterate([9, 8])) == [9, 8]
        quiet(run)
        with run.open_epoch() as epoch:
            epoch.load([7])
            epoch.end()
            assert list(epoch) == [7]
        quiet(run)
        assert calls.of == {9: 1, 8: 1, 7: 1}
        assert run.epoch == 2
        assert drained(run) == list(range(COUNT))


def test_a_state_throws_it_away():
    """`load_state_dict` goes on where the state says."""
    seen = []
    with ahead(epoch_of_numbers(seen)) as run:
        items = iter(run)
        got = [next(items) for _ in range(4)]
        state = run.state_dict()
        got += items
        quiet(run)
        run.load_state_dict(state)
        assert seen[-1] == ("closed", 1)
        assert list(run) == got[4:]
        assert drained(run) == [100 + n for n in range(COUNT)]


@pytest.mark.parametrize("leave", ["break", "stop", "fail"])
def test_leaving_an_epoch_throws_it_away(leave):
    """Once the loop has left an epoch before its end, nothing more is read."""
    seen = []
    with ahead(epoch_of_numbers(seen)) as run:
        items = iter(run)
        for _ in range(COUNT - 1):
            next(items)
        until(lambda: ("closed", 0) in seen)
        quiet(run)
        if leave == "break":
            items.close()
        elif leave == "stop":
            run.stop()
        else:
            items.fail(RuntimeError())
        quiet(run)
        assert seen.count(("open", 1)) == seen.count(("closed", 1))
        assert drained(run) == [100 + n for n in range(COUNT)]


def test_close_leaves_nothing():
    """`close` ends what is read ahead: its iterators are closed, its threads are gone."""
    seen = []
    run = ahead(epoch_of_numbers(seen))
    drained(run)
    quiet(run)
    threads = workers()
    run.close()
    assert seen[-2:] == [("open", 1), ("closed", 1)]
    assert still_alive(threads) == []


def test_close_in_a_call_that_reads_ahead():
    """A call in progress ahead is waited for, as any other."""
    calls, gate = Calls(), Gate()
    run = ahead(chain(calls, waits({0: [Gate(opened=True), gate]})))
    drained(run)
    held(run, "w", 0)
    threads = workers()
    ending = threading.Thread(target=run.close)
    ending.start()
    gate.open()
    ending.join()
    assert still_alive(threads) == []


@pytest.mark.slow
def test_a_collected_run_leaves_nothing():
    """A run that nobody holds closes itself, in the midst of reading ahead too."""
    calls = Calls()
    run = ahead(chain(calls))
    drained(run)
    quiet(run)
    threads = workers()
    del run
    gc.collect()
    assert still_alive(threads) == []


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_last_epoch_of_a_training_reads_no_further(epochs):
    """`train(epochs=n)` calls the stages for n epochs."""
    calls, got = Calls(), []
    with ahead(chain(calls)) as run:
        run.train(got.append, epochs=epochs).wait()
        quiet(run)
        assert calls.of == dict.fromkeys(range(COUNT), epochs)
        assert got == epochs * list(range(COUNT))


# -- failures, states, numbers ---------------------------------------------------------------------
def test_failures_belong_to_their_epoch():
    """Items that failed ahead are booked when their epoch begins, and count in its budget."""
    calls = Calls()

    def bad(item):
        if item == 1:
            raise ValueError(item)
        return item

    function = stage("thread", calls=calls, result=bad)
    pipe = nbpipe.source(range(COUNT)).map(function, on_error="skip", max_failures=1, name="w")
    with ahead(pipe) as run:
        for epoch in range(3):
            assert drained(run) == [0, *range(2, COUNT)]
            quiet(run)
            assert calls.of[1] == epoch + 2
            assert [failure.epoch for failure in run.failures()] == list(range(epoch + 1))
            assert run.stats()["w"].errors == epoch + 1


def test_an_error_waits_for_its_epoch():
    """What fails ahead ends the epoch it belongs to, behind the items before it."""

    class Once:
        def set_epoch(self, number):
            self.number = number

        def __iter__(self):
            yield from range(3)
            if self.number == 1:
                raise OSError("the disk is gone")

    with ahead(nbpipe.source(Once()).map(lambda n: n, name="w")) as run:
        assert drained(run) == [0, 1, 2]
        quiet(run)
        assert (run.status().outcome, run.failures()) == ("finished", ())
        items = iter(run)
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(nbpipe.StageError, match="the disk is gone"):
            next(items)
        quiet(run)
        assert drained(run) == [0, 1, 2]


def test_nothing_is_read_behind_an_epoch_that_fails():
    """An epoch that ends with an error has no next one ahead."""
    calls = Calls()

    def bad(item):
        if item == 5:
            raise ValueError(item)
        return item

    function = stage("thread", calls=calls, result=bad)
    with ahead(nbpipe.source(range(COUNT)).map(function, prefetch=1)) as run:
        with pytest.raises(nbpipe.StageError):
            drained(run)
        quiet(run)
        assert max(calls.of.values()) == 1


def test_states_say_the_same():
    """At every item of three epochs, and between them, a state is that without reading ahead."""
    pipe = nbpipe.source(range(COUNT)).shuffle(seed=2).map(lambda n: n).batch(3)

    def states(**options):
        found = []
        with pipe.start(**options) as run:
            for _ in range(3):
                for _item in run:
                    quiet(run)
                    found.append(run.state_dict())
                quiet(run)
                found.append(run.state_dict())
        return found

    assert states(read_ahead=True) == states()


def test_going_on_at_every_item():
    """A run that goes on from any item of three epochs gives the rest of all of them."""
    pipe = nbpipe.source(range(5)).shuffle(seed=2).map(noisy)

    def all_of(run, epochs):
        return list(itertools.chain.from_iterable(map(list, itertools.repeat(run, epochs))))

    with pipe.start() as run:
        whole = all_of(run, 3)
    for cut in range(15):
        with ahead(pipe) as run:
            got = []
            while len(got) < cut:
                got += itertools.islice(run, cut - len(got))
                quiet(run)
            state = run.state_dict()
        with ahead(pipe) as run:
            run.load_state_dict(state)
            got += list(run)
            while run.epoch < 2:
                got += list(run)
        assert got == whole


def test_stats_are_those_of_the_epoch():
    """Between epochs nothing of the next is counted; in it, all that was made for it is."""
    calls = Calls()
    with ahead(chain(calls)) as run:
        for epoch in range(1, 4):
            drained(run)
            quiet(run)
            rows, status = run.stats(), run.status()
            made = [(row.items_in, row.items_out) for row in rows.values()]
            assert made == [(epoch * COUNT, epoch * COUNT)] * 3
            assert (status.epoch, status.delivered) == (epoch - 1, COUNT)
            assert sum(row["epoch"] == epoch for row in run.history()) == 0


def test_a_cache_is_read_ahead_once_it_is_complete():
    """The epoch that fills it is waited for; then its items are read ahead."""
    calls = Calls()
    pipe = chain(calls).cache().map(stage("thread", calls=(later := Calls())), name="after")
    with ahead(pipe) as run:
        begun = []
        for _ in range(3):
            assert drained(run) == list(range(COUNT))
            quiet(run)
            begun.append((calls.begun, later.begun))
    assert begun[0] == (COUNT, COUNT)
    assert begun[1][0] == COUNT
    assert begun[1][1] > 2 * COUNT


@pytest.mark.parametrize(
    ("pipe", "options", "message"),
    [
        (nbpipe.source([0]), {"isolate": True}, "leave out one of the two"),
        (nbpipe.source(range(8)).claim(chunk=2), {}, "use shard"),
        (nbpipe.source([0]), {"read_ahead": 1}, "read_ahead must be True or False, got 1"),
    ],
    ids=["isolated", "claim", "no flag"],
)
def test_what_cannot_read_ahead(pipe, options, message):
    """An epoch that a process or a claim knows of once the loop begins it is not begun before."""
    with pytest.raises(nbpipe.ArgumentError, match=message):
        pipe.start(**{"read_ahead": True} | options)


def test_the_status_tells_that_the_next_epoch_has_begun():
    """It says so from the first call of the next epoch on, until that is the one in progress."""
    calls = Calls()
    chain = nbpipe.source(range(4)).map(stage("thread", calls=calls), prefetch=8)
    with chain.start(read_ahead=True) as run:
        before = run.status().ahead
        items = iter(run)
        got = [next(items)]
        calls.wait_begun(5)
        during = run.status().ahead
        got.extend(items)
    assert (before, during, got) == (False, True, list(range(4)))
