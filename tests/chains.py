"""Pipelines as data: JSON-able recipes, so that another process can build the same chain.

A recipe is `[source, step, step, ...]`, and every part a list: a word and its values. Items are
ints, or lists and tuples of them; functions look at `total(item)` alone, so that every step may
follow every other one. `Hands` says who calls the functions, which must not change what comes;
what that is `tests/models.py` says.
"""

import inspect
import itertools
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import nbpipe
from nbpipe import Retry


def total(item):
    """Sum up the ints in an item, however nested."""
    return sum(map(total, item)) if isinstance(item, list | tuple) else int(item)


@dataclass(frozen=True)
class Hands:
    """Options for the stages of a chain, one after the other, round and round."""

    executors: tuple = ("thread",)
    concurrency: tuple = (1,)
    prefetch: tuple = (8,)

    @classmethod
    def read(cls, data):
        """Read what JSON made of one."""
        return cls(*map(tuple, data))

    @property
    def data(self):
        """The options as lists."""
        return [self.executors, self.concurrency, self.prefetch]

    def deal(self):
        """Give endless iterators over the options and over numbers for names."""
        parts = (self.executors, self.concurrency, self.prefetch)
        dealt = zip(*map(itertools.cycle, parts), strict=False)
        return SimpleNamespace(deal=dealt, numbers=itertools.count())


def build(recipe, hands=None):
    """Make the pipeline of a recipe."""
    return _grown(recipe, (hands or Hands()).deal())


def _grown(recipe, hands):
    (word, *values), *steps = recipe
    return _with(SOURCES[word](hands, *values), hands, steps)


def _with(pipe, hands, steps):
    for step in steps:
        if callable(step):  # one that is no data, of a test's own
            pipe = step(pipe, hands)
        else:
            word, *values = step
            pipe = STEPS[word](pipe, hands, *values)
    return pipe


# -- sources ---------------------------------------------------------------------------------------


