"""What a failing item does: errors in order, skips, budgets; completion order."""

import itertools
import threading

import numpy as np
import pytest

import nbpipe
from tests.gates import Calls, Gate, delivered, drained, finished, options, quiet, stage

KINDS = ("thread", "coroutine", "inline")


def failing(kind, bad, error=ValueError):
    """Make a stage's function that fails on the items in `bad`."""

    def result(item):
        if item in bad:
            raise error(f"bad item {item}")
        return item

    return stage(kind, result=result)


# -- raise -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0, 1, 7, 40, 99])
def test_error_surfaces_after_every_earlier_item(kind, bad):
    """In order, all items before the failing one come first, then the error, then the end."""
    chain = nbpipe.source(range(100)).map(failing(kind, {bad}), **options(kind, concurrency=4))
    chain = chain.map(lambda item: item, name="after")
    with chain.start() as run:
        items = iter(run)
        got, error = delivered(items)
        assert (got, error.path, list(items)) == (list(range(bad)), bad, [])


def test_first_failure_in_order_surfaces_though_a_later_one_came_first():
    """The error of the earliest item is raised, whatever happens first."""
    gate, calls = Gate(), Calls()

    def work(item):
        calls.enter(item)
        if item == 3:
            gate.wait()
        if item in (3, 4):
            raise ValueError(item)
        return item

    with nbpipe.source(range(20)).map(work, concurrency=4).start() as run:
        items = iter(run)
        calls.wait_begun(5)
        gate.open()
        got, error = delivered(items)
        assert (got, error.path) == ([0, 1, 2], 3)


def test_error_in_completion_order_surfaces_at_once():
    """With `ordered=False` an error does not wait for earlier items."""
    gate = Gate()
    fn = stage(
        "thread", gate=lambda item: gate if item == 0 else None, result=lambda item: 1 // (item - 5)
    )
    chain = nbpipe.source(range(20)).map(fn, concurrency=2, ordered=False)
    with chain.start() as run:
        _, error = delivered(run)
        gate.open()
        assert (error.path, type(error.__cause__)) == (5, ZeroDivisionError)


class Evil:
    """An item that can be neither shown nor measured."""

    def __repr__(self):
        raise ValueError

    __len__ = __sizeof__ = __bool__ = __repr__
    nbytes = shape = property(__repr__)


def test_items_that_cannot_be_looked_at_pass():
    """Measuring and describing an item never breaks a run."""

    def fail(item):
        class WordlessError(Exception):
            __str__ = Evil.__repr__

        raise WordlessError

    evil = nbpipe.source(range(5)).map(lambda _: Evil())
    with evil.start() as run, evil.map(fail).start() as failing_run:
        assert len(drained(run)) == 5
        assert delivered(failing_run)[1].path == 0


async def zeros(_):
    """Give two zeros, from the event loop."""
    return np.zeros(2)


@pytest.mark.parametrize("predicate", [lambda _: np.zeros(2), zeros])
def test_predicate_without_a_truth_value_is_a_failure(predicate):
    """A predicate that gives an array fails as the user's own code would."""
    chain = nbpipe.source(range(3)).filter(predicate)
    assert isinstance(delivered(chain)[1].__cause__, ValueError)


# -- skip and budgets ------------------------------------------------------------------------------


def test_only_the_last_hundred_failures_are_kept():
    """`run.failures()` is bounded: the last 100, oldest first."""
    chain = nbpipe.source(range(300)).map(failing("thread", range(300)), on_error="skip")
    with chain.start() as run:
        drained(run)
        assert [failure.path for failure in run.failures()] == list(range(200, 300))


BUDGETS = [
    (1000, range(300, 320), 0, 300, "1 of 301 items"),
    (1000, range(300, 320), 3, 300, "4 of 304 items"),
    (1000, range(300, 320), 20, 980, None),
    (50, range(5), 0.1, 45, None),  # a short epoch is judged at its end
    (50, range(6), 0.1, 44, "6 of 50 items"),
    # a share is one of all items, the failed one among them
    (200, {4, 6, 7}, 2, 5, "3 of 8 items, more than max_failures=2 items"),
    (200, {*range(50), 100}, 0.5, 50, "51 of 101 items"),
    (200, {*range(50), 101}, 0.5, 149, None),
]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_budget_ends_the_epoch_at_the_failure_that_exceeds_it(kind, budget):
    """As many failures as allowed are no error, in every epoch anew; one more is, in order."""
    count, bad, limit, given, words = budget
    chain = nbpipe.source(range(count)).map(
        failing(kind, bad), **options(kind), on_error="skip", max_failures=limit, name="m"
    )
    with chain.start() as run:
        outcomes = [delivered(run) for _ in range(2)]
    for got, error in outcomes:
        assert got == [n for n in range(count) if n not in bad][:given]
        if words is None:
            assert error is None
        else:
            assert (type(error), error.stage) == (nbpipe.FailureBudgetError, "m")
            assert words in str(error)


