"""Notebooks whose objects change: registries, counters, settings, names that are bound again."""

import pytest

from tests.export.notebooks import Notebook, contents, lacking

pytestmark = pytest.mark.slow

EXPORT = """
# ---- next cell
pipe = nbpipe.source(range(5)).map(decode)
report = pipe.export("loader.py")
"""


def test_stages_from_loops(notebook: Notebook):
    """Stages that a loop has made of a pipeline without a name keep their values."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def shifted(by):
            def shift(x):
                return x * 10 + by
            return shift

        pipe = nbpipe.source(range(5))
        for k in (1, 2, 3):
            pipe = pipe.map(shifted(k))
        kept = {"pipe": pipe}
        del pipe
        report = kept["pipe"].export("loader.py")
        """,
        pipe="kept['pipe']",
        spawn=True,
    )
    assert exported.known["items"][0] == ["int", 123]


def test_pipeline_made_in_a_function(notebook: Notebook):
    """A pipeline that a function has built of local values is built by it."""
    cells = """
import nbpipe
# ---- next cell
def build(size):
    data = [1, 2, size]

    def decode(x):
        return x + data[-1]  # the last

    return nbpipe.source(data).map(decode).batch(size)


pipe = build(2)
pipe["decode"].concurrency = 3
kept = {"pipe": pipe}
"""
    exported = notebook.exported(cells + 'report = pipe.export("loader.py")')
    assert exported.tuned == {"decode_concurrency": 3}
    assert exported.has("def build(size):\n    data = [1, 2, size]")
    notebook.run('del pipe\nreport = kept["pipe"].export("loader.py")')
    exported = notebook.examined(pipe="kept['pipe']")
    assert exported.tuned["decode_concurrency"] == 3
    assert exported.has("return x + data[-1]  # the last")


@pytest.mark.parametrize(
    "notebook", [pytest.param(("torch",), marks=pytest.mark.torch)], indirect=True
)
def test_methods_that_only_sound_like_changes(notebook: Notebook):
    """What has an `add` or a `sort` that changes nothing has its value; a set begins anew."""
    exported = notebook.exported(
        """
        import nbpipe
        import torch
        # ---- next cell
        class Grid:
            def __init__(self, by):
                self.by, self.seen = by, []

            def add(self, x):
                return x + self.by

            def put(self, x):
                self.seen.append(x)
                return x

        class Bag(set):
            def add(self, x):
                super().add(x)
        # ---- next cell
        grid, other = Grid(3), Grid(5)
        bag = Bag()
        seen = set()
        shift = torch.tensor([2, 1])
        grid.by = 4
        shift += 1
        # ---- next cell
        def decode(x):
            seen.add(x)
            bag.add(x)
            return grid.add(x), shift.add(x).tolist(), shift.sort()[0].tolist(), other.put(x)
        """
        + EXPORT
    )
    noted = [
        name for name in ("bag", "grid", "other", "seen", "shift") if exported.noted(f"'{name}'")
    ]
    assert noted == ["bag", "other", "seen"]


def test_two_names_of_one_state(notebook: Notebook):
    """What a stage changes by one name begins anew by the other one, too, and is one object."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        seen = []
        known = seen
        # ---- next cell
        def decode(x):
            seen.append(x)
            return len(known) > 0
        # ---- next cell
        decode(1)
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py", check_items=0)
        """
    )
    assert exported.has("seen = []\nknown = seen")
    assert exported.noted("'seen'")


