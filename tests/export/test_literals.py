import collections
import datetime as dt
import decimal
import enum
import fractions
import pathlib
import types
import uuid
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from nbpipe.export.fingerprint import fingerprint_of
from nbpipe.export.literals import NoLiteral, Values, literal

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
OTHERS = (
    st.complex_numbers()
    | st.decimals()
    | st.fractions()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.timedeltas()
    | st.times()
    | st.uuids()
)
VALUES = st.recursive(
    PLAIN | OTHERS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=4)
        | st.sets(st.text(max_size=9) | st.integers(), max_size=9)
        | st.frozensets(st.tuples(st.integers(), st.text(max_size=9)), max_size=5)
    ),
    max_leaves=20,
)
ARRAYS = npst.arrays(
    npst.scalar_dtypes().filter(lambda dtype: dtype.kind not in "VMmc" and dtype.itemsize <= 8),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3),
)


def same_value(one: object, other: object) -> bool:
    """Compare values by their fingerprints."""
    return fingerprint_of(one) == fingerprint_of(other)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclass(frozen=True)
class Decoder:
    size: int = 2
    mode: Mode = Mode.FAST


@dataclass
class Odd:
    size: InitVar[int] = 2


@dataclass
class Counting:
    size: int
    seen: int = field(default=0, init=False)


@dataclass
class Config:
    size: int
    rate: float = 0.5
    names: list = field(default_factory=list)
    sizes: list = field(default_factory=lambda: [1])


