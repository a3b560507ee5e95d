"""Names read by functions that are reached by way of others: registered, wrapped, held, cached."""

import pytest

from nbpipe.export.source import names_unbound
from tests.export.notebooks import Notebook

FRAME = """
import functools
import nbpipe
# ---- next cell
STEP = 2
def scaled(x): return x * STEP
"""


REGISTERED = """
# ---- next cell
{mark}
@functools.singledispatch
def show(x): return str(x)
@show.register
def _(x: int): return scaled(x)
show.register(list, lambda x: STEP)
# ---- next cell
pipe = nbpipe.source(range(4)).map(show)
# ---- next cell
report = pipe.export("loader.py", check_items=1)
"""


@pytest.mark.slow
def test_registered_implementations(notebook: Notebook):
    """What is added to a function elsewhere is refused; a set-up cell has all of it."""
    error = notebook.refused(FRAME + REGISTERED.format(mark=""))
    exported = notebook.exported(REGISTERED.format(mark="#| nbpipe: setup"))
    assert error.startswith("function 'show', defined in In[3] is not what its text gives by now")
    assert "def _(x: int): return scaled(x)\n" in exported.text


REACHED = """
# ---- next cell
from collections import defaultdict
from dataclasses import dataclass, field
import numpy as np
def zero(): return STEP
def traced(fn):
    @functools.wraps(fn)
    def inner(x): return fn(scaled(x))
    return inner
@traced
@functools.lru_cache(maxsize=4)
def wrapped(x): return x + STEP
cached = functools.cache(lambda x: scaled(x))
vectorized = np.vectorize(scaled)
def bound(functions):
    def inner(x): return [function(x) for function in functions]
    return inner
closed = bound([scaled, lambda x: x - STEP])
COUNTS = defaultdict(zero)
@dataclass
class Box:
    size: int = field(default_factory=zero)
    known: list = field(default_factory=lambda: [STEP])
class Base:
    kinds = {}
    def __init_subclass__(cls): Base.kinds[cls.__name__] = cls
    def moved(self, x, by): return scaled(x) + by
    two = functools.partialmethod(moved, by=2)
    @property
    def step(self): return STEP
    @functools.cached_property
    def kept(self): return scaled(STEP)
    @staticmethod
    def plain(x): return scaled(x)
    @classmethod
    def made(cls, x): return scaled(x)
class Child(Base):
    def __call__(self, x): return scaled(x)
TABLE = {}
class Steps:
    def __init__(self): self.known = {}
    def register(self, name):
        def inner(fn):
            self.known[name] = fn
            def timed(*given): return fn(*given)
            TABLE[name] = timed
            return fn
        return inner
steps = Steps()
@steps.register("a")
def first(x): return scaled(x)
@steps.register("b")
@functools.cache
def second(x): return scaled(x) + 1
class Shelf:
    held = {}
    @classmethod
    def keep(cls, fn):
        cls.held[fn.__name__] = fn
        return fn
@Shelf.keep
def third(x): return scaled(x)
# ---- next cell
def decode(x):
    child = Base.kinds["Child"]()
    return [
        wrapped(x), cached(x), vectorized([x]).tolist(), closed(x), COUNTS[x],
        Box().size, Box().known, child(x), child.two(x), child.step, child.kept, child.plain(x),
        child.made(x), steps.known["b"](x), TABLE["a"](x), Shelf.held["third"](x), first(x),
    ]
pipe = nbpipe.source(range(3)).map(decode)
report = pipe.export("loader.py", check_items=0)
"""


@pytest.mark.slow
def test_functions_reached_by_way_of_others(notebook: Notebook):
    """What wrappers, caches, properties, factories and registries hold comes along, each once."""
    exported = notebook.exported(FRAME + REACHED)
    assert "F821" not in exported.text
    assert "F811" not in exported.text
    for name in ("first", "second", "third", "Child"):
        assert exported.names.count(name) == 1


@pytest.mark.slow
def test_name_that_a_worker_binds(notebook: Notebook):
    """What a function of the module binds by `global` need not be bound by a cell."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def opened():
            global model
            model = 3
        def decode(x): return model + x
        # ---- next cell
        pipe = nbpipe.source(range(3)).map(decode, executor="process", worker_init=opened)
        report = pipe.export("loader.py")
        """
    )
    assert exported.names == ["opened", "decode"]


UNDEFINED = "define it at the top of a cell, import it, or take it out"


