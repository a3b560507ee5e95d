"""Notebooks that read data, choose hardware, loop and call: what is done at the import."""

import pytest

from tests.export.notebooks import Notebook

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


def test_names_of_classes_are_values(notebook: Notebook):
    """What functions read is written; what only the source reads is read when it is built."""
    exported = notebook.exported(
        FILES
        + """
        import os

        FOLDER = "data"
        names = sorted(os.listdir(FOLDER))
        kinds = sorted({name[2] for name in names})
        INDEX = {kind: number for number, kind in enumerate(kinds)}
        # ---- next cell
        def load(name):
            return np.load(os.path.join(FOLDER, name)), INDEX[name[2]]
        # ---- next cell
        pipe = nbpipe.source(names).map(load)
        report = pipe.export("loader.py")
        """,
    )
    assert exported.has('FOLDER = "data"')
    assert [word for word in ("enumerate", "_a.npy") if word in exported.text] == []


@pytest.mark.parametrize(
    "made",
    ['FOLDER = Path("data")\ndataset = Files(FOLDER)  # all', 'dataset = Files("data")  # all'],
)
def test_datasets_are_made_where_they_are_used(notebook: Notebook, made: str):
    """An object that looks for its files is made by `build_pipeline`."""
    cells = f"""
class Files:
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return np.load(self.paths[index])
# ---- next cell
{made}
pipe = nbpipe.source(range(len(dataset))).map(dataset.__getitem__)
report = pipe.export("loader.py")
"""
    exported = notebook.exported(FILES + cells)
    assert "  # all\n" in exported.text


def test_decisions_stay_decisions(notebook: Notebook):
    """What depends on the machine is chosen where the module is imported."""
    exported = notebook.exported(
        """
        import os
        import nbpipe
        try:
            import no_such_library as xp
            FAST = True
        except ImportError:
            import numpy as xp
            FAST = False
        # ---- next cell
        if os.cpu_count() > 1000:
            KIND = "large"  # not here
        else:
            KIND = "small"
        DEVICE = "cuda" if FAST else "cpu"
        # ---- next cell
        def decode(x):
            return KIND, DEVICE, int(xp.asarray(x))
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has(
        "try:\n    import no_such_library as xp\n    FAST = True\nexcept ImportError:\n"
        "    import numpy as xp\n    FAST = False"
    )
    assert exported.has(
        'if os.cpu_count() > 1000:\n    KIND = "large"  # not here\nelse:\n    KIND = "small"'
    )
    assert exported.has('DEVICE = "cuda" if FAST else "cpu"')


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
LOOP = """
# by each of them
for k in FACTORS:
    pipe = pipe.map(partial(scale, k=k), name=f"by_{k}", concurrency=2)
"""


def test_a_loop_stays_a_loop(notebook: Notebook):
    """A chain that a loop built is built by it, with the knobs as they were tuned."""
    exported = notebook.exported(
        LOOPED + 'pipe\n# ---- next cell\nreport = pipe.export("loader.py")'
    )
    assert exported.has(LOOP)
    assert {"by_2_concurrency": 2, "by_3_concurrency": 7}.items() <= exported.tuned.items()


def test_a_loop_that_would_build_another_chain(notebook: Notebook):
    """The stages are those that the loop made at its time."""
    exported = notebook.exported(LOOPED + 'FACTORS = (2, 5)\nreport = pipe.export("loader.py")')
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


def test_a_function_that_builds_stays(notebook: Notebook):
    """A chain that a function or a method made is made by a call of it."""
    exported = notebook.exported(
        FILES
        + """
        def load(path):
            return np.load(path)

        def make(root, *, train):
            # in another order for training
            pipe = nbpipe.source(sorted(root.glob("*.npy")), name="files")
            if train:
                pipe = pipe.shuffle(seed=0)
            return pipe.map(load)
        # ---- next cell
        FOLDER = Path("data")
        train = make(FOLDER, train=True)
        pipe = make(FOLDER, train=False)
        report = pipe.export("loader.py")
        """,
    )
    assert exported.has("def make(root, *, train):\n    # in another order for training")
    assert exported.text.count("pipe.map(load)") == 1
