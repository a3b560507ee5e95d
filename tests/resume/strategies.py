"""Random recipes and hands."""

from hypothesis import strategies as st

from tests.resume.recipes import Hands

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


def step(word, *values):
    """Draw a step with values."""
    return st.tuples(st.just(word), *values).map(list)


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
    step("noise", SMALL),
    step("filter", SIZES),
    step("filter_some"),
    step("flat_map", st.integers(1, 3)),
    step("failing", st.integers(2, 5)),
    step("failing_many", st.integers(1, 3), st.integers(2, 4)),
    step("retried"),
    step("gives_up", st.integers(2, 5)),
    step("route", SMALL),
)
FATAL = step("fatal", st.integers(5, 19))
GATHER_STEPS = st.one_of(
    step("batch", SIZES, st.booleans()),
    step("batch_by_cost", st.integers(3, 8), st.booleans()),
    step("unbatch"),
    step("window", SIZES, SIZES),
    step("dedupe", SIZES),
)


def _branches(steps):
    return step("branches", *[st.lists(steps, max_size=3)] * 3)


# What a branch of a route may hold, routes with branches of their own included.
BRANCH_STEPS = st.recursive(st.one_of(CALL_STEPS, GATHER_STEPS, FATAL), _branches, max_leaves=6)
BRANCHES = _branches(BRANCH_STEPS)
BUFFERS = step("shuffle", SEEDS, SIZES)
ORDERS = st.one_of(step("shuffle", SEEDS), INDEX_STEPS)
STEPS = st.one_of(
    CALL_STEPS, CALL_STEPS, INDEX_STEPS, GATHER_STEPS, BRANCHES, BUFFERS, step("cache"),
    step("outer"), FATAL,
)  # fmt: skip
INDEXED = st.sampled_from(["list", "range", "dataset"]).flatmap(lambda word: step(word, LENGTHS))
STREAMED = st.sampled_from(["generator", "async"]).flatmap(lambda word: step(word, LENGTHS))
SIMPLE = st.one_of(
    st.builds(
        lambda source, orders, steps: [source, *orders, *steps],
        INDEXED,
        st.lists(ORDERS, max_size=3),
        st.lists(STEPS, max_size=4),
    ),
    st.builds(lambda source, steps: [source, *steps], STREAMED, st.lists(STEPS, max_size=4)),
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
    return st.builds(lambda source, steps: [source, *steps], sources, st.lists(STEPS, max_size=3))


RECIPES = st.one_of(SIMPLE, _joined(SIMPLE), _joined(st.one_of(SIMPLE, _joined(SIMPLE))))