def test_functions_of_other_arguments(notebook: Notebook):
    """Lambdas that collate, cost and route."""
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        def name_of(x):
            return "odd" if x % 2 else "even"
        # ---- next cell
        pipe = (
            nbpipe.source(range(6))
            .route(lambda x: name_of(x), {"odd": lambda c: c.map(abs), "even": lambda c: c})
            .batch(2, collate=np.stack)
            .batch(3, collate=lambda items: sum(items), cost=lambda x: 1)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("def name_of(x):")
    assert exported.has("import numpy as np")


def test_nothing_but_the_module_is_left(notebook: Notebook):
    """An export leaves one file in the folder, and no temporary file anywhere."""
    notebook.exported("import nbpipe\ndef decode(x):\n    return x\n" + EXPORT)
    assert list(contents(notebook.folder)) == ["loader.py"]
    assert list(contents(notebook.temp)) == []


def test_parameters_that_would_hide_functions(notebook: Notebook):
    """A parameter is not called like a function that the chain reads."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def f(x): return x + 1
        def batch_size(x): return x * 2
        def step_concurrency(x): return x - 1
        def step(x):
            with open("/dev/null") as file:
                return x, file.read()
        # ---- next cell
        pipe = (
            nbpipe.source(range(4)).map(f).map(batch_size).map(step_concurrency)
            .map(step, concurrency=3).batch(2, collate=list)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.turns == {"step.concurrency": 3, "batch.size": 2}
    assert exported.tuned.keys().isdisjoint({"f", "batch_size", "step_concurrency", "step"})


def test_parameters_that_would_hide_variables(notebook: Notebook):
    """No parameter is called like a variable that the chain reads, not even in the user's words."""
    exported = notebook.exported(
        """
        import nbpipe
        from functools import partial
        # ---- next cell
        crop_concurrency, batch_size = 3, 4
        def crop(x, size): return x * size
        # ---- next cell
        pipe = (
            nbpipe.source(list(range(batch_size * 2)))
            .map(partial(crop, size=crop_concurrency), concurrency=2)
            .batch(3)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.turns == {"crop.concurrency": 2, "batch.size": 3}
    code = notebook.kernel.run("with pipe.start() as run:\n    print(run._core.chain_code())")
    assert "partial(crop, size=crop_concurrency), concurrency=2" in code
    exported = notebook.exported(
        """
        pipe = nbpipe.source(range(6))
        for k in (1, 2):
            pipe = pipe.map(partial(crop, size=k * crop_concurrency))
        pipe["crop"].concurrency = 8
        report = pipe.export("loader.py", check_items=0, overwrite=True)
        """
    )
    assert exported.turns["crop.concurrency"] == 8


CODE = "with pipe.start() as run:\n    print(run._core.chain_code())"


def test_code_of_variables_that_were_bound_anew(notebook: Notebook):
    """Code for a cell that would build another pipeline by now is refused, with what to do."""
    notebook.run(
        """
        from functools import partial
        from pathlib import Path
        import nbpipe
        # ---- next cell
        n, base, folder = 3, 10, Path()
        def crop(x, size): return x * size
        # ---- next cell
        pipe = nbpipe.source([i + base for i in range(2)]).map(partial(crop, size=n))
        for k in (1, 2):
            pipe = pipe.map(partial(crop, size=k * n))
        files = nbpipe.source(sorted(folder.glob("*"))).map(str)
        """
    )
    assert "for k in (1, 2):" in notebook.kernel.run(CODE)
    notebook.kernel.run("n, base, folder = 5, 20, Path('..')")
    for name, read in (("pipe", "'base'"), ("files", "'folder'")):
        error = notebook.failed(CODE.replace("pipe", name))
        assert lacking(error.text, read, "run the pipeline's cell again") == []


def test_state_that_was_used(notebook: Notebook):
    """What a stage has changed before the export begins with its first value in the module."""
    notebook.run(
        """
        import nbpipe
        # ---- next cell
        SEEN = set()

        def is_new(x):
            known = x in SEEN
            SEEN.add(x)
            return not known
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(is_new)
        kept = list(pipe)
        report = pipe.export("loader.py")
        assert any("'SEEN'" in note for note in report.notes), report.notes
        """
    )
    assert notebook.imported()["items"] == [["bool", True]] * 4


COUNTED = """
from types import SimpleNamespace
import nbpipe
import numpy as np
# ---- next cell
class Counted:
    def __init__(self):
        self.array, self.inner = np.zeros(2), SimpleNamespace(n=0)
        self.held = {"names": SimpleNamespace(all=[])}

    def __call__(self, x):
        self.array.sort()
        self.array[0] = x
        self.inner.n += 1
        self.held["names"].all.append(x)
        return x


counted = Counted()
# ---- next cell
pipe = nbpipe.source(range(3)).map(counted)
list(pipe)
report = pipe.export("loader.py")
"""


def test_state_inside_an_attribute(notebook: Notebook):
    """What a stage changes anywhere inside its object begins with its first value, with a note."""
    exported = notebook.exported(COUNTED, state=["array", "inner", "held"])
    assert exported.noted("'counted'")


SHARED = """
import nbpipe
# ---- next cell
x = []
a = x
b = x
del x
# ---- next cell
c = []
# ---- next cell
d = c
# ---- next cell
c = []
# ---- next cell
def count(x):
    a.append(x)
    c.append(x)
    return x, len(b), len(d)
# ---- next cell
pipe = nbpipe.source(range(4)).map(count)
report = pipe.export("loader.py", check_items={count})
"""


@pytest.mark.parametrize("count", [4, 0])
def test_names_are_one_object_where_they_were(notebook: Notebook, count: int):
    """Of a list that a stage fills, whatever has become of the names by which it was made."""
    notebook.run(SHARED.format(count=count))
    namespace: dict[str, object] = {}
    exec((notebook.folder / "loader.py").read_text(), namespace)
    assert namespace["a"] is namespace["b"]
    assert namespace["c"] is not namespace["d"]


def test_names_that_a_stage_binds_anew_need_not_share(notebook: Notebook):
    """What a stage binds by `global` begins as its text says, whatever it is by now."""
    exported = notebook.exported(
        """
import nbpipe
# ---- next cell
best = current = []
# ---- next cell
def keep(x):
    global best
    current.append(x)
    best = list(current)
    return x
# ---- next cell
pipe = nbpipe.source(range(4)).map(keep)
list(pipe)
report = pipe.export("loader.py", check_items=0)
"""
    )
    assert exported.has("best = current = []")


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


def test_what_a_stage_sets_by_a_property_is_state(notebook: Notebook):
    """The setter of a property counts where a method that a stage calls uses it."""
    exported = notebook.exported(SETTER.format(stage="box.grown(x)"), state=["_size"])
    assert exported.noted("'box'")
