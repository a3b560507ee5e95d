"""States that somebody damaged are refused with a `StateError`."""

import copy

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nbpipe
from tests.chains import Hands, build
from tests.resume.checking import state_at

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
    """Another value in any place of a state is refused."""
    path = data.draw(st.sampled_from(list(places(STATES[number]))))
    state = changed(STATES[number], path, value)
    if state == STATES[number] or path == ("seal",):
        return
    with build(RECIPES[number]).start() as run, pytest.raises(nbpipe.StateError):
        run.load_state_dict(state)


@given(VALUES)
@example([{}])
@example({"epoch": 1})
@example(b"")
@example((1, 2))
def test_no_state_at_all(value):
    """Anything else than a state, or a list of states, is refused."""
    with nbpipe.source(range(3)).start() as run, pytest.raises(nbpipe.StateError, match="state"):
        run.load_state_dict(value)
