import collections
import copyreg
import dataclasses
import datetime as dt
import enum
import functools
import io
import json
import logging
import math
import pickle
import random
import re
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbpipe.export.fingerprint import difference as difference_of
from nbpipe.export.fingerprint import fingerprint_of
from tests.strategies import examples

ROOT = Path(__file__).resolve().parents[2]
ELSE = "in the module"
ELSEWHERE = """
import json, pickle, sys
from nbpipe.export.fingerprint import fingerprint_of
values = pickle.load(sys.stdin.buffer)
print(json.dumps([fingerprint_of(value) for value in values]))
"""
IN_MODULE = """
import importlib, json, sys
from nbpipe.export.fingerprint import fingerprint_of
module = importlib.import_module(sys.argv[1]) if len(sys.argv) > 1 else sys.modules["__main__"]
names = [name for name in vars(module) if name.startswith("v_")]
"""
SOURCE = """
import abc, dataclasses, enum, functools, typing, collections
import numpy as np

class v_Base(abc.ABC):
    size = 3
    def __init_subclass__(cls): cls.made = True
    @abc.abstractmethod
    def decode(self, x: "Later") -> int: ...
    @property
    def twice(self): return 2 * self.size
    @staticmethod
    def stat(x): return {'a', 'b', 'c'} if x in {'d', 'e', 'f'} else None
    @functools.cached_property
    def slow(self): return 1
class v_Child(v_Base):
    def decode(self, x): return super().decode(x)
class v_Mode(enum.Enum):
    FAST = 1
    SLOW = [1, 2]
class v_Bits(enum.Flag):
    A = 1
    B = 2
@dataclasses.dataclass(frozen=True, slots=True, order=True)
class v_Data:
    size: int = 3
    mode: v_Mode = v_Mode.FAST
    more: list = dataclasses.field(default_factory=list)
class v_Pair(typing.NamedTuple):
    x: int
    y: list[int]
v_Point = collections.namedtuple('Point', 'x y')
def v_f(x, *a, pad=v_Data(2), **k):
    'Doc.'
    class Inner:
        z = 1
        def g(self): self.q = self.r = self.s = x; return self
    return [y for y in a if y in ('a', 1.5)], Inner, lambda: x
def make(k):
    def inner(x):
        nonlocal k
        k += x
        return inner
    return inner
v_g = make([1])
v_lambda = lambda x: x + 1
@functools.lru_cache(maxsize=3)
def v_cached(x): return x
v_partial = functools.partial(v_f, 1, pad=2)
v_bound = v_Data(5).__repr__
v_method = v_Child().decode if False else v_Child.__dict__['decode']
v_items = [v_Mode.SLOW, v_Bits.A | v_Bits.B, v_Pair(1, [2]), v_Point(1, 2), v_Data()]
v_set = {1, 'a', (2,)}
async def v_co(x):
    async with x as y: yield y
class v_Odd(dict):
    __slots__ = ('extra',)
v_odd = v_Odd(a=1); v_odd.extra = 7
v_vector = np.vectorize(v_lambda)
"""

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.dates()
    | st.timedeltas()
    | st.decimals()
    | st.fractions()
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.sets(st.text() | st.integers() | st.none(), max_size=9)
        | st.frozensets(st.tuples(st.integers(), st.text()), max_size=9)
    ),
    max_leaves=12,
)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass
class Decoder:
    size: int = 3
    mode: Mode = Mode.FAST

    @functools.cached_property
    def table(self):
        return [self.size]


class Hostile:
    """An object that fails at every question."""

    def __getattribute__(self, name):
        raise RuntimeError

    def __reduce_ex__(self, protocol):
        raise RuntimeError


def difference(one, other):
    """Return where a value in the module differs."""
    return difference_of(one, other, ELSE)


def run(code, *arguments, cwd=ROOT, data=b""):
    """Run Python code in a fresh process, and parse what it prints."""
    before = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(cwd)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", before + code, *arguments],
        input=data,
        capture_output=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def elsewhere(values):
    """Give the fingerprints of pickled values in a fresh process."""
    return run(ELSEWHERE, data=pickle.dumps(values))


@pytest.mark.slow
@settings(max_examples=examples(0.2))
@given(st.lists(VALUES, min_size=20, max_size=40))
def test_equal_in_another_process(values):
    """A value that was pickled has the same fingerprint in a fresh process, after JSON too."""
    assert elsewhere(values) == [fingerprint_of(value) for value in values]


