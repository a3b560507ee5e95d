"""batch with all its options, and unbatch."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, StageError
from tests import models
from tests.chains import called
from tests.gates import Gate, until
from tests.samples import Pair, Sample
from tests.strategies import HANDS, ITEMS


def ragged(lengths):
    """Make arrays of several lengths."""
    return [np.arange(length, dtype=np.float64) for length in lengths]


def shown(value):
    """Give arrays as lists, in dicts, tuples and samples."""
    if isinstance(value, Sample):
        return Sample(shown(value.image), int(value.label))
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    return value.tolist() if hasattr(value, "tolist") else value


# -- sizes -----------------------------------------------------------------------------------------


@given(ITEMS, st.integers(1, 40), st.booleans(), st.integers(1, 8), HANDS)
def test_batches_of_any_size(items, size, drop_last, prefetch, hands):
    """A batch may be larger than every buffer before it, and than the whole source."""
    source = nbpipe.source(items, prefetch=prefetch)
    stage = called(source, "map", lambda item: item, hands.deal())
    pipe = stage.batch(size, drop_last=drop_last, collate=list, prefetch=prefetch)
    expected = models.passed(items, ["batch", size, drop_last])
    assert (list(pipe), len(pipe)) == (expected, len(expected))


@pytest.mark.slow
@given(st.lists(st.lists(ITEMS, max_size=4), max_size=6), st.integers(1, 3), st.integers(1, 3))
def test_batches_of_batches(items, one, other):
    """Batches gather batches; taken apart twice, the items are back."""
    pipe = nbpipe.source(items).batch(one, collate=list).batch(other, collate=list)
    assert list(pipe) == models.passed(items, ["batch", one, False], ["batch", other, False])
    assert list(pipe.unbatch().unbatch()) == items


@given(st.lists(st.integers(0, 10), max_size=30), st.floats(10, 30))
def test_batches_by_cost(costs, size):
    """The costs of a batch sum to at most `size`; no batch could take its next item too."""
    batches = list(nbpipe.source(costs).batch(size, cost=float, collate=list))
    assert batches == models.passed(costs, ["batch_by_cost", size, False, float])
    assert all(sum(batch) <= size for batch in batches)


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32])
def test_a_cost_may_be_any_number(kind):
    """Numpy's numbers are numbers."""
    pipe = nbpipe.source([1, 2, 3]).batch(kind(3), cost=kind, collate=list)
    assert list(pipe) == [[1, 2], [3]]


@pytest.mark.parametrize("cost", [-1, 11, float("nan"), "1", None, True])
def test_a_cost_out_of_range(cost):
    """An item that fits no batch raises, with the cost and the way out."""
    with pytest.raises(StageError) as caught:
        list(nbpipe.source([1]).batch(10, cost=lambda item: cost, collate=list))
    assert str(caught.value.__cause__) == (
        f"batch cost of an item must be a number in [0, 10], got {cost!r}; filter such items out, "
        "or raise the size"
    )


# -- what is stacked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "options", "expected"),
    [
        ([{"x": 1}, {"x": 2}, {"x": 3}], {}, [{"x": [1, 2]}, {"x": [3]}]),
        ([(1, 2), (3, 4)], {"names": ("x", "y")}, [{"x": [1, 3], "y": [2, 4]}]),
        ([1, 2], {"collate": tuple}, [(1, 2)]),
        ([1, 2], {"collate": sum}, [3]),
        (ragged([1, 3]), {"pad": -1}, [[[0, -1, -1], [0, 1, 2]]]),
    ],
)
def test_what_a_batch_holds(items, options, expected):
    """Numbers and arrays are stacked through nested samples; the rest is a list."""
    assert [shown(batch) for batch in nbpipe.source(items).batch(2, **options)] == expected


def test_arrays_of_several_shapes_need_a_pad():
    """The error names the field, the shapes and the way out, and the item that the batch has."""
    with pytest.raises(StageError) as caught:
        list(nbpipe.source(ragged([2, 3])).batch(2, name="gather"))
    assert (caught.value.stage, caught.value.path) == ("gather", 0)
    assert "got (2,) in sample 0 and (3,) in sample 1; pad=value" in str(caught.value.__cause__)


def test_dates_texts_bytes_and_none():
    """Dates and arrays of text are stacked; texts, bytes and None become lists."""
    samples = [
        {
            "taken": np.datetime64("2024-02-28") + n,
            "file": np.str_(f"{n}.jpg"),
            "words": np.array(["ab"[: n + 1]]),
            "raw": bytes(n),
            "mask": None,
        }
        for n in range(2)
    ]
    (batch,) = nbpipe.source(samples).batch(2)
    assert batch["taken"].dtype == "datetime64[D]"
    assert batch["words"].tolist() == [["a"], ["ab"]]
    assert (batch["file"], batch["raw"], batch["mask"]) == (
        ["0.jpg", "1.jpg"],
        [b"", b"\0"],
        [None, None],
    )


def test_arrays_of_objects_are_refused():
    """The error names their field, their dtype, and the way out."""
    samples = [{"boxes": np.array([n, None])} for n in range(2)]
    with pytest.raises(StageError, match=r"\['boxes'\].* object .*collate="):
        list(nbpipe.source(samples).batch(2))


