"""Notebooks that read data, choose hardware, loop and call: what is done at the import."""

import pytest

from tests.export.notebooks import Notebook

pytestmark = pytest.mark.slow

FILES = """
from pathlib import Path

import nbpipe
import numpy as np

Path("data").mkdir()
for n in range(5):
    np.save(Path("data", f"{n}_{'ab'[n % 2]}.npy"), np.full(3, n, dtype="float32"))
# ---- next cell
"""


def test_means_are_values(notebook: Notebook):
    """What was computed of the files once is written, so that the import needs no files."""
    exported = notebook.exported(
        FILES
        + """
        DATA = Path("data")
        files = sorted(DATA.glob("*.npy"))
        MEAN = np.mean([np.load(file) for file in files], axis=0)  # of all
        STD = float(np.std([np.load(file) for file in files]))
        # ---- next cell
        def load(path):
            return (np.load(path) - MEAN) / STD
        # ---- next cell
        pipe = nbpipe.source(files).map(load)
        report = pipe.export("loader.py")
        """,
    )
    assert exported.has('DATA = Path("data")')
    assert [word for word in ("np.mean", "np.std", "_a.npy") if word in exported.text] == []


def test_two_cells_that_look_alike(notebook: Notebook):
    """Of two calls in the same place of their cells, the one that made the pipeline counts."""
    exported = notebook.exported(
        """
        from pathlib import Path
        import nbpipe
        # ---- next cell
        for name in ("train", "tests"):
            Path(name).mkdir()
            Path(name, name).touch()
        # ---- next cell
        pipe = nbpipe.source(sorted(Path("train").glob("*"))).map(str)
        # ---- next cell
        test = nbpipe.source(sorted(Path("tests").glob("*"))).map(str)
        # ---- next cell
        report = pipe.export("loader.py")
        """
    )
    assert exported.known["items"] == [["str", "train/train"]]


def test_datasets_are_made_where_they_are_used(notebook: Notebook):
    """An object that looks for its files is made by `build_pipeline`."""
    cells = """
class Files:
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return np.load(self.paths[index])
# ---- next cell
FOLDER = Path("data")
dataset = Files(FOLDER)  # all
pipe = nbpipe.source(range(len(dataset))).map(dataset.__getitem__)
report = pipe.export("loader.py")
"""
    exported = notebook.exported(FILES + cells)
    assert "  # all\n" in exported.text


LOOPED = """
from functools import partial

import nbpipe


def scale(x, k):
    return x * k


FACTORS = (2, 3)
# ---- next cell
pipe = nbpipe.source(range(8), name="numbers")
# by each of them
for k in FACTORS:
    pipe = pipe.map(partial(scale, k=k), name=f"by_{k}", concurrency=2)
# ---- next cell
pipe = pipe.batch(2)
pipe["by_3"].concurrency = 7
"""


def test_a_loop_that_would_build_another_chain(notebook: Notebook):
    """The stages are those that the loop made at its time."""
    exported = notebook.exported(
        LOOPED + 'pipe\nFACTORS = (2, 5)\nreport = pipe.export("loader.py")'
    )
    assert {"by_2_concurrency": 2, "by_3_concurrency": 7}.items() <= exported.tuned.items()


def test_a_loop_that_does_more(notebook: Notebook):
    """A loop that runs each pipeline that it builds; the last one is exported."""
    notebook.exported(
        """
        import nbpipe

        def double(x):
            return x * 2

        sums = []
        for size in (2, 3):
            pipe = nbpipe.source(range(6))
            for _ in range(2):
                pipe = pipe.map(double)
            pipe = pipe.batch(size)
            sums.append(sum(batch.sum() for batch in pipe))
        report = pipe.export("loader.py")
        """
    )
