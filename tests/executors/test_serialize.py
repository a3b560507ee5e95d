"""Functions on their way to another process: what goes along, what cannot, what is the same."""

import functools
import importlib.util
import json
import logging
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import nbpipe
from nbpipe import UnpicklableError
from tests import gates
from tests.executors.conftest import loose_module, output_of
from tests.executors.inner import (
    FusedPart,
    FusedProgram,
    Map,
    captured,
    importable,
    load,
    serialize,
    warn_if_large,
)

ROOT = Path(__file__).resolve().parents[2]
LOADS = """
import json, sys
from nbpipe.executors.workers.serialize import load
functions = load(sys.stdin.buffer.read())
print(json.dumps({name: function(4) for name, function in functions.items()}))
"""


def in_child(data):
    """Give what functions return in a fresh process."""
    return json.loads(output_of(LOADS, data))


def cell(code, names=None):
    """Run a notebook's cell; give its variables."""
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(code, "<cell>", "exec"), names)
    return names


def digest(value):
    """Give the digest of a value that is serialized."""
    return serialize(value, stage="work").digest


# -- what arrives ----------------------------------------------------------------------------------
CELL = """
import functools, math
import numpy as np

factor = 3

def helper(x):
    return x * factor

def uses_helper(x):
    return helper(x) + 1

def factorial(x):
    return 1 if x < 2 else x * factorial(x - 1)

def around(a):
    def middle(b):
        def inner(x):
            return [x, a, b]
        return inner
    return middle

def uses_numpy(x):
    return int(np.arange(x).sum()) + math.floor(1.5)

@functools.lru_cache(maxsize=7)
def cached(x):
    return x + cached(x - 1) if x else 0

def decorate(function):
    @functools.wraps(function)
    def decorated(x):
        return [function.__name__, function(x)]
    return decorated

@decorate
def plain(x):
    return x

class Base:
    def __init__(self, n):
        self.n = n
    def add(self, x):
        return x + self.n

class Adder(Base):
    calls = 0
    def __call__(self, x):
        type(self).calls += 1
        return super().add(x) + self.calls
    @functools.lru_cache
    def slow(self, x):
        return x - self.n
    @classmethod
    def zero(cls, x):
        return cls(0).add(x)
    @staticmethod
    def still(x):
        return x

async def later(x):
    return x
"""
MODULE = """
import dataclasses, enum

OFFSET = 10

class Kind(enum.Enum):
    ONE = 1

@dataclasses.dataclass
class Point:
    x: int
    def moved(self):
        return Point(self.x + OFFSET)

def move(x):
    return [Point(x).moved().x, Kind(1) is Kind.ONE]
"""
ARRIVES = {
    "helper": 13,
    "recursive": 24,
    "nested closures": [4, 1, 2],
    "lambda": 12,
    "lambda with a default": 9,
    "partial": 64,
    "numpy": 7,
    "cached": 10,
    "decorated": ["plain", 4],
    "callable instance": 7,
    "bound method": 6,
    "cached method": 2,
    "class method": 4,
    "static method": 4,
    "builtin": 4.0,
    "function of the standard library": "[4]",
    "loaded from a path": [14, True],
    "method of a class loaded from a path": 15,
    "module loaded from a path": 10,
    "data": 12,
}


def outside(x, *, add):
    """Stand for a function with a keyword."""
    return x + add


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    """Give a module that was loaded by its path, from a folder that is not searched."""
    with loose_module(tmp_path_factory.mktemp("loose") / "loose_module.py", MODULE) as module:
        yield module


@pytest.fixture(scope="module")
def arrived(loose):
    """Send functions of all kinds to one fresh process; give what they return for 4 there."""
    names = cell(CELL)
    table = np.arange(5) * 3
    adder = names["Adder"](2)
    point = loose.Point(5)
    functions = {
        "helper": names["uses_helper"],
        "recursive": names["factorial"],
        "nested closures": names["around"](1)(2),
        "lambda": lambda x: int(table[x]),
        "lambda with a default": lambda x, y=5: x + y,
        "partial": functools.partial(outside, add=60),
        "numpy": names["uses_numpy"],
        "cached": names["cached"],
        "decorated": names["plain"],
        "callable instance": adder,
        "bound method": adder.add,
        "cached method": functools.partial(names["Adder"].slow, adder),
        "class method": names["Adder"].zero,
        "static method": names["Adder"].still,
        "builtin": float,
        "function of the standard library": lambda x: json.dumps([x]),
        "loaded from a path": loose.move,
        "method of a class loaded from a path": lambda _: point.moved().x,
        "module loaded from a path": lambda _: loose.OFFSET,
        "data": {4: 12}.get,
    }
    return in_child(serialize(functions, stage="work").data)


