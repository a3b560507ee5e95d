"""Notebooks that hold what no module can: live objects, secrets, what is out of date."""

import re

import pytest

from tests.export.notebooks import Notebook, cells_of, holds

FRAME = """
import nbpipe
# ---- next cell
{made}
# ---- next cell
def helper(x):
    return {read}
# ---- next cell
def decode(x):
    return helper(x)
# ---- next cell
pipe = nbpipe.source(range(2)).map(decode)
# ---- next cell
pipe.export("loader.py")
"""
CHAIN = "  used by: helper() [In[3]] <- decode() [In[4]] <- stage 'decode'"
LIVE = {
    "numbers": (
        "numbers = (n for n in range(9))",
        "next(numbers)",
        "generator",
        "write a function that makes it, and call that inside the stage",
    ),
    "log": (
        "log = open('log.bin', 'wb')",
        "log.name",
        "BufferedWriter on 'log.bin'",
        "open it inside the stage instead",
    ),
    "slider": (
        "import ipywidgets\nslider = ipywidgets.IntSlider(3)",
        "x * slider.value",
        "IntSlider",
        "take what the stage needs out of it, as plain values, as widget.value",
    ),
}


@pytest.mark.parametrize("name", LIVE)
def test_live_object(notebook: Notebook, name: str):
    """What lives in this process alone is refused, with its name, its type and who uses it."""
    made, read, live_type, way = LIVE[name]
    if name == "slider":
        pytest.importorskip("ipywidgets")
    first, chain = notebook.refused(FRAME.format(made=made, read=read)).split("\n")
    assert first == f"variable '{name}' is a live {live_type}; {way}"
    assert chain == CHAIN


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("_", "_ + x"),
        ("In", "len(In)"),
        ("Out", "len(Out)"),
        ("_2", "_2 + x"),
        ("get_ipython", "get_ipython().execution_count"),
        ("display", "display(x)"),
    ],
)
def test_name_of_the_notebook(notebook: Notebook, name: str, read: str):
    """What only a notebook has is refused by its name."""
    first, chain = notebook.refused(FRAME.format(made="40 + 2", read=read)).split("\n")
    assert f"'{name}'" in first or f"{name}()" in first
    assert "notebook" in first
    assert chain == CHAIN


SECRET = "hf_9fKq2LxZtB7mVnPwRsYdEaGcJhUi4o"
SECRETS = {
    "nested": (f'CONFIG = {{"hub": {{"token": "{SECRET}", "retries": 3}}}}', "CONFIG"),
    "inside": (
        f'def hub(x):\n    headers = {{"Authorization": "Bearer {SECRET}"}}\n    return x',
        "hub(x)",
    ),
    "comment": (f"# token: {SECRET}\nRETRIES = 3", "RETRIES"),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secret(notebook: Notebook, kind: str):
    """A secret is refused, and is in no file, no error and no command line."""
    made, read = SECRETS[kind]
    *before, last = cells_of(FRAME.format(made=made, read=read))
    started = notebook.temp / "started.txt"
    for cell in before:
        notebook.kernel.run(cell)
    within = "__import__('tests.export.within', fromlist=['audit'])"
    notebook.kernel.run(f"{within}.audit({str(started)!r})")
    error = notebook.failed(last)
    assert error.kind == "ExportError"
    assert error.text.endswith(CHAIN) or "hub() [In[2]] <- helper()" in error.text
    everywhere = [notebook.folder, notebook.cache, notebook.temp]
    assert holds(everywhere, SECRET[3:]) == []
    assert SECRET[3:] not in error.text + error.shown


def test_secret_of_the_environment(notebook: Notebook):
    """A secret that is looked up stays a look-up, and a copy of it in a constant is refused."""
    notebook.env |= {"HUB_TOKEN": SECRET}
    words = """
        import os
        import nbpipe
        # ---- next cell
        TOKEN = os.environ["HUB_TOKEN"]
        KEY = os.getenv("MISSING_KEY", "")
        # ---- next cell
        def decode(x):
            return len(TOKEN) + len(KEY) + x
        # ---- next cell
        pipe = nbpipe.source(range(2)).map(decode)
        report = pipe.export("loader.py")
        """
    exported = notebook.exported(words)
    assert 'TOKEN = os.environ["HUB_TOKEN"]\nKEY = os.getenv("MISSING_KEY", "")\n' in exported.text
    assert holds([notebook.folder, notebook.cache], SECRET) == []


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


@pytest.mark.parametrize(
    ("made", "read", "words"),
    [
        ("import numpy as np\nrng = np.random.default_rng()", "rng.normal()", "'rng'.*seed"),
        ("GONE = 3\ndel GONE", "GONE + x", "'GONE'"),
    ],
)
def test_what_no_module_can_have(notebook: Notebook, made: str, read: str, words: str):
    """A generator without a seed, and a name that was deleted since, are refused by their names."""
    first, chain = notebook.refused(FRAME.format(made=made, read=read)).split("\n")
    assert re.search(words, first)
    assert chain == CHAIN


def test_secrets_of_magics_and_statements(notebook: Notebook):
    """What magics and statements say beside the exported code is in no note, file or record."""
    word, token = "hunter901kx7", "hf_abcdefghijKLmnopqrstuv901"
    words = f"""
        import os
        import nbpipe
        # ---- next cell
        %env DB_PASSWORD={word}
        %set_env HUB {token}
        !true -u bob:{word}
        # ---- next cell
        os.environ["API_KEY"] = "{word}x"
        os.environ.update(DATABASE_URL="postgres://bob:{word}@example.org/data")
        PASSWORD = os.environ["DB_PASSWORD"]
        # ---- next cell
        def decode(x):
            return len(PASSWORD) + len(os.environ["HUB"]) + x
        # ---- next cell
        pipe = nbpipe.source(range(2)).map(decode)
        report = pipe.export("loader.py", check_items=0)
        # ---- next cell
        HEADERS = {{}}
        HEADERS["X-Thing"] = f"for {{PASSWORD}}"
        def decode(x):
            return HEADERS, x
        # ---- next cell
        nbpipe.source(range(2)).map(decode).export("refused.py")
        """
    *before, last = cells_of(words)
    notebook.run("\n# ---- next cell\n".join(before))
    error = notebook.failed(last)
    notebook.kernel.run("open('told.txt', 'w').write(str(report) + repr(report))")
    told = (notebook.folder / "told.txt").read_text()
    assert "note: `***` in In[3] acts by side effect" in told
    assert "variable 'HEADERS' holds HEADERS['X-Thing']" in error.text
    everywhere = [notebook.folder, notebook.cache, notebook.temp]
    for secret in (word, token):
        assert holds(everywhere, secret) == []
        assert secret not in error.shown


COLLATE = """
import threading
import nbpipe
class Collate:
    def __init__(self):
        self.lock = threading.Lock()
    def __call__(self, items):
        with self.lock:
            return sum(items)
collate = Collate()
# ---- next cell
pipe = nbpipe.source(range(4)).batch(2, collate=collate, executor="process")
# ---- next cell
pipe.export("loader.py", check_items=0)
"""


def test_collate_that_no_process_takes(notebook: Notebook):
    """What makes batches in other processes is pickled, too, though no item is compared."""
    words = notebook.refused(COLLATE)
    assert words.startswith("stage 'batch' runs in other processes, and they could not be sent its")
