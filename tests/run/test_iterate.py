"""An epoch in an order given from outside: what comes, what it costs, what is refused."""

import array
import gc
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from tests.chains import build
from tests.gates import Calls, Gate, delivered, drained, finished, quiet, stage, until
from tests.models import passed
from tests.strategies import CALL_STEPS, GATHER_STEPS, HANDS, SHARDS, SMALL, step

ITEMS = [10 * number for number in range(40)]
ORDER = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
WANTED = [ITEMS[index] for index in ORDER]

isolated = pytest.mark.parametrize("isolate", [False, True], ids=["here", "isolated"])


def chain():
    """Make a chain of tens and one stage, "w"."""
    return nbpipe.source(ITEMS).map(lambda item: item, concurrency=2, name="w")


def draw(item, rng):
    """Give a number that depends on the item's place."""
    return item, float(rng.random())


def failing(item):
    """Fail on forty."""
    if item == 40:
        raise KeyError(item)
    return item


class Again:
    """Indices that can be iterated again and again."""

    def __iter__(self):
        return iter(ORDER)


KINDS = {
    "list": lambda: ORDER,
    "tuple": lambda: tuple(ORDER),
    "array": lambda: np.array(ORDER, np.int32),
    "unsigned": lambda: np.array(ORDER, np.uint8),
    "bytes of array": lambda: array.array("q", ORDER),
    "numpy ints": lambda: [np.int64(index) for index in ORDER],
    "iterator": lambda: iter(ORDER),
    "generator": lambda: (index for index in ORDER),
    "iterable": Again,
}


# -- the order -------------------------------------------------------------------------------------
@isolated
@pytest.mark.parametrize("kind", KINDS)
def test_any_iterable_of_ints(kind, isolate):
    """Items come in the order of the indices, as often as they are named."""
    order = KINDS[kind]()
    with chain().start(isolate=isolate) as run:
        if isolate and not hasattr(order, "__len__"):
            with pytest.raises(nbpipe.ArgumentError, match="give a list"):
                run.iterate(order)
            order = list(order)
        assert (drained(run.iterate(order)), run.epoch) == (WANTED, 0)


@isolated
def test_tensors_and_samplers_of_torch(torch, isolate):
    """A tensor of indices, and a sampler, are orders like any other."""
    from torch.utils.data import SubsetRandomSampler

    with chain().start(isolate=isolate) as run:
        tensor = drained(run.iterate(torch.tensor(ORDER)))
        zero_dimensional = drained(run.iterate(list(torch.tensor(ORDER))))
        sampled = drained(run.iterate(SubsetRandomSampler(range(5))))
    assert (tensor, zero_dimensional, sorted(sampled)) == (WANTED, WANTED, ITEMS[:5])


@pytest.mark.slow
@isolated
def test_ranges_and_no_indices(isolate):
    """A range is taken as it is, and no index gives no item."""
    with chain().start(isolate=isolate) as run:
        found = [drained(run.iterate(indices)) for indices in (range(39, -1, -3), [])]
    assert found == [ITEMS[::-1][::3], []]


