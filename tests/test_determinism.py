"""For a seed the sequence of items depends on no knob, executor, timing or shard."""

import functools
import itertools
import random
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from tests.chains import build, called, total
from tests.inner import generator_for
from tests.strategies import BUFFERS, GATHER_STEPS, HANDS, INDEX_STEPS, JOIN_STEPS

NEVER = threading.Event()


def dawdle():
    """Wait for a time that nobody can foresee; every fourth call or so."""
    if random.random() < 0.25:
        NEVER.wait(random.random() / 1000)


def moved(item, rng):
    """Give the total, moved by a random number."""
    dawdle()
    return total(item) + int(rng.integers(100))


def kept(item, rng):
    """Keep about two items of three."""
    dawdle()
    return rng.random() < 0.67


def many(item, rng):
    """Give an item up to three times, with a random number."""
    dawdle()
    return [(total(item), int(rng.integers(100))) for _ in range(rng.integers(4))]


def drawn(item, rng):
    """Do the same as a generator, whose random numbers are drawn as it goes."""
    for _ in range(rng.integers(4)):
        dawdle()
        yield (total(item), int(rng.integers(100)))


FUNCTIONS = {"map": [moved], "filter": [kept], "flat_map": [many, drawn]}


def random_step(method, choice):
    """Make a step that draws random numbers."""
    function = FUNCTIONS[method][choice % len(FUNCTIONS[method])]
    return lambda pipe, hands: called(pipe, method, function, hands)


@st.composite
def random_recipes(draw, *, caches=False):
    """Draw a chain in which some steps draw random numbers; with `caches`, some before a cache."""
    methods = draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=3))
    steps = [random_step(method, draw(st.integers(0, 1))) for method in methods]
    for _ in range(draw(st.integers(0, 3))):
        step = draw(st.one_of(INDEX_STEPS, GATHER_STEPS, JOIN_STEPS, BUFFERS))
        # A cache keeps what was random before it in the first epoch that it saw whole.
        last = 0 if step == ["cache"] and not caches else len(steps)
        first = 0 if caches or step[0] != "shuffle" else behind_caches(steps)
        steps.insert(draw(st.integers(first, last)), step)
    return [["items", draw(st.lists(st.integers(0, 20), min_size=3, max_size=15))], *steps]


def behind_caches(steps):
    """Give the place behind the last cache."""
    return max((place + 1 for place, step in enumerate(steps) if step == ["cache"]), default=0)


def run_epochs(pipe, *, seed, first=0, count=2):
    """Give some epochs of a run, from number `first` on."""
    with pipe.start(seed=seed) as run:
        run.set_epoch(first)
        return [list(run) for _ in range(count)]


@pytest.mark.slow
@given(random_recipes(caches=True), HANDS, HANDS, st.integers(0, 2**64))
def test_whoever_does_the_work(recipe, one, other, seed):
    """Threads, coroutines or the neighbour, many or one at a time, early or late: all the same."""
    first = run_epochs(build(recipe, one), seed=seed)
    assert run_epochs(build(recipe, other), seed=seed) == first


@pytest.mark.slow
@given(random_recipes(), HANDS, HANDS, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_epochs_that_are_left_early(recipe, one, other, counts):
    """How far the stages had run ahead when a loop was left does not show in the next epoch."""

    def parts(hands):
        with build(recipe, hands).start(seed=4) as run:
            return [list(itertools.islice(run, count)) for count in counts]

    assert parts(one) == parts(other)


@pytest.mark.slow
@given(random_recipes(), HANDS, st.integers(0, 5))
def test_an_epoch_does_not_depend_on_those_before(recipe, hands, epoch):
    """Epoch n is the same for a run that begins with it."""
    pipe = build(recipe, hands)
    alone = run_epochs(pipe, seed=1, first=epoch, count=1)
    assert run_epochs(build(recipe), seed=1, count=epoch + 1)[-1:] == alone


@pytest.mark.slow
@given(random_recipes(), HANDS, st.randoms(use_true_random=False))
def test_turning_knobs_changes_nothing(recipe, hands, chance):
    """Every knob of every stage may be turned at every item."""
    expected = run_epochs(build(recipe), seed=2, count=1)
    pipe = build(recipe, hands)
    knobs = [knob for stage in pipe.stages for knob in stage.knobs.values()]
    found = []
    with pipe.start(seed=2) as run:
        for item in run:
            found.append(item)
            chance.choice(knobs).set(chance.randint(1, 6))
    assert [found] == expected


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 4))
def test_completion_order_gives_the_same_items(length, concurrency, prefetch):
    """Without order the items are the same, each with the number it draws in order."""
    knobs = {"concurrency": concurrency, "prefetch": prefetch}
    source = nbpipe.source(range(length))
    in_order = source.map(moved).flat_map(drawn)
    as_done = source.map(moved, ordered=False, **knobs).flat_map(drawn, ordered=False, **knobs)
    assert Counter(as_done) == Counter(in_order)


