"""Datasets of the package `datasets`, made here: nothing is downloaded."""

import numpy as np
import pytest

import nbpipe

from .page import both_executors, run_recipe

ROWS = 500


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Load `datasets`, which keeps its caches in a folder of this test; it takes a second."""
    folder = str(tmp_path_factory.mktemp("hugging_face"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("datasets")


@pytest.fixture
def digits(datasets, folder):
    """Save 500 rows: an 8 by 8 image that holds the row's number, and a label made of it."""
    rows = {
        "image": [np.full((8, 8), number % 256).tolist() for number in range(ROWS)],
        "label": list(range(ROWS)),
    }
    datasets.Dataset.from_dict(rows).save_to_disk("digits")


def labels_of(batches):
    """Give the labels of all batches in one list."""
    return [label for batch in batches for label in batch["label"].tolist()]


@pytest.mark.slow
@both_executors
def test_every_row_comes_once_and_transformed(digits, executor):
    """All rows are fetched by the batch, in a new order each epoch; images go with labels."""
    pipe = run_recipe("Hugging Face datasets", executor)["pipe"]
    pipe["fetch"].concurrency = 2  # each worker loads `datasets`, which takes a second
    with pipe.start() as run:
        first, second = list(run), list(run)
    whole = [
        np.array_equal(batch["image"][:, 0, 0], (batch["label"] % 256).astype(np.float32) / 16)
        for batch in first
    ]
    sizes = [len(batch["label"]) for batch in first]
    orders = {tuple(labels_of(first)), tuple(labels_of(second)), tuple(range(ROWS))}
    expected = ({True}, [64] * 7 + [52], 3, {tuple(range(ROWS))})
    assert expected == (set(whole), sizes, len(orders), {tuple(sorted(o)) for o in orders})


def test_shards_of_a_stream_are_read_in_parallel(digits):
    """An IterableDataset read by its shards gives every row once."""
    rows = list(run_recipe("Hugging Face datasets")["rows"])
    assert list(range(ROWS)) == sorted(row["label"] for row in rows)


def test_stream_is_a_source_that_draws_anew(digits, datasets):
    """An IterableDataset hears the epoch's number: its own shuffle differs from the last."""
    stream = datasets.load_from_disk("digits").to_iterable_dataset(num_shards=4)
    shuffled = stream.shuffle(seed=0, buffer_size=100)
    with nbpipe.source(shuffled).start() as run:
        first, second = ([row["label"] for row in run] for _ in range(2))
    expected = (list(range(ROWS)), list(range(ROWS)), False)
    assert expected == (sorted(first), sorted(second), first == second)


def test_samples_instead_of_columns(digits):
    """A list of rows from `__getitems__` is taken apart by `unbatch`."""
    names = run_recipe("Hugging Face datasets")
    dataset = names["dataset"].with_format(None)
    rows = names["order"].batch(64).map(lambda n: dataset.__getitems__(n.tolist())).unbatch()
    assert list(range(ROWS)) == sorted(row["label"] for row in rows)


def test_numbers_as_arrays(digits):
    """With the format "numpy", a fetch in threads gives arrays."""
    names = run_recipe("Hugging Face datasets")
    dataset = names["dataset"].with_format("numpy")
    batch = next(iter(names["order"].batch(64).map(lambda n: dataset[n.tolist()])))
    assert ((64, 8, 8), np.ndarray) == (batch["image"].shape, type(batch["label"]))