class Dataset:
    """Map-style: a length and an index, no iteration."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * 3 % 17


@dataclass(frozen=True)
class Made:
    """A function that gives a fresh generator."""

    count: int

    def __call__(self):
        return (number * 5 % 13 for number in range(self.count))


def _made_async(count):
    async def numbers():
        for number in range(count):
            yield number * 7 % 11

    return numbers


def _source(make):
    def source(hands, *values):
        prefetch = next(hands.deal)[2]
        return nbpipe.source(make(*values), prefetch=prefetch, name=_name(hands, "source"))

    return source


def _name(hands, word):
    return f"{word}{next(hands.numbers)}"


def _several(join):
    def made(hands, recipes, *values):
        return join([_grown(recipe, hands) for recipe in recipes], *values)

    return made


SOURCES = {
    "items": _source(list),
    "stream": _source(lambda items: lambda: iter(items)),
    "list": _source(lambda count: [number * 2 for number in range(count)]),
    "range": _source(range),
    "dataset": _source(Dataset),
    "generator": _source(Made),
    "async": _source(_made_async),
    "pipeline": lambda hands, recipe: nbpipe.source(
        _grown(recipe, hands), name=_name(hands, "outer")
    ),
    "zip": _several(lambda pipes: nbpipe.zip(*pipes, strict=False)),
    "concat": _several(lambda pipes: nbpipe.concat(*pipes)),
    "mix": _several(
        lambda pipes, weights, stop, seed: nbpipe.mix(pipes, weights, stop=stop, seed=seed)
    ),
    "interleave": _several(lambda pipes, cycle: nbpipe.interleave(pipes, cycle=cycle)),
}


# -- functions of stages; objects of classes, so that workers can have them ------------------------


@dataclass(frozen=True)
class Add:
    number: int

    def __call__(self, item):
        return total(item) + self.number


@dataclass(frozen=True)
class Noise:
    number: int

    def __call__(self, item, rng):
        return total(item) + int(rng.integers(self.number + 1))


@dataclass(frozen=True)
class Keep:
    number: int

    def __call__(self, item):
        return total(item) % self.number != 0


@dataclass(frozen=True)
class KeepSome:
    def __call__(self, item, rng):
        return bool(rng.random() < 0.7)


@dataclass(frozen=True)
class Many:
    """Gives 0 to `number` children; fails on some items, after some children."""

    number: int
    bad: int = 0

    def __call__(self, item):
        count = total(item) % (self.number + 1)
        for child in range(count):
            if self.bad and child and total(item) % self.bad == 1:
                raise ValueError(item)
            yield total(item) + child


@dataclass(frozen=True)
class Listed:
    """Gives 0 to `number` children in a list."""

    number: int

    def __call__(self, item):
        return [total(item)] * (total(item) % (self.number + 1))


@dataclass(frozen=True)
class Failing:
    """Fails on some items, always."""

    number: int

    def refuses(self, item):
        return total(item) % self.number == 1

    def __call__(self, item):
        if self.refuses(item):
            raise ValueError(total(item))
        return item


class Moody:
    """Fails on each item the first time."""

    def __init__(self):
        self.tried = Counter()

    def __call__(self, item):
        self.tried[total(item)] += 1
        if self.tried[total(item)] == 1:
            raise ValueError(item)
        return item


@dataclass(frozen=True)
class Cost:
    def __call__(self, item):
        return 1 + total(item) % 3


@dataclass(frozen=True)
class Key:
    """Chooses one of so many branches."""

    count: int

    def __call__(self, item):
        return total(item) // 2 % self.count


def as_async(function):
    """Make a function that gives the same on the event loop."""
    code = function if inspect.isfunction(function) else type(function).__call__

    async def called(item, **drawn):
        return function(item, **drawn)

    async def many(item, **drawn):
        for one in function(item, **drawn):
            yield one

    made = many if inspect.isgeneratorfunction(code) else called
    made.__signature__ = inspect.signature(function)  # it is called with `rng` where this one is
    return made


def called(pipe, method, function, hands, **options):
    """Add a map, filter or flat_map, called as the next options say."""
    executor, concurrency, prefetch = next(hands.deal)
    options = {"name": _name(hands, method), **options}
    if executor == "inline":
        return getattr(pipe, method)(function, executor="inline", **options)
    if executor == "coroutine":
        function = as_async(function)
    elif executor == "process":
        options["executor"] = "process"
    return getattr(pipe, method)(function, concurrency=concurrency, prefetch=prefetch, **options)


def _call(method, make, **options):
    return lambda pipe, hands, *values: called(pipe, method, make(*values), hands, **options)


def _shuffled(pipe, hands, seed, size=None):
    return pipe.shuffle(seed=seed, buffer_size=size)


def _branched(pipe, hands, *branches):
    def branch(steps):
        return lambda chain: _with(chain, hands, steps)

    return pipe.route(Key(len(branches)), dict(enumerate(map(branch, branches))))


def branches(number):
    """Give the branches of the step "route"."""
    return [["map", number]], [["filter", 2], ["map", number]], [["flat_map", 2], ["failing", 5]]


def _plain(method, *words, **more):
    def step(pipe, hands, *values):
        plain = len(values) - len(words)
        named = dict(zip(words, values[plain:], strict=True))
        return getattr(pipe, method)(*values[:plain], **named, **more)

    return step


STEPS = {
    "map": _call("map", Add),
    "noise": _call("map", Noise),
    "filter": _call("filter", Keep),
    "filter_some": _call("filter", KeepSome),
    "flat_map": _call("flat_map", Many),
    "listed": _call("flat_map", Listed),
    "failing": _call("map", Failing, on_error="skip"),
    "failing_many": _call("flat_map", Many, on_error="skip"),
    "fatal": _call("map", Failing),
    "retried": _call("map", Moody, on_error=Retry(2)),
    "gives_up": _call("map", Failing, on_error=Retry(1, then="skip")),
    "shuffle": _shuffled,
    "sample": lambda pipe, hands, n: pipe.sample([1.0] * n, n=n, seed=3),
    "take": _plain("take"),
    "skip": _plain("skip"),
    "enumerate": _plain("enumerate"),
    "repeat": _plain("repeat"),
    "endless": lambda pipe, hands, count: pipe.repeat().take(count),
    "shard": _plain("shard", "tail"),
    "batch": _plain("batch", "drop_last", collate=list),
    "batch_by_cost": lambda pipe, hands, size, drop: pipe.batch(
        size, cost=Cost(), collate=list, drop_last=drop
    ),
    "unbatch": lambda pipe, hands: pipe.batch(2, collate=list).unbatch(),
    "window": _plain("window"),
    "dedupe": lambda pipe, hands, last: pipe.dedupe(repr, last),
    "cache": _plain("cache"),
    "route": lambda pipe, hands, number: _branched(pipe, hands, *branches(number)),
    "branches": _branched,
    "outer": lambda pipe, hands: nbpipe.source(pipe, name=_name(hands, "outer")),
    "zipped": lambda pipe, hands, n: nbpipe.zip(pipe, nbpipe.source(range(n)), strict=False),
    "joined": lambda pipe, hands, n: nbpipe.concat(nbpipe.source(range(n)), pipe),
}


# -- what comes out --------------------------------------------------------------------------------


def outcome(items):
    """Give the items as JSON would, and the error that ended them as text, or None."""
    got = []
    try:
        for item in items:
            got.append(plain(item))  # noqa: PERF401 - what came before an error counts
    except nbpipe.StageError as error:
        return got, f"{type(error).__name__} {error.stage} {error.path} {error.__cause__!r}"
    return got, None


def plain(item):
    """Give an item with lists in place of tuples."""
    return [plain(one) for one in item] if isinstance(item, list | tuple) else int(item)


def words_in(recipe):
    """Give all words of a recipe."""
    for part in recipe:
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            yield from words_in(part)