@pytest.mark.parametrize("kind", ARRIVES)
def test_function_arrives(arrived, kind):
    """A function of any kind does in a fresh process what it does here."""
    assert arrived[kind] == ARRIVES[kind]


@pytest.mark.slow
def test_program_of_a_script(tmp_path):
    """What a script defines, its classes included, arrives from a script run by its name."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom nbpipe.executors.workers.serialize import serialize\n"
        f"{CELL}\n"
        "data = serialize({'a': Adder(5), 'b': uses_helper}, stage='work').data\n"
        "sys.stdout.buffer.write(data)\n"
        "raise SystemExit\n"
    )
    data = subprocess.check_output(
        [sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert in_child(data) == {"a": 10, "b": 13}


def test_functions_share_their_globals():
    """Two functions of one program that share a global variable share it there, too."""
    names = cell("seen = []\ndef add(x): seen.append(x)\ndef count(): return len(seen)\n")
    add, count = load(serialize((names["add"], names["count"]), stage="work").data)
    add(1)
    assert (count(), names["seen"]) == (1, [])


def test_cloudpickle_is_left_as_it_was(loose):
    """No module stays registered to be sent by value, but those that the user registered."""
    cloudpickle.register_pickle_by_value(gates)
    try:
        serialize((loose.move, gates.Gate), stage="work")
        after = cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(gates)
    assert after == {gates.__name__}


BACK = """
import sys
from nbpipe.executors.workers.pickling import dumps
from nbpipe.executors.workers.serialize import load
make, change = load(sys.stdin.buffer.read())
change()
sys.stdout.buffer.write(dumps([make(3), change]))
"""


@pytest.mark.slow
def test_class_that_comes_home():
    """What a worker sends back is of our own class, which stays as it was here."""
    names = cell(
        "import functools\n"
        "step = 1\n"
        "class Point:\n"
        "  limit = 5\n"
        "  def __init__(self, x): self.x = x\n"
        "  @functools.cached_property\n"
        "  def moved(self): return self.x + step\n"
        "  def further(self): return self.moved + step\n"
        "def change(): Point.limit = 6\n"
    )
    point, further = names["Point"], names["Point"].further
    data = serialize((point, names["change"]), stage="work").data
    back, _ = load(output_of(BACK, data))
    names["step"] = 10
    seen = (type(back) is point, point.further is further, point.limit, back.further())
    assert seen == (True, True, 5, 23)


# -- by name or by value ---------------------------------------------------------------------------
def test_modules_that_a_fresh_process_finds(tmp_path, monkeypatch, loose):
    """A module is sent by name where its file is what the import path leads to."""
    package = tmp_path / "package_of_test"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    inner = importlib.import_module("package_of_test.inner")  # in a namespace package
    known = ["json", "os.path", "numpy.linalg", "tests.gates", "nbpipe.run.run", inner.__name__]
    found = [importable(name) for name in known]
    monkeypatch.undo()
    assert ([*found, importable(inner.__name__)], importable(loose.__name__)) == (
        [True] * 6 + [False],
        False,
    )


def test_another_file_of_the_same_name(tmp_path, monkeypatch):
    """A module whose name leads to another file is sent by value."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice_there.py").write_text(f"def f(x): return {folder!r}")
    monkeypatch.syspath_prepend(tmp_path / "one")
    module = importlib.import_module("twice_there")
    monkeypatch.syspath_prepend(tmp_path / "two")
    data = serialize({"f": module.f}, stage="work").data
    del sys.modules["twice_there"]
    assert in_child(data) == {"f": "one"}


# -- digests ---------------------------------------------------------------------------------------
class Thing:
    """Stands for an object with a state."""

    def __init__(self):
        self.words = {"b", "a", "c"}
        self.table = np.arange(10.0)
        self.pairs = [("x" * 3, 1), ("x" * 3, 2)]

    @functools.cached_property
    def later(self):
        return 1


