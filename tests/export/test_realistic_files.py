"""What becomes of files: exports from scripts, exports again, refusals beside an older module."""

import difflib

import pytest

from tests.export.notebooks import Notebook, contents, lacking
from tests.scripts import printed

TUNED = """
import nbpipe
# ---- next cell
STEP = 2  # in pixels

def decode(x):
    return x * STEP
# ---- next cell
pipe = nbpipe.source(range(6)).map(decode, concurrency=2).batch(2)
report = pipe.export("loader.py")
"""


def changed_lines(before: str, after: str) -> list[str]:
    """List the lines that differ between two texts."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_loaded_back_and_tuned_again(notebook: Notebook):
    """`load` gives the pipeline back, with the changes asked for.

    A second export rewrites the defaults of the knobs that moved; edits stay.
    """
    notebook.exported(TUNED)
    notebook.kernel.run(
        'again = nbpipe.load("loader.py", decode_concurrency=4)\n'
        'knobs = [stage["knobs"] for stage in again.graph()]\n'
        'assert knobs[1]["concurrency"] == 4, knobs\n'
        "assert [list(batch) for batch in again] == [list(batch) for batch in pipe]"
    )
    assert notebook.examined().tuned == {"decode_concurrency": 2, "batch_size": 2}
    path = notebook.folder / "loader.py"
    for edit, moved in (("# in pixels", 9), ("# in pixels, as agreed", 7)):
        text = path.read_text().replace("# in pixels", edit)
        path.write_text(text)
        notebook.kernel.run(
            f'pipe["decode"].concurrency = {moved}\nreport = pipe.export("loader.py")'
        )
        old = 2 if moved == 9 else 9
        changes = changed_lines(text, notebook.examined().text)
        assert [line[0] for line in changes] == ["-", "+"], changes
        assert lacking(changes[0], "decode_concurrency", str(old)) == []
        assert lacking(changes[1], "decode_concurrency", str(moved)) == []


@pytest.mark.slow
def test_edited_module_is_not_overwritten(notebook: Notebook):
    """A module that was edited is not replaced by another unless told so."""
    before = notebook.exported(TUNED).text
    path = notebook.folder / "loader.py"
    path.write_text(before.replace("x * STEP", "x * STEP + 1  # by hand"))
    held = contents(notebook.folder)
    notebook.kernel.run("STEP = 5")
    error = notebook.failed('pipe.export("loader.py")')
    assert error.kind == "ModuleEditedError"
    assert "by hand" in error.text
    assert "overwrite=True" in error.text
    assert contents(notebook.folder) == held
    notebook.kernel.run("STEP = 2\npipe['decode'].prefetch = 5")  # a parameter is added
    error = notebook.failed('pipe.export("loader.py")')
    assert (error.kind, contents(notebook.folder)) == ("ModuleEditedError", held)
    notebook.kernel.run('STEP = 5\nreport = pipe.export("loader.py", overwrite=True)')
    exported = notebook.examined()
    assert "STEP = 5" in exported.text
    assert exported.tuned == {"decode_concurrency": 2, "decode_prefetch": 5, "batch_size": 2}


@pytest.mark.slow
def test_refusal_keeps_the_older_module(notebook: Notebook):
    """An export that is refused leaves the module of before to the last byte, and no litter."""
    notebook.exported(TUNED)
    held = contents(notebook.folder.parent)
    notebook.kernel.run("held = open(__import__('os').devnull)\ndef decode(x):\n    return held, x")
    error = notebook.failed("nbpipe.source(range(6)).map(decode).export('loader.py')")
    assert error.kind == "ExportError"
    assert contents(notebook.folder.parent) == held


@pytest.mark.slow
def test_module_that_fails_is_not_written(notebook: Notebook):
    """Where the module would give other items than the notebook, nothing is written."""
    notebook.run("import nbpipe\nimport builtins\nbuiltins.SHIFT = 3")
    notebook.run("def decode(x):\n    return x + SHIFT")
    held = contents(notebook.folder)
    error = notebook.failed("nbpipe.source(range(6)).map(decode).export('loader.py')")
    assert error.kind == "ExportError"
    assert "SHIFT" in error.text
    assert contents(notebook.folder) == held


@pytest.mark.slow
def test_runs_that_differ_are_not_compared(notebook: Notebook):
    """Where two runs of the notebook's own pipeline differ, the report says so."""
    notebook.run(
        """
        import nbpipe
        import time
        # ---- next cell
        def stamp(x):
            return x, time.perf_counter_ns()
        # ---- next cell
        report = nbpipe.source(range(6)).map(stamp).export("loader.py")
        # ---- next cell
        open("report.txt", "w").write(str(report))
        """
    )
    assert "def stamp(x):\n    return x, time.perf_counter_ns()\n" in (
        (notebook.folder / "loader.py").read_text()
    )
    assert "not compar" in (notebook.folder / "report.txt").read_text()