@pytest.mark.slow
@given(st.integers(0, 30), st.integers(1, 4), HANDS, st.booleans())
def test_ranks_draw_what_one_process_draws(length, world_size, hands, by_index):
    """The parts of all ranks, merged, are the unsharded epoch; with random numbers and all."""
    items = range(length)
    source = nbpipe.source(items if by_index else lambda: iter(items))
    ordered = source.shuffle(seed=1, buffer_size=None if by_index else 5)

    def epoch_of(pipe):
        return run_epochs(called(pipe, "map", moved, hands.deal()), seed=3, count=1)[0]

    whole = epoch_of(ordered)
    parts = [epoch_of(ordered.shard(rank, world_size, tail="uneven")) for rank in range(world_size)]
    merged = [parts[place % world_size][place // world_size] for place in range(length)]
    assert merged == whole


# -- what a generator depends on -------------------------------------------------------------------


def number(rng):
    """Draw a number that no two generators share."""
    return int(rng.integers(2**62))


def draw(item, rng):
    """Give a number for an item."""
    return number(rng)


async def pair(item):
    """Give two items as an async generator."""
    yield item
    yield item


def expected(name, paths, *, seed=0, epoch=0):
    """Give the numbers that a stage draws at these paths."""
    return [number(generator_for(seed, epoch, name, path)) for path in paths]


def test_a_generator_depends_on_seed_epoch_name_and_path():
    """In a plain chain an item's path is its index."""
    pipe = nbpipe.source(list("abc")).map(draw)
    assert run_epochs(pipe, seed=7) == [
        expected("draw", range(3), seed=7, epoch=epoch) for epoch in range(2)
    ]


@pytest.mark.parametrize(
    ("pipe", "paths"),
    [
        (nbpipe.source([0] * 5).skip(1).take(3), [1, 2, 3]),
        (nbpipe.source([0] * 5).map(int).skip(1).take(3), [1, 2, 3]),
        (nbpipe.source([0] * 5).map(int).filter(lambda item: True).enumerate(), range(5)),
        (nbpipe.source([0, 0]).flat_map(lambda item: [1, 2]), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (
            nbpipe.source([0, 0]).flat_map(lambda item: [1, 2]).flat_map(lambda item: [1, 2]),
            [(item, one, two) for item in (0, 1) for one in (0, 1) for two in (0, 1)],
        ),
        (nbpipe.source([0, 0]).flat_map(pair), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (nbpipe.source([0, 0]).repeat(2), [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (nbpipe.source([0, 0]).map(int).repeat(2), [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (nbpipe.source([0] * 5).batch(2), [0, 2, 4]),
        (nbpipe.source([0] * 5).batch(2, cost=lambda item: 1), [0, 2, 4]),
        (nbpipe.source([0] * 4).window(2, 1), [0, 1, 2]),
        (nbpipe.source([0] * 4).batch(2).unbatch(), [(0, 0), (0, 1), (2, 0), (2, 1)]),
        (nbpipe.source([0] * 4).shuffle(), range(4)),
        (nbpipe.source([0] * 4).shard(1, 2), [1, 3]),
        (nbpipe.source([0] * 4).map(int).shard(1, 2), [1, 3]),
        (nbpipe.source([0] * 4).shard(2, 3), [2, 5]),  # what pads a round has numbers of its own
        (nbpipe.source([0] * 4).map(int).shard(2, 3), [2, (1, 5)]),
        (nbpipe.source([0] * 2).cache(), [0, 1]),
        (nbpipe.source(nbpipe.source([0] * 2), name="outer"), [0, 1]),
        (nbpipe.concat(nbpipe.source([0]), nbpipe.source([0])), [(0, 0), (1, 0)]),
        (nbpipe.zip(nbpipe.source([0] * 2), nbpipe.source([0] * 2)), [0, 1]),
    ],
)
def test_paths(pipe, paths):
    """The path is the place in the global order; `flat_map` and `repeat` add one element."""
    assert list(pipe.map(draw)) == expected("draw", paths)


def test_a_call_that_is_tried_again_gives_its_children_their_paths():
    """Those that came before the failure are left out; the others have the numbers they had."""
    begun = []

    def torn(item):
        begun.append(item)
        yield from range(3)
        if begun.count(item) == 1:
            raise OSError
        yield from range(3)

    inner = nbpipe.source([0, 1]).flat_map(torn, on_error=nbpipe.Retry(1))
    paths = [(item, child) for item in (0, 1) for child in range(6)]
    assert list(inner.map(draw)) == expected("draw", paths)


def test_stages_of_other_names_draw_other_numbers():
    """The name is part of the key; an equal name in another pipeline draws the same."""
    source = nbpipe.source(range(3))
    pairs = nbpipe.zip(source.map(draw), source.map(draw, name="other"))
    assert list(pairs) == list(
        zip(expected("draw", range(3)), expected("other", range(3)), strict=True)
    )


def test_every_kind_of_function_gets_its_generator():
    """Keyword-only, in a partial, in a method, in an instance, async: `rng` is passed by name."""

    class Drawing:
        def __call__(self, item, *, rng):
            return number(rng)

        def method(self, item, rng=None):
            return number(rng)

    async def coroutine(item, rng):
        return number(rng)

    def with_options(item, scale, *, rng):
        return number(rng) * scale

    functions = [Drawing(), Drawing().method, coroutine, functools.partial(with_options, scale=1)]
    found = [list(nbpipe.source([0, 1]).map(one, name="draw")) for one in functions]
    assert found == 4 * [expected("draw", range(2))]


def test_generators_of_two_items_are_apart():
    """A function may keep its generator: no other item draws from it."""
    kept_generators = list(nbpipe.source(range(20)).map(lambda item, rng: rng, concurrency=4))
    assert len({number(rng) for rng in kept_generators}) == 20