@pytest.mark.slow
def test_what_no_module_has(notebook: Notebook):
    """What a fresh process would not have, or not so, is refused with its name and the way out."""
    notebook.run(
        """
        import builtins, functools
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        import nbpipe
        Path("shapes.py").write_text("import functools\\ndef show(x): ...\\n"
                                     "show = functools.singledispatch(show)\\n")
        from shapes import show
        builtins.extra = 1
        FILTERS = {}
        def keep(name):
            def inner(fn):
                FILTERS[name] = fn
                return fn
            return inner
        # ---- next cell
        TABLE = {"a": lambda x: __IPYTHON__}
        def decode(x): return TABLE["a"](x) if x > 9 else x
        def other(x): return extra if x > 9 else x
        def told(x): return nowhere(x)
        def kept(x): return FILTERS["b"](x) if x > 9 else seen(x)
        @keep("b")
        def _(x): return x
        @keep("a")
        def seen(x): return x
        @show.register
        def _(x: int): return x
        def norm(x): return x + 1
        STEPS = [norm]
        def stepped(x): return STEPS[0](x)
        def counter():
            n = 0
            def count(x):
                nonlocal n
                n += 1
                return x, n
            return count
        exec("def spoken(x):\\n    return x + 1")
        pool = ThreadPoolExecutor(2)
        def unset(x): return late
        def wrapped(x): return x
        wrapped = functools.cache(wrapped)
        def sets():
            global late
            late = 1
        # ---- next cell
        def norm(x): return x + 2
        """
    )
    words = {
        "decode": f"'__IPYTHON__' is not defined in the module; {UNDEFINED}\n  used by: variable "
        "'TABLE', assigned in In[2] <- decode() [In[2]] <- stage 'decode'",
        "other": f"'extra' is not defined in the module; {UNDEFINED}\n  used by: function 'other', "
        "defined in In[2] <- stage 'other'",
        "told": "'nowhere' is not defined; define it, or take it out\n  used by: told() [In[2]] <- "
        "stage 'told'",
        "kept": "FILTERS['b'] holds a function that has no name by now, so the module would not "
        "put it there; give each function a name of its own, by def\n  used by: kept() [In[2]] <- "
        "stage 'kept'",
        "show": "the module would use a function without what is added to it: `@show.register def "
        "_(x: int): return x` in In[2] acts by side effect and is not in the module; to keep it, "
        "begin its cell with the line `#| nbpipe: setup`",
        "wrapped": "variable 'wrapped', assigned in In[2], wraps what had this name before; write "
        "the wrapper as a decorator above the definition, or give what it wraps a name of its own\n"
        "  used by: stage 'wrapped'",
        "stepped": "cannot write variable 'STEPS', assigned in In[2] into the module: the pipeline "
        "still uses an older 'norm' (In[2]); it was redefined since: rebuild the pipeline, then "
        "export\n  used by: stepped() [In[2]] <- stage 'stepped'",
        "counter()": "count() [In[2]] changes the variable 'n' of the function around it "
        "(`nonlocal`), which no module can hold; keep that state in a class with __call__\n"
        "  used by: stage 'count'",
        "spoken": "the text of 'spoken' is not known: it was made neither in a cell nor in a file; "
        "define it in a cell, or import it\n  used by: stage 'spoken'",
        "len, executor=pool": "variable 'pool' is a live ThreadPoolExecutor; give "
        'executor="thread" or executor="process"\n  used by: stage \'len\'',
        "unset": f"'late' is not defined in the module; {UNDEFINED}\n  used by: function 'unset', "
        "defined in In[2] <- stage 'unset'",
    }
    for name, expected in words.items():
        error = notebook.failed(f"nbpipe.source(range(2)).map({name}).export('loader.py')")
        assert (error.kind, error.text) == ("ExportError", expected)
    assert not (notebook.folder / "loader.py").exists()


UNBOUND = {
    "def f(x):\n    return nope(x)\n": {"nope"},
    "def f(x: 'Nope') -> 'list[Other]':\n    return x\n": {"Nope", "Other", "list"},
    "X = 1\ndef f():\n    global late\n    late = X\n\ndef g():\n    return late\n": set(),
    "class A:\n    y = 1\n    def f(self):\n        return y\n": {"y"},
    "F = [lambda x: x + step for step in range(3)]\n": {"range"},
    "for n in (1, 2):\n    pass\nX = n\n": set(),
    "def f(x):\n    return [one for one in x if kept(one)]\n": {"kept"},
}


@pytest.mark.parametrize("text", UNBOUND)
def test_names_that_nothing_binds(text: str):
    """Names that a module reads and does not bind are found wherever it reads them."""
    assert names_unbound(text, future=False) == UNBOUND[text]
