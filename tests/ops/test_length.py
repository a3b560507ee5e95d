"""len() of a pipeline: what is known before anything is made."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import LengthUnknownError
from tests.models import sharded
from tests.strategies import TAILS


def source(length=10):
    """Make a source of known length."""
    return nbpipe.source(range(length))


def unsized():
    """Make a source without a length."""
    return nbpipe.source(lambda: iter([1]), name="files")


@given(st.integers(0, 10**15), st.integers(1, 10**6), st.booleans())
def test_lengths_are_whole_numbers_however_large(length, size, drop_last):
    """No rounding on the way through a float."""
    expected = length // size if drop_last else -(-length // size)
    assert len(source(length).batch(size, drop_last=drop_last)) == expected


@given(st.integers(0, 60), st.integers(0, 5), st.integers(1, 5), TAILS, st.booleans())
def test_length_of_shards(length, rank, more, tail, by_index):
    """Every rank knows its share, read by index or not."""
    pipe = source(length) if by_index else source(length).map(abs)
    expected = len(sharded(list(range(length)), rank, rank + more, tail))
    assert len(pipe.shard(rank, rank + more, tail=tail)) == expected


@pytest.mark.parametrize(
    ("pipe", "expected"),
    [
        (source().take(3), 3),
        (source().take(10**30), 10),
        (source().skip(3), 7),
        (source().skip(30), 0),
        (source().repeat(3), 30),
        (source().repeat().take(25), 25),
        (source().map(abs).repeat().skip(5).take(7), 7),
        (source(0).repeat(), 0),
        (source().enumerate().window(3, 2), 4),
        (source(2).window(3), 0),
        (source().cache().shuffle(buffer_size=3), 10),
        (nbpipe.zip(source(3), source(3)), 3),
        (nbpipe.zip(source(3), source().repeat(), strict=False), 3),
        (nbpipe.concat(source(3), source(4)).batch(2), 4),
        (nbpipe.concat(source(3), source(4)).shuffle().take(5), 5),
        (nbpipe.interleave([source(3), source(4)]), 7),
        (nbpipe.mix([source(3), source(4)]), 7),
        (nbpipe.mix([source(3)], stop="shortest"), 3),
        (nbpipe.source(source(3), name="outer"), 3),
        (source().map(abs, on_error="skip"), 10),
    ],
)
def test_known_lengths(pipe, expected):
    """The number of items, or their upper bound where items may be skipped."""
    assert len(pipe) == expected


@pytest.mark.parametrize(
    ("pipe", "words"),
    [
        (unsized(), "source 'files' (function) has no length"),
        (source().filter(abs), "'abs' (filter) may give any number of items"),
        (source().flat_map(abs), "'abs' (flat_map) may give any number of items"),
        (source().batch(2).unbatch(), "'unbatch' (unbatch) may give any number of items"),
        (source().batch(2, cost=abs), "'batch' gathers by cost: the batches are not known"),
        (source().repeat(), "this pipeline repeats for ever; take(n) gives it an end"),
        (source().map(abs).repeat().batch(2), "this pipeline repeats for ever"),
        (nbpipe.concat(source(), source().repeat()), "this pipeline repeats for ever"),
        (nbpipe.concat(source(), unsized()), "source 'files' (function) has no length"),
        (nbpipe.mix([source(), source()], stop="shortest"), "'mix' stops by chance"),
        (source().filter(abs).take(2), "'abs' (filter) may give any number of items"),
    ],
)
def test_unknown_lengths(pipe, words):
    """The stage to blame is named; the error is a TypeError, as `len()` raises."""
    with pytest.raises(LengthUnknownError) as caught:
        len(pipe)
    assert isinstance(caught.value, TypeError)
    assert words in str(caught.value)


def test_more_items_than_len_can_say():
    """A number above Python's limit for `len()` is no overflow."""
    with pytest.raises(LengthUnknownError):
        len(nbpipe.source([1]).map(abs).repeat().take(sys.maxsize + 1))


@pytest.mark.parametrize("join", [nbpipe.concat, lambda *pipes: nbpipe.interleave(pipes)])
def test_joined_sources_of_more_items_than_len_can_say(join):
    """They do not repeat for ever, and are not said to."""
    pipes = [nbpipe.source(range(2**62)) for _ in range(3)]
    with pytest.raises(LengthUnknownError) as caught:
        len(join(*pipes))
    said = f"this pipeline has more than {sys.maxsize} items; take(n) gives it an end"
    assert str(caught.value) == said


def test_joined_sources_that_are_read_by_index_are_as_long_as_one_may_be():
    """An order of them is shuffled, and ends where the longest source does: 2**62."""
    joined = nbpipe.concat(*(nbpipe.source(range(2**62)) for _ in range(3))).shuffle()
    assert (len(joined), len(list(joined.take(3)))) == (2**62, 3)


def test_the_length_follows_the_source():
    """It is asked for anew each time."""
    items = [1, 2, 3]
    pipe = nbpipe.source(items).map(abs).batch(2)
    before = len(pipe)
    items.append(4)
    items.append(5)
    assert (before, len(pipe)) == (2, 3)