def test_an_exception_is_what_it_says_whoever_taught_pickle_more(monkeypatch):
    """Libraries that send tracebacks put a recipe of their own for each type of exception."""
    before = fingerprint_of(ValueError("no more"))
    recipe = (RuntimeError, ("a traceback",))
    monkeypatch.setitem(copyreg.dispatch_table, ValueError, lambda _: recipe)
    assert fingerprint_of(ValueError("no more")) == before


@pytest.mark.slow
def test_library_values_in_another_process():
    """Values of numpy, of the standard library and of their containers stay what they are."""
    rng = np.random.default_rng(3)
    rng.random(5)
    values = [
        *(np.arange(100_000), np.float32(0.1), np.datetime64("2020-01-01"), np.zeros((0, 3))),
        *(
            np.array(["a", None], dtype=object),
            np.array([(1, 2.0)], dtype="i4,f8"),
            np.dtype(">f4"),
        ),
        *(np.ma.array([1, 2], mask=[True, False]), rng, np.random.RandomState(3), random.Random(3)),
        *(
            re.compile("a", re.IGNORECASE),
            Path("a/b"),
            range(3),
            slice(1, None),
            dt.UTC,
            np,
            len,
            int,
        ),
        *(
            logging.getLogger("x"),
            threading.Condition,
            np.mean,
            json.dumps,
            collections.deque([1], 2),
        ),
        *(collections.Counter("aab"), collections.defaultdict(list, a=[1]), [1, "b"] * 10_000),
        *(functools.partial(int, base=2), [(f"p{n}", n) for n in range(10_000)], {"é": "\udc80"}),
        *(dict.fromkeys(range(1000), 0), set(map(str, range(1000))), b"x" * 1000, 10**6000),
        *(types.SimpleNamespace(a=1), Exception("a", 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ]
    values = [value for value in values if value is not np]
    assert elsewhere(values) == [fingerprint_of(value) for value in values]


@pytest.mark.slow
def test_same_text_in_main_and_in_a_module(tmp_path):
    """The user's code is the same in `__main__`, in a module, and further down in its file."""
    (tmp_path / "loader.py").write_text("import os\n\n\n" + SOURCE, encoding="utf-8")
    report = "print(json.dumps({n: fingerprint_of(getattr(module, n)) for n in names}))"
    main = run(f"exec(compile({SOURCE!r}, 'cell', 'exec'))\n{IN_MODULE}{report}")
    module = run(f"{IN_MODULE}{report}", "loader", cwd=tmp_path)
    assert {name: difference(main[name], module[name]) for name in main} == dict.fromkeys(main)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (7, 3, "7 in the notebook, 3 in the module"),
        (1, True, "1 in the notebook, True in the module"),
        (0.0, -0.0, "0.0 in the notebook, -0.0 in the module"),
        ([1, [2, 7]], [1, [2, 3]], "[1][1]: 7 in the notebook, 3 in the module"),
        ([1, 2], [1], "[1]: 2 in the notebook, missing in the module"),
        ({"a": 1}, {"a": 2}, "['a']: 1 in the notebook, 2 in the module"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the order differs"),
        ({"a": [1]}, {"a": (1,)}, "['a']: a list in the notebook, a tuple in the module"),
        (Decoder(4), Decoder(), "attribute 'size': 4 in the notebook, 3 in the module"),
        (
            Decoder(mode=Mode.SLOW),
            Decoder(),
            "attribute 'mode': Mode.SLOW in the notebook, Mode.FAST in the module",
        ),
        (
            np.array([1, 2, 3, 7]),
            np.array([1, 2, 3, 3]),
            "[3]: 7 in the notebook, 3 in the module",
        ),
        (list(range(999)), [*range(998), 0], "a list, which differs after its first elements"),
        (
            list(range(999)),
            list(range(998)),
            "a list of 999 in the notebook, a list of 998 in the module",
        ),
        ({"password": "abc"}, {"password": "abd"}, "['password']: hidden texts differ"),
        (b"a", "a", "b'a' in the notebook, 'a' in the module"),
    ],
)
def test_words_for_a_difference(one, other, words):
    """A difference is said with its place and both values."""
    assert difference(fingerprint_of(one), fingerprint_of(other)) == words


class Unit(np.ndarray):
    """An array that has a unit."""


class Day(dt.date):
    """A date that has a name."""


class Scaled:
    """A decorator that keeps a number beside the function."""

    def __init__(self, function, by):
        functools.update_wrapper(self, function)
        self.by = by

    def __call__(self, value):
        """Call the function."""
        return self.by * self.__wrapped__(value)


def marked(value, **attributes):
    """Give attributes to a value; return it."""
    vars(value).update(attributes)
    return value


BESIDE = {
    "an array": lambda unit: marked(np.zeros(2).view(Unit), unit=unit),
    "a date": lambda name: marked(Day(2020, 1, 1), name=name),
    "a decorator": lambda by: Scaled(len, by),
    "bytes in memory": lambda text: io.BytesIO(text.encode()),
    "text in memory": io.StringIO,
    "a view": lambda text: memoryview(text.encode()),
    "a format": lambda text: struct.Struct(f"<{len(text)}i"),
    "a function of numpy": lambda text: {"m": np.add, "km": np.subtract}[text],
}


@pytest.mark.parametrize("kind", BESIDE)
def test_what_is_beside_the_value(kind: str):
    """What an object holds counts, also what its class says nothing of."""
    one, same, other = map(fingerprint_of, map(BESIDE[kind], ("m", "m", "km")))
    assert (difference(one, same), difference(one, other) is None) == (None, False)


def test_a_path_is_another_key_than_its_text():
    """A dict of paths is none of texts."""
    one, other = fingerprint_of({Path("a"): 1}), fingerprint_of({"a": 1})
    assert difference(one, other) is not None


def test_words_for_functions():
    """Of two functions, a default, an enclosed value or the code differs."""

    def make(k, text):
        return eval(f"lambda k: lambda x, pad={text}: x + k")(k)

    base = fingerprint_of(make(1, "3"))
    code = fingerprint_of(eval("lambda k: lambda x, pad=3: x - k")(1))
    found = [difference(base, fingerprint_of(other)) for other in (make(1, "5"), make(2, "3"))]
    assert [*found, difference(base, code)] == [
        "default 'pad': 3 in the notebook, 5 in the module",
        "closure 'k': 1 in the notebook, 2 in the module",
        "code: it differs",
    ]


def test_nan_equals_itself():
    """Not-a-number is equal to itself, in containers and arrays too."""
    one = [math.nan, {"a": np.array([np.nan])}, np.float32("nan")]
    other = [float("nan"), {"a": np.array([np.nan])}, np.float32("nan")]
    assert difference(fingerprint_of(one), fingerprint_of(other)) is None


def test_circles_and_hostile_objects():
    """Circles end, and what cannot be asked has a type."""
    circle = [1]
    circle.append({"me": circle})
    other = [1]
    other.append({"me": other})
    hostile = fingerprint_of([Hostile(), threading.Lock(), (n for n in ()), threading.local()])
    assert fingerprint_of(circle) == fingerprint_of(other)
    assert len(hostile["parts"]) == 4


def test_filled_caches_do_not_count():
    """A cached property that was read once changes nothing."""
    used = Decoder()
    assert used.table == [3]
    assert fingerprint_of(used) == fingerprint_of(Decoder())


@functools.singledispatch
def described(value):
    """Describe a value."""
    return str(value)


def test_calls_of_a_generic_function_do_not_count():
    """A generic function is the same before and after it looked for an implementation."""
    before = fingerprint_of(described)
    assert described(2) == "2"
    assert fingerprint_of(described) == before


def test_pickled_instances_do_not_count():
    """A class is the same before and after an instance of it was pickled."""
    kind = type("Attributes", (dict,), {})
    before = fingerprint_of(kind)
    kind().__reduce_ex__(4)
    assert "__slotnames__" in vars(kind)
    assert fingerprint_of(kind) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        np.zeros(10_000_000, np.uint8),
        list(range(1_000_000)),
        [[[n] * 5 for n in range(200)] for _ in range(200)],
        "x" * 10_000_000,
        {n: {"a": n} for n in range(50_000)},
    ],
    ids=["array", "list", "nested", "text", "dict"],
)
def test_fingerprint_is_small(value):
    """A fingerprint of a large value is short."""
    assert len(json.dumps(fingerprint_of(value))) < 500_000


