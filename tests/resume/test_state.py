"""The state itself: JSON, small, without items, told at any moment, refused where it is wrong."""

import io
import json
import sys
import threading

import pytest

import nbpipe
from nbpipe import StateError
from tests.chains import Hands, build, outcome
from tests.gates import Calls, Gate, finished, quiet, stage, until
from tests.resume.checking import at, carried, rest_of

MARKER = "item-that-must-not-be-kept"
RICH = [
    [
        "mix",
        [[["range", 12], ["filter", 3]], [["generator", 9], ["flat_map", 2]]],
        [1, 2],
        "longest",
        0,
    ],
    ["shuffle", 1, 4],
    ["failing", 7],
    ["repeat", 2],
    ["batch", 2, False],
]


# -- what it is made of ----------------------------------------------------------------------------


def test_torch_saves_it_without_pickled_code(torch):
    """`torch.load(weights_only=True)` reads what `torch.save` wrote."""
    got, state = at(build(RICH), 3)
    file = io.BytesIO()
    torch.save({"data": state}, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)["data"]
    assert got + rest_of(build(RICH), again) == list(build(RICH))


def test_it_holds_no_items():
    """Neither buffers nor batches, nor what was read ahead, go into a state."""
    pipe = (
        nbpipe.source([f"{MARKER}-{number}" for number in range(50)])
        .map(str)
        .shuffle(buffer_size=10)
        .window(3, 2)
        .batch(3, collate=list)
    )
    _, state = at(pipe, 2)
    assert MARKER not in json.dumps(state)


def test_a_buffer_of_1000_makes_a_small_state():
    """Numbers of a buffer of 1,000 items take some 10 kB."""
    _, state = at(nbpipe.source(lambda: iter(range(5000))).shuffle(buffer_size=1000), 700)
    assert len(json.dumps(state)) < 40_000


def test_it_says_how_a_source_comes_to_its_place():
    """A source without an index is advanced by skipping, and the state says so."""
    _, indexed = at(nbpipe.source(range(5)), 2)
    _, streamed = at(nbpipe.source(lambda: iter(range(5))), 2)
    ways = [state["stages"]["source"]["by"] for state in (indexed, streamed)]
    assert ways == ["index", "skipping"]


def test_an_indexed_source_is_not_read_again():
    """What the loop has had is not read by the run that goes on."""
    calls = Calls()

    class Data:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            calls.enter(index)
            calls.leave()
            return index

    _, state = at(nbpipe.source(Data()), 12)
    calls.of.clear()
    rest_of(nbpipe.source(Data()), state)
    assert sorted(calls.of) == list(range(12, 20))


# -- when it is taken ------------------------------------------------------------------------------


def test_before_the_first_epoch():
    """A run that has not begun is at the beginning of epoch 0."""
    with build(RICH).start() as run:
        state = run.state_dict()
    assert (state["epoch"], state["delivered"], state["stages"]) == (0, 0, {})
    assert rest_of(build(RICH), state) == list(build(RICH))


def test_after_stop():
    """`stop()` ends an epoch as if it were exhausted: the next one follows."""
    with nbpipe.source(range(9)).start() as run:
        items = iter(run)
        next(items)
        run.stop()
        state = run.state_dict()
    assert (state["epoch"], state["delivered"], state["stages"]) == (1, 0, {})


def test_after_break_while_paused_and_when_closed():
    """The place stays the same when the loop is left, the run paused, or closed."""
    with nbpipe.source(range(9)).start() as run:
        items = iter(run)
        next(items)
        next(items)
        states = [run.state_dict()]
        run.pause()
        states.append(run.state_dict())
        run.resume()
        items.close()
        states.append(run.state_dict())
        run.close()
        states.append(run.state_dict())
    assert all(state == states[0] for state in states)
    assert rest_of(nbpipe.source(range(9)), states[0]) == list(range(2, 9))


def test_it_waits_for_nothing():
    """While all calls are held back, a state is told at once."""
    gate = Gate()
    calls = Calls()
    function = stage("thread", gate=lambda item: gate if item else None, calls=calls)
    with nbpipe.source(range(9)).map(function).start() as run:
        items = iter(run)
        next(items)
        calls.wait_begun(2)
        state = finished(run.state_dict)
        gate.open()
        items.close()
    assert rest_of(nbpipe.source(range(9)), {**state, "chain": _chain(), "seal": None}) == list(
        range(1, 9)
    )


def _chain():
    with nbpipe.source(range(9)).start() as run:
        return run.state_dict()["chain"]


