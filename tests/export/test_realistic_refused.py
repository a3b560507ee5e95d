"""Notebooks that hold what no module can: live objects, secrets, what is out of date."""

import pytest

from tests.export.notebooks import Notebook, cells_of, holds
from tests.kernel.client import CellError

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
STAGE = "open it inside the stage, or in worker_init, instead"
LIVE = {
    "numbers": (
        "numbers = (n for n in range(9))",
        "next(numbers)",
        "generator",
        "write a function that makes it, and call that inside the stage",
    ),
    "link": (
        "import socket\nlink = socket.socket()\nlink.close()",
        "link.fileno()",
        "socket",
        STAGE,
    ),
    "base": (
        "import sqlite3\nbase = sqlite3.connect(':memory:')",
        "base.execute('select 1').fetchone()",
        "Connection",
        STAGE,
    ),
    "log": (
        "log = open('log.bin', 'wb')",
        "log.name",
        "BufferedWriter on 'log.bin'",
        "open it inside the stage instead",
    ),
    "worker": (
        "import threading\nworker = threading.Thread(target=print)",
        "worker.name",
        "Thread",
        "start it inside the stage, or in worker_init, instead",
    ),
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)",
        "pool._max_workers",
        "ThreadPoolExecutor",
        "make it inside the stage instead",
    ),
    "job": (
        "import subprocess, sys\njob = subprocess.Popen([sys.executable, '-c', ''])\njob.wait()",
        "job.returncode",
        "Popen",
        "start it inside the stage instead",
    ),
    "bar": (
        "from tqdm import tqdm\nbar = tqdm(total=3)",
        "bar.total",
        "tqdm",
        "leave the progress bar out: nbpipe.progress() shows one",
    ),
    "run": (
        "run = nbpipe.source([1]).start()\nrun.close()",
        "run.epoch",
        "Run",
        "a stage cannot hold a run: take what it needs out of it, as plain values",
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
    library = {"bar": "tqdm", "slider": "ipywidgets"}.get(name)
    if library:
        pytest.importorskip(library)
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
    "nested": f'CONFIG = {{"hub": {{"token": "{SECRET}", "retries": 3}}}}',
    "named": 'db_password = "correct horse battery staple"',
    "prefix": f'HUB = "{SECRET}"',
    "bytes": f'HUB = b"{SECRET}"',
    "built": f'HUB = "hf_" + "{SECRET[3:]}"',
    "url": 'DB = "postgresql://me:Xk29fjQ1vLp@db.example.com/data"',
    "dataclass": (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Hub:\n"
        "    retries: int\n"
        "    api_key: str\n"
        f'hub = Hub(3, "{SECRET}")'
    ),
    "default": f'def hub(x, token="{SECRET}"):\n    return x',
    "inside": f'def hub(x):\n    headers = {{"Authorization": "Bearer {SECRET}"}}\n    return x',
    "f-string": f'import os\nHEADER = f"Bearer {SECRET} {{os.sep}}"',
    "comment": f"# token: {SECRET}\nRETRIES = 3",
}
READS = {"nested": "CONFIG", "named": "db_password", "dataclass": "hub.retries", "url": "DB"}
READS |= {"default": "hub(x)", "inside": "hub(x)", "f-string": "HEADER", "comment": "RETRIES"}


@pytest.mark.parametrize("kind", SECRETS)
def test_secret(notebook: Notebook, kind: str):
    """A secret is refused, and is in no file, no error and no command line."""
    *before, last = cells_of(FRAME.format(made=SECRETS[kind], read=READS.get(kind, "HUB")))
    started = notebook.temp / "started.txt"
    for cell in before:
        notebook.kernel.run(cell)
    within = "__import__('tests.export.within', fromlist=['audit'])"
    notebook.kernel.run(f"{within}.audit({str(started)!r})")
    error = notebook.failed(last)
    assert error.kind == "ExportError"
    assert error.text.endswith(CHAIN) or "hub() [In[2]] <- helper()" in error.text
    everywhere = [notebook.folder, notebook.cache, notebook.temp]
    for secret in (SECRET, SECRET[3:], "correct horse", "Xk29fjQ1vLp"):
        assert holds(everywhere, secret) == []
        assert secret not in error.text
        assert secret not in error.shown


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


def test_generator_without_a_seed(notebook: Notebook):
    """A generator without a seed is refused: no module can begin where it stands."""
    made = "import numpy as np\nrng = np.random.default_rng()"
    first, chain = notebook.refused(FRAME.format(made=made, read="rng.normal()")).split("\n")
    assert "'rng'" in first
    assert "seed" in first
    assert chain == CHAIN


def test_missing_name(notebook: Notebook):
    """A name that was deleted since is named, not found out when the module runs."""
    made = "GONE = 3\ndel GONE"
    first, chain = notebook.refused(FRAME.format(made=made, read="GONE + x")).split("\n")
    assert "'GONE'" in first
    assert chain == CHAIN


def test_raised_errors_are_of_one_kind(notebook: Notebook):
    """An export that is refused raises one error without a cause from within."""
    made = "import io\nbuffer = open('log.txt', 'w')"
    *before, last = cells_of(FRAME.format(made=made, read="buffer.name"))
    for cell in before:
        notebook.kernel.run(cell)
    error: CellError = notebook.failed(last)
    assert (error.kind, error.shown.count("Traceback")) == ("ExportError", 1)


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
    assert "`os.environ['API_KEY'] = '***'`" in told
    assert "variable 'HEADERS' holds HEADERS['X-Thing']" in error.text
    everywhere = [notebook.folder, notebook.cache, notebook.temp]
    for secret in (word, token):
        assert holds(everywhere, secret) == []
        assert secret not in error.shown
