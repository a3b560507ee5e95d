"""Orders of indices: steps against plain lists, and which stages are such steps."""

import itertools
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError
from tests.models import sharded
from tests.ops.inner import IndexPlan, absorbed, index_plan, index_steps

TAILS = ["pad", "drop", "uneven"]
WHOLE = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("shuffle"), WHOLE),
    st.tuples(st.just("take"), WHOLE | st.just(sys.maxsize)),
    st.tuples(st.just("skip"), WHOLE),
    st.tuples(st.just("repeat"), st.integers(0, 3)),
    st.tuples(st.just("enumerate")),
    st.tuples(st.just("join"), WHOLE),
    st.tuples(st.just("shard"), st.integers(0, 2), st.just(3), st.sampled_from(TAILS)),
)
CHAINS = st.lists(STEPS, max_size=5)
UNSHARDED = st.lists(STEPS.filter(lambda step: step[0] != "shard"), max_size=4)
LENGTHS = st.integers(0, 12)


class Dataset:
    """A map-style dataset that notes what is read."""

    def __init__(self, length):
        self.length = length
        self.read = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        self.read.append(index)
        return index * 10


def build(length, steps):
    """Make the plan of a chain over range(length)."""
    plan = IndexPlan.of(range(length))
    for name, *arguments in steps:
        if name == "join":
            plan = IndexPlan.concat([plan, IndexPlan.of(range(*arguments)).shuffle(1)])
        else:
            plan = getattr(plan, name)(*arguments)
    return plan


def permuted(rows, seed, passes):
    """Shuffle a list as a plan shuffles its rows."""
    order = IndexPlan.of(range(len(rows))).shuffle(seed).resolve(3, passes)
    return [rows[index] for _, index in order.rows()]


def expected(length, steps, passes=()):
    """Give the items of a chain by plain lists."""
    if not steps:
        return list(range(length))
    *before, (name, *arguments) = steps
    if name == "repeat":
        each = [expected(length, before, (n, *passes)) for n in range(*arguments)]
        return list(itertools.chain(*each))
    rows = expected(length, before, passes)
    return {
        "shuffle": lambda seed: permuted(rows, seed, passes),
        "take": lambda n: rows[:n],
        "skip": lambda n: rows[n:],
        "enumerate": lambda: list(enumerate(rows)),
        "join": lambda n: rows + permuted(list(range(n)), 1, passes),
        "shard": lambda *arguments: sharded(rows, *arguments),
    }[name](*arguments)


def read_all(plan, epoch=0):
    """Give all rows of an epoch."""
    return list(plan.resolve(epoch).rows())


def items_of(plan, epoch=0):
    """Give all items of an epoch."""
    return [item for _, item in read_all(plan, epoch)]


def paths_of(plan, epoch=0):
    """Give all paths of an epoch."""
    return [path for path, _ in read_all(plan, epoch)]


@given(LENGTHS, CHAINS)
def test_items_are_those_of_plain_lists(length, steps):
    """Any chain gives what the same operations give on lists."""
    plan = build(length, steps)
    items = [item for _, item in plan.resolve(3).rows()]
    assert (expected(length, steps), len(items)) == (items, plan.length())


@given(LENGTHS, CHAINS, st.data())
def test_any_row_can_come_first(length, steps, data):
    """Reading from a row on gives what reading from the start gives."""
    order = build(length, steps).resolve(0)
    rows = list(order.rows())
    start = data.draw(st.integers(0, len(rows)))
    assert rows[start:] == list(order.rows(start))


@given(LENGTHS, CHAINS)
@example(2, [("repeat", 2), ("join", 2), ("repeat", 2)])
def test_each_row_is_found_by_its_path(length, steps):
    """By its own alone, also where some rows have longer paths than others; none is negative."""
    order = build(length, steps).resolve(0)
    paths = [path if isinstance(path, tuple) else (path,) for path, _ in order.rows()]
    assert [order.find(path) for path in paths] == list(range(len(paths)))
    assert all(min(path) >= 0 for path in paths)


@given(LENGTHS, UNSHARDED, st.integers(1, 5), st.sampled_from(TAILS))
@example(1, [("repeat", 2), ("take", 1)], 2, "pad")
def test_ranks_share_the_global_order(length, steps, world_size, tail):
    """Ranks divide the rows, with the paths that they have without shards; padding is new."""
    plan = build(length, steps)
    whole = dict(read_all(plan))
    parts = [read_all(plan.shard(rank, world_size, tail)) for rank in range(world_size)]
    together = [row for part in parts for row in part]
    assert len(together) == len(dict(together))
    known = {path: item for path, item in together if path in whole}
    left_out = len(whole) % world_size if tail == "drop" else 0
    added = -len(whole) % world_size if tail == "pad" else 0
    assert known == {path: item for path, item in whole.items() if path in known}
    assert (len(whole) - left_out, added) == (len(known), len(together) - len(known))