def test_no_address():
    """No fingerprint holds the address of an object."""
    objects = [
        object(),
        Decoder,
        Hostile,
        print,
        fingerprint_of,
        threading.Lock(),
        Decoder().__eq__,
    ]
    assert re.findall("0x[0-9a-f]{6}", json.dumps(fingerprint_of(objects))) == []


def test_secrets_are_not_shown():
    """A secret is not in the fingerprint of what holds it."""
    key = "hf_abcdefghijklmnopqrstuvwx"
    holders = [key, [key], {"a": key, "password": "pa55"}, Path(key), {key}, {key: 1}]
    assert [t for t in (key, "pa55") if t in json.dumps(fingerprint_of(holders))] == []


@pytest.mark.slow
@pytest.mark.torch
def test_torch_values():
    """Tensors, their types and modules count by what they hold."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    values = [
        *(torch.arange(1000), torch.tensor(3), torch.zeros(0, 2), torch.tensor([1 + 2j]).conj()),
        *(torch.tensor([1.5], dtype=torch.bfloat16), torch.float32, torch.device("cpu"), net),
        *(torch.tensor([True]), torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2))),
    ]
    here = json.loads(json.dumps([fingerprint_of(value) for value in values]))
    assert elsewhere(values) == here
    changed = pickle.loads(pickle.dumps(net))
    changed[0].bias.data[1] += 1
    assert difference(fingerprint_of(net), fingerprint_of(changed)) is not None


@pytest.mark.torch
def test_what_modules_and_tensors_keep_for_themselves():
    """Private attributes, buffers that no state has, and attributes of tensors count."""
    torch = pytest.importorskip("torch")

    def made(scale=1, mean=1, unit="m", hooks=0):
        net = torch.nn.Identity()
        for _ in range(hooks):
            net.register_forward_hook(print)
        net._scale = scale
        net.register_buffer("mean", torch.tensor([mean]), persistent=False)
        return [net, marked(torch.zeros(2), unit=unit)]

    base = fingerprint_of(made())
    others = [made(), made(scale=2), made(mean=2), made(unit="km"), made(hooks=1)]
    assert [difference(base, fingerprint_of(other)) for other in others] == [
        None,
        "[0] attribute '_scale': 1 in the notebook, 2 in the module",
        "[0] attribute '_buffers'['mean'][0]: 1 in the notebook, 2 in the module",
        "[1] attribute 'unit': 'm' in the notebook, 'km' in the module",
        f"[0] attribute '_forward_hooks' items[0]: missing in the notebook, print {ELSE}",
    ]


@pytest.mark.torch
def test_frozen_parameter():
    """Whether a parameter is trained counts."""
    torch = pytest.importorskip("torch")
    layers = [torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1).requires_grad_(requires_grad=False)]
    words = difference(*map(fingerprint_of, layers))
    expected = "requires_grad: True in the notebook, False in the module"
    assert words == f"attribute '_parameters'['weight'] {expected}"


@pytest.mark.slow
def test_pandas_and_pillow_values():
    """Tables and images count by what they hold."""
    pandas = pytest.importorskip("pandas")
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), (1, 2, 3))
    table = pandas.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[5, 6])
    values = [table, table["a"], pandas.Timestamp("2020-01-01"), image, pandas.Categorical(["a"])]
    other = table.copy()
    other.loc[6, "a"] = 7
    assert elsewhere(values) == [fingerprint_of(value) for value in values]
    assert "[0, 1]: 2 in the notebook, 7" in difference(
        fingerprint_of(table), fingerprint_of(other)
    )


def test_what_pandas_keeps_beside_the_values():
    """The order of categories, and the names of an index and of columns, count."""
    pandas = pytest.importorskip("pandas")
    makers = [
        lambda text: pandas.Series(pandas.Categorical(["a"], categories=list(f"a{text}"))),
        lambda text: pandas.MultiIndex.from_tuples([(1, 2)], names=["x", text]),
        lambda text: pandas.DataFrame([[1]], columns=pandas.Index(["x"], name=text)),
    ]
    found = [[fingerprint_of(make(text)) for text in "bbc"] for make in makers]
    assert [(one == same, one == other) for one, same, other in found] == [(True, False)] * 3
