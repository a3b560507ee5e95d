"""Rows drawn by weight: how often, in which order, and what is refused."""

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError
from nbpipe.base.seeding import uniforms
from nbpipe.ops.plan import IndexPlan
from nbpipe.ops.sample import WithoutReplacement, WithReplacement, class_weights
from tests.gates import epochs

WEIGHTS = [0, 1, 4, 0.5, 0, 2]
TOTAL = sum(WEIGHTS)
KINDS = [WithReplacement, WithoutReplacement]


def plan(weights, n=None, kind=WithReplacement, seed=0):
    """Make the plan of a sample over as many rows as there are weights."""
    return IndexPlan.of(range(len(weights))).sample(kind(np.array(weights, float)), n, seed)


def drawn(order, epoch=0):
    """Give the rows that an epoch draws."""
    return [item for _, item in order.resolve(epoch).rows()]


def source(length=6):
    """Make a source read by index."""
    return nbpipe.source(range(length))


def is_likely(count, draws, probability):
    """Return whether a count lies within 4.5 standard deviations of what is expected."""
    deviation = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= 4.5 * deviation


def test_rows_come_as_often_as_they_weigh():
    """With replacement each row's share is its weight's, and a weight of 0 never comes."""
    counts = Counter(drawn(plan(WEIGHTS, 50_000)))
    assert all(is_likely(counts[row], 50_000, w / TOTAL) for row, w in enumerate(WEIGHTS))


def test_pairs_of_draws_are_independent():
    """With replacement a draw says nothing of the next one."""
    rows = drawn(plan([1, 2, 1], 60_000))
    counts = Counter(itertools.pairwise(rows))
    shares = [0.25, 0.5, 0.25]
    pairs = itertools.product(range(3), repeat=2)
    assert all(is_likely(counts[pair], 59_999, shares[pair[0]] * shares[pair[1]]) for pair in pairs)


@pytest.mark.slow
def test_rows_are_drawn_one_by_one_from_those_left():
    """Without replacement, pairs come as often as draws from what is left give them."""
    weights = [1.0, 2.0, 5.0]
    order = plan(weights, 2, WithoutReplacement)
    counts = Counter(tuple(drawn(order, epoch)) for epoch in range(6000))
    chances = {
        (i, j): weights[i] / 8 * weights[j] / (8 - weights[i])
        for i, j in itertools.permutations(range(3), 2)
    }
    assert all(is_likely(counts[pair], 6000, chance) for pair, chance in chances.items())


@pytest.mark.parametrize("n", [0, 1, 3, 4])
def test_no_row_comes_twice_without_replacement(n):
    """And none with a weight of 0."""
    rows = drawn(plan(WEIGHTS, n, WithoutReplacement))
    assert (len(rows), len(set(rows)), {0, 4} & set(rows)) == (n, n, set())


def test_all_rows_without_replacement():
    """Where every row has a weight, all of them come, the heavy ones early."""
    places = np.zeros(50)
    order = plan(np.arange(1, 51), None, WithoutReplacement)
    for epoch in range(200):
        rows = drawn(order, epoch)
        assert sorted(rows) == list(range(50))
        places[rows] += np.arange(50)
    assert places[:10].sum() > places[-10:].sum() * 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_draws_change_with_seed_epoch_and_pass(kind):
    """The same (seed, epoch, pass) gives the same draws, any other gives others."""
    weights = np.arange(1, 40)
    base = drawn(plan(weights, kind=kind))
    others = [drawn(plan(weights, kind=kind, seed=1)), drawn(plan(weights, kind=kind), epoch=1)]
    passes = drawn(plan(weights, kind=kind).repeat(2))
    assert drawn(plan(weights, kind=kind)) == base == passes[:39]
    assert all(rows != base for rows in [*others, passes[39:]])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any),
    st.integers(0, 30),
    st.integers(1, 4),
    st.sampled_from(["pad", "drop", "uneven"]),
)
def test_draws_in_random_access(weights, n, world_size, tail):
    """Every row of every rank is the row of the one order of all ranks, from any row on."""
    whole = list(plan(weights, n).resolve(2).rows())
    for rank in range(world_size):
        order = plan(weights, n).shard(rank, world_size, tail).resolve(2)
        rows = list(order.rows())
        rows = [row for row in rows if row[0] < n]  # those that pad have paths past the end
        assert rows == whole[rank::world_size][: len(rows)]
        assert [next(order.rows(i)) for i in range(len(rows))] == rows


