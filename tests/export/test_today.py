"""What the present exporter refuses or spells in its own way, and one that copies will not.

These tests go with it. `cases/copied` says what holds then.
"""

import importlib.util
import sys

import pytest

import nbpipe
from nbpipe.export.reachable import changeable_in
from tests.export.notebooks import Notebook

HEAD = """
import functools
import nbpipe
def add(x):
    return x + 1
def times(x, k):
    return x * k
N = 10
START = nbpipe.source(range(100), name="n")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a text as a file of its own; give its variables."""

    def run(text):
        file = tmp_path / "work.py"
        file.write_text(HEAD + text.replace("---\n", ""), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("work", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "work", module)
        spec.loader.exec_module(module)
        return vars(module)

    return run


@pytest.mark.slow
def test_a_default_of_a_lambda_that_changed_is_refused(run, tmp_path):
    """A function made in a loop keeps a value that its text does not give any more."""
    pipe = run(
        "pipe = START\nfor k in range(2):\n    pipe = pipe.map(lambda x, n=N: x + n)\nN = 50"
    )["pipe"]
    why = r"default 'n': 10 in the notebook, 50 .*rebuild the pipeline"
    with pytest.raises(nbpipe.ExportError, match=why):
        pipe.export(tmp_path / "loader.py")


@pytest.mark.slow
def test_a_path_that_was_computed_is_noted(run, tmp_path):
    """A folder of this machine that no cell spells is written with a note that names it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.txt").write_text("1")
    pipe = run(
        "from pathlib import Path\n"
        "class Place:\n    def __init__(self):\n        self.name = PLACE\n"
        "PLACE = __file__.removesuffix('work.py')\nplace = Place()\n"
        "folder = Path(place.name, 'data')\n"
        "del place, Place\n"
        "def read(path):\n    return path.read_text()\n"
        "pipe = nbpipe.source(sorted(folder.glob('*.txt'))).map(read)\n"
    )["pipe"]
    done = pipe.export(tmp_path / "loader.py")
    assert any("'folder'" in note and "a path of this machine" in note for note in done.notes)


def test_a_default_of_a_lambda_is_compared(notebook: Notebook):
    """A lambda whose default a variable gave that changed since is refused."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        SCALE = 2
        scaled = [lambda x, scale=SCALE: x * scale]
        # ---- next cell
        pipe = nbpipe.source([0, 0, 1]).map(scaled[0])
        SCALE = 5
        # ---- next cell
        pipe.export("loader.py", check_items=0)
        """
    )
    assert "'map_1', defined in In[2] is not what its text gives by now: default 'scale'" in words


def test_an_array_filled_by_a_loop_is_saved(notebook: Notebook):
    """With `assets="npz"` a large array is a file beside the module."""
    notebook.exported(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        table = np.zeros(1000)  # look-up
        for n in range(1000):
            table[n] = n * n
        # ---- next cell
        def look_up(n):
            return float(table[n])

        pipe = nbpipe.source(range(5)).map(look_up)
        report = pipe.export("loader.py", assets="npz")
        """
    )
    written = sorted(path.name for path in notebook.folder.iterdir())
    assert written == ["loader.npz", "loader.py"]


def test_a_table_that_functions_read_is_told_of(notebook: Notebook):
    """What is too large to be written is read at the import, and a note says what it is."""
    for folder in (notebook.folder, notebook.elsewhere):
        (folder / "words.txt").write_text(" ".join(map(str, range(300))))
    notebook.run(
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
    assert "True" in notebook.kernel.run(
        "print(\"'WORDS', assigned in In[1] reads data\" in str(report.notes))"
    )


@pytest.mark.parametrize("change", ["ROOT = ROOT + '/data'", "ROOT += '/data'"])
def test_value_of_the_environment(notebook: Notebook, change: str):
    """What a look-up was turned into under its own name is not written as a value."""
    words = notebook.refused(
        f"""
        import os
        import nbpipe
        # ---- next cell
        ROOT = os.environ["PYTHONPATH"]
        # ---- next cell
        {change}
        # ---- next cell
        def decode(x):
            return ROOT + x
        # ---- next cell
        nbpipe.source(["a", "b"]).map(decode).export("loader.py")
        """
    )
    assert "variable 'ROOT', assigned in In[3], is computed from what had this name" in words


def test_stale_instance(notebook: Notebook):
    """An instance of a class that was redefined is refused."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        class Crop:
            def __init__(self, size): self.size = size
            def __call__(self, x): return x % self.size
        # ---- next cell
        crop = Crop(3)
        # ---- next cell
        class Crop:
            def __init__(self, size): self.size = size
            def __call__(self, x): return x // self.size
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(crop)
        # ---- next cell
        pipe.export("loader.py")
        """
    )
    first, chain = words.split("\n")
    assert "older 'Crop' (In[2]); it was redefined since" in first
    assert chain.endswith("<- stage 'crop'")


def test_stale_default_argument(notebook: Notebook):
    """A default that was taken from a variable before it changed is refused."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        SIZE = 3
        # ---- next cell
        def crop(x, size=SIZE):
            return x % size
        # ---- next cell
        SIZE = 2
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(crop)
        # ---- next cell
        pipe.export("loader.py")
        """
    )
    first, chain = words.split("\n")
    assert "'size'" in first
    assert "crop" in first
    assert "stage 'crop'" in chain


def test_what_was_made_beside_state_is_compared(notebook: Notebook):
    """Of an assignment to two variables, the one that no stage changes must have its value."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        sizes, seen = [3], {}
        sizes[0] = 4
        # ---- next cell
        def decode(x):
            seen[x] = x
            return sizes[0]

        pipe = nbpipe.source(range(4)).map(decode)
        # ---- next cell
        report = pipe.export("loader.py", check_items=0)
        """
    )
    assert "assigned in In[2] is not what its text gives by now: [0]: 4 in the notebook" in words