def test_batches_that_were_made_ahead_are_made_again_as_they_were():
    """A state knows how large those were that the loop had not got, whatever items cost now."""
    cost = [1]
    pipe = nbpipe.source(range(60)).batch(3, cost=lambda _: cost[0], collate=list)
    with pipe.start() as run:
        items = iter(run)
        assert next(items) == [0, 1, 2]
        quiet(run)
        state = run.state_dict()
    cost[0] = 3
    rest = rest_of(pipe, state)
    assert (rest[:2], rest[-1]) == ([[3, 4, 5], [6, 7, 8]], [59])
    assert [item for batch in rest for item in batch] == list(range(3, 60))


RACES = [
    [["range", 1500], ["filter", 3], ["dedupe", 100], ["shuffle", 1, 50], ["map", 1]],
    [["generator", 1500], ["filter", 3], ["batch_by_cost", 5, False], ["window", 3, 2]],
    [["generator", 1500], ["enumerate"], ["skip", 100], ["shard", 1, 3, "drop"], ["map", 1]],
    [["generator", 1500], ["failing", 5], ["shard", 1, 3, "pad"], ["flat_map", 3], ["unbatch"]],
    [["generator", 100], ["shuffle", 1, 7], ["repeat", 10], ["route", 1], ["map", 1]],
    [["mix", [[["range", 500]], [["list", 700], ["filter", 3]]], [1, 2], "longest", 0], ["map", 1]],
    [["interleave", [[["range", 300]], [["list", 500]], [["list", 99]]], 2], ["shuffle", 1, 9]],
]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RACES)
def test_taken_by_another_thread_at_full_speed(recipe):
    """Each of hundreds of states says exactly what is left behind the number it delivered."""
    states = states_of_a_race(build(recipe, Hands(("thread", "inline"), (3,), (16,))))
    expected, _ = outcome(build(recipe))
    assert any(0 < delivered < len(expected) for delivered in states)
    with build(recipe).start() as run:
        for delivered, state in list(states.items())[:: max(1, len(states) // 25)]:
            run.load_state_dict(carried(state))
            assert outcome(run) == (expected[delivered:], None), state


def states_of_a_race(pipe):
    """Take states as fast as possible while another thread iterates, by number of items."""
    taken, over = [], threading.Event()
    interval = sys.getswitchinterval()
    with pipe.start() as run:

        def look():
            while not over.is_set():
                taken.append(run.state_dict())

        def consume():
            for number, _ in enumerate(run):
                if number == 10:  # the other thread has had its turn by now, and goes on
                    before = len(taken)
                    until(lambda before=before: len(taken) > before + 1)

        looking = threading.Thread(target=look)
        sys.setswitchinterval(1e-5)
        looking.start()
        try:
            finished(consume)
        finally:
            over.set()
            looking.join()
            sys.setswitchinterval(interval)
    return {state["delivered"]: state for state in taken if state["epoch"] == 0}


# -- when it is loaded -----------------------------------------------------------------------------


def test_set_epoch_after_load():
    """The number that was set last counts: the state is put aside."""
    _, state = at(nbpipe.source(range(9)).shuffle(), 3)
    with nbpipe.source(range(9)).shuffle().start() as run:
        list(run)
        expected = list(run)
        run.load_state_dict(state)
        run.set_epoch(1)
        assert list(run) == expected


HOW = {"plain": {}, "read_ahead": {"read_ahead": True}, "isolated": {"isolate": True}}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("order", [None, [5, 3, 8, 1]])
def test_set_epoch_behind_an_epoch_that_was_left(how, number, order):
    """From then on the state is that of the epoch to come, whatever number it has."""

    def chain():
        return nbpipe.source(range(9)).shuffle().map(lambda n, rng: (n, int(rng.integers(99))))

    with chain().start() as run:
        run.set_epoch(number)
        wanted = [list(run), list(run)]
    with chain().start(**HOW[how]) as run:
        list(run)
        items = iter(run) if order is None else run.iterate(order)
        next(items)
        items.close()
        assert run.state_dict()["delivered"] == 1
        run.set_epoch(number)
        state = carried(run.state_dict())
        assert (state["epoch"], state["delivered"], state["given"]) == (number, 0, False)
        got = list(run)
    with chain().start(**HOW[how]) as run:
        run.load_state_dict(state)
        assert [got, list(run), list(run)] == [wanted[0], *wanted]


def test_set_epoch_within_an_epoch():
    """The epoch in progress is the one that the state tells of, until the next one begins."""
    with nbpipe.source(range(9)).start() as run:
        items = iter(run)
        next(items)
        run.set_epoch(4)
        inside = run.state_dict()
        items.close()
        states = [inside, run.state_dict()]
        iter(run)
        states.append(run.state_dict())
    told = [(state["epoch"], state["delivered"]) for state in states]
    assert told == [(0, 1), (0, 1), (4, 0)]


def test_set_epoch_behind_an_epoch_that_failed():
    """An error leaves an epoch, too."""
    with nbpipe.source([1, 0]).map(lambda n: 1 / n, name="f").start() as run:
        with pytest.raises(nbpipe.StageError):
            list(run)
        assert run.state_dict()["delivered"] == 1
        run.set_epoch(3)
        assert (run.state_dict()["epoch"], run.state_dict()["delivered"]) == (3, 0)


def test_lists_that_lie_apart_in_an_epoch_that_is_cut_twice():
    """Items between two lists are left out once, though nothing was taken between two states."""
    gate = Gate()

    def slow():
        yield from range(3)
        gate.wait()
        yield from range(3, 20)

    def chain(items):
        return nbpipe.source(items).window(2, 5)

    with chain(slow).start() as run:
        items = iter(run)
        got = [next(items)]
        state = run.state_dict()
        gate.open()
    with chain(slow).start() as run:
        run.load_state_dict(state)
        items = iter(run)
        state = run.state_dict()
    assert got + rest_of(chain(slow), state) == [[0, 1], [5, 6], [10, 11], [15, 16]]


def test_load_in_the_middle_of_an_epoch():
    """A state may be loaded while an epoch is in progress: the next iteration goes on from it."""
    with nbpipe.source(range(9)).start() as run:
        items = iter(run)
        first = [next(items), next(items)]
        state = run.state_dict()
        third = next(items)
        run.load_state_dict(state)
        assert (first, third, list(run)) == ([0, 1], 2, list(range(2, 9)))


@pytest.mark.parametrize("count", [0, 2, 9])
@pytest.mark.parametrize("external", [False, True])
def test_an_iterator_that_is_dropped_loses_no_state_that_was_loaded(count, external):
    """What was loaded stays until something is taken, also where that is an epoch's beginning."""
    pipe = nbpipe.source(range(9)).shuffle(seed=1)

    def begun(run):
        return run.iterate(range(9)) if external else iter(run)

    with pipe.start() as run:
        list(begun(run))
        items = begun(run)
        for _ in range(count):
            next(items)
        state = carried(run.state_dict())
        rest, following = list(items), list(run)
    with pipe.start() as run:
        run.load_state_dict(state)
        for _ in range(2):
            begun(run).close()
            assert carried(run.state_dict()) == state
        assert (list(begun(run)), list(run)) == (rest, following)


def test_what_is_delivered_and_left_is_counted():
    """What is left is known; the status and a state count what came before the resume, too."""
    pipe = nbpipe.source(range(10)).batch(2, collate=list)
    _, state = at(pipe, 2)
    with pipe.start() as run:
        run.load_state_dict(state)
        items = iter(run)
        assert items.__length_hint__() == 3
        next(items)
        assert items.__length_hint__() == 2
        assert (run.status().delivered, run.status().total) == (3, 5)
        assert run.state_dict()["delivered"] == 3


def test_load_changes_nothing_when_it_refuses():
    """A run that refused a state goes on as if it had not seen it."""
    with nbpipe.source(range(5)).start() as run:
        with pytest.raises(StateError):
            run.load_state_dict({"nbpipe": 1})
        assert list(run) == list(range(5))


def test_an_order_from_outside():
    """With the same indices `iterate` goes on; without them the state is refused."""
    pipe, order = nbpipe.source(range(50)).filter(bool).batch(3, collate=list), range(49, -1, -2)
    with pipe.start() as run:
        expected = list(run.iterate(order))
        items = run.iterate(order)
        got = [next(items), next(items)]
        state = carried(run.state_dict())
        run.load_state_dict(state)
        assert got + list(run.iterate(order)) == expected
        run.load_state_dict(state)
        with pytest.raises(StateError) as caught:
            iter(run)
    assert "run.iterate(indices)" in str(caught.value)


def test_an_order_from_outside_does_not_go_on_in_the_own_one():
    """A state of the pipeline's own order is refused by `iterate`, and is there all the same."""
    _, state = at(nbpipe.source(range(5)), 3)
    with nbpipe.source(range(5)).start() as run:
        run.load_state_dict(state)
        with pytest.raises(StateError, match=r"own order, .* give an order to the epoch after it"):
            run.iterate([4, 3])
        assert list(run) == [3, 4]
        assert list(run.iterate([4, 3])) == [4, 3]


def test_train_and_iter_go_on():
    """Whoever iterates next goes on from the state that was loaded."""
    _, state = at(nbpipe.source(range(5)), 3)
    with nbpipe.source(range(5)).start() as run:
        run.load_state_dict(state)
        trained = []
        run.train(trained.append, epochs=2).wait()
        run.load_state_dict(state)
        assert (trained, list(run)) == ([3, 4, *range(5)], [3, 4])