HEADS = {
    "shuffle": lambda pipe: pipe.shuffle(seed=4),
    "shard": lambda pipe: pipe.shuffle().shard(1, 3),
    "take": lambda pipe: pipe.take(2),
    "skip": lambda pipe: pipe.skip(39),
    "repeat": lambda pipe: pipe.repeat(3),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_order_takes_the_place_of_the_heads_own(name):
    """What orders indices at the head is left out; the next epoch has it again."""
    pipe = HEADS[name](nbpipe.source(ITEMS)).map(lambda item: item, name="w")
    with pipe.start() as run:
        assert drained(run.iterate(ORDER)) == WANTED
        run.set_epoch(0)
        assert drained(run) == list(pipe)


def test_enumerate_numbers_what_is_read():
    """Right after the source it gives indices, after an order of indices the places in it."""
    of_source = nbpipe.source(ITEMS).enumerate().shuffle()
    of_order = nbpipe.source(ITEMS).shuffle().enumerate()
    both = nbpipe.source(ITEMS).enumerate().take(5).enumerate()
    found = []
    for pipe in (of_source, of_order, both):
        with pipe.start() as run:
            found.append(drained(run.iterate([7, 2])))
    assert found == [
        [(7, 70), (2, 20)],
        [(0, 70), (1, 20)],
        [(0, (7, 70)), (1, (2, 20))],
    ]


@pytest.mark.slow
@isolated
def test_every_epoch_takes_the_next_number(isolate):
    """Epochs in a given order are counted with the others, and the source is told."""

    class Told(list):
        def set_epoch(self, number):
            self[:] = [number] * 3

    with nbpipe.source(Told([9, 9, 9])).start(isolate=isolate) as run:
        found = [drained(run), drained(run.iterate([0])), drained(run.iterate([2, 1])), run.epoch]
    assert found == [[0, 0, 0], [1], [2, 2], 2]


STEPS = st.one_of(
    CALL_STEPS,
    GATHER_STEPS,
    step("take", SMALL),
    step("skip", SMALL),
    step("enumerate"),
    step("cache"),
    SHARDS,
)
ORDERS = st.lists(st.integers(0, 11), max_size=10)


@pytest.mark.slow
@given(ORDERS, st.lists(STEPS, max_size=4), HANDS, st.booleans())
def test_random_orders_through_random_chains(order, steps, hands, lazily):
    """Items are those that the same steps give for a plain list in that order."""
    items = list(range(5, 17))
    steps = [["map", 0], *steps]
    with build([["items", items], *steps], hands).start() as run:
        found = drained(run.iterate(iter(order) if lazily else order))
        own = drained(run)
    assert found == passed([items[index] for index in order], *steps)
    assert own == passed(items, *steps)


# -- paths and random numbers ----------------------------------------------------------------------
def test_an_index_given_twice_draws_twice():
    """Random numbers depend on the place in the order and the index, and on nothing else."""
    found = []
    for options in ({}, {"isolate": True}):
        with nbpipe.source(ITEMS).map(draw, concurrency=3).start(seed=7, **options) as run:
            found.append([drained(run.iterate([2, 2, 5])), drained(run.iterate([2, 2, 5]))])
            run.set_epoch(0)
            found.append(drained(run.iterate([2, 4, 5])))
    first, second = found[0]
    numbers = [number for _, number in first + second]
    assert len(set(numbers)) == 6
    assert found[2] == found[0]
    assert [a == b for a, b in zip(first, found[1], strict=True)] == [True, False, True]


def test_failures_name_place_and_index():
    """The path of an item that failed is its place in the order and its index."""
    with nbpipe.source(ITEMS).map(failing, on_error="skip").start() as run:
        found = drained(run.iterate([1, 4, 2, 4]))
        paths = [failure.path for failure in run.failures()]
    assert (found, paths) == ([10, 20], [(1, 4), (3, 4)])


# -- how lazily it is drawn ------------------------------------------------------------------------


def test_indices_are_drawn_as_far_as_the_source_reads_ahead():
    """No more are drawn than the source may hold, and the next stage has taken."""
    gate, calls, numbers = Gate(), Calls(), itertools.count()
    fn = stage("thread", gate=lambda _: gate, calls=calls)
    with nbpipe.source(ITEMS, prefetch=3).map(fn, prefetch=1, name="w").start() as run:
        items = run.iterate(number % 40 for number in numbers)
        calls.wait_running(1)
        quiet_but_for(run, "w")
        drawn = next(numbers)
        gate.open()
        items.close()
    assert drawn <= 1 + 3 + 1


def quiet_but_for(run, name):
    """Wait until nothing but a stage is at work."""
    others = [address for address in run.stages if address != name]
    until(lambda: not any(run.stats()[address].running for address in others))


def test_an_order_that_waits_for_what_it_gave():
    """Indices may be chosen by what came out for those before."""
    seen, came = [], threading.Condition()

    def chosen():
        index = 1
        while index < 30:
            yield index
            with came:
                came.wait_for(lambda known=index: seen and seen[-1] == ITEMS[known])
            index *= 2

    with chain().start() as run:
        for item in run.iterate(chosen()):
            with came:
                seen.append(item)
                came.notify_all()
    assert seen == [10, 20, 40, 80, 160]


def test_an_iterator_of_the_users_own_is_left_open():
    """A generator that was handed over is not closed; an iterator made of an iterable is."""
    closed = []

    class Made:
        def __iter__(self):
            try:
                yield from itertools.cycle([1])
            finally:
                closed.append("made")

    def own():
        try:
            yield from itertools.cycle([1])
        finally:
            closed.append("own")

    kept = own()
    with chain().start() as run:
        for indices in (kept, Made()):
            items = run.iterate(indices)
            next(items)
            items.close()
            quiet(run)
        gc.collect()
        assert (closed, next(kept)) == (["made"], 1)


# -- lengths ---------------------------------------------------------------------------------------
@isolated
def test_lengths_are_those_of_the_order(isolate):
    """Where the indices have a length, the iterator and the status know the batches."""
    pipe = nbpipe.source(ITEMS).shuffle().batch(4, collate=list)
    with pipe.start(isolate=isolate) as run:
        items = run.iterate(ORDER)
        known = [items.__length_hint__(), run.status().total]
        next(items)
        known.append(items.__length_hint__())
        items = iter(run)
        own = [items.__length_hint__(), run.status().total, len(run)]
        items.close()
    assert (known, own) == ([3, 3, 2], [10, 10, 10])


# -- caches ----------------------------------------------------------------------------------------
def test_caches_are_passed_by():
    """A cache holds the pipeline's own epoch: it neither keeps another order nor gives it."""
    made = []

    def make(item):
        made.append(item)
        return item

    with nbpipe.source(ITEMS).map(make).cache().map(lambda item: item, name="w").start() as run:
        before = drained(run.iterate(ORDER))
        own = drained(run)
        after = drained(run.iterate(ORDER))
        cached_items = drained(run)
    assert (before, own, after, cached_items) == (WANTED, ITEMS, WANTED, ITEMS)
    assert len(made) == len(ITEMS) + 2 * len(ORDER)


# -- indices that are none -------------------------------------------------------------------------
WRONG = [40, -1, 10**30, 1.0, True, "3", None, np.float64(2), np.array([1, 2])]


@isolated
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: str(value)[:8])
def test_a_wrong_index_fails_in_its_place(wrong, isolate):
    """The items before it come, then an error that says which, what and what is allowed."""
    with chain().start(isolate=isolate) as run:
        got, error = delivered(run.iterate([3, 1, wrong, 2]))
        again = drained(run.iterate([3]))
    assert (got, again) == ([30, 10], [30])
    assert isinstance(error, nbpipe.StageError)
    assert error.stage == "source"
    assert isinstance(error.__cause__, nbpipe.ArgumentError)
    told = str(error.__cause__)
    assert told.startswith("index number 2 of the epoch must be an int in [0, 39], got ")
    assert repr(wrong) in told