@pytest.mark.parametrize(
    ("plan", "paths"),
    [
        (IndexPlan.of("abc"), [0, 1, 2]),
        (IndexPlan.of("abcde").skip(3), [3, 4]),
        (IndexPlan.of("abcde").take(4).skip(1), [1, 2, 3]),
        (IndexPlan.of("abc").skip(1).shuffle(0), [0, 1]),
        (IndexPlan.of("abcde").shuffle(0).shard(1, 2), [1, 3, 5]),
        (IndexPlan.of("abcd").shuffle(0).skip(1).shard(1, 2, "uneven"), [2]),
        (IndexPlan.of("ab").repeat(2), [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (IndexPlan.of("a").repeat(2).repeat(2), [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]),
        (IndexPlan.of("ab").repeat(2).shuffle(0), [0, 1, 2, 3]),
        (IndexPlan.of("abc").repeat(1).shard(1, 2), [(1, 0), (3, 0)]),
        (IndexPlan.concat([IndexPlan.of("ab"), IndexPlan.of("cd").skip(1)]), [0, 1, 3]),
        (IndexPlan.concat([IndexPlan.of("ab").take(1), IndexPlan.of("cd")]), [0, 1, 2]),
        (IndexPlan.concat([IndexPlan.of("a").repeat(1), IndexPlan.of("cd")]), [(0, 0), 1, 2]),
        (IndexPlan.concat([]), []),
    ],
)
def test_paths(plan, paths):
    """Paths are positions in the global order, with one element more for each repeat."""
    assert paths_of(plan) == paths


def test_shuffled_shards_keep_global_paths():
    """A shuffle after a shard moves the rows of the rank, paths and all."""
    plan = IndexPlan.of(range(40))
    ranks = [read_all(plan.shard(rank, 2).shuffle(0)) for rank in range(2)]
    assert [sorted(rows) for rows in ranks] == [read_all(plan.shard(rank, 2)) for rank in range(2)]
    assert ranks[0] != sorted(ranks[0])


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4), st.sampled_from(TAILS), WHOLE)
def test_shards_of_shards(length, outer, inner, tail, count):
    """Sharded twice, as by node and by rank in it, the world shares no path."""
    plan = IndexPlan.of(range(length)).shuffle(0)
    nodes = [plan.shard(one, outer, tail).shuffle(1).take(count) for one in range(outer)]
    ranks = [node.shard(other, inner) for node in nodes for other in range(inner)]
    paths = [path for rank in ranks for path in paths_of(rank)]
    assert len(paths) == len(set(paths))


def test_many_passes_at_random():
    """Passes that are not at hand any more are opened again as they were."""
    plan = IndexPlan.of(range(3)).shuffle(0).repeat(200)
    order = plan.resolve(0)
    again = [next(order.rows(row)) for row in reversed(range(600))]
    assert read_all(plan) == again[::-1]
    assert sorted(items_of(plan.shuffle(1))) == sorted(items_of(plan))


def test_passes_from_outside():
    """Passes of a repeat further down shuffle as a repeat of the plan does."""
    plan = IndexPlan.of(range(20)).shuffle(0)
    whole = items_of(plan.repeat(3).repeat(2))
    parts = [[i for _, i in plan.resolve(0, (n, m)).rows()] for m in range(2) for n in range(3)]
    assert list(itertools.chain(*parts)) == whole


def test_endless_repeat():
    """A repeat without a number goes on for ever, in as many orders; of nothing, it is nothing."""
    plan = IndexPlan.of(range(3)).shuffle(0).repeat()
    rows = list(itertools.islice(plan.resolve(0).rows(3000), 9))
    assert {item for _, item in rows} == {0, 1, 2}
    assert [path for path, _ in rows[:2]] == [(0, 1000), (1, 1000)]
    assert plan.length() is None
    assert plan.take(7).length() == 7
    assert next(plan.shard(1, 2).skip(1).enumerate().resolve(0).rows())[1][0] == 0
    assert IndexPlan.of([]).repeat().length() == 0
    assert IndexPlan.concat([plan, plan]).length() is None


def test_repeat_of_an_endless_order():
    """What never ends is not repeated."""
    plan = IndexPlan.of("ab").repeat().repeat(2)
    rows = list(itertools.islice(plan.resolve(0).rows(), 3))
    assert rows == [((0, 0, 0), "a"), ((1, 0, 0), "b"), ((0, 1, 0), "a")]


