"""Another number of ranks goes on: each item that is left comes once, of whichever rank."""

from collections import Counter

import pytest

import nbpipe
from nbpipe import FailureBudgetError, StateError
from nbpipe.ranks import LocalStore
from tests.resume.checking import carried

COUNT = 23


def keep(item):
    """Keep three of four."""
    return item % 4 != 1


def picky(item):
    """Fail on every fifth."""
    if item % 5 == 2:
        raise ValueError(item)
    return item


def many(item):
    """Give one child or two."""
    return [item] if item % 2 else [item, item + 1000]


BODIES = {
    "plain": lambda pipe: pipe.map(abs),
    "filter": lambda pipe: pipe.filter(keep),
    "skip": lambda pipe: pipe.map(picky, on_error="skip", name="picky"),
    "flat_map": lambda pipe: pipe.flat_map(many),
    "buffer": lambda pipe: pipe.filter(keep).shuffle(buffer_size=4),
    "batch": lambda pipe: pipe.filter(keep).batch(2, collate=list),
    "branch": lambda pipe: pipe.route(
        lambda item: item % 2, {0: lambda chain: chain, 1: lambda chain: chain.filter(keep)}
    ),
}
GIVES = {
    "plain": lambda item: [item],
    "filter": lambda item: [item] * keep(item),
    "skip": lambda item: [item] * (item % 5 != 2),
    "flat_map": many,
    "buffer": lambda item: [item] * keep(item),
    "batch": lambda item: [item] * keep(item),
    "branch": lambda item: [item] * keep(item),
}


def rank_of(body, rank, world, tail):
    """Make the pipeline of one rank."""
    pipe = nbpipe.source(range(COUNT)).shuffle(seed=3).shard(rank, world, tail=tail)
    return BODIES[body](pipe)


def begun(body, world, tail, cuts, states=None):
    """Let each rank take some items; give them and the states behind them."""
    got, after = [], []
    for rank in range(world):
        with rank_of(body, rank, world, tail).start() as run:
            if states is not None:
                run.load_state_dict(states)
            items = iter(run)
            for _, one in zip(range(cuts[rank]), items, strict=False):
                got += one if isinstance(one, list) else [one]
            after.append(carried(run.state_dict()))
    return got, after


def ended(body, world, tail, states):
    """Let each rank take all that is left."""
    return begun(body, world, tail, [10**6] * world, states)[0]


def all_items(body):
    """Count what all ranks together have to give."""
    return Counter(one for item in range(COUNT) for one in GIVES[body](item))


def check(body, tail, got, ranks):
    """Compare what came with what had to: short rounds may repeat or leave out a few."""
    came, expected = Counter(got), all_items(body)
    if tail == "uneven":
        assert came == expected
    elif tail == "pad":
        extra = came - expected
        assert not expected - came
        assert sum(extra.values()) <= 2 * sum(world - 1 for world in ranks)
    else:
        missing = expected - came
        assert not came - expected
        assert sum(missing.values()) <= 2 * sum(world - 1 for world in ranks)


@pytest.mark.parametrize(
    "worlds", [(2, 1), (1, 3), (2, 3, 2), (3, 1, 2), (1, 2, 3), (2, 3, 1), (3, 2, 3)]
)
@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("body", BODIES)
def test_other_numbers_of_ranks(body, tail, worlds):
    """Ranks that got different numbers of items are followed by more or fewer, once and again."""
    got, states = [], None
    for world, cuts in zip(worlds[:-1], ([2, 1, 3], [1, 2, 2]), strict=False):
        more, states = begun(body, world, tail, cuts, states)
        got += more
    got += ended(body, worlds[-1], tail, states)
    check(body, tail, got, worlds)


@pytest.mark.parametrize("body", sorted({*BODIES} - {"batch"}))
def test_the_second_world_goes_on_as_itself(body):
    """In a world that followed another one, a rank's own state gives exactly its rest."""
    got, states = begun(body, 3, "uneven", [2, 1, 3])
    for rank in range(2):
        whole, _ = _rank(body, rank, states, 10**6)
        part, state = _rank(body, rank, states, 3)
        rest, _ = _rank(body, rank, state, 10**6)
        assert part + rest == whole
    assert len(got) == 6


def _rank(body, rank, states, count):
    with rank_of(body, rank, 2, "uneven").start() as run:
        run.load_state_dict(states)
        got = [one for _, one in zip(range(count), run, strict=False)]
        return got, carried(run.state_dict())


