"""What lives in one process is found wherever it is, and is never made anew by an assignment."""

import contextlib
import csv
import functools
import io
import itertools
import logging
import mmap
import queue
import shelve
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import types
import zipfile
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbpipe
from nbpipe.export.reachable import handle_in
from tests.export.notebooks import Notebook, lacking

INSTEAD = "open it inside the stage, or in worker_init, instead"
CACHED = ", or in a function under @functools.cache, which opens it once in each process"


@pytest.fixture
def opened(tmp_path: Path):
    """Give what is closed at the end: `opened(thing)` gives it back."""
    with contextlib.ExitStack() as stack:

        def kept(one):
            if isinstance(one, sqlite3.Cursor):  # it is closed, but its connection is not
                stack.callback(one.connection.close)
            stack.callback(getattr(one, "close", None) or getattr(one, "cleanup", None) or str)
            return one

        kept.path = tmp_path / "file"
        yield kept


KINDS = {
    "file": lambda path: path.open("w"),
    "bytes in memory": lambda _: io.BytesIO(b"1"),
    "zip": lambda path: zipfile.ZipFile(path, "w"),
    "tar": lambda path: tarfile.TarFile(path, "w"),
    "shelf": lambda path: shelve.open(str(path)),  # noqa: SIM115
    "socket": lambda _: socket.socket(),
    "connection": lambda _: sqlite3.connect(":memory:"),
    "cursor": lambda _: sqlite3.connect(":memory:").cursor(),
    "memory": lambda _: mmap.mmap(-1, 8),
    "folder": lambda _: tempfile.TemporaryDirectory(),
    "temporary file": lambda _: tempfile.NamedTemporaryFile(),  # noqa: SIM115
    "thread": lambda _: threading.Thread(target=print),
    "generator": lambda _: (n for n in range(3)),
    "iterator": lambda _: iter([1]),
    "rows": lambda _: csv.reader(["a,b"]),
    "log file": logging.FileHandler,
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str, opened):
    """Each is found by its type, in a container as well as alone."""
    made = opened(KINDS[kind](opened.path))
    alone = handle_in("RES", made)
    inside = handle_in("RES", {"a": [1, made]})
    assert (alone.place, alone.value, alone.attribute) == ("RES", made, "")
    assert (inside.place, inside.value) == ("RES['a'][1]", made)


def finished():
    """Start a process, and wait for its end."""
    job = subprocess.Popen([sys.executable, "-c", ""])
    job.wait()
    return job


MAKE = "create it inside the stage instead"
START = "start it inside the stage, or in worker_init, instead"
WAYS = {
    "socket": (socket.socket, "socket", INSTEAD),
    "thread": (lambda: threading.Thread(target=print), "Thread", START),
    "pool": (lambda: ThreadPoolExecutor(1), "ThreadPoolExecutor", MAKE),
    "process": (finished, "Popen", "start it inside the stage instead"),
    "progress bar": (
        lambda: pytest.importorskip("tqdm").tqdm(total=3, disable=True),
        "tqdm",
        "leave the progress bar out: nbpipe.progress() shows one",
    ),
    "run": (
        lambda: nbpipe.source([1]).start(),
        "Run",
        "a stage cannot hold a run: take what it needs out of it, as plain values",
    ),
}


@pytest.mark.parametrize("kind", WAYS)
def test_ways_out(kind: str, opened):
    """It is told by its type what to do instead."""
    make, live_type, way = WAYS[kind]
    assert handle_in("res", opened(make())).words == f"res is a live {live_type}; {way}"


def test_what_a_library_closes_and_nobody_can_send(opened):
    """No list of types is needed: it has a `close`, and cannot be pickled."""
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table({"a": [1]}), opened.path)
    made = opened(parquet.ParquetFile(opened.path))
    assert handle_in("res", made).words == f"res is a live ParquetFile; {INSTEAD}"


def test_what_a_library_closes_and_anybody_can_send(opened):
    """A picture is closed, too, and is a value; so is one that is too large to be looked at."""
    image = pytest.importorskip("PIL.Image")
    for size in (2, 2000):
        assert handle_in("res", opened(image.new("RGB", (size, size)))) is None


class Box:
    """Anything that holds something."""

    def __init__(self, held):
        self.held = held

    def get(self):
        """Give it."""
        return self.held


