"""Pipelines on two and three ranks: real processes, joined by gloo."""

import itertools
import re
from collections import Counter

import pytest

import nbpipe
from tests.ranks.jobs import epochs, order, with_number

pytestmark = pytest.mark.torch
SIZES = [2, 3]


def joined(results, epoch):
    """Give the items of all ranks in one epoch."""
    return sorted(item for result in results for item in result[epoch])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("items", [0, 5, 12])
@pytest.mark.parametrize("tail", ["pad", "uneven"])
def test_shards_hold_everything(ranks, size, items, tail):
    """Together the ranks read what one process reads, with the same random numbers."""
    results = ranks.run("sharded", size, items=items, tail=tail)
    for epoch, wanted in enumerate(epochs(order(items).map(with_number))):
        padded = -items % size if tail == "pad" else 0
        got = joined(results, epoch)
        repeated = Counter(item for item, _ in got) - Counter(item for item, _ in wanted)
        assert set(wanted) <= set(got)
        assert (len(got), sum(repeated.values())) == (items + padded, padded)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_shards_of_equal_length(ranks, size, tail):
    """With "pad" and "drop" all ranks take the same number of steps, and drop repeats nothing."""
    results = ranks.run("sharded", size, items=11, tail=tail)
    lengths = {len(epoch) for result in results for epoch in result}
    most = max(Counter(item for item, _ in joined(results, 0)).values())
    wanted = (11 // size, 1) if tail == "drop" else (-(-11 // size), 2)
    assert (lengths, most) == ({wanted[0]}, wanted[1])


@pytest.mark.parametrize("size", SIZES)
def test_shards_of_draws(ranks, size):
    """Draws by weight are the same on every rank, and split between them."""
    weights = [1, 0, 3, 2, 0, 5, 1]
    results = ranks.run("sampled", size, weights=weights, n=20)
    drawn = nbpipe.source(range(7)).sample(weights, n=20, seed=3).map(with_number)
    assert [joined(results, epoch) for epoch in range(2)] == list(map(sorted, epochs(drawn)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("items", "chunk"), [(50, 4), (50, 1000), (0, 4)])
def test_claims_hold_everything_once(ranks, size, items, chunk):
    """In each epoch every item goes to one rank, with the random numbers it has in one process."""
    results = ranks.run("claimed", size, items=items, chunk=chunk)
    wanted = epochs(order(items).map(with_number))
    assert [joined(results, epoch) for epoch in range(3)] == [
        sorted(epoch) for epoch in (*wanted, wanted[0])
    ]


def test_claims_of_each_pass(ranks):
    """A repeat claims every item once in each pass."""
    results = ranks.run("claimed", 2, items=10, chunk=3, passes=2)
    got = [Counter(item for item, _ in joined(results, epoch)) for epoch in range(3)]
    assert got == [Counter(dict.fromkeys(range(10), 2))] * 3


def test_claims_from_a_store_that_is_given(ranks):
    """Any store with `add` will do."""
    results = ranks.run("claimed_from", items=20)
    assert [joined(results, epoch) for epoch in range(2)] == [list(range(20))] * 2


@pytest.mark.parametrize("size", SIZES)
def test_claims_of_a_slow_rank(ranks, size):
    """A rank that stands still keeps what it holds; the others take the rest."""
    ranks.begin("claimed_slowly", size, items=200)
    quick = ranks.wait(range(size - 1))
    ranks.say(size - 1, "go on")
    (slow,) = ranks.wait([size - 1])
    assert sorted(itertools.chain(slow, *quick)) == list(range(200))
    assert len(slow) <= 16


def test_claims_of_a_rank_that_leaves(ranks):
    """Lost is what that rank had claimed, and the next epoch is whole."""
    results = ranks.run("left_early", 2, items=200, chunk=4)
    first = joined(results, 0)
    assert len(set(first)) == len(first) >= 200 - 16
    assert joined(results, 1) == list(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_uneven_shards_train_with_join(ranks, size):
    """Ranks that run out of items wait for the others, and all end with the same weights."""
    results = ranks.run("trained", size, items=7)
    steps = [-(-(7 - rank) // size) * 2 for rank in range(size)]
    assert [result[0] for result in results] == steps
    assert all(result[1] == results[0][1] for result in results)


def test_samplers_of_torch_are_told_the_epoch(ranks):
    """A `DistributedSampler` shuffles anew in each epoch, inside a `BatchSampler` too."""
    results = ranks.run("sampled_by_torch", 2, items=10)
    numbers, batches = zip(*results, strict=True)
    assert [joined(numbers, epoch) for epoch in range(2)] == [list(range(10))] * 2
    assert all(first != second for first, second in numbers)
    assert [[list(itertools.chain(*epoch)) for epoch in one] for one in batches] == list(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["group", "store", "loader"])
def test_the_rank_that_sets_the_pace(ranks, kind):
    """All ranks are told which one it is, and that one what limits it."""
    results = ranks.run("paced", 3, slow=1, kind=kind)
    called, stage = ("loader.run", "fetch") if kind == "loader" else ("run", "load")
    sentence = r"Rank 1 of 3 sets the pace: it waits \d\d%, the others [\d.]+%"
    for rank in (0, 2):
        cause, text, known = results[rank]
        assert (cause, known) == ("rank", [0, 1, 2])
        assert re.match(sentence, text)
        assert text.endswith(f"Look at {called}.diagnose() of rank 1.")
    cause, text, _ = results[1]
    assert text.startswith(f"{stage} is the bottleneck: training waits ")
    assert re.search(r"rank 1 of 3 sets the pace, the others wait [\d.]+%\)", text)
