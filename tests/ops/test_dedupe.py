"""dedupe: what was among the last items is left out, exactly, in mid-epoch too."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError, LengthUnknownError, StageError
from tests import models

ITEMS = st.lists(st.integers(0, 5), max_size=30)
LAST = st.integers(1, 8)


@example([0, 1, 2, 0, 1, 2], 2)
@given(ITEMS, LAST)
def test_items_that_were_among_the_last_ones_are_left_out(items, last):
    """Dropped items count, too: a run of equal items leaves its first."""
    assert list(nbpipe.source(items).dedupe(last=last)) == models.passed(items, ["dedupe", last])


def test_the_key_decides():
    """Items are compared by what the function gives, and handed on as they are."""
    records = [{"id": 1, "n": 0}, {"id": 2, "n": 1}, {"id": 1, "n": 2}]
    pipe = nbpipe.source(records).dedupe(key=lambda record: record["id"])
    assert [record["n"] for record in pipe] == [0, 1]


def test_each_epoch_and_each_pass_begins_anew():
    """Nothing is remembered of the epoch before, nor of the pass before."""
    with nbpipe.source([1, 1, 2]).dedupe().repeat(2).start() as run:
        assert [list(run), list(run)] == [[1, 2, 1, 2]] * 2


def test_no_more_than_the_last_keys_are_made_again():
    """Where an epoch goes on, the items are made whose keys count, and none before them."""
    made = []
    pipe = nbpipe.source(range(100)).map(lambda n: made.append(n) or n, name="make").dedupe(last=5)
    with pipe.start() as run:
        items = iter(run)
        [next(items) for _ in range(50)]
        state = run.state_dict()
    del made[:]
    with pipe.start() as run:
        run.load_state_dict(state)
        assert (list(run), made) == ([*range(50, 100)], [*range(45, 100)])


def test_keys_are_let_go():
    """Only the keys of the last items are held."""

    class Key:
        pass

    held = []

    def key(number):
        made = Key()
        held.append(weakref.ref(made))
        return made

    with nbpipe.source(range(4)).dedupe(key=key, last=2).start() as run:
        items = iter(run)
        [next(items) for _ in range(4)]
        gc.collect()
        assert [ref() is None for ref in held] == [True, True, False, False]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_nan_is_like_another(executor):
    """Whether two NaN are one object depends on who made them: no result does."""
    nan = float("nan")
    items = [nan, 1.0, nan, (nan, 1), np.float32(nan), (nan, 1), 1.0]
    pipe = nbpipe.source(items).map(same, executor=executor).dedupe()
    assert [str(item) for item in pipe] == ["nan", "1.0", "(nan, 1)"]


def same(item):
    """Give an item as it is."""
    return item


@pytest.mark.torch
def test_tensors_are_compared_by_their_numbers():
    """Equal numbers in tensors are equal; a tensor with dimensions is refused, also in a tuple."""
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([1, 2, 1, 2, 3])
    assert [int(item) for item in nbpipe.source(numbers).dedupe()] == [1, 2, 3]
    pairs = nbpipe.source([(torch.zeros(2), 1), (torch.zeros(2), 1)])
    with pytest.raises(StageError, match="dedupe key of an item must be hashable, got tuple"):
        list(pairs.dedupe())


def test_a_key_that_cannot_be_hashed():
    """The error says what to give."""
    with pytest.raises(StageError, match=r"got list; give a function .* dedupe\(key=") as caught:
        list(nbpipe.source([[1]]).dedupe())
    assert (caught.value.stage, type(caught.value.__cause__)) == ("dedupe", ArgumentTypeError)


def test_what_is_refused():
    """No function, or a number that is none."""
    pipe = nbpipe.source([1])
    with pytest.raises(ArgumentTypeError, match="dedupe key must be a function, got 'id'"):
        pipe.dedupe("id")
    with pytest.raises(ArgumentError, match=r"dedupe last must be an int in .* items, got 0"):
        pipe.dedupe(last=0)
    with pytest.raises(LengthUnknownError, match="'dedupe'"):
        len(pipe.dedupe())