def test_digest_is_stable():
    """The same functions give the same digest after they were called, sent and loaded."""
    names = cell(CELL)
    thing, total = Thing(), 0

    def work(x):
        nonlocal total
        return x in thing.words or names["plain"](x), total

    program = [work, names["Adder"], names["cached"], functools.partial(outside, add=2), thing]
    first = digest(program)
    for _ in range(3):
        work(4)
        names["cached"](9)
        copy = load(serialize(program, stage="work").data)
        copy[0](2)
        digest(copy)
    assert digest(program) == first


@pytest.mark.parametrize(
    "change",
    [
        "def f(x): return g(x) + 2",
        "def g(x): return x - limit",
        "limit = 4",
        "def f(y): return g(y)",
    ],
)
def test_redefined_in_a_cell(change):
    """A function, a helper of it or a global that was changed by a cell changes the digest."""
    names = cell("limit = 3\ndef g(x): return x + limit\ndef f(x): return g(x)")
    outer = cell("def run(x): return f(x)", names)["run"]
    first = digest(outer)
    cell(change, names)
    assert digest(outer) != first


# -- what cannot be sent ---------------------------------------------------------------------------
class Reader:
    """Stands for an object that holds what cannot be sent."""

    def __init__(self, held):
        self.parts = [{"held": held}]

    def read(self, x):
        return x

    def __call__(self, x):
        return x


class Stated:
    """Pickles itself as a list."""

    __module__ = "tests"

    def __init__(self, held):
        self.held = held

    def __getstate__(self):
        return [self.held]


