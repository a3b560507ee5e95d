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
from tests.gates import epochs

WEIGHTS = [0, 1, 4, 0.5, 0, 2]
TOTAL = sum(WEIGHTS)


def source(length=6):
    """Make a source read by index."""
    return nbpipe.source(range(length))


def sample(weights, n=None, **options):
    """Draw from as many rows as there are weights, without replacement all that have one."""
    if n is None and options.get("replacement") is False:
        n = np.count_nonzero(weights)
    return source(len(weights)).sample(weights, n=n, **options)


def is_likely(count, draws, probability):
    """Return whether a count lies within 4.5 standard deviations of what is expected."""
    deviation = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= 4.5 * deviation


def test_rows_come_as_often_as_they_weigh():
    """With replacement each row's share is its weight's, and a weight of 0 never comes."""
    counts = Counter(sample(WEIGHTS, 50_000))
    assert all(is_likely(counts[row], 50_000, w / TOTAL) for row, w in enumerate(WEIGHTS))


def test_pairs_of_draws_are_independent():
    """With replacement a draw says nothing of the next one."""
    counts = Counter(itertools.pairwise(sample([1, 2, 1], 60_000)))
    shares = [0.25, 0.5, 0.25]
    pairs = itertools.product(range(3), repeat=2)
    assert all(is_likely(counts[pair], 59_999, shares[pair[0]] * shares[pair[1]]) for pair in pairs)


@pytest.mark.slow
def test_rows_are_drawn_one_by_one_from_those_left():
    """Without replacement, pairs come as often as draws from what is left give them."""
    weights = [1.0, 2.0, 5.0]
    counts = Counter(map(tuple, epochs(sample(weights, 2, replacement=False), 6000)))
    chances = {
        (i, j): weights[i] / 8 * weights[j] / (8 - weights[i])
        for i, j in itertools.permutations(range(3), 2)
    }
    assert all(is_likely(counts[pair], 6000, chance) for pair, chance in chances.items())


@pytest.mark.parametrize("n", [0, 1, 3, 4])
def test_no_row_comes_twice_without_replacement(n):
    """And none with a weight of 0."""
    rows = list(sample(WEIGHTS, n, replacement=False))
    assert (len(rows), len(set(rows)), {0, 4} & set(rows)) == (n, n, set())


def test_all_rows_without_replacement():
    """Where every row has a weight, all of them come, the heavy ones early."""
    places = np.zeros(50)
    for rows in epochs(sample(np.arange(1, 51), replacement=False), 200):
        assert sorted(rows) == list(range(50))
        places[rows] += np.arange(50)
    assert places[:10].sum() > places[-10:].sum() * 1.5


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_change_with_seed_epoch_and_pass(replacement):
    """The same (seed, epoch, pass) gives the same draws, any other gives others."""
    weights = np.arange(1, 40)
    pipe = sample(weights, replacement=replacement)
    base, later = epochs(pipe)
    other = list(sample(weights, replacement=replacement, seed=1))
    passes = list(pipe.repeat(2))
    assert list(pipe) == base == passes[:39]
    assert base not in (later, other, passes[39:])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any),
    st.integers(0, 30),
    st.integers(1, 4),
    st.sampled_from(["pad", "drop", "uneven"]),
)
def test_draws_in_random_access(weights, n, world_size, tail):
    """Every row of every rank is the row of the one order of all ranks, from any row on."""
    order = sample(weights, n)
    whole = list(order)
    for rank in range(world_size):
        of_rank = order.shard(rank, world_size, tail=tail)
        rows = list(of_rank)
        own = whole[rank::world_size]
        assert rows[: len(own)] == own[: len(rows)]  # "pad" adds rows, "drop" leaves some out
        assert [next(iter(of_rank.skip(i)), None) for i in range(len(rows))] == rows


def test_each_draw_has_random_numbers_of_its_own():
    """An item that comes twice is not augmented alike, before and behind a shuffle."""

    def numbered(item, rng):
        return int(rng.integers(2**62))

    order = sample([1, 1], 50)
    one, other = (list(pipe.map(numbered)) for pipe in (order, order.shuffle(seed=1)))
    assert len(set(one)) == 50
    assert sorted(one) == sorted(other)


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
def balanced(labels, n=40):
    """Draw from rows with these labels."""
    return list(source(len(labels)).balance(labels, n=n))


def test_labels_come_equally_often():
    """Each label has the same share of the draws, and so has each item of a label."""
    labels = ["cat"] * 90 + ["dog"] * 9 + ["eel"]
    counts = Counter(source(100).balance(labels, n=30_000))
    shares = [1 / 3 / labels.count(label) for label in labels]
    assert all(is_likely(counts[row], 30_000, share) for row, share in enumerate(shares))


def test_kinds_of_labels():
    """Labels are any sequence of what can be hashed; equal ones are one class."""
    expected = list(sample([1 / 2, 1 / 3, 1 / 3, 1 / 2, 1 / 3], 40))
    mixed = [np.int64(0), 1, 1.0, False, np.array(1)]
    for labels in ([0, 1, 1, 0, 1], np.array([0, 1, 1, 0, 1]), mixed):
        assert balanced(labels) == expected


def test_tensors_as_labels(torch):
    """A tensor, and a list of tensors without dimensions, are labels."""
    labels = torch.tensor([0, 1, 1, 0, 1])
    assert balanced(labels) == balanced(list(labels)) == balanced([0, 1, 1, 0, 1])
    with pytest.raises(ArgumentTypeError, match="labels must be hashable: Tensor of shape"):
        source(2).balance(list(torch.eye(2)))


def test_rows_without_a_label_are_one_class():
    """Each NaN of an array is no label of its own, which would come as often as a whole class."""
    labels = np.array([0.0, 1.0, np.nan, np.nan, 0.0, np.nan])
    found = [balanced(labels), balanced(labels.tolist()), balanced([*labels])]
    assert found == [balanced([0, 1, 2, 2, 0, 2])] * 3


def test_balance_is_drawn_anew():
    """In each epoch and for each seed."""
    labels = [row % 3 for row in range(40)]
    found = [*epochs(source(40).balance(labels)), list(source(40).balance(labels, seed=1))]
    assert len(set(map(tuple, found))) == 3


def test_cache_knows_the_weights(tmp_path):
    """A cache folder of other weights is refused."""
    list(source().sample(WEIGHTS).cache(tmp_path))
    with pytest.raises(nbpipe.CacheError):
        list(source().sample([1] * 6).cache(tmp_path))