def judged(items, limit, *stages):
    """Give the items that come until too many fail at a stage, and what its error says.

    Args:
        items: what comes in.
        limit: the share that may fail at each stage.
        stages: for each, what it leaves out and what fails there.
    """
    got, seen, failed = [], [0] * len(stages), [0] * len(stages)
    for item in items:
        for place, (drops, bad) in enumerate(stages):
            seen[place] += 1
            failed[place] += item in bad
            if seen[place] >= 100 and failed[place] > limit * seen[place]:
                got += [item] * (item not in bad)
                return got, f"failed on {failed[place]} of {seen[place]} items"
            if item in bad or item in drops:
                break
        else:
            got.append(item)
    return got, ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [range(200, 2000, 2), range(20), range(150, 400)])
def test_budget_by_rate_is_judged_at_each_item(kind, bad):
    """However many items are done at once, the epoch ends at the one that makes it too many."""
    chain = nbpipe.source(range(2000)).map(
        failing(kind, bad), **options(kind, concurrency=3), on_error="skip", max_failures=0.1
    )
    for _ in range(2):
        with chain.start() as run:
            got, error = delivered(run)
            again, _ = delivered(run)
        wanted, words = judged(range(2000), 0.1, ((), bad))
        assert (got, again) == (wanted, wanted)
        assert words in str(error)


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize("bad", [range(0, 3000, 9), range(900, 2000), (0,)])
def test_budget_by_rate_counts_what_came_to_the_stage(kind, bad):
    """What a stage that runs with it, or at once with it, left out is none of its items."""
    how = {**options(kind, executor=kind, concurrency=2), "on_error": "skip", "max_failures": 0.1}
    odd, late = range(1, 3000, 2), range(1000, 3000, 7)
    chain = (
        nbpipe.source(range(3000))
        .filter(lambda n: n % 2 == 0, name="even", **how)
        .map(failing("thread", bad), name="one", **how)
        .map(failing("thread", late), name="two", **how)
    )
    with chain.start() as run:
        got, error = delivered(run)
    wanted, words = judged(range(3000), 0.1, (odd, ()), ((), bad), ((), late))
    assert (got, error is None) == (wanted, not words)
    assert words in str(error)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("limit", "until"), [(0, 3), (2, 11), (3, 15), (4, 16), (0.2, 16)])
def test_a_budget_is_one_of_the_epoch(kind, limit, until, nested):
    """What fails in the passes of a repeat behind the stage counts together, also in its middle."""
    chain = nbpipe.source(range(5)).map(
        failing(kind, {3}), **options(kind), on_error="skip", max_failures=limit
    )
    pipe = chain.repeat(2).map(lambda n: n, name="n").repeat(2) if nested else chain.repeat(4)
    wanted = ([0, 1, 2, 4] * 4)[:until]
    with pipe.start() as run:
        for _ in range(2):
            got, error = delivered(run)
            assert (got, error is None) == (wanted, until == 16)
        items = iter(run)
        got = list(itertools.islice(items, min(9, until)))
        quiet(run)
        state = run.state_dict()
    with pipe.start() as run:
        run.load_state_dict(state)
        more, error = delivered(run)
    assert (got + more, error is None) == (wanted, until == 16)


@pytest.mark.parametrize("kind", KINDS)
def test_budget_by_rate_counts_each_epoch_alone(kind):
    """Good items of an earlier epoch do not pay for failures of this one."""
    bad = set()
    chain = nbpipe.source(range(1000)).map(
        failing(kind, bad), **options(kind), on_error="skip", max_failures=0.1
    )
    with chain.start() as run:
        first = len(drained(run))
        bad.update(range(0, 1000, 5))
        got, error = delivered(run)
    assert first == 1000
    assert isinstance(error, nbpipe.FailureBudgetError)
    assert len(got) < 200


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_budget_by_rate_of_an_expansion_is_one_of_its_inputs(kind, ordered):
    """Where each input gives many items, it counts once, whether it fails before or after them."""

    def many(item):
        if item == 3:
            raise ValueError(item)
        yield from range(30)
        if item == 5:
            raise ValueError(item)

    async def many_async(item):
        for one in many(item):
            yield one

    fn = many_async if kind == "coroutine" else many
    pipes = [
        nbpipe.source(range(10)).flat_map(
            fn, **options(kind), ordered=ordered, on_error="skip", max_failures=limit
        )
        for limit in (0.2, 0.19)
    ]
    got = [delivered(pipe) for pipe in pipes]
    assert [(len(items), error is None) for items, error in got] == [(270, True), (270, False)]
    assert "failed on 2 of 10 items" in str(got[1][1])