class Slots:
    """Something without a dict."""

    __slots__ = ("held",)


class Kept(Box):
    """Something that leaves out what it holds."""

    def __getstate__(self):
        """Give nothing."""
        return {}


@dataclass
class Record:
    """Something with fields."""

    held: Any = field(default=None)


def made(held):
    """Make functions that capture something."""

    def inner():
        return held

    @functools.wraps(inner)
    def outer():
        return inner()

    return inner, outer


def given(held):
    """Make a function that has something as a default."""

    def inner(x, db=held, *, other=held):
        return x, db, other

    return inner


def attributed(held):
    """Make a function that has something as an attribute."""
    inner = made(None)[0]
    inner.db = held
    return inner


def slotted(held):
    """Fill a slot."""
    one = Slots()
    one.held = held
    return one


PLACES = {
    "dict": (lambda h: {"a": {1: h}}, "RES['a'][1]", ""),
    "key": (lambda h: {h: 1}, "a key of RES", ""),
    "set": (lambda h: frozenset({h}), "an element of RES", ""),
    "deque": (lambda h: deque([0, h]), "RES[1]", ""),
    "defaultdict": (lambda h: defaultdict(list, a=[h]), "RES['a'][0]", ""),
    "mapping proxy": (lambda h: types.MappingProxyType({"a": h}), "RES['a']", ""),
    "namespace": (lambda h: types.SimpleNamespace(a=h), "RES.a", "a"),
    "array": (lambda h: np.array([h, None], dtype=object), "RES[...][0]", ""),
    "attribute": (lambda h: Box([h]), "RES.held[0]", "held"),
    "slot": (slotted, "RES.held", "held"),
    "field": (Record, "RES.held", "held"),
    "captured": (lambda h: made({"a": h})[0], "held['a'] (captured by inner())", ""),
    "captured in a wrapper": (lambda h: made(h)[1], "held (captured by inner())", ""),
    "cached": (lambda h: functools.cache(made(h)[0]), "held (captured by inner())", ""),
    "default": (given, "db (a default of inner())", ""),
    "attribute of a function": (attributed, "inner.db", ""),
    "partial": (lambda h: functools.partial(print, h), "0 (an argument of RES)", ""),
    "bound method": (lambda h: Box(h).get, "RES.__self__.held", "__self__"),
    "class": (lambda h: type("Opened", (), {"db": {"a": h}}), "RES.db['a']", "db"),
    "property": (
        lambda h: type("Opened", (), {"db": property(made(h)[0])}),
        "held (captured by inner())",
        "",
    ),
    "vectorized": (lambda h: np.vectorize(made(h)[0]), "held (captured by inner())", ""),
    "library": (contextlib.closing, "RES.thing", "thing"),
}


@pytest.mark.parametrize("place", PLACES)
def test_places(place: str, opened):
    """It is found in whatever holds it, and named as the user would reach it."""
    make, words, attribute = PLACES[place]
    held = opened(sqlite3.connect(":memory:"))
    found = handle_in("RES", make(held))
    assert (found.place, found.value, found.attribute) == (words, held, attribute)
    assert found.way_out == INSTEAD + CACHED


class Client:
    """A class of the user's, whatever its name."""

    def __init__(self):
        self.lock = threading.Lock()

    def close(self):
        """Do nothing."""


class Session(Client):
    """Another one."""


class Odd(list):
    """A list that cannot be read."""

    def __iter__(self):
        """Raise."""
        raise ValueError


FINE = {
    "a list that cannot be read": lambda: Odd([1]),
    "own classes": lambda: [Client(), Session(), {"a": Client}],
    "left out of the state": lambda: Kept(sys.stdout),
    "locks": lambda: [threading.Lock(), threading.Condition(), threading.Event()],
    "a queue": queue.Queue,
    "one for each thread": threading.local,
    "a logger": lambda: [logging.getLogger("nbpipe"), logging.StreamHandler()],
    "modules and functions of libraries": lambda: [io, sqlite3.connect, open],
    "standard streams": lambda: [sys.stdout],
    "counters": lambda: itertools.count(3),
    "an array": lambda: [np.arange(9), np.array(["a"], dtype=object)],
    "many": lambda: [(n, str(n)) for n in range(1000)],
    "itself": lambda: (held := []).append(held) or held,
}


