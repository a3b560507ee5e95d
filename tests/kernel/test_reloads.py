"""`%autoreload` while a run is open: its next epoch has the new code, wherever its stages run."""

from itertools import count

import pytest

pytestmark = pytest.mark.kernel
names = count(1)
TEXT = """
def scaled(x):
    return x * {0}
"""
MODES = {"explicit": "1\n%aimport {}", "all": "2", "complete": "3"}
BEGIN = """
import importlib, nbpipe, {0}
%autoreload {1}
runs = [
    nbpipe.source(range(3)).map(fn, **options).start(isolate=isolate)
    for fn in ({0}.scaled, lambda x: {0}.scaled(x))
    for options, isolate in (({{}}, False), ({{"executor": "process"}}, False), ({{}}, True))
]
"""
EPOCHS = "print([list(run) for run in runs])"


@pytest.fixture
def helper(notebook):
    """Give a module of the user: a function that writes it."""
    name = f"helper_{next(names)}"

    def write(scale):
        # Python takes a file of the same second and the same length for the same.
        (notebook.folder / f"{name}.py").write_text(TEXT.format(scale) + "#" * scale)

    write.name = name
    write(2)
    notebook.run("%load_ext autoreload")
    yield write
    notebook.run("%autoreload 0\nnbpipe.close_all()")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_reloaded_module_is_new_in_the_next_epoch(notebook, helper, mode):
    """Functions of the module and those that call them: in threads, workers, isolated runs."""
    notebook.run(BEGIN.format(helper.name, MODES[mode].format(helper.name)))
    before = notebook.run(EPOCHS)
    helper(3)
    found = before, notebook.run(EPOCHS), notebook.run(EPOCHS)
    assert [eval(one) for one in found] == [[[0, 2, 4]] * 6, [[0, 3, 6]] * 6, [[0, 3, 6]] * 6]


def test_function_of_a_reloaded_module_is_told(notebook, helper):
    """After `importlib.reload` a pipeline calls the function of before; its next run says so."""
    notebook.run(f"import importlib, nbpipe, {helper.name}")
    notebook.run(f"pipe = nbpipe.source(range(3)).map({helper.name}.scaled)")
    before = notebook.run("print(list(pipe))")
    helper(3)
    said = notebook.run(f"importlib.reload({helper.name})\nprint(list(pipe))")
    told, items = said.splitlines()
    assert (before, items) == ("[0, 2, 4]\n", "[0, 2, 4]")
    assert told.startswith("nbpipe: scaled was edited since this pipeline was built, which calls")
