"""Files through fsspec: a local and an in-memory file system, a cache, coroutines."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from .page import run_recipe

fsspec = pytest.importorskip("fsspec")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def memory():
    """Give the file system in memory, emptied afterwards."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def copy(photos, place):
    """Write the photographs and a file that is none to a function of a name and content."""
    for number, path in enumerate(photos):
        place(f"{number:02d}.jpg", path.read_bytes())
    place("notes.txt", b"not an image")


def copy_to_folder(photos):
    """Write the photographs to the folder `photos`."""
    Path("photos").mkdir()
    copy(photos, lambda name, content: Path("photos", name).write_bytes(content))


def decoded(run):
    """Give the images of one epoch, as bytes, by the names of their files."""
    return {
        Path(path).name: image_HWC.tobytes()
        for batch in run
        for path, image_HWC in zip(batch["path"], batch["image"], strict=True)
    }


def expected_of(photos):
    """Give what `decoded` should: each photograph, resized."""
    return {
        f"{number:02d}.jpg": np.asarray(Image.open(path).resize((128, 128))).tobytes()
        for number, path in enumerate(photos)
    }


def test_local_folder(photos):
    """Files of a folder come once each, with the pixels of their path."""
    copy_to_folder(photos)
    assert expected_of(photos) == decoded(run_recipe("Object stores")["pipe"])


def test_file_system_in_memory(photos, memory):
    """The same recipe reads from memory, named by a URL alone."""
    copy(photos, lambda name, content: memory.pipe(f"/bucket/{name}", content))
    images = run_recipe("Object stores")["images"]
    assert expected_of(photos) == decoded(images("memory://bucket"))


def test_second_epoch_comes_from_the_cache(photos, memory, folder):
    """With a cache, files that the store no longer has are still read."""
    copy(photos, lambda name, content: memory.pipe(f"/bucket/{name}", content))
    cached_images = run_recipe("Object stores")["cached_images"]
    with cached_images("memory://bucket", str(folder / "cache")).start() as run:
        first = decoded(run)
        memory.store.clear()
        second = decoded(run)
    assert (expected_of(photos), expected_of(photos)) == (first, second)


def test_coroutines_read_at_the_same_time(folder):
    """Reads go on side by side, and each run makes one file system, on its own event loop."""
    made = []

    class Files:
        """A file system in which a read ends when all have begun."""

        def __init__(self):
            self.begun = 0
            self.all_begun = asyncio.Event()
            made.append(asyncio.get_running_loop())

        async def _cat_file(self, path):
            self.begun += 1
            if self.begun == 100:
                self.all_begun.set()
            await self.all_begun.wait()
            return path.encode()

    paths = [f"{number:03d}" for number in range(100)]
    pipe = run_recipe("Object stores")["fetched"](paths, Files)
    found = [list(pipe), list(pipe)]
    expected = [[path.encode() for path in paths]] * 2
    assert (expected, 2, 2) == (found, len(made), len(set(made)))


def test_asynchronous_file_system_of_fsspec(photos):
    """An asynchronous file system of fsspec gives the bytes of every path."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.local import LocalFileSystem

    def make():
        return AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)

    paths = [str(path) for path in photos]
    found = list(run_recipe("Object stores")["fetched"](paths, make))
    assert [path.read_bytes() for path in photos] == found
