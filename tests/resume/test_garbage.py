"""States that somebody damaged: taken or refused with a `StateError`, and nothing hangs."""

import copy
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbpipe
from nbpipe import StateError
from tests.gates import finished
from tests.resume.checking import carried, state_at
from tests.resume.recipes import Hands, build

MOST = 300  # items that are taken of what a damaged state gives
RECIPES = [
    [["range", 14], ["shuffle", 1], ["filter", 3], ["shuffle", 1, 3], ["batch", 2, False]],
    [["generator", 14], ["flat_map", 2], ["window", 3, 2], ["enumerate"], ["skip", 1], ["take", 9]],
    [["generator", 14], ["shard", 0, 2, "pad"], ["batch_by_cost", 5, False], ["repeat", 2]],
    [["mix", [[["range", 6], ["filter", 2]], [["list", 5]]], [1, 2], "longest", 0], ["cache"]],
    [["interleave", [[["range", 6]], [["list", 5]], [["list", 3]]], 2], ["route", 1]],
    [["concat", [[["range", 6], ["filter", 2]], [["list", 5]]]], ["failing", 3], ["unbatch"]],
]
NUMBERS = st.one_of(
    st.integers(-3, 20), st.sampled_from([2**31, 10**9, 2**63, 2**70, -(2**40)]), st.floats()
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=3))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(part, path=()):
    """Give the paths of all parts of a state."""
    yield path
    keys = part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    for key in keys:
        yield from places(part[key], (*path, key))


def changed(state, path, value):
    """Give a copy with another value in one place."""
    if not path:
        return value
    state = copy.deepcopy(state)
    part = state
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return state


STATES = [state_at(recipe, Hands(), 3, "keep")[1] for recipe in RECIPES]


@settings(suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, len(RECIPES) - 1), VALUES)
def test_a_damaged_state(data, number, value):
    """Another value in any place of a state is refused, or taken: then the run's own is, too."""
    path = data.draw(st.sampled_from(list(places(STATES[number]))))
    state = changed(STATES[number], path, value)
    with build(RECIPES[number]).start() as run:

        def go_on():
            try:
                run.load_state_dict(state)
                list(itertools.islice(run, MOST))
            except nbpipe.StateError:
                return
            run.load_state_dict(carried(run.state_dict()))

        finished(go_on)
        finished(run.close)


@given(VALUES)
def test_no_state_at_all(value):
    """Any JSON in place of a state is refused."""
    with nbpipe.source(range(3)).start() as run:
        try:
            run.load_state_dict(value)
            refused = False
        except nbpipe.StateError:
            refused = True
    assert refused


@pytest.mark.parametrize("rank", [[5, 2], [0, 0], ["a", 2], [-1, 2], [0, 10**9], [0, 2**70], None])
def test_ranks_that_cannot_be(rank):
    """A rank outside its world, or a world of no or of a billion ranks, is refused."""
    with nbpipe.source(range(9)).shard(0, 2).start() as run:
        items = iter(run)
        next(items)
        state = {**carried(run.state_dict()), "ranks": {"shard": rank}}
    with nbpipe.source(range(9)).shard(0, 3).start() as run, pytest.raises(StateError) as caught:
        finished(run.load_state_dict, state)
    assert "rank" in str(caught.value)


@pytest.mark.parametrize("word", ["shuffle", "mix"])
def test_a_number_of_draws_that_would_take_minutes(word):
    """A count of draws that the pipeline cannot have made is refused at once."""
    base = nbpipe.source(range(40))
    pipe = {"shuffle": base.shuffle(buffer_size=4), "mix": nbpipe.mix([base, base])}[word]
    with pipe.start() as run:
        items = iter(run)
        next(items)
        state = carried(run.state_dict())
    state["stages"][word][{"shuffle": "drawn", "mix": "draws"}[word]] = 10**12

    with pipe.start() as run, pytest.raises(StateError, match="got 1000000000000"):
        finished(run.load_state_dict, state)