class Attributes(dict):
    """Its items are attributes, too."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.__dict__ = self


class Vocabulary(dict):
    """A dict that knows more than its items."""

    unknown: int


class Aug:
    def __init__(self, p, *, flip=False):
        self.p = p
        self.flip = flip


class Hidden:
    def __init__(self, p):
        self._p = p


class Plain:
    pass


class Pair(NamedTuple):
    left: int
    right: list


def spell(value):
    """Spell a module, class or function as this file would."""
    if isinstance(value, types.ModuleType):
        return {"numpy": "np", "datetime": "dt"}.get(value.__name__, value.__name__)
    module = value.__module__
    here = module in (__name__, "builtins", "types") and module != "types"
    return value.__qualname__ if here else f"{spell(__import__(module))}.{value.__qualname__}"


def evaluated(text):
    """Evaluate a text with the names of this file."""
    return eval(text, {**globals(), "collections": collections})


@given(VALUES)
def test_value_comes_back(value):
    """The text of a value evaluates to a value with the same fingerprint."""
    assert same_value(value, evaluated(literal(value, spell)))


@given(ARRAYS)
def test_array_comes_back(array):
    """An array keeps its type, its shape and each bit."""
    assert same_value(array, evaluated(literal(array, spell)))


@given(ARRAYS.filter(lambda array: array.size))
def test_scalar_comes_back(array):
    """A scalar of numpy keeps its type and each bit."""
    value = array.flat[0]
    assert same_value(value, evaluated(literal(value, spell)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["a", "b"], '["a", "b"]'),
        ((1,), "(1,)"),
        (set(), "set()"),
        ({10, 9, 1}, "{1, 9, 10}"),
        (frozenset(), "frozenset()"),
        (float("-inf"), 'float("-inf")'),
        ({"a": (1, {2})}, '{"a": (1, {2})}'),
        (pathlib.Path("a/b"), 'pathlib.Path("a/b")'),
        (pathlib.PureWindowsPath("a"), 'pathlib.PureWindowsPath("a")'),
        (np.array([0.5, 0.1], np.float32), "np.array([0.5, 0.1], dtype=np.float32)"),
        (np.array(7), "np.array(7, dtype=np.int64)"),
        (np.array([np.nan, -np.inf]), "np.array([np.nan, -np.inf], dtype=np.float64)"),
        (np.array(["a"]), 'np.array(["a"], dtype="<U1")'),
        (np.float32(0.1), "np.float32(0.1)"),
        (np.array([1], ">i2"), 'np.array([1], dtype=">i2")'),
        (Mode.SLOW, "Mode.SLOW"),
        (Bits.A | Bits.B, "Bits(3)"),
        (Decoder(9, Mode.SLOW), "Decoder(size=9, mode=Mode.SLOW)"),
        (Config(3), "Config(size=3, rate=0.5, names=[], sizes=[1])"),
        (Config(3, 0.25, ["a"]), 'Config(size=3, rate=0.25, names=["a"], sizes=[1])'),
        (Config(3, 1 / 2, []), "Config(size=3, rate=0.5, names=[], sizes=[1])"),
        (Attributes(a=Attributes(b=1)), 'Attributes({"a": Attributes({"b": 1})})'),
        (Vocabulary(), "Vocabulary()"),
        (Aug(0.5, flip=True), "Aug(p=0.5, flip=True)"),
        (Plain(), "Plain()"),
        (Pair(1, [2]), "Pair(left=1, right=[2])"),
        (dt.datetime(2020, 1, 2, 3), "dt.datetime(2020, 1, 2, 3, 0)"),  # noqa: DTZ001
        (dt.time(0, 5, tzinfo=dt.UTC), "dt.time(0, 5, tzinfo=dt.timezone.utc)"),
        (dt.timedelta(hours=1), "dt.timedelta(seconds=3600)"),
        (decimal.Decimal("1.50"), 'decimal.Decimal("1.50")'),
        (fractions.Fraction(1, 3), "fractions.Fraction(1, 3)"),
        (uuid.UUID(int=0), 'uuid.UUID("00000000-0000-0000-0000-000000000000")'),
        (collections.Counter("aab"), 'collections.Counter({"a": 2, "b": 1})'),
        (collections.defaultdict(list, a=[1]), 'collections.defaultdict(list, {"a": [1]})'),
        (collections.OrderedDict(a=1), 'collections.OrderedDict({"a": 1})'),
        (collections.deque([1], 3), "collections.deque([1], 3)"),
        (Aug, "Aug"),
        (np, "np"),
        (slice(1, None), "slice(1, None, None)"),
        (range(7), "range(0, 7)"),
        (range(1, 7, 2), "range(1, 7, 2)"),
        (..., "Ellipsis"),
    ],
)
def test_text(value, text):
    """A value is written as a person would write it, and comes back."""
    names = {m.__name__: m for m in (pathlib, decimal, fractions, uuid)}
    back = eval(text, {**globals(), **names})
    assert (literal(value, spell), same_value(value, back)) == (text, True)


def test_layout():
    """What does not fit in a line is laid out over lines, its short items side by side."""
    value = {"numbers": list(range(30)), "names": ["a name that is long"] * 4, "size": (3, 4)}
    assert literal(value, spell).splitlines() == [
        "{",
        '    "numbers": [',
        "        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,",
        "        22, 23, 24, 25, 26, 27, 28, 29,",
        "    ],",
        '    "names": [',
        '        "a name that is long",',
        '        "a name that is long",',
        '        "a name that is long",',
        '        "a name that is long",',
        "    ],",
        '    "size": (3, 4),',
        "}  # fmt: skip",
    ]


def test_layout_of_an_array():
    """A long array opens its call."""
    text = literal(np.arange(64).reshape(4, 16), spell)
    assert text.splitlines()[:3] == [
        "np.array(",
        "    [",
        "        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],",
    ]


def circular():
    """Make a list that contains itself."""
    value = [1]
    value.append(value)
    return value


def grown():
    """Make an object with more than its constructor says."""
    value = Decoder()
    object.__setattr__(value, "extra", 1)
    return value


def counted():
    """Make a dataclass whose other field has moved."""
    value = Counting(3)
    value.seen = 4
    return value


def more():
    """Make a dict that holds an attribute beside its items."""
    value = Vocabulary(a=1)
    value.unknown = 0
    return value


_MAKE = "write a function that returns it"
_SAVE = "save it and load it by path"
_WRITTEN = "are written as source"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            np.arange(1_000_000),
            f"numpy array of shape (1000000,) (at most 64 elements {_WRITTEN}; {_SAVE})",
        ),
        (
            list(range(20_000)),
            f"a list of 20,000 items (at most 200 are written as source); {_MAKE}",
        ),
        (
            {n: [1] * 50 for n in range(9)},
            f"a dict of 9 items with more than 200 values in all (at most 200 {_WRITTEN}); {_MAKE}",
        ),
        (circular(), f"a list of 2 items that contains itself; {_MAKE}"),
        ("x" * 5000, f"a str of length 5,000 (at most 4,000 {_WRITTEN}); {_SAVE}"),
        (
            np.array([None]),
            f"numpy array of dtype object (it cannot be written as source; {_SAVE})",
        ),
    ],
)
def test_too_large(value, reason):
    """What is too large, or has no text, is refused with its reason and the way out."""
    with pytest.raises(NoLiteral) as caught:
        literal(value, spell)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "value",
    [
        Odd(),
        grown(),
        counted(),
        more(),
        Hidden(1),
        (n for n in ()),
        object(),
        iter([]),
        ["x" * 99] * 60,
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused(value):
    """What its constructor would not give back is refused."""
    with pytest.raises(NoLiteral) as caught:
        literal([value], spell)
    assert caught.value.reason


def test_refusal_of_the_speller_passes():
    """A name that cannot be spelled ends the literal with the speller's reason."""

    def refuse(value):
        raise NoLiteral("no name")

    with pytest.raises(NoLiteral, match="no name"):
        literal([np.float32(1)], refuse)


