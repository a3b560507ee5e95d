"""Which stages at the head of a chain only order the indices of a source."""

import pytest

import nbpipe
from nbpipe import ArgumentError
from nbpipe.ops.chain import absorbed, index_plan


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
    """Index steps right after a source, or after a concat of such that is shuffled, are folded."""
    assert absorbed(pipe.chain)[1] == used


@pytest.mark.parametrize(
    "pipe",
    [
        source(),
        source().take(5).skip(1).enumerate().repeat(2).shard(0, 2),
        concat(),
        concat().repeat(2),
        concat().shard(0, 2),
        concat().take(4).enumerate(),
        nbpipe.concat(concat().shuffle(), source().repeat(2)),
    ],
)
def test_a_full_shuffle_may_follow(pipe):
    """Every item comes once for each time that it comes without the shuffle."""
    shuffled = pipe.shuffle(seed=1)
    assert sorted(map(repr, shuffled)) == sorted(map(repr, pipe))
    assert len(shuffled) == len(pipe)


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
    assert message.startswith("shuffle needs buffer_size here, as shuffle(buffer_size=1000): ")
    assert words in message
    assert message.endswith("; or shuffle right after the source")


def test_a_full_shuffle_of_what_never_ends():
    """It is refused where it is written, not when the epoch starts."""
    with pytest.raises(ArgumentError, match="got repeat\\(None\\) before it; shuffle before"):
        source().repeat().shuffle()


def test_no_plan_of_an_empty_chain():
    """A branch begins with no chain at all."""
    assert (absorbed(()), index_plan(())) == ((None, 0), None)