def test_states_in_any_order_and_one_too_many():
    """The order of the list, and a state that is there twice, do not matter."""
    got, states = begun("filter", 3, "uneven", [2, 1, 3])
    for given in (states[::-1], [*states, states[0]]):
        assert Counter(got + ended("filter", 2, "uneven", given)) == all_items("filter")


def test_the_same_world_takes_its_own_state_of_the_list():
    """Where the number of ranks stayed, each rank goes on exactly from its own state."""
    got, states = begun("buffer", 2, "uneven", [3, 5])
    for rank in range(2):
        with rank_of("buffer", rank, 2, "uneven").start() as run:
            run.load_state_dict(states)
            rest = list(run)
            assert rest == list(rank_of("buffer", rank, 2, "uneven"))[(3, 5)[rank] :]
    assert len(got) == 8


def test_one_state_is_enough_in_lockstep():
    """Where all ranks count alike, the state of one tells of all."""
    got, states = begun("plain", 2, "drop", [4, 4])
    rest = ended("plain", 1, "drop", states[0])
    check("plain", "drop", got + rest, (2, 1))
    assert len(got + rest) >= COUNT - 1


@pytest.mark.parametrize("body", ["filter", "skip", "flat_map", "buffer", "batch", "branch"])
def test_one_state_is_refused_where_ranks_differ(body):
    """Where a filter, a skip or an expansion counts by itself, all states are asked for."""
    _, states = begun(body, 2, "pad", [3, 1])
    with (
        rank_of(body, 0, 3, "pad").start() as run,
        pytest.raises(StateError, match="of all 2 ranks") as caught,
    ):
        run.load_state_dict(states[0])
    assert "list" in str(caught.value) or "gather" in str(caught.value)


def test_missing_ranks_are_refused():
    """Two states of three ranks leave open what the third has had."""
    _, states = begun("plain", 3, "pad", [3, 3, 3])
    with rank_of("plain", 0, 2, "pad").start() as run, pytest.raises(StateError) as caught:
        run.load_state_dict(states[:2])
    assert "all 3 ranks" in str(caught.value)


def test_states_of_different_worlds_or_epochs_are_refused():
    """States that do not belong together are refused."""
    _, two = begun("plain", 2, "pad", [3, 3])
    _, three = begun("plain", 3, "pad", [3, 3, 3])
    later = [{**state, "epoch": 1, "seal": None} for state in two]
    for given in ([two[0], three[1]], [two[0], later[1]]):
        with rank_of("plain", 0, 1, "pad").start() as run, pytest.raises(StateError) as caught:
            run.load_state_dict(given)
        assert "one world and epoch" in str(caught.value)


