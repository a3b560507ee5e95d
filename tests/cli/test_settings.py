"""What is told of cells without running them, and what `--set` sets."""

import re

import pytest

from tests.ipynb import write_notebook

pytest.importorskip("IPython", reason="reads cells, which takes IPython")


@pytest.fixture
def plan(call, tmp_path):
    """Give a function that asks what would be done with cells: texts, or texts with their tags."""

    def told(*cells, **sets):
        path = write_notebook(tmp_path / "n.ipynb", *cells)
        words = [word for name, value in sets.items() for word in ("--set", f"{name}={value!r}")]
        return call("export", str(path), "--pipeline", "pipe", "-o", "loader.py", *words)

    return told


def after(told):
    """Give what is set after each cell."""
    found = []
    for line in told.out.splitlines():
        if re.match(r" +\d+  ", line):
            found.append([])
        elif line.strip().startswith("--set "):
            found[-1].append(line.strip().removeprefix("--set "))
    return found


def notes(told):
    """Give what is noted of the settings."""
    found = [line.strip() for line in told.out.splitlines()]
    return [line.removeprefix("note: ") for line in found if line.startswith("note: ")]


def test_settings_follow_the_first_assignment(plan):
    """A variable is set after the first cell that assigns it."""
    made = plan("a = 1", "b = 2\nc: int = 3", "a = 4", a=[1], b="x")
    assert after(made) == [["a = [1]"], ["b = 'x'"], []]


def test_settings_follow_the_tagged_cell(plan):
    """The cell that is tagged `parameters` comes before others that assign the variable."""
    made = plan("a = 1\nb = 1", ("a = 2", ["parameters"]), a=3, b=3)
    assert after(made) == [["b = 3"], ["a = 3"]]


def test_settings_follow_the_parameters_that_papermill_injects(plan):
    """A value that is set wins over the one that a run of papermill has left in the notebook."""
    injected = ("a = 2", ["injected-parameters"])
    made = plan(("a = 1", ["parameters"]), injected, "b = a", a=3)
    assert after(made) == [[], ["a = 3"], []]
    assert notes(made) == []


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["a = 1", "b = a"], []),
        (["a = 1\ndef f():\n    return a"], []),
        (["a = 1\ndef f(x=a):\n    pass"], ["cell 1 assigns 'a' and reads it in the same cell"]),
        (["a = 1\nb = [a for _ in b]"], ["cell 1 assigns 'a' and reads it in the same cell"]),
        (["%%time\na = 1", "if True:\n    a = 2"], ["cell 2 assigns 'a' again"]),
    ],
)
def test_settings_that_may_not_act(plan, cells, says):
    """Where a cell reads or assigns what is set, that is said."""
    warnings = notes(plan(*cells, "pipe = 1", a=3))
    assert [line for line, start in zip(warnings, says, strict=True) if start not in line] == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    pipe = 1",
        "[pipe for pipe in a]",
        "class A:\n    pipe = 1",
        "a.pipe = 1",
        "a['pipe'] = 1",
        "f(pipe=1)",
        "def (",
    ],
)
def test_cells_that_do_not_assign(plan, text):
    """A name inside of a function, a class or an object is another one."""
    told = plan(text, pipe=2)
    assert (told.returncode, "no cell of n.ipynb assigns 'pipe'" in told.err) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "a, (pipe, b) = 1, (2, 3)",
        "pipe: int = 1",
        "%%capture out\n%%time\npipe = 1",
        "!ls\npipe = 1",
        "await b\npipe = 1",
    ],
)
def test_cells_that_assign(plan, text):
    """A name is assigned in many ways, also below magics."""
    assert after(plan(text, pipe=2)) == [["pipe = 2"]]
