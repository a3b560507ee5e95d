"""Random recipes of `tests/chains.py`: any, and those whose items `tests/models.py` gives."""

from hypothesis import settings
from hypothesis import strategies as st

from tests import models
from tests.chains import Hands

LONGEST = 200  # items of a model; longer ones are left out, so that a test stays quick


def examples(share):
    """Give this share of the profile's examples, and three at least: for what takes long."""
    return max(3, round(settings().max_examples * share))


HANDS = st.builds(
    Hands,
    st.lists(st.sampled_from(["thread", "inline", "coroutine"]), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
)
LENGTHS = st.integers(0, 14)
SMALL = st.integers(0, 5)
SIZES = st.integers(1, 5)
SEEDS = st.integers(0, 3)
TAILS = st.sampled_from(["pad", "drop", "uneven"])
ITEMS = st.lists(st.integers(0, 20), max_size=12)


def step(word, *values):
    """Draw a step with values."""
    return st.tuples(st.just(word), *values).map(list)


def _branches(steps):
    return st.integers(1, 3).flatmap(
        lambda count: step("branches", *[st.lists(steps, max_size=3)] * count)
    )


# -- steps with a model ----------------------------------------------------------------------------
SHARDS = st.integers(1, 3).flatmap(
    lambda world: step("shard", st.integers(0, world - 1), st.just(world), TAILS)
)
# Steps that a source can do by index; in the same words they work on any stream.
INDEX_STEPS = st.one_of(
    step("take", st.integers(0, 12)),
    step("skip", SMALL),
    step("repeat", st.integers(1, 3)),
    step("endless", SMALL),
    step("enumerate"),
    SHARDS,
)
CALL_STEPS = st.one_of(
    step("map", SMALL),
    step("filter", SIZES),
    step("flat_map", st.integers(1, 3)),
    step("listed", st.integers(1, 2)),
    step("route", SMALL),
)
GATHER_STEPS = st.one_of(
    step("batch", SIZES, st.booleans()),
    step("batch_by_cost", st.integers(3, 8), st.booleans()),
    step("unbatch"),
    step("window", SIZES, SIZES),
    step("dedupe", SIZES),
)
JOIN_STEPS = st.one_of(step("zipped", SMALL), step("joined", SMALL), step("outer"), step("cache"))
# What a branch of a route may hold, routes with branches of their own included.
STREAM_STEPS = st.recursive(st.one_of(CALL_STEPS, GATHER_STEPS), _branches, max_leaves=6)
BRANCHES = _branches(STREAM_STEPS)
STEPS = st.one_of(CALL_STEPS, CALL_STEPS, INDEX_STEPS, GATHER_STEPS, JOIN_STEPS)


def recipes(steps=STEPS, *, longest=6):
    """Draw recipes that have a model, of few items."""
    made = st.builds(
        lambda items, steps: [["items", items], *steps], ITEMS, st.lists(steps, max_size=longest)
    )
    return made.filter(_is_short)


def _is_short(recipe):
    source, *steps = recipe
    parts = [[source, *steps[:count]] for count in range(len(steps) + 1)]
    return all(len(models.given(part)) <= LONGEST for part in parts)


# -- any steps -------------------------------------------------------------------------------------
FATAL = step("fatal", st.integers(5, 19))
ANY_CALLS = st.one_of(
    CALL_STEPS,
    step("noise", SMALL),
    step("filter_some"),
    step("failing", st.integers(2, 5)),
    step("failing_many", st.integers(1, 3), st.integers(2, 4)),
    step("retried"),
    step("gives_up", st.integers(2, 5)),
)
ANY_BRANCHES = _branches(
    st.recursive(st.one_of(ANY_CALLS, GATHER_STEPS, FATAL), _branches, max_leaves=6)
)
BUFFERS = step("shuffle", SEEDS, SIZES)
ORDERS = st.one_of(step("shuffle", SEEDS), INDEX_STEPS)
ANY_STEPS = st.one_of(
    ANY_CALLS, ANY_CALLS, INDEX_STEPS, GATHER_STEPS, ANY_BRANCHES, BUFFERS, step("cache"),
    step("outer"), FATAL,
)  # fmt: skip
INDEXED = st.sampled_from(["list", "range", "dataset"]).flatmap(lambda word: step(word, LENGTHS))
STREAMED = st.sampled_from(["generator", "async"]).flatmap(lambda word: step(word, LENGTHS))
SIMPLE = st.one_of(
    st.builds(
        lambda source, orders, steps: [source, *orders, *steps],
        INDEXED,
        st.lists(ORDERS, max_size=3),
        st.lists(ANY_STEPS, max_size=4),
    ),
    st.builds(lambda source, steps: [source, *steps], STREAMED, st.lists(ANY_STEPS, max_size=4)),
)


def _joined(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    sources = st.one_of(
        step("zip", several),
        step("concat", several),
        step("interleave", several, st.integers(1, 3)),
        step("pipeline", inner),
        several.flatmap(
            lambda recipes: step(
                "mix",
                st.just(recipes),
                st.lists(st.integers(1, 4), min_size=len(recipes), max_size=len(recipes)),
                st.sampled_from(["longest", "shortest"]),
                SEEDS,
            )
        ),
    )
    return st.builds(
        lambda source, steps: [source, *steps], sources, st.lists(ANY_STEPS, max_size=3)
    )


RECIPES = st.one_of(SIMPLE, _joined(SIMPLE), _joined(st.one_of(SIMPLE, _joined(SIMPLE))))