@pytest.mark.parametrize("change", [2, 9])
@pytest.mark.parametrize("steps", [[], [("shuffle", 0)], [("take", 4)], [("enumerate",)]])
@pytest.mark.parametrize("kind", [list, Dataset])
def test_changed_length(kind, change, steps):
    """A source that changes its length during an epoch is reported, from what to what."""
    data = Dataset(5) if kind is Dataset else [0, 1, 2, 3, 4]
    plan = IndexPlan.of(data)
    for name, *arguments in steps:
        plan = getattr(plan, name)(*arguments)
    rows = plan.resolve(0).rows()
    next(rows)
    if kind is Dataset:
        data.length = change
    else:
        data[:] = range(change)
    with pytest.raises(ArgumentError, match=f"got 5 at its start and {change} now") as caught:
        list(rows)
    assert kind.__name__ in str(caught.value)


def test_index_error_of_a_dataset():
    """An IndexError of a dataset's own stays what it is."""

    class Broken(Dataset):
        def __getitem__(self, index):
            raise IndexError("mine")

    order = IndexPlan.of(Broken(3)).resolve(0)
    with pytest.raises(IndexError, match="mine") as caught:
        list(order.rows())
    assert not isinstance(caught.value, ArgumentError)


@pytest.mark.slow
def test_long_permutations(monkeypatch):
    """The permutation computed block by block serves every chain that the table serves."""
    monkeypatch.setattr(index_steps, "_TABLE_ROWS", 3)
    plan = IndexPlan.of(range(5000)).shuffle(1)
    orders = [items_of(plan), items_of(plan, 1), items_of(plan.repeat(2))[5000:]]
    assert [sorted(order) for order in orders] == [list(range(5000))] * 3
    assert len(set(map(tuple, orders))) == 3


def test_large_counts():
    """Counts beyond any number of rows are no harm."""
    plan = IndexPlan.of("ab")
    assert items_of(plan.take(10**30)) == ["a", "b"]
    assert items_of(plan.skip(10**30)) == []
    assert next(plan.repeat(10**30).resolve(0).rows()) == ((0, 0), "a")
    assert items_of(plan.shard(2**31 - 1, 2**31)) == ["b"]


# -- which stages only order the indices of a source -----------------------------------------------


def source(length=6):
    """Make a source read by index."""
    return nbpipe.source(range(length))


def concat():
    """Join two sources read by index."""
    return nbpipe.concat(source(), source())


@pytest.mark.parametrize(
    ("pipe", "used"),
    [
        (source(), 1),
        (source().shuffle(), 2),
        (source().take(5).skip(1).enumerate().repeat(2).shard(0, 2).shuffle(), 7),
        (source().shuffle().map(abs).take(2), 2),
        (source().shuffle(buffer_size=2), 1),
        (source().repeat().shard(0, 2), 2),
        (concat(), 0),
        (concat().take(3), 0),
        (concat().shuffle(), 2),
        (concat().take(3).shard(0, 2).repeat(2).shuffle().batch(2), 5),
        (concat().shuffle(buffer_size=2).take(2), 0),
        (nbpipe.concat(concat(), source().shuffle()).shuffle(), 2),
        (nbpipe.concat(source(), source().map(abs)), 0),
        (nbpipe.source(lambda: iter([])).take(2), 0),
        (nbpipe.source(source(), name="outer").take(2), 0),
    ],
)
def test_stages_that_need_no_node(pipe, used):
    """Index steps right after a source, or after a shuffled concat of such, are absorbed."""
    assert absorbed(pipe.chain)[1] == used


@pytest.mark.parametrize(
    ("pipe", "words"),
    [
        (nbpipe.source(lambda: iter([]), name="f"), "source 'f' has no length and index"),
        (source().map(abs), "the items of 'abs' (map) cannot be read by index"),
        (source().batch(2).take(1), "the items of 'batch' (batch) cannot be read by index"),
        (nbpipe.zip(source(), source()), "source 'zip' has no length and index"),
        (source().shuffle(buffer_size=2), "the items of 'shuffle' (shuffle) cannot be read"),
    ],
)
def test_a_full_shuffle_that_cannot_be(pipe, words):
    """The error names what stands in the way, and both ways out."""
    with pytest.raises(ArgumentError) as caught:
        pipe.shuffle()
    message = str(caught.value)
    assert message.startswith("shuffle needs buffer_size here, for example ")
    assert words in message
    assert message.endswith("; or shuffle right after the source")


def test_a_full_shuffle_of_what_never_ends():
    """It is refused where it is written, not when the epoch starts."""
    with pytest.raises(ArgumentError, match="got repeat\\(None\\) before it; shuffle before"):
        source().repeat().shuffle()


def test_no_plan_of_an_empty_chain():
    """A branch begins with no chain at all."""
    assert (absorbed(()), index_plan(())) == ((None, 0), None)