@pytest.mark.torch
def test_torch_values():
    """Small tensors come back; large ones are refused."""
    torch = pytest.importorskip("torch")
    values = [
        *(torch.tensor([1.5, 2.5]), torch.tensor(3), torch.tensor([True])),
        *(torch.tensor([float("nan"), 0.1]), torch.tensor([1.0], requires_grad=True)),
        torch.tensor([[1], [2]], dtype=torch.uint8),
    ]
    texts = [literal(value, spell) for value in values]
    back = [eval(text, {"torch": torch}) for text in texts]
    assert texts[0] == "torch.tensor([1.5, 2.5], dtype=torch.float32)"
    assert [fingerprint_of(value) for value in back] == [fingerprint_of(value) for value in values]
    with pytest.raises(NoLiteral, match=r"torch tensor of shape \(65,\) \(at most 64"):
        literal(torch.zeros(65), spell)


class Own:
    """A class of the user's."""


@pytest.mark.parametrize(
    ("value", "space", "text", "imports"),
    [
        (
            collections.Counter("abca"),
            {"Counter": collections.Counter},
            'Counter({"a": 2, "b": 1, "c": 1})',
            (),
        ),
        (dt.date(2024, 1, 2), {"datetime": dt}, "datetime.date(2024, 1, 2)", ()),
        (fractions.Fraction(1, 2), {"F": fractions.Fraction}, "F(1, 2)", ()),
        (["http://a.org/usr", "and/or"], {}, '["http://a.org/usr", "and/or"]', ()),
        (Own(), {"Own": Own}, "Own()", ()),
        (dt.date(2024, 1, 2), {}, "date(2024, 1, 2)", ("from datetime import date",)),
        (
            dt.date(2024, 1, 2),
            {"date": 1},
            "datetime.date(2024, 1, 2)",
            ("import datetime",),
        ),
    ],
)
def test_a_value_as_source_with_its_imports(value, space, text, imports):
    """What a variable holds has its name; else it is imported, unless the name is taken."""
    assert Values(space).spelled("", value) == (text, imports)


@pytest.mark.parametrize(
    "value", [str(pathlib.Path.cwd() / "a"), {"b": "/usr/lib"}, ["the lighthouse"]]
)
def test_no_value_with_a_path_of_this_machine_or_of_the_environment(value):
    """Neither is written."""
    with pytest.raises(NoLiteral):
        Values({}, hidden=frozenset(["lighthouse"])).spelled("", value)