# -- completion order ------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_completion_order_delivers_what_is_ready(kind):
    """An item that takes long is overtaken by all others, within the bound of the buffer."""
    gate = Gate()
    fn = stage(kind, gate=lambda item: gate if item == 0 else None)
    chain = nbpipe.source(range(100)).map(fn, concurrency=2, ordered=False)
    with chain.start() as run:
        items = iter(run)
        first = finished(lambda: [next(items) for _ in range(99)])
        gate.open()
        assert (sorted(first), drained(items)) == (list(range(1, 100)), [0])


@pytest.mark.parametrize("limit", [1, 0.1])
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_completion_order_delivers_every_good_item_before_a_budget_error(kind, below, limit):
    """Too many failures are told after all good items, also where the loop is slower."""
    chain = nbpipe.source(range(10)).map(
        failing(kind, {8, 9}),
        **options(kind, prefetch=20),
        ordered=False,
        on_error="skip",
        max_failures=limit,
    )
    chain = chain.map(abs, ordered=False, prefetch=20) if below else chain
    with chain.start() as run:
        items = iter(run)
        quiet(run)  # all is made, and nothing was taken
        got, error = delivered(items)
    assert (sorted(got), type(error)) == (list(range(8)), nbpipe.FailureBudgetError)


def test_a_budget_error_stands_while_other_calls_have_not_begun():
    """Too many failures are told as such where coroutines of the stage only wait for the loop."""
    begun = []

    async def work(item):
        begun.append(item)  # two threads bring them to the event loop: any may be the first
        if len(begun) > 1:
            return item
        while run.stats()["work"].running < 4:  # the event loop waits with it: no other begins
            threading.Event().wait(0.001)
        raise ValueError(item)

    chain = nbpipe.source(range(4)).map(
        work, concurrency=4, ordered=False, on_error="skip", max_failures=0
    )
    run = chain.start()
    with run:
        got, error = delivered(run)
    assert (set(got) <= set(range(4)) - {begun[0]}, type(error)) == (
        True,
        nbpipe.FailureBudgetError,
    )


def test_a_budget_error_leaves_what_a_longer_call_has_made():
    """What another call of the stage had made by then is delivered, though it goes on."""
    made, gate = Gate(), Gate()

    def children(item):
        if item:
            made.wait()
            raise ValueError(item)
        yield from range(200)  # several in one call of the engine: these are not handed on yet
        made.open()
        gate.wait()

    chain = nbpipe.source(range(2)).flat_map(
        children, concurrency=2, prefetch=300, ordered=False, on_error="skip", max_failures=0
    )
    with chain.start() as run:
        got, error = delivered(run)
        gate.open()
    assert (got, type(error)) == (list(range(200)), nbpipe.FailureBudgetError)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_completion_order_of_flat_map_delivers_what_is_ready(kind):
    """Children of a later item pass those of a slow one."""
    gate = Gate()

    def children(item):
        if item == 0:
            gate.wait()
        yield from ((item, child) for child in range(10))

    async def children_async(item):
        if item == 0:
            await gate.wait_async()
        for child in range(10):
            yield item, child

    fn = children_async if kind == "coroutine" else children
    chain = nbpipe.source(range(5)).flat_map(fn, concurrency=2, ordered=False)
    with chain.start() as run:
        items = iter(run)
        first = finished(lambda: [next(items) for _ in range(40)])
        gate.open()
        assert sorted(first) == [(i, c) for i in range(1, 5) for c in range(10)]
        assert sorted(drained(items)) == [(0, c) for c in range(10)]


def test_quiet_after_an_error():
    """After an error nothing of the epoch goes on."""
    calls = Calls()

    def result(item):
        return 1 // (item - 10)

    fn = stage("thread", result=result, calls=calls)
    with nbpipe.source(range(10_000)).map(fn, concurrency=2).start() as run:
        delivered(run)
        quiet(run)
        begun = calls.begun
        assert (begun < 1000, run.stats()["source"].items_out < 1000) == (True, True)