@pytest.mark.parametrize("made", ['"a"', "[2]"])
def test_a_default_that_was_bound_again_is_refused(notebook: Notebook, made: str):
    """A default is what it was when the function was defined, whatever is done with it there."""
    words = notebook.refused(
        f"""
        import nbpipe
        # ---- next cell
        KIND = {made}
        def decode(x, kind=KIND, seen={{}}):
            seen[x] = kind.count("a")
            return x
        # ---- next cell
        KIND = KIND * 2
        decode(3)
        # ---- next cell
        report = nbpipe.source(range(4)).map(decode).export("loader.py", check_items=0)
        """
    )
    assert words.startswith("function 'decode', defined in In[2] is not what its text gives by now")
    assert "default 'kind'" in words


def test_local_module_that_was_changed(notebook: Notebook):
    """A module whose variable the notebook has set is refused: its file has the old value."""
    text = "FACTOR = 3\n\n\ndef scale(x):\n    return x * FACTOR\n"
    (notebook.folder / "common.py").write_text(text)
    words = notebook.refused(
        """
        import nbpipe
        import common
        # ---- next cell
        common.FACTOR = 10
        # ---- next cell
        def decode(x):
            return common.scale(x)
        # ---- next cell
        nbpipe.source(range(5)).map(decode).export("loader.py")
        """
    )
    assert "`common.FACTOR = 10` in In[2]" in words


FITTED = """
import nbpipe
# ---- next cell
class Vocab:
    def __init__(self):
        self.ids = {}

    def add(self, word):
        self.ids.setdefault(word, len(self.ids))

    def fit(self, words):
        for word in words:
            self.add(word)
        return self
# ---- next cell
"""
LOOK_UP = """
# ---- next cell
def decode(n):
    seen = set()
    seen.add(n)
    return vocab.ids.get("abc"[n])
# ---- next cell
pipe = nbpipe.source(range(3)).map(decode)
report = pipe.export("loader.py", check_items=0)
"""


@pytest.mark.parametrize("filled", ["vocab.fit('ab')", "for word in 'ab':\n    vocab.add(word)"])
def test_fitted_object_is_not_written_empty(notebook: Notebook, filled: str):
    """What cells put into an object by its methods is not the pipeline's own state."""
    words = notebook.refused(FITTED + f"vocab = Vocab()\n{filled}" + LOOK_UP)
    assert "attribute 'ids'" in words.split("\n")[0]
    assert "make it in one statement, as vocab = make_vocab()" in words


BOX = "class Box:\n    def __init__(self, items):\n        self.items = items"
SHARED = """
import nbpipe
# ---- next cell
{made}
# ---- next cell
def fill(x):
    {fills}
    return x

def read(x):
    return x, len({reads})
# ---- next cell
pipe = nbpipe.source(range(4)).map(fill).map(read)
report = pipe.export("loader.py", check_items={count})
"""


@pytest.mark.parametrize("count", [4, 0])
@pytest.mark.parametrize(
    ("made", "fills", "reads"),
    [
        ("x = []\na = x\nb = x\nx = 3", "a.append(x)", "b"),
        ("x = []\na = {'l': x}\nb = {'l': x}\ndel x", "a['l'].append(x)", "b['l']"),
        (f"{BOX}\nx = []\na = Box(x)\nb = Box(x)\ndel x", "a.items.append(x)", "b.items"),
    ],
)
def test_objects_that_share_a_part_are_refused(
    notebook: Notebook, made: str, fills: str, reads: str, count: int
):
    """Where a stage changes what two variables hold, and no text makes them hold it."""
    words = notebook.refused(SHARED.format(made=made, fills=fills, reads=reads, count=count))
    assert "share an object in the notebook, and none when its text runs anew" in words
    assert "bind that object to a name of its own" in words


def test_no_key_is_told_of_what_is_shared():
    """Places of what values share are sent to a process, and a key may be a secret."""
    places = changeable_in({"hf_abc": [{"hf_abc": []}]})
    assert len(places) == 4
    assert "hf_abc" not in str(list(places))


@pytest.mark.parametrize("made", ["fill, read = made()", "pair = made()\nfill, read = pair"])
def test_closures_that_share_state_are_refused(notebook: Notebook, made: str):
    """Each would have state of its own in the module."""
    words = notebook.refused(
        f"""
import nbpipe
# ---- next cell
def made():
    seen = []
    def fill(x):
        seen.append(x)
        return x
    def read(x):
        return x, len(seen)
    return fill, read
# ---- next cell
{made}
pipe = nbpipe.source(range(4)).map(fill).map(read)
report = pipe.export("loader.py", check_items=0)
"""
    )
    assert "shares 'seen', which it captured, with another stage" in words


SETTER = """
import nbpipe
# ---- next cell
class Box:
    def __init__(self, size):
        self._size = size

    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, size):
        self._size = size

    def grown(self, x):
        self.size = x
        return self.size

box = Box(1)
# ---- next cell
box.size = 4
# ---- next cell
def use(x):
    return {stage}
# ---- next cell
pipe = nbpipe.source(range(4)).map(use)
report = pipe.export("loader.py", check_items=0)
"""


def test_what_only_a_cell_sets_by_a_property_is_no_state(notebook: Notebook):
    """A setter that no stage uses changes nothing while the pipeline runs: the value counts."""
    words = notebook.refused(SETTER.format(stage="box.size * x"))
    assert words.startswith("cannot write variable 'box', assigned in In[2] into the module")