class Slotted:
    """Stands for an object without a dict."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Refuses:
    """Stands for an object that does not want to be pickled."""

    def __reduce__(self):
        raise ValueError("not me")


def refusal(fn):
    """Give the message about a function that cannot be sent, without its beginning."""
    with pytest.raises(UnpicklableError) as caught:
        serialize(
            FusedProgram([FusedPart("decode", Map(fn))], seed=0, executor="process"),
            stage="region",
        )
    start = "stage 'decode' cannot be sent to a process: its function "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


def test_names_a_global_lock():
    """A lock among the globals is named, with its type and the way out."""
    names = cell("import threading\nlock = threading.Lock()\ndef decode(x):\n  with lock: return x")
    assert refusal(names["decode"]) == (
        "uses the global variable 'lock' (_thread.lock), which cannot be pickled; create it "
        "inside the function, or per worker with worker_init; between processes it would guard "
        "nothing"
    )


LOCK = threading.Lock()
WAYS = {
    "closure": "uses the variable 'held' (_thread.lock) of the function around it, which cannot",
    "default": "has a default for 'lock' (_thread.lock), which cannot",
    "keyword default": "has a default for 'lock' (_thread.lock), which cannot",
    "helper": "uses the global variable 'helper' (function), which uses the global variable "
    "'lock' (_thread.lock), which cannot",
    "both call each other": "uses the global variable 'b' (function), which uses the global "
    "variable 'lock' (_thread.lock), which cannot",
    "inner function": "uses the global variable 'lock' (_thread.lock), which cannot",
    "bound method": "is the method 'read' of an object (tests.Reader), which holds "
    "\"parts[0]['held']\" (_thread.lock), which cannot",
    "callable instance": "(tests.Reader) holds \"parts[0]['held']\" (_thread.lock), which cannot",
    "slots": "uses the variable 'held' (tests.Slotted) of the function around it, which holds "
    "'held' (_thread.lock), which cannot",
    "state": "uses the variable 'held' (tests.Stated) of the function around it, which holds "
    "'__getstate__()[0]' (_thread.lock), which cannot",
    "argument of a partial": "was given the argument 'add' (_thread.lock), which cannot",
    "function of a partial": "wraps 'fn' (function), which uses the variable 'held' "
    "(_thread.lock) of the function around it, which cannot",
    "function attribute": "holds 'lock' (_thread.lock), which cannot",
    "class attribute": "uses the global variable 'Kind' (Kind), which holds 'lock' "
    "(_thread.lock), which cannot",
    "set": "uses the variable 'held' (set) of the function around it, which holds '[0]' "
    "(_thread.lock), which cannot",
    "cached": "wraps 'fn' (function), which uses the variable 'held' (_thread.lock) of the "
    "function around it, which cannot",
}


def enclosing(held):
    """Make a function that encloses a variable."""

    def fn(x):
        return x, held

    return fn


def holding(kind):
    """Make a function that takes a lock along, in one of many ways."""
    with_lock = {"lock": LOCK, "__name__": "__main__"}
    cells = {
        "default": "def f(x, lock=lock): return x",
        "keyword default": "def f(x, *, lock=lock): return x",
        "helper": "def helper(x): return lock\ndef f(x): return helper(x)",
        "both call each other": "def b(x): return a(x) or lock\ndef a(x): return b(x)\nf = a",
        "inner function": "def f(x):\n  def g(): return [lock for _ in (1,)]\n  return g()",
        "function attribute": "def f(x): return x\nf.lock = lock",
        "class attribute": "class Kind:\n  lock = lock\ndef f(x): return Kind",
    }
    if kind in cells:
        return cell(cells[kind], with_lock)["f"]
    return {
        "closure": lambda: enclosing(LOCK),
        "bound method": lambda: Reader(LOCK).read,
        "callable instance": lambda: Reader(LOCK),
        "slots": lambda: enclosing(Slotted(LOCK)),
        "state": lambda: enclosing(Stated(LOCK)),
        "argument of a partial": lambda: functools.partial(outside, add=LOCK),
        "function of a partial": lambda: functools.partial(enclosing(LOCK), 1),
        "set": lambda: enclosing({LOCK}),
        "cached": lambda: functools.lru_cache(enclosing(LOCK)),
    }[kind]()


@pytest.mark.parametrize("kind", WAYS)
def test_names_where_it_is(kind):
    """Wherever a function holds what cannot be sent, the message leads there."""
    assert refusal(holding(kind)).partition(" be pickled")[0] == WAYS[kind]


def numbers():
    """Be a generator."""
    yield 1


MAKERS = {
    "generator": numbers,
    "text file": (ROOT / "README.md").open,
    "file": lambda: (ROOT / "README.md").open("rb"),
    "event": threading.Event,
    "socket": socket.socket,
    "connection": lambda: sqlite3.connect(":memory:"),
    "handler": logging.StreamHandler,
    "pipeline": lambda: nbpipe.source([1]),
    "refuses": Refuses,
}
OTHER_WAYS = {
    "generator": ("generator", "make it inside the function, or use a list"),
    "text file": ("_io.TextIOWrapper", "open it inside the function, or per worker"),
    "file": ("_io.BufferedReader", "open it inside the function, or per worker"),
    "event": ("threading.Event", "between processes it would guard nothing"),
    "socket": ("socket.socket", "open it per worker with worker_init"),
    "connection": ("sqlite3.Connection", "open it per worker with worker_init"),
    "handler": ("logging.StreamHandler", "use logging.getLogger(name) in the function"),
    "pipeline": ("nbpipe.Pipeline", "let the function take what it needs as values"),
    "refuses": ("tests.Refuses", "cannot be pickled (ValueError: not me); create it inside"),
}


@pytest.mark.parametrize("kind", OTHER_WAYS)
def test_way_out(kind):
    """Each kind of thing that cannot be sent is named whole, with a way out that fits."""
    value = MAKERS[kind]()
    message = refusal(enclosing(value))
    if hasattr(value, "close"):
        value.close()
    name, way = OTHER_WAYS[kind]
    assert f"variable 'held' ({name}) of the function around it, which cannot" in message
    assert way in message


def test_worker_init_is_told_apart():
    """A lock that `worker_init` uses is blamed on it."""
    program = FusedProgram(
        [FusedPart("decode", Map(len))], seed=0, executor="process", inits=[enclosing(LOCK)]
    )
    with pytest.raises(UnpicklableError, match="its worker_init uses the variable 'held'"):
        serialize(program, stage="decode")


def test_cause_is_kept():
    """What pickle said is the cause; without a stage of its own, the one given is named."""
    with pytest.raises(UnpicklableError, match="stage 'region' cannot") as caught:
        serialize(lambda x: LOCK, stage="region")
    assert str(caught.value.__cause__) == "cannot pickle '_thread.lock' object"


@pytest.mark.gpu
def test_tensor_on_a_gpu(torch):
    """A tensor on a GPU is refused: each worker would wake up CUDA to hold a copy."""
    held = torch.zeros(3, device="cuda")
    assert "capture tensor.cpu()" in refusal(enclosing({"weights": held}))


# -- what goes along -------------------------------------------------------------------------------
def test_captured():
    """What a function takes along is listed by size, that of its helpers included."""
    names = cell(
        "import numpy as np\n"
        "table = np.zeros((2560, 1024))\nwords = b'x' * 5000\nnumber = 3\n"
        "def helper(x): return table[x]\n"
        "def f(x, y=words): return helper(x) + number + np.sum(y)\n"
    )
    found = [tuple(one) for one in captured(names["f"])]
    assert found[:2] == [
        ("table", "global", 20_971_520, "ndarray"),
        ("y", "default", 5000, "bytes"),
    ]
    assert [one[0] for one in found[2:]] == ["number"]


def test_large_data_is_named_once(caplog):
    """Above 1 MiB one line names the variable and its size, once for the same data."""
    names = cell("import numpy as np\ntable = np.zeros((2560, 1000))\ndef f(x): return table[x]")
    with caplog.at_level(logging.INFO, logger="nbpipe"):
        for _ in range(3):
            warn_if_large(names["f"], "decode")
        names["table"] = np.zeros(131_072)  # 1 MiB
        warn_if_large(names["f"], "decode")
    line = (
        "stage 'decode' sends 20.5 MB with its function to each worker, once: global 'table' "
        "(ndarray, 20.5 MB); load it in worker_init, or memory-map it, if that is too much"
    )
    assert [record.getMessage() for record in caplog.records] == [line]


def test_view_of_a_tensor_takes_all_of_it_along(torch):
    """A slice of a tensor counts with the memory behind it, which is what is sent."""
    held = torch.zeros(1000, 1000)[:2]
    sent = len(pickle.dumps(held))
    assert (captured(enclosing(held))[0].size_bytes, sent > 4_000_000) == (4_000_000, True)


def test_shared_memory_is_the_same_whatever_is_in_it(torch):
    """What is written to shared memory changes no digest; other memory is another program."""
    rows = torch.zeros(1000).share_memory_()

    def first(n):
        return float(rows[n])

    before = serialize(first, stage="first")
    rows.fill_(3)
    assert (serialize(first, stage="first").digest, load(before.data)(0)) == (before.digest, 3)
    assert {(one.name, one.size_bytes) for one in captured(first)} == {("rows", 0)}
    rows = torch.zeros(1000).share_memory_()
    assert serialize(first, stage="first").digest != before.digest


def test_shared_memory_is_held_until_it_is_opened(torch):
    """A program that was serialized finds its memory though nobody else holds it any more."""
    rows = torch.ones(10).share_memory_()
    serialized = serialize({"rows": rows, "bare": rows.untyped_storage()}, stage="fn")
    del rows
    loaded = load(serialized.data)
    assert loaded["rows"].is_shared()
    assert (loaded["rows"].sum(), loaded["bare"].data_ptr()) == (10, loaded["rows"].data_ptr())


def test_shared_memory_that_nobody_can_open(torch, tmp_path):
    """A tensor of a file that was deleted is refused, with the way out."""
    rows = torch.from_file(str(tmp_path / "rows"), shared=True, size=8)
    (tmp_path / "rows").unlink()
    with pytest.raises(UnpicklableError, match="must be there") as caught:
        serialize(lambda n: rows[n], stage="fn")
    assert "uses the variable 'rows' (torch.Tensor)" in str(caught.value)
    assert "tensor.clone().share_memory_()" in str(caught.value)


def test_memory_that_is_not_shared_is_copied(torch, tmp_path):
    """A file that was mapped privately is this process's own: it goes along as it is here."""
    (tmp_path / "rows").write_bytes(bytes(32))
    rows = torch.from_file(str(tmp_path / "rows"), shared=False, size=8)
    rows.fill_(1)
    loaded = load(serialize({"rows": rows}, stage="fn").data)
    rows.fill_(2)
    assert loaded["rows"].tolist() == [1] * 8


def test_workers_elsewhere_get_copies(torch):
    """Where workers may be on other machines shared memory is copied."""
    rows = torch.zeros(4).share_memory_()
    loaded = load(serialize({"rows": rows}, stage="far", afar=True).data)
    loaded["rows"].fill_(1)
    assert rows.tolist() == [0] * 4