def test_paths_are_the_places_in_the_new_order():
    """A row that is drawn twice has two paths, before and behind a shuffle."""
    order = plan([1, 1], 50)
    paths = [[path for path, _ in one.resolve(0).rows()] for one in (order, order.shuffle(1))]
    assert paths == [list(range(50))] * 2


def test_each_draw_has_random_numbers_of_its_own():
    """An item that comes twice is not augmented alike."""

    def numbered(item, rng):
        return item, int(rng.integers(2**62))

    got = list(source(2).sample([1, 1], n=30).map(numbered))
    assert len(set(got)) == 30


def test_sample_of_other_orders():
    """Weights belong to the rows of the order before: shuffled, cut or joined."""
    cut = source().skip(2).take(3).enumerate().sample([0, 1, 0])
    joined = nbpipe.concat(source(), source()).sample([0] * 11 + [1], n=2)
    assert (list(cut), list(joined)) == ([(1, 3)] * 3, [5, 5])


def test_sizes_are_known():
    """len() is the number of draws, for each rank too."""
    pipe = source().sample(WEIGHTS, n=100)
    known = [len(source().sample(WEIGHTS)), len(pipe), len(pipe.shard(0, 8).batch(2))]
    assert known == [6, 100, 7]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda w: np.array(w, np.float32)])
def test_kinds_of_weights(kind):
    """Weights are any sequence, on any scale."""
    expected = list(source().sample(WEIGHTS, n=40))
    tiny = [weight * 1e-300 for weight in WEIGHTS]
    assert list(source().sample(kind(WEIGHTS), n=40)) == expected
    assert list(source().sample(tiny, n=40)) == expected


@pytest.mark.parametrize("word", ["bfloat16", "float64", "int64"])
def test_tensors_as_weights(torch, word):
    """A tensor is read as an array, one that has a gradient too."""
    weights = torch.tensor([0, 1, 4, 1], dtype=getattr(torch, word))
    if weights.is_floating_point():
        weights.requires_grad_()
    expected = list(source(4).sample([0, 1, 4, 1]))
    assert list(source(4).sample(weights)) == expected


def test_weights_of_great_sums():
    """Weights whose sum is no float are drawn by all the same."""
    counts = Counter(source(3).sample([sys.float_info.max] * 3, n=3000))
    assert all(is_likely(counts[row], 3000, 1 / 3) for row in range(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: source().sample([1] * 5), "one for each row, got 5 for 6 rows"),
        (lambda: source().sample([1, 1, -1, 1, 1, 1]), "at least 0, got -1.0 for row 2"),
        (lambda: source().sample([1, 1, 1, 1, 1, math.nan]), "finite numbers .* got nan for row 5"),
        (lambda: source().sample([math.inf] * 6), "got inf for row 0"),
        (lambda: source().sample([0] * 6), "must have one above 0, got none in 6 rows"),
        (lambda: source().sample(["x"] * 6), "must be numbers, one for each row"),
        (lambda: source().sample([[1]] * 6), r"got an array of shape \(6, 1\)"),
        (
            lambda: source().sample(WEIGHTS, n=5, replacement=False),
            "n must be at most 4 without replacement, .* got 5; give n=4, or replacement=True",
        ),
        (lambda: source().sample(WEIGHTS, replacement=False), "at most 4 without replacement"),
        (lambda: source().sample(WEIGHTS, n=-1), "sample n must be an int in"),
        (lambda: source().sample(WEIGHTS, seed=0.5), "sample seed must be an int"),
        (lambda: source().sample(WEIGHTS, replacement=1), "replacement must be True or False"),
        (lambda: source().repeat().sample(WEIGHTS), "must follow rows that end"),
        (lambda: source().shard(0, 2).sample([1] * 3), "must come before shard"),
        (lambda: source().map(abs).sample(WEIGHTS), r"the items of 'abs' \(map\)"),
        (lambda: nbpipe.source(lambda: iter([])).sample([]), "has no length and index"),
        (lambda: source().balance([1] * 5), "one for each row, got 5 for 6 rows"),
        (lambda: source(2).balance(np.eye(2)), r"give labels.argmax\(1\)"),
    ],
)
def test_what_cannot_be_drawn(call, message):
    """The error names what is wrong, where the stage is written."""
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("values", [5, {0: 1}, {1, 2}, "12", iter([1, 2]), None])
def test_what_is_no_sequence(values):
    """Weights and labels are sequences."""
    messages = []
    for call in (source().sample, source().balance):
        with pytest.raises(ArgumentTypeError) as caught:
            call(values)
        messages.append(str(caught.value))
    assert all("must be a sequence with one for each row, got" in text for text in messages)