@pytest.mark.parametrize("value", FINE)
def test_what_is_none(value: str):
    """A user's own class is none, whatever its name; nor is what a module may make for itself."""
    assert handle_in("RES", FINE[value]()) is None


HELD = """
import functools, io, sqlite3, zipfile
import nbpipe
class Store:
    def __init__(self): self.opened = {"db": sqlite3.connect(":memory:")}
    def get(self, x): return x
class Reader:
    db = [sqlite3.connect(":memory:")]
    def __call__(self, x): return x
class Again:
    def __init__(self): self.open()
    def open(self): self.db = sqlite3.connect(":memory:")
    def __call__(self, x):
        if x > 9: self.open()
        return x
def bound(held):
    def inner(x): return x if x < 9 else held["db"]
    return inner
# ---- next cell
RES = {"db": sqlite3.connect(":memory:")}
RES["db"].execute("create table t (n)")
COUNTED = {"db": sqlite3.connect(":memory:"), "n": 0}
ARCHIVE = zipfile.ZipFile(io.BytesIO(), "w")
store = Store()
reader = Reader()
again = Again()
closed = bound({"db": sqlite3.connect(":memory:")})
def by_key(x): return x if x < 9 else RES["db"].execute("select n from t").fetchone()
def counted(x):
    COUNTED["n"] += 1
    return x
def packed(x): return x if x < 9 else ARCHIVE.read("a")
def stored(x): return store.get(x)
def called(x): return closed(x)
def defaulted(x, db=sqlite3.connect(":memory:")): return x
"""
REFUSED = {  # words that lead to it
    "by_key": ("RES['db']", "Connection", "In["),
    "counted": ("COUNTED['db']", "Connection", "'COUNTED'"),
    "packed": ("ARCHIVE", "ZipFile", "'ARCHIVE'"),
    "stored": ("store.opened['db']", "Connection"),
    "store.get": ("opened['db']", "Connection"),
    "Store().get": ("opened['db']", "Connection", "'get'"),
    "reader": ("Reader.db[0]", "Connection"),
    "again": ("again.db", "Connection"),
    "called": ("held['db'] (captured by inner())", "Connection"),
    "closed": ("held['db'] (captured by inner())", "Connection"),
    "defaulted": ("db (a default of defaulted())", "Connection"),
    "lambda x, db=[RES]: x": ("RES['db']", "Connection"),
    "functools.partial(bound, held=[ARCHIVE])": ("ZipFile",),
}


@pytest.mark.slow
def test_handles_of_a_notebook(notebook: Notebook):
    """Each is refused by the path that leads to it, with the way out."""
    notebook.run(HELD)
    for stage, words in REFUSED.items():
        error = notebook.failed(f"nbpipe.source(range(2)).map({stage}).export('loader.py')")
        assert error.kind == "ExportError"
        missing = lacking(error.text, "live", "open it inside the stage", *words)
        assert missing == [], error.text
    assert not (notebook.folder / "loader.py").exists()


@pytest.mark.slow
def test_what_is_opened_when_it_is_needed(notebook: Notebook):
    """What functions open by themselves, once in each process, begins without it."""
    exported = notebook.exported(
        """
        import functools, sqlite3
        import nbpipe
        # ---- next cell
        def opened(): return sqlite3.connect(":memory:", check_same_thread=False)
        BASE, BASES = None, {}
        @functools.cache
        def kept(): return opened()
        def base():
            global BASE
            if BASE is None:
                BASE = opened()
            return BASE
        def shared():
            if "db" not in BASES:
                BASES["db"] = opened()
            return BASES["db"]
        class Store:
            def __init__(self): self.base = None
            def __call__(self, x):
                if self.base is None:
                    self.base = opened()
                return self.base.execute(f"select {x}").fetchone()
        class Client:
            def __init__(self, step): self.step = step
            def close(self): ...
        SESSIONS = {"a": Client(2)}
        store = Store()
        def decode(x):
            found = [one().execute("select 1").fetchone() for one in (kept, base, shared)]
            return x, SESSIONS["a"].step, found
        # ---- next cell
        decode(1), store(1)
        pipe = nbpipe.source(range(2)).map(decode, executor="inline").map(lambda x: x[0])
        pipe = pipe.map(store, executor="inline")
        report = pipe.export("loader.py")
        """,
        state=["base"],
    )
    assert exported.has("BASE, BASES = None, {}")
    assert exported.has("store = Store()")
