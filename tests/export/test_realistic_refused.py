"""Notebooks that hold what no module can: live objects, secrets, what is out of date."""

import re

import pytest

from tests.export.notebooks import Notebook, cells_of, holds, lacking

pytestmark = pytest.mark.slow

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
CHAIN = ("used by", "helper() [In[3]] <- decode() [In[4]]")  # who uses it
LIVE = {
    "numbers": (
        "numbers = (n for n in range(9))",
        "next(numbers)",
        "generator",
        "inside the stage",
    ),
    "log": (
        "log = open('log.bin', 'wb')",
        "log.name",
        "BufferedWriter",
        "open it inside the stage",
    ),
    "slider": (
        "import ipywidgets\nslider = ipywidgets.IntSlider(3)",
        "x * slider.value",
        "IntSlider",
        "take what the stage needs out of it",
    ),
}


@pytest.mark.parametrize("name", LIVE)
def test_live_object(notebook: Notebook, name: str):
    """What lives in this process alone is refused, with its name, its type and who uses it."""
    made, read, live_type, way = LIVE[name]
    if name == "slider":
        pytest.importorskip("ipywidgets")
    words = notebook.refused(FRAME.format(made=made, read=read))
    assert lacking(words, f"variable '{name}'", f"is a live {live_type}", way, *CHAIN) == [], words


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
    """What only a notebook has is refused by its name, or as the line of a magic."""
    words = notebook.refused(FRAME.format(made="40 + 2", read=read))
    assert re.search(rf"'{name}'|{name}\(\)|magic", words), words
    assert re.search("notebook|IPython|module", words), words
    assert lacking(words, "helper() [In[3]]") == [], words


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
    assert lacking(error.text, "secret", "helper() [In[3]]") == [], error.text
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
    assert exported.has('TOKEN = os.environ["HUB_TOKEN"]\nKEY = os.getenv("MISSING_KEY", "")')
    assert holds([notebook.folder, notebook.cache], SECRET) == []


@pytest.mark.parametrize(
    ("made", "read", "name"),
    [
        ("import numpy as np\nrng = np.random.default_rng()", "rng.normal()", "'rng'"),
        ("GONE = 3\ndel GONE", "GONE + x", "'GONE'"),
    ],
)
def test_what_no_module_can_have(notebook: Notebook, made: str, read: str, name: str):
    """A generator without a seed, and a name that was deleted since, are refused by their names."""
    words = notebook.refused(FRAME.format(made=made, read=read))
    assert lacking(words, name, "In[", "helper() [In[3]]") == [], words


def test_secrets_of_magics_and_statements(notebook: Notebook):
    """What magics and statements say beside the exported code is in no note, file or record.

    A value made of a secret look-up is refused, or its statements are copied.
    """
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
        said = ""
        try:
            more = nbpipe.source(range(2)).map(decode).export("headers.py", check_items=0)
        except nbpipe.ExportError as error:
            more, said = None, str(error)
        # ---- next cell
        open("told.txt", "w").write(str(report) + repr(report) + str(more) + repr(more) + said)
        """
    notebook.run(words)
    assert (notebook.folder / "loader.py").exists()
    everywhere = [notebook.folder, notebook.cache, notebook.temp]
    assert [holds(everywhere, secret) for secret in (word, token)] == [[], []]


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
report = pipe.export("loader.py")
open("notes.txt", "w").write(str(report.notes))
"""


def test_collate_that_no_process_takes(notebook: Notebook):
    """A pipeline that fails in the notebook fails in the module, and a note says why."""
    notebook.run(COLLATE)
    notes = (notebook.folder / "notes.txt").read_text()
    assert lacking(notes, "'batch'", "sent", "notebook's own pipeline") == [], notes
