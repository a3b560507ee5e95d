"""Tar shards in WebDataset's layout."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import nbpipe

from .page import both_executors, run_recipe

Image = pytest.importorskip("PIL.Image")

LABELS = ["astronaut", "cat", "china", "coffee", "flower", "motorcycle", "retina", "rocket"]
SHARDS = 4


def add(tar, name, content):
    """Add one file to an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_shards(photos):
    """Write the photographs in turn into four shards, one of them compressed; give the keys."""
    Path("shards").mkdir()
    for number in range(SHARDS):
        mode = "w:gz" if number == 0 else "w"
        with tarfile.open(f"shards/{number:02d}.tar", mode) as tar:
            for path in photos[number::SHARDS]:
                key = f"{path.parent.name}/{path.stem}"
                add(tar, f"{key}.jpg", path.read_bytes())
                add(tar, f"{key}.cls", str(LABELS.index(path.parent.name)).encode())
                add(tar, f"{key}.json", json.dumps({"caption": f"a {key}"}).encode())
    return {f"{path.parent.name}/{path.stem}": path for path in photos}


def samples(pipe):
    """Give the samples of one epoch: key, label, caption, image."""
    return [
        sample
        for batch in pipe
        for sample in zip(
            batch["key"], batch["label"], batch["caption"], batch["image"], strict=True
        )
    ]


@both_executors
def test_every_sample_comes_once_with_its_label_and_image(photos, executor):
    """Image, label and caption belong to the key, for every key that was written."""
    paths = write_shards(photos)
    found = samples(run_recipe("Tar shards", executor)["pipe"])
    right = [
        (key, label, caption)
        for key, label, caption, image_HWC in found
        if np.array_equal(image_HWC, np.asarray(Image.open(paths[key]).resize((128, 128))))
    ]
    expected = [(key, LABELS.index(key.split("/")[0]), f"a {key}") for key in paths]
    assert sorted(expected) == sorted(right)


@pytest.mark.slow
@both_executors
def test_two_ranks_share_the_samples(photos, executor):
    """Every sample is read by one of two ranks, in an order of its own in each epoch."""
    paths = write_shards(photos)
    training = run_recipe("Tar shards", executor)["training"]
    epochs = []
    for rank in range(2):
        with training(rank, 2).start() as run:
            epochs.append([[key for key, *_ in samples(run)] for _ in range(2)])
    first, second = ([*one, *other] for one, other in zip(*epochs, strict=True))
    expected = (sorted(paths), sorted(paths), False)
    assert expected == (sorted(first), sorted(second), first == second)


def test_shard_is_read_as_far_as_needed(folder):
    """Of a shard of 2,000 samples only those are read that have room behind the reader."""
    with tarfile.open("long.tar", "w") as tar:
        for number in range(2000):
            add(tar, f"{number:04d}.txt", b"text")
    names = run_recipe("Tar shards")
    read, files = [], names["files"]
    names["files"] = lambda path: (read.append(file[0]) or file for file in files(path))
    pipe = nbpipe.source(["long.tar"]).flat_map(names["read_shard"], concurrency=4)
    with pipe.start() as run:
        first = next(iter(run))
    assert (first["__key__"], len(read) < 200) == ("0000", True)


def test_ranks_take_as_many_steps_as_told(photos):
    """With `repeat` and `take`, a rank gives a number of batches whatever its shards hold."""
    write_shards(photos)
    training = run_recipe("Tar shards")["training"]
    steps = [len(list(training(rank, 3).repeat().take(5))) for rank in range(3)]
    assert steps == [5, 5, 5]


def test_extension_begins_at_the_first_dot(folder):
    """Files of one sample may have extensions of several parts; hidden files are left out."""
    with tarfile.open("one.tar", "w") as tar:
        for name in ("a/x.left.png", "a/x.right.png", "a/.hidden", "b/x.left.png"):
            add(tar, name, name.encode())
    found = list(run_recipe("Tar shards")["read_shard"]("one.tar"))
    expected = [
        {"__key__": "a/x", "left.png": b"a/x.left.png", "right.png": b"a/x.right.png"},
        {"__key__": "b/x", "left.png": b"b/x.left.png"},
    ]
    assert expected == found


def test_headers_are_not_kept(folder, monkeypatch):
    """A shard of a thousand files holds the header of one at a time."""
    with tarfile.open("many.tar", "w") as tar:
        for number in range(1000):
            add(tar, f"{number:04d}.txt", b"text")
    opened = []
    real = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *a: opened.append(real(*a)) or opened[0])
    held = [len(opened[0].members) for _ in run_recipe("Tar shards")["files"]("many.tar")]
    assert (len(held), max(held)) == (1000, 0)


def test_shard_that_was_cut_off(folder):
    """Samples before the cut come, but for the last one; the failure names the shard."""
    for shard in ("a", "b"):
        with tarfile.open(f"{shard}.tar", "w") as tar:
            for number in range(4):
                add(tar, f"{shard}{number}.bin", bytes(3000))
    with Path("a.tar").open("r+b") as file:
        file.truncate(3 * 3584 + 512 + 1000)  # in the content of the last file
    read_shard = run_recipe("Tar shards")["read_shard"]
    with nbpipe.source(["a.tar", "b.tar"]).flat_map(read_shard, on_error="skip").start() as run:
        keys = [sample["__key__"] for sample in run]
        (failure,) = run.failures()
    assert keys == ["a0", "a1", "b0", "b1", "b2", "b3"]
    assert (failure.source, failure.error) == ("a.tar", "tarfile.ReadError: unexpected end of data")