def test_labels_that_cannot_be_hashed():
    """Labels are what a dictionary takes."""
    with pytest.raises(ArgumentTypeError, match="labels must be hashable"):
        source(2).balance([[1], [2]])


def test_no_rows_at_all():
    """Nothing is drawn from nothing."""
    assert list(source(0).sample([])) == list(source(0).balance([])) == []


def test_source_that_grew():
    """A source with more rows than weights is refused when it is read."""
    items = [1, 2, 3]
    pipe = nbpipe.source(items).sample([1, 1, 1])
    items.append(4)
    with pytest.raises(nbpipe.StageError) as caught:
        list(pipe)
    assert "one for each row, got 3 for 4 rows" in str(caught.value.__cause__)


# -- balance ---------------------------------------------------------------------------------------
def test_labels_come_equally_often():
    """Each label has the same share of the draws, and so has each item of a label."""
    labels = ["cat"] * 90 + ["dog"] * 9 + ["eel"]
    counts = Counter(source(100).balance(labels, n=30_000))
    shares = [1 / 3 / labels.count(label) for label in labels]
    assert all(is_likely(counts[row], 30_000, share) for row, share in enumerate(shares))


def test_kinds_of_labels():
    """Labels are any sequence of what can be hashed; equal ones are one class."""
    expected = class_weights([0, 1, 1, 0, 1])
    mixed = [np.int64(0), 1, 1.0, False, np.array(1)]
    found = [class_weights(np.array([0, 1, 1, 0, 1])), class_weights(mixed)]
    assert expected.tolist() == [1 / 2, 1 / 3, 1 / 3, 1 / 2, 1 / 3]
    assert all(weights.tolist() == expected.tolist() for weights in found)


def test_tensors_as_labels(torch):
    """A tensor, and a list of tensors without dimensions, are labels."""
    labels = torch.tensor([0, 1, 1, 0, 1])
    found = [class_weights(one).tolist() for one in (labels, list(labels))]
    assert found == [class_weights([0, 1, 1, 0, 1]).tolist()] * 2
    with pytest.raises(ArgumentTypeError, match="labels must be hashable: Tensor of shape"):
        source(2).balance(list(torch.eye(2)))


def test_rows_without_a_label_are_one_class():
    """Each NaN of an array is no label of its own, which would come as often as a whole class."""
    labels = np.array([0.0, 1.0, np.nan, np.nan, 0.0, np.nan])
    expected = class_weights([0, 1, 2, 2, 0, 2]).tolist()
    found = [class_weights(labels), class_weights(labels.tolist()), class_weights([*labels])]
    assert [weights.tolist() for weights in found] == [expected] * 3


def test_balance_is_drawn_anew():
    """In each epoch and for each seed."""
    labels = [row % 3 for row in range(40)]
    found = [*epochs(source(40).balance(labels)), list(source(40).balance(labels, seed=1))]
    assert len(set(map(tuple, found))) == 3


# -- parts -----------------------------------------------------------------------------------------
def test_uniform_numbers():
    """They are those of SplitMix64: its first outputs for the state 1234567 are published."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = uniforms(np.uint64(1234567), np.arange(3))
    assert [int(number * 2**53) for number in got] == [number >> 11 for number in published]


def test_cache_knows_the_weights(tmp_path):
    """A cache folder of other weights is refused."""
    list(source().sample(WEIGHTS).cache(tmp_path))
    with pytest.raises(nbpipe.CacheError):
        list(source().sample([1] * 6).cache(tmp_path))
