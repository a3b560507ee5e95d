"""What is told of cells without running them, and what `--set` sets."""

from pathlib import Path

import pytest


def plan(*texts, **sets):
    """Make a plan of cells; a cell is its text, or its text and its tags."""
    pytest.importorskip("IPython")
    from nbpipe.cli.export import Plan
    from nbpipe.cli.notebook import Notebook, code_cell

    pairs = [(text, ()) if isinstance(text, str) else text for text in texts]
    cells = [code_cell(n, text, frozenset(tags)) for n, (text, tags) in enumerate(pairs, 1)]
    return Plan(
        notebook=Notebook(Path("n.ipynb"), "python3", tuple(cells)),
        pipeline="pipe",
        target=Path("loader.py"),
        sets=sets,
        kernel=("python3", "python"),
        overwrite=False,
        check_items=4,
        assets=None,
        limit_s=600,
    )


def after(made):
    """Give what is set after each cell."""
    return [made.assignments_after(cell) for cell in made.notebook.cells]


def test_settings_follow_the_first_assignment():
    """A variable is set after the first cell that assigns it."""
    made = plan("a = 1", "b = 2\nc: int = 3", "a = 4", a=[1], b="x")
    assert after(made) == ["a = [1]", "b = 'x'", ""]


def test_settings_follow_the_tagged_cell():
    """The cell that is tagged `parameters` comes before others that assign the variable."""
    made = plan("a = 1\nb = 1", ("a = 2", ["parameters"]), a=3, b=3)
    assert after(made) == ["b = 3", "a = 3"]


def test_settings_follow_the_parameters_that_papermill_injects():
    """A value that is set wins over the one that a run of papermill has left in the notebook."""
    injected = ("a = 2", ["injected-parameters"])
    made = plan(("a = 1", ["parameters"]), injected, "b = a", a=3)
    assert after(made) == ["", "a = 3", ""]
    assert list(made.warnings()) == []


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
def test_settings_that_may_not_act(cells, says):
    """Where a cell reads or assigns what is set, that is said."""
    warnings = list(plan(*cells, "pipe = 1", a=3).warnings())
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
def test_cells_that_do_not_assign(text):
    """A name inside of a function, a class or an object is another one."""
    assert plan(text).notebook.cells[0].assigns == frozenset()


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
def test_cells_that_assign(text):
    """A name is assigned in many ways, also below magics."""
    assert "pipe" in plan(text).notebook.cells[0].assigns
