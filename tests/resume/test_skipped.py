"""Failures: skipped items are not tried again, budgets go on, a failed item comes first."""

import itertools

import pytest

import nbpipe
from nbpipe import Retry
from tests.chains import Hands
from tests.gates import Calls, quiet
from tests.resume.checking import at, carried, check_every_cut, rest_of

COUNT = 30


def go_on(run, got, mend):
    """Take what comes before an error, mend what fails, load the state behind the error."""
    with pytest.raises(nbpipe.StageError):
        got.extend(run)
    state = carried(run.state_dict())
    mend()
    run.load_state_dict(state)
    return state


class Fails:
    """Fails on some items until it is mended, and counts its calls."""

    def __init__(self, *bad):
        self.bad = set(bad)
        self.calls = Calls()

    def __call__(self, item):
        self.calls.enter(item)
        self.calls.leave()
        if item in self.bad:
            raise ValueError(item)
        return item

    def many(self, item):
        yield item
        yield self(item) + 100


@pytest.mark.parametrize("on_error", ["skip", Retry(2, then="skip")])
@pytest.mark.parametrize("cut", range(1, 20, 3))
@pytest.mark.parametrize("ordered", [True, False])
def test_skipped_items_are_not_tried_again(on_error, cut, ordered):
    """What failed before the last item that was handed out is not called in the next run."""
    bad = range(0, COUNT, 3)
    first, later = Fails(*bad), Fails()
    options = {"on_error": on_error, "ordered": ordered, "name": "work"}
    got, state = at(nbpipe.source(range(COUNT)).map(first, **options), cut)
    rest = rest_of(nbpipe.source(range(COUNT)).map(later, **options), state)
    recorded = {item for item in bad if item not in later.calls.of}
    assert recorded <= set(first.calls.of)
    assert not ordered or {item for item in bad if item < got[-1]} <= recorded
    assert sorted(got + rest) == [item for item in range(COUNT) if item not in recorded]


@pytest.mark.slow
@pytest.mark.parametrize("behind", [["failing", 3], ["flat_map", 2]])
def test_a_batch_by_cost_keeps_its_place_in_a_route(behind):
    """It stands where the next batch began, also where that one came to nothing before."""
    recipe = [["range", 40], ["branches", [["batch_by_cost", 5, False], behind], [["map", 1]]]]
    assert check_every_cut(recipe, Hands(), Hands())


def test_skipped_items_behind_a_buffer_are_not_tried_again():
    """Also what failed between items that the buffer holds is known."""
    first, later = Fails(*range(0, COUNT, 3)), Fails(*range(0, COUNT, 3))

    def pipe(function):
        return (
            nbpipe.source(range(COUNT))
            .map(function, on_error="skip", name="work")
            .shuffle(buffer_size=5)
        )

    _, state = at(pipe(first), 6)
    wanted = state["stages"]["source"]["rest"]
    rest_of(pipe(later), state)
    again = {item for item in later.calls.of if item in first.bad}
    start = wanted[1][-1][1] if wanted[1] else wanted[0]
    assert all(item >= start for item in again)


def test_children_of_a_call_that_failed_in_its_middle():
    """An expansion that failed after some children is over; it is not opened again."""
    first, later = Fails(2, 4), Fails(2, 4)

    def pipe(fails):
        return nbpipe.source(range(8)).flat_map(fails.many, on_error="skip", name="work")

    expected = list(pipe(first))
    got, state = at(pipe(first), 6)
    rest = rest_of(pipe(later), state)
    assert got + rest == expected
    assert 2 not in later.calls.of


@pytest.mark.parametrize("limit", [1, 0.25])
@pytest.mark.parametrize("cut", range(13))
def test_a_call_that_fails_again_counts_once(cut, limit):
    """Children are made again where some of them were not had: that they fail again is no news."""

    def torn(item):
        yield from [item] * 3
        if item == 1:
            raise ValueError(item)

    pipe = nbpipe.source(range(4)).flat_map(torn, on_error="skip", max_failures=limit)
    with pipe.start() as run:
        items = iter(run)
        got = list(itertools.islice(items, cut))
        quiet(run)
        state = run.state_dict()
    assert got + rest_of(pipe, state) == [item for item in range(4) for _ in range(3)]


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_a_count_of_failures_goes_on(cut):
    """`max_failures` counts those of the run before: the epoch fails where it would have."""

    def pipe():
        return nbpipe.source(range(COUNT)).map(
            Fails(2, 5, 8, 11, 14), on_error="skip", max_failures=3, name="work"
        )

    got, state = at(pipe(), cut)
    with pipe().start() as run:
        run.load_state_dict(state)
        with pytest.raises(nbpipe.FailureBudgetError):
            got.extend(run)
    assert got == [0, 1, 3, 4, 6, 7, 9, 10]


def test_a_share_of_failures_goes_on():
    """A share is judged by all items of the epoch, those before the state included."""

    def pipe():
        return nbpipe.source(range(300)).map(
            Fails(*range(0, 16, 2)), on_error="skip", max_failures=0.1, name="work"
        )

    got, state = at(pipe(), 60)
    rest = rest_of(pipe(), state)
    assert len(got + rest) == 292


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_share_of_failures_is_one_of_what_came_to_the_stage(executor):
    """What a filter that runs with it left out before the state counts no more than behind it."""

    def pipe():
        how = {"executor": executor, "on_error": "skip", "max_failures": 0.4}
        chain = nbpipe.source(range(400)).filter(lambda n: n % 4 == 0, name="few", **how)
        return chain.map(Fails(*range(200, 400)), name="work", **how)

    got, state = at(pipe(), 50)
    with pipe().start() as run:
        run.load_state_dict(state)
        with pytest.raises(nbpipe.FailureBudgetError, match="failed on 50 of 100 items"):
            got.extend(run)
    assert got == list(range(0, 200, 4))


