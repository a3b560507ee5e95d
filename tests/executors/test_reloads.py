"""Modules that are reloaded while a run is open: workers have the new code at the next epoch."""

import importlib
import os
import pickle
import sys
from concurrent.futures import Executor, Future

import pytest

import nbpipe

HELPER = """
import {name}_constants
SCALE = {scale}
class Adder:
    def __init__(self, by):
        self.by = by
    def __call__(self, x):
        return x + self.by + {scale}
def scaled(x):
    return x * SCALE
def direct(x):
    return x * {scale}
def from_constants(x):
    return x * {name}_constants.SCALE
"""


class Helper:
    """A module of the user, and one that it imports."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.write(2)
        self.module = importlib.import_module(name)

    def write(self, scale):
        # Python takes a file of the same second and the same length for the same.
        text = HELPER.format(name=self.name, scale=scale) + "#" * scale
        (self.folder / f"{self.name}.py").write_text(text)
        (self.folder / f"{self.name}_constants.py").write_text(f"SCALE = {scale}{' ' * scale}")
        importlib.invalidate_caches()

    def edit(self):
        """Write both files again, and reload them."""
        self.write(3)
        importlib.reload(sys.modules[f"{self.name}_constants"])
        importlib.reload(self.module)


class Pickles(Executor):
    """Pickles what it is given, as an executor with processes does."""

    def submit(self, function, /, *args, **keywords):
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(function))(*args, **keywords))
        return future


@pytest.fixture
def helper(tmp_path, monkeypatch, request):
    """Give a module that stands in a folder of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"helper_{abs(hash(request.node.name))}"
    yield Helper(tmp_path, name)
    for one in (name, f"{name}_constants"):
        sys.modules.pop(one, None)


STAGES = {  # functions as a cell has them: they go to workers by value
    "function": lambda module: lambda x: module.direct(x),  # noqa: PLW0108
    "constant": lambda module: lambda x: module.scaled(x),  # noqa: PLW0108
    "imported module": lambda module: lambda x: module.from_constants(x),  # noqa: PLW0108
}
EDITED = ([0, 2, 4], [0, 3, 6], [0, 3, 6])


def epochs(pipe, edit, **starts):
    """Give three epochs of a run; the modules are edited behind the first."""
    with pipe.start(**starts) as run:
        first = list(run)
        edit()
        return first, list(run), list(run)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("isolate", [False, True], ids=["", "isolate"])
def test_reloaded_helper_is_new_in_the_next_epoch(helper, stage, isolate):
    """What a stage's function calls has its new code in the next epoch, wherever it runs."""
    options = {} if isolate else {"executor": "process"}
    pipe = nbpipe.source(range(3)).map(STAGES[stage](helper.module), **options)
    assert epochs(pipe, helper.edit, isolate=isolate) == EDITED


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_function_of_a_stage_is_the_one_it_was_built_with(helper, executor):
    """A reload makes a new function: the pipeline calls the old one, in processes as in threads."""
    pipe = nbpipe.source(range(3)).map(helper.module.direct, executor=executor)
    assert epochs(pipe, helper.edit) == ([0, 2, 4],) * 3


@pytest.mark.slow
def test_reload_of_another_module_leaves_workers_alone(helper):
    """Workers stay where nothing that they use was reloaded."""
    pipe = nbpipe.source(range(3)).map(lambda x: (x, os.getpid())[1], executor="process")
    assert len({pid for epoch in epochs(pipe, helper.edit) for pid in epoch}) == 1


@pytest.mark.parametrize(
    ("part", "workers"), [("reading", 2), ("sizes", 2), ("training", 1)], ids=str
)
def test_a_part_of_a_package_that_is_reloaded(tmp_path, monkeypatch, part, workers):
    """Workers are replaced where a stage uses it, not where another part was imported."""
    package = tmp_path / "package_of_reloads"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("sizes", "training"):
        (package / f"{name}.py").write_text("import os\n\n\ndef own():\n    return os.getpid()\n")
    (package / "reading.py").write_text(
        "import package_of_reloads.sizes\n\n\ndef read(_):\n"
        "    return package_of_reloads.sizes.own()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = [package.name, *(f"{package.name}.{one}" for one in ("sizes", "reading", "training"))]
    loaded = {name: importlib.import_module(name) for name in names}
    try:
        pipe = nbpipe.source(range(3)).map(loaded[names[2]].read, executor="process")
        found = epochs(pipe, lambda: importlib.reload(loaded[f"{package.name}.{part}"]))
    finally:
        for name in names:
            del sys.modules[name]
    assert len({pid for epoch in found for pid in epoch}) == workers


def test_workers_of_an_executor_of_yours_are_named(helper, caplog):
    """Workers that nbpipe did not start cannot be replaced: one warning names the module."""
    pipe = nbpipe.source(range(3)).map(STAGES["function"](helper.module), executor=Pickles())
    epochs(pipe, helper.edit)
    said = [record.getMessage() for record in caplog.records]
    assert [helper.name in one and "keep the old code" in one for one in said] == [True]
