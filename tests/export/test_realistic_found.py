"""Notebooks in which export once went wrong."""

import pytest

from tests.export.notebooks import Notebook

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


def test_object_fitted_where_it_is_made(notebook: Notebook):
    """One statement that makes and fits an object is kept as it is."""
    exported = notebook.exported(FITTED + "vocab = Vocab().fit('ab')  # letters" + LOOK_UP)
    assert "vocab = Vocab().fit('ab')  # letters\n" in exported.text


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
    assert exported.parameters == "*, step_concurrency_2: int=3, batch_size_2: int=2"


def test_library_decorators(notebook: Notebook):
    """A function in a library's wrapper is written with its decorator, and what it reads."""
    exported = notebook.exported(
        """
        import contextlib
        import functools
        import nbpipe
        # ---- next cell
        STEP = 2
        @contextlib.contextmanager
        def noted():
            yield STEP
        @noted()
        def run(x): return x + STEP
        @functools.singledispatch
        def show(x): return str(x)
        @show.register
        def _(x: int): return x * STEP
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(run).map(show)
        report = pipe.export("loader.py")
        """
    )
    assert "@noted()\ndef run(x): return x + STEP\n" in exported.text
    assert "@show.register\ndef _(x: int): return x * STEP\n" in exported.text


def test_class_that_changes_its_registry(notebook: Notebook):
    """A registry that a class fills by `cls` comes along with the classes in it."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        class Step:
            known = {}
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                cls.known[cls.__name__] = cls
        # ---- next cell
        class Twice(Step):
            def __call__(self, x): return x * 2
        # ---- next cell
        def decode(x):
            return Step.known["Twice"]()(x)
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert exported.names.index("Step") < exported.names.index("Twice")


def test_logger_that_is_set_up(notebook: Notebook):
    """A logger is written by its name, whatever its handlers hold; the set-up is named."""
    exported = notebook.exported(
        """
        import logging
        import nbpipe
        # ---- next cell
        logging.basicConfig(level=logging.INFO)
        log = logging.getLogger("prep")
        # ---- next cell
        def decode(x):
            log.debug("item %s", x)
            return x
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert 'log = logging.getLogger("prep")\n' in exported.text
    assert any("logging.basicConfig" in note for note in exported.notes)