@pytest.mark.parametrize("cut", range(10))
def test_a_share_of_failures_goes_on_from_where_nothing_had_failed(cut):
    """Good items before the state count, in a map and in an expansion."""

    def pipe():
        chain = nbpipe.source(range(12)).map(
            Fails(9, 10, 11), on_error="skip", max_failures=0.3, name="work"
        )
        return chain.flat_map(Fails(7, 8).many, on_error="skip", max_failures=0.3, name="more")

    whole = list(pipe())
    got, state = at(pipe(), cut)
    with pipe().start() as run:
        run.load_state_dict(state)
        got.extend(itertools.islice(iter(run), 1))
        state = run.state_dict()
    assert got + rest_of(pipe(), state) == whole


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failed_epoch_goes_on_with_the_item_that_failed(ordered):
    """Once the function is mended, the state after the error gives the rest of the epoch."""
    fails = Fails(7)
    pipe = nbpipe.source(range(COUNT)).map(fails, ordered=ordered, concurrency=3)
    got = []
    with pipe.start() as run:
        go_on(run, got, fails.bad.clear)
        rest = list(run)
    assert 7 in rest
    assert sorted(got + rest) == list(range(COUNT))
    assert not ordered or got + rest == list(range(COUNT))


@pytest.mark.parametrize("bad", [1, 7, 20])
@pytest.mark.parametrize("more", [0, 2, 9])
def test_a_buffer_that_an_error_emptied_fills_again(bad, more):
    """A shuffle hands on what it held before the error; then it goes on with what comes."""
    fails = Fails(bad)
    pipe = nbpipe.source(range(COUNT)).map(fails).shuffle(buffer_size=4)
    got = []
    with pipe.start() as run:
        state = go_on(run, got, fails.bad.clear)
        assert sorted(got) == list(range(bad))
        got.extend(itertools.islice(iter(run), more))
        rest = rest_of(pipe, carried(run.state_dict()))
    assert sorted(got + rest) == list(range(COUNT))
    assert got[bad:] + rest == rest_of(pipe, state)


@pytest.mark.parametrize("join", [nbpipe.mix, nbpipe.interleave])
@pytest.mark.parametrize("cut", range(3, 7))
def test_an_input_that_fails_among_what_comes_again(join, cut):
    """Of what was drawn before, all in front of the failed item comes first, and nothing behind."""
    fails = Fails()
    others = nbpipe.source(range(100, 108)).map(fails, name="fails")
    pipe = join([nbpipe.source(range(8)), others])
    whole, (got, state) = list(pipe), at(pipe, cut)
    first = next(place for place in range(cut, len(whole)) if whole[place] >= 100)
    fails.bad.add(whole[first])
    with pipe.start() as run:
        run.load_state_dict(carried(state))
        go_on(run, got, fails.bad.clear)
        assert got == whole[:first]
        assert got + list(run) == whole


@pytest.mark.parametrize("bad", [0, 1, 6, 13, 29])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_failed_epoch_with_stages_behind(bad, concurrency):
    """Filters, expansions, batches and windows behind the failure go on exactly, too."""
    fails = Fails(bad)
    pipe = (
        nbpipe.source(range(COUNT))
        .map(fails, concurrency=concurrency)
        .filter(lambda item: item % 4)
        .flat_map(lambda item: [item] * (item % 3))
        .batch(4, collate=list)
    )
    got = []
    with pipe.start() as run:
        go_on(run, got, fails.bad.clear)
        got.extend(run)
        expected = list(run)
    assert got == expected


def test_failed_twice():
    """A second error after the resume can be gone on from as the first one."""
    fails = Fails(7, 12)
    pipe = nbpipe.source(range(COUNT)).map(fails).batch(4, collate=list)
    got = []
    with pipe.start() as run:
        for bad in (7, 12):
            go_on(run, got, lambda bad=bad: fails.bad.discard(bad))
        got.extend(run)
    assert [item for batch in got for item in batch] == list(range(COUNT))


def test_a_source_that_fails():
    """A source without an index is skipped up to its failure, and goes on from there."""
    broken = [True]

    def numbers():
        yield from range(5)
        if broken:
            raise OSError
        yield from range(5, 10)

    pipe = nbpipe.source(numbers)
    got = []
    with pipe.start() as run:
        state = go_on(run, got, broken.clear)
        got.extend(run)
    assert state["stages"]["source"]["by"] == "skipping"
    assert got == list(range(10))


def test_items_that_are_none_count_where_their_source_fails():
    """A list that became shorter fails at its end; once it is whole again, what is left comes."""
    data = [*range(5000)]
    data[1::2] = [None] * 2500
    whole, got = [*data], []
    with nbpipe.source(data).start() as run:

        def drain():
            for item in run:
                got.append(item)
                del data[4990:]

        with pytest.raises(nbpipe.StageError):
            drain()
        data.extend(whole[4990:])
        state = run.state_dict()
    assert got + rest_of(nbpipe.source(data), state) == whole