REFUSED = {
    "take": lambda pipe: pipe.filter(keep).take(5),
    "skip": lambda pipe: pipe.filter(keep).skip(2),
    "enumerate": lambda pipe: pipe.map(abs).enumerate(),
    "window": lambda pipe: pipe.map(abs).window(2),
    "repeat": lambda pipe: pipe.map(abs).repeat(2),
    "cost": lambda pipe: pipe.batch(3, cost=lambda item: 1, collate=list),
    "cache": lambda pipe: pipe.map(abs).cache(),
    "half a batch": lambda pipe: pipe.filter(keep).batch(2, collate=list).unbatch(),
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_counts_for_its_rank_is_refused(word):
    """What counts what its own rank has had, or is batched anew, cannot go on in another world."""

    def pipe(rank, world):
        return REFUSED[word](nbpipe.source(range(COUNT)).shard(rank, world))

    states = []
    for rank in range(2):
        with pipe(rank, 2).start() as run:
            items = iter(run)
            next(items)
            states.append(carried(run.state_dict()))
    with pipe(0, 3).start() as run, pytest.raises(StateError, match="as many ranks as before"):
        run.load_state_dict(states)


NOT_SPLIT = {
    "stream": lambda rank, world: nbpipe.source(lambda: iter(range(COUNT))).shard(rank, world),
    "batches": lambda rank, world: nbpipe.source(range(COUNT)).batch(2).shard(rank, world),
    "two": lambda rank, world: nbpipe.concat(
        nbpipe.source(range(9)).shard(rank, world), nbpipe.source(range(9)).shard(rank, world)
    ),
    "one input": lambda rank, world: nbpipe.concat(
        nbpipe.source(range(9)).shard(rank, world), nbpipe.source(range(9))
    ),
}


@pytest.mark.parametrize("word", NOT_SPLIT)
def test_a_shard_of_what_is_not_read_by_index_is_refused(word):
    """Nor does one of several inputs: the message says where a shard is to stand."""
    states = []
    for rank in range(2):
        with NOT_SPLIT[word](rank, 2).start() as run:
            next(iter(run))
            states.append(carried(run.state_dict()))
    with NOT_SPLIT[word](0, 1).start() as run, pytest.raises(StateError) as caught:
        run.load_state_dict(states)
    assert "only if the pipeline has one shard or claim" in str(caught.value)


def test_states_before_the_first_item():
    """Before the first item nothing is left over, so any world may begin."""
    _, fresh = begun("filter", 2, "uneven", [0, 0])
    assert Counter(ended("filter", 3, "uneven", fresh)) == all_items("filter")


@pytest.mark.parametrize("body", BODIES)
def test_after_whole_epochs_a_new_world_begins_the_next(body):
    """States after the end of an epoch are the beginning of the next one, for any world."""
    states = []
    for rank in range(2):
        with rank_of(body, rank, 2, "uneven").start() as run:
            list(run)
            states.append(carried(run.state_dict()))
    assert Counter(ended(body, 3, "uneven", states)) == all_items(body)


def test_failures_of_all_ranks_count_together():
    """What is allowed of them in an epoch is allowed to the ranks that go on together."""

    def build(rank, world, limit):
        pipe = nbpipe.source(range(24)).shard(rank, world)
        return pipe.map(
            lambda item: item if item % 3 else picky(2),
            on_error="skip",
            max_failures=limit,
            name="w",
        )

    states = []
    for rank in range(2):
        with build(rank, 2, 4).start() as run:
            items = iter(run)
            for _ in range(4):
                next(items)
            states.append(carried(run.state_dict()))
    assert all(state["stages"]["w"]["failed"][0] >= 2 for state in states)
    with build(0, 1, 8).start() as run:
        run.load_state_dict(states)
        assert len(list(run)) == 8
    with build(0, 1, 7).start() as run:
        run.load_state_dict(states)
        with pytest.raises(FailureBudgetError, match="failed on 8 of"):
            list(run)


def test_nothing_is_left():
    """Behind the last item of all ranks, another world has nothing more to do."""
    got, states = begun("plain", 2, "uneven", [12, 11])
    assert (len(got), ended("plain", 3, "uneven", states)) == (COUNT, [])


def joined(rank, world):
    """Make one rank's pipeline of two sources that are read as one by index."""
    parts = [nbpipe.source(range(8)), nbpipe.source(range(8, COUNT))]
    return nbpipe.concat(*parts).shuffle(seed=3).shard(rank, world, tail="uneven").filter(keep)


@pytest.mark.parametrize("cuts", [(2, 1), (0, 3), (99, 2), (4, 99)])
def test_joined_sources_go_on_in_another_world(cuts):
    """Sources that are read as one by index are regrouped, also once a rank is through."""
    got, states = [], []
    for rank, cut in enumerate(cuts):
        with joined(rank, 2).start() as run:
            got += [one for _, one in zip(range(cut), run, strict=False)]
            states.append(carried(run.state_dict()))
    for rank in range(3):
        with joined(rank, 3).start() as run:
            run.load_state_dict(states)
            got += run
    assert Counter(got) == all_items("filter")


GIVEN = {
    "shard": lambda pipe, rank, world: pipe.shard(rank, world),
    "claim": lambda pipe, rank, world: pipe.claim(store=LocalStore()),
}


def given_order(head, rank, world):
    """Give the first two items of an epoch in an order from outside, and the state behind them."""
    with GIVEN[head](nbpipe.source(range(COUNT)), rank, world).map(abs).start() as run:
        items = run.iterate(range(6))
        return [next(items), next(items)], carried(run.state_dict())


@pytest.mark.parametrize("head", GIVEN)
def test_a_given_order_goes_on_as_its_own_rank(head):
    """An epoch in an order from outside goes on where it stood, also with a `claim`."""
    got, state = given_order(head, 0, 1)
    with GIVEN[head](nbpipe.source(range(COUNT)), 0, 1).map(abs).start() as run:
        run.load_state_dict(state)
        assert [*got, *run.iterate(range(6))] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("rank", "world"), [(1, 2), (0, 3)])
def test_a_given_order_of_another_rank_is_refused(rank, world):
    """An order from outside is that of one rank: what it had tells nothing of another one."""
    _, state = given_order("shard", 0, 2)
    with (
        GIVEN["shard"](nbpipe.source(range(COUNT)), rank, world).map(abs).start() as run,
        pytest.raises(StateError, match=f"'shard' .rank {rank} of {world}.*same rank"),
    ):
        run.load_state_dict(state)
