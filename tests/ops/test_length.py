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


class Unsure:
    """Numbers of which `__len__` raises an error.

    Args:
        error: what it raises.
    """

    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error

    def __iter__(self):
        return iter([1, 2, 3])


class Rows(Unsure):
    """The same, to be read by index."""

    def __getitem__(self, index):
        return index + 1


ERRORS = (NotImplementedError, TypeError, ValueError, OverflowError, AttributeError, KeyError)
USES = {
    "repr": repr,
    "table": lambda pipe: pipe._repr_html_(),
    "joined": lambda pipe: repr(nbpipe.zip(pipe, pipe).batch(2)),
    "run": lambda pipe: _used(pipe.start()),
}


def _used(run):
    with run:
        return [repr(run), run.status().total, str(run.diagnose()), run._repr_mimebundle_()]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", [Unsure, Rows])
def test_a_length_that_raises_is_not_known(kind, error, use):
    """Whatever `__len__` raises, what shows a pipeline and its run leaves the length out."""
    USES[use](nbpipe.source(kind(error("later"))))


@pytest.mark.parametrize("error", ERRORS)
def test_items_of_a_source_whose_length_raises(error):
    """They are iterated as any; `len()` is refused with a TypeError, so `list` works."""
    pipe = nbpipe.source(Unsure(error("later")))
    with pipe.start() as run:
        found = list(pipe), list(run), list(nbpipe.progress(run)), [*run]
        assert found == ([1, 2, 3],) * 4
        for one in (pipe, run, nbpipe.progress(run)):
            with pytest.raises(LengthUnknownError):
                len(one)


def test_an_order_from_outside_whose_length_raises():
    """Its indices are read, at once or in a load."""
    order = Unsure(ValueError("later"))
    with source().start() as run:
        assert list(run.iterate(order)) == [1, 2, 3]
        with run.open_epoch() as epoch:
            epoch.load(order)
            epoch.end()
            assert list(epoch) == [1, 2, 3]


def test_rows_whose_length_raises_cannot_be_read():
    """To read by index takes a length: the epoch says what `__len__` raised."""
    with pytest.raises(nbpipe.StageError, match="__len__ of Rows raised ValueError: later"):
        list(nbpipe.source(Rows(ValueError("later"))))


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