@pytest.mark.slow
def test_first_items_only_are_compared(notebook: Notebook):
    """An endless pipeline is exported after its first items."""
    notebook.run(
        """
        import itertools
        import nbpipe
        # ---- next cell
        def numbers():
            return itertools.count(5)

        def decode(x):
            if x > 7:
                raise ValueError(x)
            return x * 2
        # ---- next cell
        report = nbpipe.source(numbers).map(decode).export("loader.py", check_items=2)
        """
    )
    assert "    return itertools.count(5)\n" in (notebook.folder / "loader.py").read_text()


@pytest.mark.slow
def test_other_folders_and_names(notebook: Notebook):
    """A module is written where it is asked for, under the name it is given."""
    (notebook.folder / "src").mkdir()
    notebook.run(TUNED.replace('export("loader.py")', 'export("src/train_data.py")'))
    written = sorted(str(path.relative_to(notebook.folder)) for path in notebook.folder.rglob("*"))
    assert written == ["src", "src/train_data.py"]


SCRIPT = '''
"""Build the loader of the nightly job."""
import sys
from functools import partial

import nbpipe

SIZE = 3  # as the model wants it


def crop(x, size):
    # keep the left
    return x % size


def src():
    return range(6)


if __name__ == "__main__":
    pipe = (
        nbpipe.source(src)
        .map(partial(crop, size=SIZE), concurrency=2)
        .map(lambda x: x + 1)
    )
    pipe["crop"].concurrency = 5
    pipe.export(sys.argv[1])
'''


@pytest.mark.slow
def test_from_a_script(notebook: Notebook):
    """A script exports as a notebook does; its own last lines stay behind."""
    script = notebook.folder / "nightly.py"
    script.write_text(SCRIPT)
    printed(script, notebook.folder / "loader.py", cwd=notebook.elsewhere, **notebook.env)
    text = (notebook.folder / "loader.py").read_text()
    found = notebook.imported()
    assert "SIZE = 3  # as the model wants it\n" in text
    assert "def crop(x, size):\n    # keep the left\n    return x % size\n" in text
    assert "import sys" not in text
    assert found["knobs"]["crop.concurrency"] == 5
    assert found["turned"] == {"crop_concurrency": ["crop.concurrency"]}
    assert found["items"] == [["int", n % 3 + 1] for n in range(6)]


BESIDE = """
from pathlib import Path

import nbpipe

HERE = Path(__file__).parent
DATA = HERE / "data"


def read(path):
    return path.read_text() + HERE.name[:0]


pipe = nbpipe.source(sorted(DATA.glob("*.txt"))).map(read)
if __name__ == "__main__":
    pipe.export("loader.py")
"""


@pytest.mark.slow
def test_a_script_that_finds_its_data_beside_itself(notebook: Notebook):
    """The folder of the script is that of the module, wherever that is imported from."""
    (notebook.folder / "data").mkdir()
    for name in ("one", "two"):
        (notebook.folder / "data" / f"{name}.txt").write_text(name)
    (notebook.folder / "train.py").write_text(BESIDE)
    printed("train.py", cwd=notebook.folder, **notebook.env)
    text = (notebook.folder / "loader.py").read_text()
    assert 'HERE = Path(__file__).parent\nDATA = HERE / "data"\n' in text
    assert notebook.imported()["items"] == [["str", "one"], ["str", "two"]]