def test_a_collate_that_fails():
    """Batches before it arrive; the cause is the function's error."""

    def sum_small(samples):
        if samples[0] > 3:
            raise ValueError("too large")
        return sum(samples)

    got = []
    with pytest.raises(StageError) as caught:
        got.extend(nbpipe.source(range(8)).batch(2, collate=sum_small))
    assert (got, str(caught.value.__cause__), caught.value.path) == ([1, 5], "too large", 4)


@pytest.mark.parametrize("options", [{}, {"cost": lambda item: 1}])
def test_a_failed_item_takes_its_batch_along(options):
    """Whole batches before the failure arrive, then the error."""

    def broken(item):
        if item == 5:
            raise ValueError(item)
        return item

    got = []
    with pytest.raises(StageError) as caught:
        got.extend(nbpipe.source(range(9)).map(broken).batch(2, collate=list, **options))
    assert (got, caught.value.stage) == ([[0, 1], [2, 3]], "broken")


@pytest.mark.parametrize("fails", [False, True])
def test_no_part_of_a_batch_is_made_beside_the_last_one(fails):
    """A free call takes no smaller batch that is to be dropped, or whose item has failed."""
    gate, sizes, got = Gate(), [], []

    def numbers():
        yield from range(13)
        if fails:
            raise ValueError("no more")

    def sized(samples):
        sizes.append(len(samples))
        gate.wait()
        return samples

    with ThreadPoolExecutor(3) as pool:
        pipe = nbpipe.source(numbers)
        pipe = pipe.batch(5, drop_last=not fails, collate=sized, executor=pool)
        with pipe.start() as run:
            epoch = iter(run)
            until(lambda: run.stats()["source"].items_out == 13 and sizes)
            run["batch"].concurrency = 3
            until(lambda: len(sizes) > 1)
            gate.open()
            with pytest.raises(StageError) if fails else nullcontext():
                got.extend(epoch)
    assert (got, sizes) == ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], [5, 5])


def test_prefetch_after_the_first_batch():
    """Stages of batches hold two, stages of samples eight, until batches are taken apart."""
    pipe = nbpipe.source([1]).map(abs, name="a").batch(2).map(abs, name="b")
    later = pipe.unbatch().map(abs, name="c")
    joined = nbpipe.zip(pipe, pipe).map(abs, name="d")
    mixed = nbpipe.zip(pipe, later).map(abs, name="e")
    held = [one.prefetch for one in (pipe["a"], pipe["batch"], pipe["b"], later["c"])]
    assert (held, joined["d"].prefetch, mixed["e"].prefetch) == ([8, 2, 2, 8], 2, 8)


# -- taking apart ----------------------------------------------------------------------------------


@dataclass
class Halved:
    """A sample that changes its value when it is made."""

    value: float
    calls: int = field(default=0, init=False)

    def __post_init__(self):
        self.value /= 2
        self.calls += 1


def test_unbatch_makes_no_sample_anew():
    """What a dataclass does when it is made was done: its fields are taken apart as they are."""
    back = list(nbpipe.source([Halved(4.0), Halved(8.0)]).batch(2).unbatch())
    assert [(type(one), one.value, one.calls) for one in back] == [(Halved, 2, 1), (Halved, 4, 1)]


@pytest.mark.parametrize(
    "items",
    [
        [1, 2, 3],
        [{"x": 1, "y": np.ones(2)}] * 3,
        [(1, "a"), (2, "b"), (3, "c")],
        [Pair(1, 2)] * 3,
        [{"x": (1, {"y": 2})}] * 3,
        ["a", "b", "c"],
        [Sample(np.full(2, number), number) for number in range(3)],
    ],
)
def test_unbatch_undoes_batch(items):
    """Through dicts, tuples and named tuples the samples are back."""
    back = list(nbpipe.source(items).batch(2).unbatch())
    assert list(map(repr, map(shown, back))) == list(map(repr, map(shown, items)))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (5, "unbatch needs a batch with a first dimension, got int"),
        ("text", "unbatch needs a batch with a first dimension, got str"),
        (None, "unbatch needs a batch with a first dimension, got NoneType"),
        (np.array(5), "unbatch needs a batch with a first dimension, got ndarray"),
        ({"x": [1, 2], "y": [1]}, "unbatch needs parts of equal length, got lengths [1, 2]"),
    ],
)
def test_what_cannot_be_taken_apart(batch, words):
    """The error says what an unbatch needs."""
    with pytest.raises(StageError) as caught:
        list(nbpipe.source([batch]).unbatch())
    assert isinstance(caught.value.__cause__, ArgumentError)
    assert words in str(caught.value)


@pytest.mark.parametrize("batch", [[], {}, (), np.zeros((0, 3)), {"x": []}])
def test_an_empty_batch_has_no_items(batch):
    """Nothing to take apart is no error."""
    assert list(nbpipe.source([batch]).unbatch()) == []


def test_a_batch_trains_as_it_comes(torch):
    """Images with labels that are ints are a batch for `cross_entropy`, and come apart again."""
    pipe = nbpipe.source([(torch.zeros(3), label) for label in (0, 2)]).batch(2)
    ((images, labels),) = pipe
    loss = torch.nn.functional.cross_entropy(images, labels)
    assert round(float(loss), 4) == 1.0986
    assert [int(label) for _, label in pipe.unbatch()] == [0, 2]
