"""What a chain of `tests/chains.py` must give: each word as it acts on plain lists.

Most words are streams: what comes at an item, and what comes at the end. So a route can say which
result stands where. The others look at the list as a whole; no branch may hold them.
"""

from tests.chains import Add, Cost, Failing, Keep, Key, Listed, Many, branches


class Each:
    """A map, a filter or a flat_map: some results for each item."""

    def __init__(self, push):
        self.push = push

    def end(self):
        return []


class Batches:
    """A batch: lists, the last one perhaps shorter."""

    def __init__(self, size, drop_last):
        self.size, self.drop_last, self.items = size, drop_last, []

    def push(self, item):
        self.items.append(item)
        return self.taken() if len(self.items) == self.size else []

    def taken(self):
        items, self.items = self.items, []
        return [items] if items else []

    def end(self):
        return [] if self.drop_last else self.taken()


class CostlyBatches(Batches):
    """A batch by cost: a list comes when the next item does not fit any more."""

    def __init__(self, size, drop_last, cost=Cost()):  # noqa: B008 - it has no state
        super().__init__(size, drop_last)
        self.cost = cost

    def push(self, item):
        fits = sum(map(self.cost, self.items)) + self.cost(item) <= self.size
        before = [] if fits else self.taken()
        self.items.append(item)
        return before


class Pairs(Batches):
    """Batches of two, taken apart again."""

    def __init__(self):
        super().__init__(2, drop_last=False)

    def taken(self):
        items, self.items = self.items, []
        return items


class Windows:
    """Windows of neighbours, each some items behind the one before."""

    def __init__(self, size, stride):
        self.size, self.stride, self.items = size, stride, []

    def push(self, item):
        self.items.append(item)
        first = len(self.items) - self.size
        return [] if first < 0 or first % self.stride else [self.items[first:]]

    def end(self):
        return []


class Fresh:
    """A dedupe: no item that was among the last ones."""

    def __init__(self, last):
        self.last, self.seen = last, []

    def push(self, item):
        known = repr(item) in self.seen[-self.last :]
        self.seen.append(repr(item))
        return [] if known else [item]

    def end(self):
        return []


class Routed:
    """A route: a result stands where its item did; what ends a branch comes last."""

    def __init__(self, *branches):
        self.key = Key(len(branches))
        self.branches = [[STREAMS[word](*values) for word, *values in steps] for steps in branches]

    def push(self, item):
        return _through(self.branches[self.key(item)], [item])

    def end(self):
        return [result for steps in self.branches for result in _ended(steps)]


def _through(steps, items):
    for step in steps:
        items = [result for item in items for result in step.push(item)]
    return items


def _ended(steps):
    left = []
    for step in steps:
        left = _through([step], left) + step.end()
    return left


STREAMS = {
    "map": lambda number: Each(lambda item: [Add(number)(item)]),
    "filter": lambda number: Each(lambda item: [item] * Keep(number)(item)),
    "flat_map": lambda number: Each(lambda item: list(Many(number)(item))),
    "listed": lambda number: Each(Listed(number)),
    "failing": lambda number: Each(lambda item: [item] * (not Failing(number).refuses(item))),
    "batch": Batches,
    "batch_by_cost": CostlyBatches,
    "unbatch": Pairs,
    "window": Windows,
    "dedupe": Fresh,
    "route": lambda number: Routed(*branches(number)),
    "branches": Routed,
}


def sharded(items, rank, world_size, tail):
    """Give one rank's part of a list."""
    short = -len(items) % world_size if items else 0
    if tail == "pad":
        items = items + [items[n % len(items)] for n in range(short)]
    elif tail == "drop":
        items = items[: len(items) // world_size * world_size]
    return items[rank::world_size]


LISTS = {
    "take": lambda items, count: items[:count],
    "skip": lambda items, count: items[count:],
    "repeat": lambda items, times: items * times,
    "endless": lambda items, count: (items * count)[:count],
    "enumerate": lambda items: list(enumerate(items)),
    "shard": sharded,
    "cache": lambda items: items,
    "outer": lambda items: items,
    "zipped": lambda items, length: list(zip(items, range(length), strict=False)),
    "joined": lambda items, length: [*range(length), *items],
}
SIZED = {*LISTS, "map", "batch", "window"}  # the number of their items is known before


def passed(items, *steps):
    """Give what steps make of a list."""
    for word, *values in steps:
        if word in LISTS:
            items = LISTS[word](items, *values)
        else:
            stream = STREAMS[word](*values)
            items = _through([stream], items) + stream.end()
    return items


def given(recipe):
    """Give the items that a recipe must give; its source is one of items."""
    (_, items), *steps = recipe
    return passed(items, *steps)
