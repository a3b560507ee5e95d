"""What a kernel has executed, as it is recorded; and imports and files."""

import json

import pytest

from nbpipe.export.cells import Cell, Cells, of_file, recorded
from tests.kernel.client import running

pytestmark = pytest.mark.kernel


BEFORE = ["import numpy", "def early(x):\n    return x  # early", "%%time\ndef timed(x): return x"]
LOAD = "import nbpipe, json\nfrom nbpipe.export.cells import recorded\nloaded = lambda: 1"
ASK = """
def ask():
    cells = recorded()
    live = {name: value for name, value in globals().items() if hasattr(value, "__code__")}
    found = {name: cells.definition(value.__code__) for name, value in live.items()}
    print("answer", json.dumps({
        "texts": {name: one and [one.place, one.text("f")] for name, one in found.items()},
        "bound": {name: [[one.cell.place, one.text] for one in cells.bindings(name)]
                  for name in ("A", "B")},
        "setup": [cell.place for cell in cells.cells if cell.is_setup],
        "future": [cell.place for cell in cells.cells if cell.future],
        "shell": {cell.place: sorted(cell.shell_lines) for cell in cells.cells},
        "imports": [[one.binds, one.module] for one in cells.imports()],
    }))
"""


class Notebook:
    """A kernel, and what it answers when it is asked for its cells."""

    def __init__(self, client):
        self.client = client
        for text in [*BEFORE, LOAD, ASK]:
            self.run(text)

    def run(self, text):
        """Run a cell to its end, whether it fails or not; return the number it has."""
        _, content = self.client.end(text)
        return f"In[{content['execution_count']}]"

    def ask(self):
        """Return what is recorded."""
        return json.loads(self.client.run("ask()").removeprefix("answer"))


@pytest.fixture(scope="module")
def kernel():
    """Run one kernel for all tests of this file."""
    with running() as client:
        yield Notebook(client)


@pytest.fixture
def notebook(kernel):
    """Return the kernel."""
    kernel.client.heard.clear()
    return kernel


def test_cells_before_the_import_are_known(notebook):
    """Cells that ran before `import nbpipe`, and the cell that does it, are recorded."""
    texts = notebook.ask()["texts"]
    assert [texts[name] for name in ("early", "timed", "loaded")] == [
        ["In[2]", "def f(x):\n    return x  # early"],
        ["In[3]", "def f(x): return x"],
        ["In[4]", "def f():\n    return 1"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "%%time\n\n# c\ndef made(x): return x\n",
        "%%capture out\n# c\ndef made(x): return x\n",
        "%%capture\n%%time\n# c\ndef made(x): return x\n",
        "get_ipython().run_cell('# c\\ndef made(x): return x')\nmade",
        "%%prun -q\n# c\ndef made(x): return x",
        "%%time\n# c\ndef made(x): return x\n\n1 / 0",
        "\n\n# c\ndef made(x): return x\n1 / 0",
        "await __import__('asyncio').sleep(0)\n# c\ndef made(x): return x",
    ],
)
def test_body_of_a_magic_is_found(notebook, text):
    """What stands in a magic or in a cell that fails is found, under the number of the cell."""
    place = notebook.run(text)
    found = notebook.ask()
    notebook.run("del made")
    assert found["texts"]["made"] == [place, "# c\ndef f(x): return x"]


def test_line_magic_is_found(notebook):
    """`%time f = lambda ...` binds the name, in a cell among others too."""
    place = notebook.run("A = 1\n%time A = lambda x: x + 1\nB = A")
    found = notebook.ask()
    assert (found["texts"]["A"], found["bound"]["A"][:2], found["shell"][place]) == (
        [place, "def f(x):\n    return x + 1"],
        [[place, "A = lambda x: x + 1"], [place, "A = 1"]],
        [2],
    )


def test_repeated_cells_are_in_order(notebook):
    """Cells that run again are the newest, whatever number they reuse."""
    text = "A = 'again'"
    places = [notebook.run(one) for one in (text, "A = 'other'", text, text)]
    silent = notebook.client.send(
        "execute_request", {"code": "A = 'same number'", "silent": False, "store_history": False}
    )
    notebook.client.reply(silent)
    found = notebook.ask()["bound"]["A"]
    assert found[:4] == [
        [places[3], "A = 'same number'"],
        [places[3], text],
        [places[1], "A = 'other'"],
        [places[0], text],
    ]


def test_marks_of_cells(notebook):
    """Set-up cells and cells that write a file are told from others."""
    place = notebook.run("#| nbpipe: setup\nimport os.path as way")
    notebook.run("%%writefile /dev/null\nA = 'never executed'")
    found = notebook.ask()
    assert (place in found["setup"], found["imports"][0], "never" in str(found["bound"])) == (
        True,
        ["way", "os.path"],
        False,
    )


def test_unloading_and_loading_loses_nothing(notebook):
    """Cells that ran between `%unload_ext` and `%load_ext` are recorded."""
    notebook.run("%unload_ext nbpipe")
    places = [notebook.run("A = 'between'")]
    notebook.run("%load_ext nbpipe")
    places.append(notebook.run("A = 'after'"))
    found = notebook.ask()["bound"]["A"][:2]
    assert found == [[places[1], "A = 'after'"], [places[0], "A = 'between'"]]


def test_future_flags_stay(notebook):
    """After `from __future__ import annotations`, all further cells have it."""
    before = notebook.run("1")
    place = notebook.run("from __future__ import annotations")
    after = notebook.run("def typed(x: Missing): return x")
    found = notebook.ask()
    assert (
        [one in found["future"] for one in (before, place, after)],
        found["texts"]["typed"],
    ) == ([False, True, True], [after, "def f(x: Missing): return x"])


def test_imports_are_listed():
    """Imports in blocks count, newest first, also those that were not executed."""
    text = (
        "import a.b, c as d\nif TYPE_CHECKING:\n    from e import f\nelse:\n    from e import g\n"
        "try:\n    from . import h\nexcept ImportError:\n    h = None\ndef k():\n    import l\n"
        "from m import *\n"
    )
    found = [
        (one.binds, one.module, one.member) for one in Cells([Cell("In[1]", 1, text)]).imports()
    ]
    assert found == [
        ("*", "m", "*"),
        ("g", "e", "g"),
        ("f", "e", "f"),
        ("d", "c", None),
        ("a", "a.b", None),
    ]


def test_file_is_one_cell(tmp_path):
    """A script is one cell, named as the file, read in its own encoding."""
    path = tmp_path / "loader_build.py"
    path.write_bytes("# coding: latin-1\nx = 'é'\r\n".encode("latin-1"))
    [statement] = of_file(path).bindings("x")
    assert (statement.cell.place, statement.text) == ("loader_build.py", "x = 'é'")


def test_nothing_is_recorded_outside():
    """Outside of IPython there are no cells, and cells that are no Python are left out."""
    assert (recorded().cells, Cells([Cell("In[1]", 1, "x = (")]).cells) == ((), ())
