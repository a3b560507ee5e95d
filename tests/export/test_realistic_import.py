"""Notebooks that read data, choose hardware, loop and call: what is done at the import."""

import pytest

from tests.export.notebooks import ROOT, Exported, Notebook
from tests.scripts import printed

FILES = """
from pathlib import Path

import nbpipe
import numpy as np

Path("data").mkdir()
for n in range(5):
    np.save(Path("data", f"{n}_{'ab'[n % 2]}.npy"), np.full(3, n, dtype="float32"))
# ---- next cell
"""


def exported_beside_data(notebook: Notebook, text: str) -> Exported:
    """Export from cells; the data is also where the module is imported."""
    (notebook.elsewhere / "data").symlink_to(notebook.folder / "data")
    exported = notebook.exported(FILES + text)
    (notebook.elsewhere / "data").unlink()
    paths = f"{ROOT}:{notebook.folder}"
    printed("-c", "import loader", cwd=notebook.elsewhere, PYTHONPATH=paths)
    return exported


def test_means_are_values(notebook: Notebook):
    """What was computed of the files once is written; the files are found under the root."""
    exported = exported_beside_data(
        notebook,
        """
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
    assert exported.names == ["DATA", "MEAN", "STD", "load"]
    assert "MEAN = np.array([2.0, 2.0, 2.0], dtype=np.float32)  # of all\n" in exported.text
    assert exported.parameters == "root: Path=DATA"
    assert exported.chain == "nbpipe.source(sorted(root.glob('*.npy'))).map(load)"


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
        import os, shutil
        report = pipe.export("loader.py")
        shutil.copytree("train", "../elsewhere/train")
        """
    )
    assert exported.parameters == "root: Path=Path('train')"


def test_names_of_classes_are_values(notebook: Notebook):
    """What functions read is written; what only the source reads is read when it is built."""
    exported = exported_beside_data(
        notebook,
        """
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
    assert 'INDEX = {"a": 0, "b": 1}\n' in exported.text
    assert exported.parameters == ""  # a root that `load` does not follow would be none
    assert exported.chain == "nbpipe.source(sorted(os.listdir(FOLDER))).map(load)"


@pytest.mark.parametrize(
    ("made", "parameters"),
    [
        ('FOLDER = Path("data")\ndataset = Files(FOLDER)  # all', "root: Path=FOLDER"),
        ('dataset = Files("data")  # all', "root: str='data'"),
    ],
)
def test_datasets_are_made_where_they_are_used(notebook: Notebook, made: str, parameters: str):
    """An object that looks for its files is made by `build_pipeline`, from its root."""
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
    exported = exported_beside_data(notebook, cells)
    assert exported.parameters == parameters
    assert "    dataset = Files(root)  # all\n    return nbpipe.source(" in exported.text


def test_a_table_that_functions_read_is_told_of(notebook: Notebook):
    """What is too large to be written is read at the import, and a note says what it is."""
    for folder in (notebook.folder, notebook.elsewhere):
        (folder / "words.txt").write_text(" ".join(map(str, range(300))))
    exported = notebook.exported(
        """
        from pathlib import Path
        import nbpipe

        WORDS = Path("words.txt").read_text().split()
        # ---- next cell
        def word(x):
            return WORDS[x]
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(word)
        report = pipe.export("loader.py")
        """
    )
    assert any("'WORDS', assigned in In[1] reads data" in note for note in exported.notes)


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
    assert "try:\n    import no_such_library as xp\n    FAST = True\nexcept" in exported.text
    assert 'if os.cpu_count() > 1000:\n    KIND = "large"  # not here\nelse:\n' in exported.text
    assert 'DEVICE = "cuda" if FAST else "cpu"\n' in exported.text


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
LOOPED_WRITTEN = '''
    """Build the pipeline with the values tuned in the notebook."""
    pipe = nbpipe.source(range(8), name="numbers")
    # by each of them
    for k in FACTORS:
        pipe = pipe.map(partial(scale, k=k), name=f"by_{k}", concurrency=2)
    pipe = pipe.batch(2)
    pipe["by_2"].concurrency = by_2_concurrency
    pipe["by_3"].concurrency = by_3_concurrency
    return pipe
'''


def test_a_loop_stays_a_loop(notebook: Notebook):
    """A chain that a loop built is built by it, with the knobs as they were tuned."""
    exported = notebook.exported(
        LOOPED + 'pipe\n# ---- next cell\nreport = pipe.export("loader.py")'
    )
    assert LOOPED_WRITTEN in exported.text
    assert exported.parameters == "*, by_2_concurrency: int=2, by_3_concurrency: int=7"


def test_a_loop_that_would_build_another_chain(notebook: Notebook):
    """Where the loop would go on in another way by now, the stages are written one by one."""
    exported = notebook.exported(LOOPED + 'FACTORS = (2, 5)\nreport = pipe.export("loader.py")')
    assert "for k in" not in exported.text
    assert ".map(partial(scale, k=3), name='by_3', concurrency=by_3_concurrency)" in exported.chain


def test_a_loop_that_does_more(notebook: Notebook):
    """A loop that uses the pipeline, too, is not in the module."""
    exported = notebook.exported(
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
    assert "sums" not in exported.text
    assert exported.parameters == "*, batch_size: int=3"


def test_a_function_that_builds_stays(notebook: Notebook):
    """A chain that a function or a method made is made by a call of it."""
    exported = exported_beside_data(
        notebook,
        """
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
    assert exported.parameters == "root: Path=FOLDER"
    assert exported.chain == "make(root, train=False)"
    assert "# in another order for training\n" in exported.text