def test_a_source_without_items_has_no_index():
    """Any index is refused where there are no items."""
    with nbpipe.source([]).start() as run:
        got, error = delivered(run.iterate([0]))
    assert (got, "has 0 items" in str(error)) == ([], True)


def test_what_gives_the_indices_may_fail():
    """An exception of the generator is the cause of the source's, after the items before."""

    def fails():
        yield 3
        raise LookupError("no more")

    with chain().start() as run:
        got, error = delivered(run.iterate(fails()))
    assert (got, error.stage, error.path) == ([30], "source", 1)
    assert (type(error.__cause__), str(error.__cause__)) == (LookupError, "no more")


@isolated
def test_items_may_fail(isolate):
    """An exception of `__getitem__` is told with the place and the index."""

    class Fails(list):
        def __getitem__(self, index):
            if index == 2:
                raise IndexError("torn")
            return super().__getitem__(index)

    with nbpipe.source(Fails(ITEMS)).start(isolate=isolate) as run:
        got, error = delivered(run.iterate([1, 2, 3]))
    assert (got, error.path, str(error.__cause__)) == ([10], (1, 2), "torn")


REFUSED = ["12", b"12", {1: 2}, {1, 2}, 5, None, np.array(3)]


@pytest.mark.parametrize("indices", REFUSED, ids=repr)
def test_what_is_no_order_is_refused_at_once(indices):
    """What has no order, or is no iterable of ints, starts no epoch."""
    with chain().start() as run:
        with pytest.raises(nbpipe.ArgumentTypeError, match="iterate indices must be an iterable"):
            run.iterate(indices)
        assert (drained(run), run.epoch) == (ITEMS, 0)


def test_a_generator_that_was_read_is_refused():
    """A generator that is empty for good is no order by mistake."""
    used = (index for index in ORDER)
    with chain().start() as run:
        first = drained(run.iterate(used))
        with pytest.raises(nbpipe.ArgumentTypeError, match="make a new one for each epoch"):
            run.iterate(used)
    assert first == WANTED


def numbers():
    """Begin a chain of numbers."""
    return nbpipe.source(range(9))


HEADS_REFUSED = {
    "zip": (lambda: nbpipe.zip(numbers(), numbers()), "'zip', which joins 2 pipelines"),
    "concat": (lambda: nbpipe.concat(numbers(), numbers()), "'concat', which joins 2"),
    "concat, shuffle": (lambda: nbpipe.concat(numbers(), numbers()).shuffle(), "'concat'"),
    "mix": (lambda: nbpipe.mix([numbers(), numbers()]), "start a run for each pipeline"),
    "interleave": (lambda: nbpipe.interleave([numbers()], cycle=1), "'interleave'"),
    "function": (lambda: nbpipe.source(lambda: iter(range(9))), "give a list or a dataset"),
    "pipeline": (lambda: nbpipe.source(numbers()), "add the stages to that pipeline itself"),
    "repeat": (lambda: numbers().map(abs).repeat(2), "leave repeat out"),
}


