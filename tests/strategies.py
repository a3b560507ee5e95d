"""Random pipelines, each with a model: the same steps on a plain list.

Items are ints, or lists and tuples of them; functions look at `total(item)` alone, so that every
step may follow every other one. A `Recipe` is built with any `Hands`: who calls the functions,
how many at once, and how far ahead must not change what comes out.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

import nbpipe
from tests.resume.recipes import total

LONGEST = 200  # items of a model; longer ones are cut, so that a test stays quick


def examples(share):
    """Give this share of the profile's examples, and three at least: for what takes long."""
    return max(3, round(settings().max_examples * share))


@dataclass(frozen=True)
class Hands:
    """Options for the stages of a chain, one after the other, round and round."""

    executors: Sequence[str] = ("thread",)
    concurrency: Sequence[int] = (1,)
    prefetch: Sequence[int] = (8,)

    def deal(self):
        """Give an endless iterator over the options of stages."""
        parts = (self.executors, self.concurrency, self.prefetch)
        return zip(*map(itertools.cycle, parts), strict=False)


HANDS = st.builds(
    Hands,
    st.lists(st.sampled_from(["thread", "inline", "coroutine"]), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
)


@dataclass(frozen=True)
class Step:
    """One step of a recipe.

    Attributes:
        text: how it reads in a failing example.
        grow: adds it to a pipeline, with options from an iterator.
        model: does the same to a list.
        sized: the number of items is known before.
    """

    text: str
    grow: Callable = field(repr=False)
    model: Callable = field(repr=False)
    sized: bool = True


@dataclass(frozen=True)
class Recipe:
    """Steps on a source of ints."""

    items: list[int]
    steps: list[Step]

    def build(self, hands=None):
        """Make the pipeline."""
        dealt = (hands or Hands()).deal()
        pipe = nbpipe.source(self.items)
        for step in self.steps:
            pipe = step.grow(pipe, dealt)
        return pipe

    def model(self):
        """Give the items that must come out."""
        items = list(self.items)
        for step in self.steps:
            items = step.model(items)
        return items

    @property
    def sized(self):
        """Whether the length is known."""
        return all(step.sized for step in self.steps)


def called(pipe, method, function, hands):
    """Add a map, filter or flat_map with the next options."""
    executor, concurrency, prefetch = next(hands)
    if executor == "inline":
        return getattr(pipe, method)(function, executor="inline")
    if executor == "coroutine":
        plain = function

        async def function(item):
            return plain(item)

    return getattr(pipe, method)(function, concurrency=concurrency, prefetch=prefetch)


# -- steps that call a function -----------------------------------------------------------


def mapped(number):
    """Add `number` to the total."""

    def function(item):
        return total(item) + number

    return Step(
        f"map {number}",
        lambda pipe, hands: called(pipe, "map", function, hands),
        lambda items: list(map(function, items)),
    )


def filtered(number):
    """Keep items whose total is not a multiple of `number`."""

    def function(item):
        return total(item) % number != 0

    return Step(
        f"filter {number}",
        lambda pipe, hands: called(pipe, "filter", function, hands),
        lambda items: list(filter(function, items)),
        sized=False,
    )


def flattened(number, kind):
    """Give each item none to `number` times; the function is of one kind or another."""

    def many(item):
        return [item] * (total(item) % (number + 1))

    def draw(item):
        yield from many(item)

    async def draw_async(item):
        for one in many(item):
            yield one

    def grow(pipe, hands):
        if kind == "async generator":
            _, concurrency, prefetch = next(hands)
            return pipe.flat_map(draw_async, concurrency=concurrency, prefetch=prefetch)
        return called(pipe, "flat_map", draw if kind == "generator" else many, hands)

    return Step(
        f"flat_map {number} by {kind}",
        grow,
        lambda items: [one for item in items for one in many(item)],
        sized=False,
    )


def routed(number):
    """Send items through one of three branches by their total."""

    def key(item):
        return total(item) % 3

    def add(item):
        return total(item) + number

    def odd(item):
        return total(item) % 2 == 1

    def twice(item):
        return [item, number]

    def grow(pipe, hands):
        return pipe.route(
            key,
            {
                0: lambda chain: called(chain, "map", add, hands),
                1: lambda chain: called(called(chain, "filter", odd, hands), "map", add, hands),
                2: lambda chain: called(chain, "flat_map", twice, hands),
            },
        )

    def of_one(item):
        if key(item) == 0:
            return [add(item)]
        if key(item) == 1:
            return [add(item)] if odd(item) else []
        return twice(item)

    def model(items):
        return [one for item in items for one in of_one(item)]

    return Step(f"route {number}", grow, model, sized=False)


# -- steps that count, gather and cut -----------------------------------------------------


def chunks(items, size, *, drop_last=False):
    """Cut a list into lists of `size`."""
    cut = [items[at : at + size] for at in range(0, len(items), size)]
    return [chunk for chunk in cut if len(chunk) == size] if drop_last else cut


def chunks_by_cost(items, size, cost):
    """Cut a list into lists whose costs sum to at most `size`."""
    cut = []
    for item in items:
        if cut and sum(map(cost, cut[-1])) + cost(item) <= size:
            cut[-1].append(item)
        else:
            cut.append([item])
    return cut


def sharded(items, rank, world_size, tail):
    """Give one rank's part of a list."""
    short = -len(items) % world_size if items else 0
    if tail == "pad":
        items = items + [items[n % len(items)] for n in range(short)]
    elif tail == "drop":
        items = items[: len(items) // world_size * world_size]
    return items[rank::world_size]


def simple(text, grow, model, *, sized=True):
    """Make a step whose stages take no options."""
    return Step(text, lambda pipe, hands: grow(pipe), model, sized)


def batched(size, drop_last):
    """Gather lists."""
    return simple(
        f"batch {size}{' whole' * drop_last}",
        lambda pipe: pipe.batch(size, drop_last=drop_last, collate=list),
        lambda items: chunks(items, size, drop_last=drop_last),
    )


def batched_by_cost(size):
    """Gather lists of bounded cost."""

    def cost(item):
        return 1 + total(item) % 3

    return simple(
        f"batch {size} by cost",
        lambda pipe: pipe.batch(size, cost=cost, collate=list),
        lambda items: chunks_by_cost(items, size, cost),
        sized=False,
    )


def there_and_back(size):
    """Gather lists and take them apart again."""
    return simple(
        f"batch {size}, unbatch",
        lambda pipe: pipe.batch(size, collate=list).unbatch(),
        lambda items: items,
        sized=False,
    )


def windowed(size, stride):
    """Give lists of neighbours."""
    return simple(
        f"window {size} by {stride}",
        lambda pipe: pipe.window(size, stride),
        lambda items: [items[at : at + size] for at in range(0, len(items) - size + 1, stride)],
    )


def without_repeats(items, last):
    """Give the items that none of the `last` before them was equal to."""
    shown = [repr(item) for item in items]
    return [
        item
        for number, item in enumerate(items)
        if shown[number] not in shown[max(0, number - last) : number]
    ]


def deduped(last):
    """Leave out what was there a moment ago."""
    return simple(
        f"dedupe {last}",
        lambda pipe: pipe.dedupe(repr, last),
        lambda items: without_repeats(items, last),
        sized=False,
    )


def taken(count):
    """Keep the first items."""
    return simple(f"take {count}", lambda pipe: pipe.take(count), lambda items: items[:count])


def skipped(count):
    """Leave out the first items."""
    return simple(f"skip {count}", lambda pipe: pipe.skip(count), lambda items: items[count:])


def repeated(times):
    """Give everything several times."""
    return simple(f"repeat {times}", lambda pipe: pipe.repeat(times), lambda items: items * times)


def endless(count):
    """Give everything for ever, and keep the first items."""
    return simple(
        f"repeat, take {count}",
        lambda pipe: pipe.repeat().take(count),
        lambda items: (items * count)[:count],
    )


def numbered():
    """Pair items with numbers."""
    return simple("enumerate", lambda pipe: pipe.enumerate(), lambda items: list(enumerate(items)))


def one_rank(rank, more, tail):
    """Keep one rank's items."""
    return simple(
        f"shard {rank} of {rank + more}, {tail}",
        lambda pipe: pipe.shard(rank, rank + more, tail=tail),
        lambda items: sharded(items, rank, rank + more, tail),
    )


def cached():
    """Keep the items in memory."""
    return simple("cache", lambda pipe: pipe.cache(), lambda items: items)


def zipped(length):
    """Pair items with numbers of another pipeline, to the shorter one's end."""
    return simple(
        f"zip {length}",
        lambda pipe: nbpipe.zip(pipe, nbpipe.source(range(length)), strict=False),
        lambda items: list(zip(items, range(length), strict=False)),
    )


def joined(length):
    """Put another pipeline before."""
    return simple(
        f"concat {length}",
        lambda pipe: nbpipe.concat(nbpipe.source(range(length)), pipe),
        lambda items: [*range(length), *items],
    )


def nested():
    """Make the pipeline the source of another one."""
    return simple("source", lambda pipe: nbpipe.source(pipe, name="outer"), lambda items: items)


SMALL = st.integers(0, 6)
SIZES = st.integers(1, 5)
TAILS = st.sampled_from(["pad", "drop", "uneven"])
FLAT = st.sampled_from(["list", "generator", "async generator"])
# Steps that a source can do by index; in the same words they work on any stream.
INDEX_STEPS = st.one_of(
    st.builds(taken, st.integers(0, 12)),
    st.builds(skipped, SMALL),
    st.builds(repeated, st.integers(1, 3)),
    st.builds(endless, SMALL),
    st.builds(one_rank, st.integers(0, 2), st.integers(1, 3), TAILS),
    st.builds(numbered),
)
CALL_STEPS = st.one_of(
    st.builds(mapped, SMALL),
    st.builds(filtered, SIZES),
    st.builds(flattened, st.integers(1, 2), FLAT),
    st.builds(routed, SMALL),
)
GATHER_STEPS = st.one_of(
    st.builds(batched, SIZES, st.booleans()),
    st.builds(batched_by_cost, st.integers(3, 8)),
    st.builds(there_and_back, SIZES),
    st.builds(windowed, SIZES, SIZES),
    st.builds(deduped, SIZES),
)
JOIN_STEPS = st.one_of(
    st.builds(zipped, SMALL), st.builds(joined, SMALL), st.builds(nested), st.builds(cached)
)
STEPS = st.one_of(CALL_STEPS, CALL_STEPS, INDEX_STEPS, GATHER_STEPS, JOIN_STEPS)
ITEMS = st.lists(st.integers(0, 20), max_size=12)


def recipes(steps=STEPS, *, longest=6):
    """Draw recipes whose lists stay short."""
    made = st.builds(Recipe, ITEMS, st.lists(steps, max_size=longest))
    return made.filter(_is_short)


def _is_short(recipe):
    items = list(recipe.items)
    for step in recipe.steps:
        items = step.model(items)
        if len(items) > LONGEST:
            return False
    return True
