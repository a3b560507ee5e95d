"""Parquet files: columns of numbers, and images in a column."""

from pathlib import Path

import numpy as np
import pytest

from .page import run_recipe

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

ROWS, FILES, GROUP = 3000, 3, 250


def write_table():
    """Write three files of four row groups: `price` and `label` follow from `id`."""
    Path("table").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(ROWS), FILES)):
        columns = {"id": ids, "price": ids * 0.5, "label": ids % 7, "note": ids.astype(str)}
        path = f"table/{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=GROUP)


def write_images(photos):
    """Write the photographs' bytes with numbers as labels, five to a row group."""
    Path("images").mkdir()
    table = pa.table({"image": [path.read_bytes() for path in photos], "label": range(len(photos))})
    pq.write_table(table, "images/photos.parquet", row_group_size=5)


def test_every_row_comes_once_and_whole():
    """All rows are read, each with the values that belong to its id."""
    write_table()
    batches = list(run_recipe("Parquet")["pipe"])
    ids = np.concatenate([batch["id"] for batch in batches])
    whole = [
        np.array_equal(batch["price"], batch["id"] * 0.5)
        and np.array_equal(batch["label"], batch["id"] % 7)
        for batch in batches
    ]
    assert (list(range(ROWS)), {True}) == (sorted(ids.tolist()), set(whole))


def test_batch_mixes_row_groups():
    """A batch has rows of several row groups, and the next epoch another order."""
    write_table()
    with run_recipe("Parquet")["pipe"].start() as run:
        first, second = ([batch["id"] for batch in run] for _ in range(2))
    groups = [len(set((ids // GROUP).tolist())) for ids in first]
    same = np.array_equal(np.concatenate(first), np.concatenate(second))
    assert (np.mean(groups) > 2, same) == (True, False)


def test_column_that_is_not_named_is_not_read():
    """A batch holds the columns named, and no others."""
    write_table()
    batch = next(iter(run_recipe("Parquet")["pipe"]))
    assert {n: len(v) for n, v in batch.items()} == {"id": 256, "price": 256, "label": 256}


def test_images_of_a_column_are_decoded_with_their_labels(photos):
    """Every image comes once, with its label and its pixels."""
    write_images(photos)
    batches = list(run_recipe("Parquet")["batches"])
    found = {
        int(label): image_HWC
        for batch in batches
        for image_HWC, label in zip(batch["image"], batch["label"], strict=True)
    }
    right = [
        number
        for number, path in enumerate(photos)
        if np.array_equal(found[number], np.asarray(Image.open(path).resize((128, 128))))
    ]
    expected = (list(range(len(photos))), len(photos))
    assert expected == (right, sum(len(batch["label"]) for batch in batches))


def test_list_column_becomes_a_matrix():
    """Lists of one length become an array of one row each, as the page says."""
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = pa.table({"vector": list(vectors)})
    name = "vector"
    matrix = table[name].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    assert vectors.tolist() == matrix.tolist()