@pytest.mark.parametrize("name", HEADS_REFUSED)
def test_pipelines_that_are_not_read_by_index_are_refused(name):
    """The error names the stage and the way out, and no epoch has begun."""
    make, said = HEADS_REFUSED[name]
    with make().start() as run:
        for use in (lambda run: run.iterate([0]), nbpipe.Run.open_epoch):
            with pytest.raises((nbpipe.ArgumentError, nbpipe.ArgumentTypeError)) as caught:
                use(run)
            assert said in str(caught.value)
        assert run.status().state == "ready"


# -- going on from a state -------------------------------------------------------------------------
@isolated
def test_an_epoch_goes_on_where_it_stood(isolate):
    """With the same indices, the rest of the epoch is what had not come yet."""
    pipe = nbpipe.source(ITEMS).map(draw, concurrency=3)
    with pipe.start(seed=5) as run:
        whole = drained(run.iterate(ORDER))
        run.set_epoch(0)
        items = run.iterate(ORDER)
        before = [next(items) for _ in range(4)]
        state = run.state_dict()
        items.close()
    with pipe.start(seed=5, isolate=isolate) as run:
        run.load_state_dict(state)
        rest = drained(run.iterate(tuple(ORDER)))
    assert before + rest == whole


@isolated
@pytest.mark.parametrize("order", [[3, 1], []])
def test_an_order_that_ends_before_the_place_is_refused(order, isolate):
    """An order with fewer indices than were delivered is no empty rest: it is said so."""
    pipe = nbpipe.source(range(10)).map(abs)
    with pipe.start(isolate=isolate) as run:
        items = run.iterate([5, 6, 7, 8])
        assert [next(items) for _ in range(3)] == [5, 6, 7]
        run.load_state_dict(run.state_dict())
        with pytest.raises(nbpipe.StageError, match=r"must have at least the 3 indices") as caught:
            drained(run.iterate(order))
    assert "same indices" in str(caught.value)


def test_an_order_may_end_where_a_last_batch_did():
    """Behind a last batch that is not full nothing is left, and nothing is missing."""
    pipe = nbpipe.source(range(10)).batch(4, collate=list)
    with pipe.start() as run:
        items = run.iterate(range(6))
        assert [next(items), next(items)] == [[0, 1, 2, 3], [4, 5]]
        run.load_state_dict(run.state_dict())
        assert drained(run.iterate(range(6))) == []


def test_loads_that_end_before_the_place_are_refused():
    """An epoch that is filled while it runs tells at its end that indices are missing, too."""
    pipe = nbpipe.source(range(10)).map(abs)
    with pipe.start() as run:
        items = run.iterate([5, 6, 7, 8])
        assert [next(items) for _ in range(3)] == [5, 6, 7]
        run.load_state_dict(run.state_dict())
        with run.open_epoch() as epoch:
            epoch.load([5, 6])
            epoch.end()
            with pytest.raises(nbpipe.StageError, match=r"at least the 3 indices"):
                drained(epoch)


# -- leaving ---------------------------------------------------------------------------------------
def test_leaving_in_mid_epoch():
    """After a break, a stop or a drop the next epoch is whole."""
    with chain().start() as run:
        for _ in run.iterate(itertools.cycle(ORDER)):
            break
        first = drained(run.iterate(ORDER))
        items = run.iterate(itertools.cycle(ORDER))
        next(items)
        run.stop()
        stopped = drained(items), run.stopped
        run.iterate(itertools.cycle(ORDER))
        assert (first, stopped, drained(run)) == (WANTED, ([], True), ITEMS)


def test_a_failing_stage_ends_an_endless_order():
    """After a failure no more indices are drawn."""
    with nbpipe.source(ITEMS).map(failing, name="w").start() as run:
        got, error = delivered(run.iterate(itertools.cycle([1, 2, 4])))
    assert (got, error.stage) == ([10, 20], "w")


def test_closed_and_busy_runs_refuse():
    """An epoch in a given order begins as any other: not in a closed run, nor beside another."""
    with chain().start() as run:
        items = iter(run)
        next(items)
        with pytest.raises(nbpipe.ConcurrentIterationError):
            finished(run.iterate, ORDER)
        items.close()
    with pytest.raises(nbpipe.RunClosedError):
        run.iterate(ORDER)
    assert run.closed
