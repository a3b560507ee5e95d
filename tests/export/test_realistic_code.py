"""Notebooks that write classes, decorators, closures and generators as researchers do."""

import pytest

from tests.export.notebooks import Notebook

pytestmark = pytest.mark.slow

TRANSFORMS = '''
import abc
import random

import nbpipe
import numpy as np
# ---- next cell
class Transform(abc.ABC):
    """Base of all transforms."""

    __slots__ = ("p",)
    count = 0  # how many kinds there are

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Transform.count += 1

    def __init__(self, p=1.0):
        self.p = p

    @abc.abstractmethod
    def apply(self, x): ...

    def __call__(self, x):
        return self.apply(x) if self.p > 0.5 else x
# ---- next cell
class Named:
    # mixed in where a name is wanted
    @property
    def name(self):
        return type(self).__name__.lower()

    @classmethod
    def default(cls):
        return cls(0.75)

    @staticmethod
    def clipped(x, most=100):
        return min(x, most)
# ---- next cell
class Scale(Named, Transform):
    __slots__ = ("factor",)

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor

    def apply(self, x):
        return self.clipped(x * self.factor)


class Shift(Transform, Named):
    def apply(self, x):
        return x + 1  # by one
# ---- next cell
class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x
# ---- next cell
augment = Compose(Scale(3, p=0.9), Shift.default(), Scale(1000, p=0.1))
'''


def test_class_hierarchy(notebook: Notebook):
    """Bases, mixins, slots and properties come along before what needs them; methods too."""
    exported = notebook.exported(
        TRANSFORMS
        + """
# ---- next cell
shift = Shift()
pipe = nbpipe.source(range(40)).map(augment).map(Scale.clipped).map(shift.apply)
report = pipe.export("loader.py")
""",
        spawn=True,
    )
    assert exported.has("augment = Compose(Scale(3, p=0.9), Shift.default(), Scale(1000, p=0.1))")
    assert exported.has('    __slots__ = ("p",)\n    count = 0  # how many kinds there are')
    assert [name for name in ("import random", "numpy") if name in exported.text] == []


def test_decorators(notebook: Notebook):
    """Own decorators and those of libraries are kept, with what they need."""
    exported = notebook.exported(
        """
        import functools
        import time
        from contextlib import contextmanager
        from functools import lru_cache

        import nbpipe
        # ---- next cell
        CALLS = 0

        def logged(function):
            # keeps the name
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper
        # ---- next cell
        @lru_cache(maxsize=32)
        def table(n):
            return n**3  # slow in truth

        @contextmanager
        def section(name):
            yield name.upper()
        # ---- next cell
        @logged
        def decode(x):
            '''Decode one.'''
            with section("a") as name:
                return name, table(x)

        @section("all")
        def last(pair): return pair[1]

        def counted(method):
            def wrapper(self, x):
                self.count += 0
                return method(self, x)
            return wrapper

        class Adder:
            count = 0
            @counted
            def add(self, x):
                return x + 1
        # ---- next cell
        adder = Adder()
        pipe = nbpipe.source(range(5)).map(decode).map(last).map(adder.add)
        report = pipe.export("loader.py")
        """,
        state=["count"],
    )
    assert exported.has("@logged\ndef decode(x):\n    '''Decode one.'''")
    assert exported.has("@lru_cache(maxsize=32)\ndef table(n):\n    return n**3  # slow in truth")
    assert exported.has('@section("all")\ndef last(pair): return pair[1]')
    assert "import time" not in exported.text


def test_closures_and_partials(notebook: Notebook):
    """Closures of factories, partials of partials and functions of libraries keep their values."""
    exported = notebook.exported(
        """
        import functools
        import operator as op
        import nbpipe
        import numpy as np
        # ---- next cell
        def clip(x, low, high=5):
            return max(low, min(x, high))

        from_one = functools.partial(clip, low=1)
        # ---- next cell
        BASE = 100

        def scaled(k, *, offset=0):
            return lambda x: x * k + offset + BASE

        def power(n):
            def outer(shift):
                def inner(x):
                    # nested
                    return (x + shift) ** n
                return inner
            return outer
        # ---- next cell
        double, triple = scaled(2), scaled(3, offset=1)
        cube = power(3)(1)
        # ---- next cell
        def use(x):
            return cube(x), double(x)
        # ---- next cell
        pipe = (
            nbpipe.source(range(5))
            .map(functools.partial(from_one, high=4))
            .map(np.square)
            .map(op.neg, concurrency=2)
            .map(functools.partial(op.add, 1), name="plus")
            .map(double).map(triple).map(use)
        )
        report = pipe.export("loader.py")
        """,
        spawn=True,
    )
    assert exported.has("import operator as op")
    assert exported.has("from_one = functools.partial(clip, low=1)")
    assert exported.tuned == {"neg_concurrency": 2}
    assert exported.has("cube = power(3)(1)")
    assert exported.has("# nested\nreturn (x + shift) ** n")


WRAPPED = """
from functools import wraps

import nbpipe
# ---- next cell
def timed(function):
    # one more
    @wraps(function)  # keeps its name
    def inner(*given):
        return function(*given) + 1

    return inner


def times(k):
    def decorate(function):
        @wraps(function)
        def inner(x):
            return function(x) * k

        return inner

    return decorate
# ---- next cell
def decode(x):
    return x * 2

@times(3)
def scale(x):
    return x
# ---- next cell
@times(3)
def scale(x):
    return x
# ---- next cell
made = timed(lambda x: x)
pipe = nbpipe.source(range(6)).map(timed(decode), executor="process").map(times(2)(scale))
pipe = pipe.map(scale).map(made)
report = pipe.export("loader.py")
"""


def test_functions_that_bear_the_name_of_what_they_wrap(notebook: Notebook):
    """They are closures as others are, and no older functions of that name."""
    exported = notebook.exported(WRAPPED, spawn=True)
    assert "# one more\n" in exported.text
    assert "# keeps its name\n" in exported.text


def test_data_kinds(notebook: Notebook):
    """Enums with methods, named tuples, typed dicts and frozen dataclasses come along whole."""
    exported = notebook.exported(
        """
        import collections
        import dataclasses
        import enum
        from typing import Generic, NamedTuple, TypedDict, TypeVar

        import nbpipe
        # ---- next cell
        T = TypeVar("T")

        class Split(str, enum.Enum):
            TRAIN = "train"
            TEST = "test"

            @property
            def share(self):
                return 0.8 if self is Split.TRAIN else 0.2

        class Box(NamedTuple):
            left: int
            right: int = 9

        Pair = collections.namedtuple("Pair", "a b")
        # ---- next cell
        class Record(TypedDict, total=False):
            box: Box
            split: str

        @dataclasses.dataclass(frozen=True, slots=True)
        class Holder(Generic[T]):
            value: T
            tags: tuple[str, ...] = dataclasses.field(default=("x",), repr=False)
        # ---- next cell
        def decode(x: int) -> Holder[Record]:
            split = Split.TRAIN if x % 2 else Split.TEST
            return Holder(Record(box=Box(x), split=split.value)), Pair(split, split.share)
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has('T = TypeVar("T")')
    assert exported.has('Pair = collections.namedtuple("Pair", "a b")')
    assert exported.has("class Record(TypedDict, total=False):\n    box: Box\n    split: str")
    assert exported.has(
        "@dataclasses.dataclass(frozen=True, slots=True)\nclass Holder(Generic[T]):\n    value: T"
    )


@pytest.mark.parametrize("notebook", [("numba",)], indirect=True)
def test_compiled_function(notebook: Notebook):
    """A function that numba compiles keeps its decorator, and its helper."""
    pytest.importorskip("numba")
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        from numba import njit
        # ---- next cell
        WEIGHT = 3

        @njit
        def weighted(x):
            return x * WEIGHT

        @njit(fastmath=False)
        def total(values):
            result = 0
            for value in values:  # a loop is fast here
                result += weighted(value)
            return result
        # ---- next cell
        pipe = nbpipe.source([np.arange(n) for n in range(4)]).map(total)
        # ---- next cell
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("@njit\ndef weighted(x):\n    return x * WEIGHT")
    assert exported.has("@njit(fastmath=False)\ndef total(values):\n    result = 0")


def test_names_of_builtins(notebook: Notebook):
    """A function named as a builtin, a constant that hides one, and methods of containers."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def filter(x):
            return x + sum
        sum = 10
        NAMES = ("a", "b", "c")
        # ---- next cell
        pipe = nbpipe.source([-20, -19]).map(filter).map(filter)
        pipe = pipe.map(NAMES.__getitem__).map(["b"].__contains__)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("def filter(x):\n    return x + sum")
    assert exported.has("sum = 10")


def test_classes_and_methods_of_libraries_as_stages(notebook: Notebook):
    """A class of the user, a method of a type and a function of a submodule are stages."""
    exported = notebook.exported(
        """
        import json
        import os.path
        from dataclasses import dataclass
        import nbpipe
        # ---- next cell
        @dataclass
        class Sample:
            name: str
        # ---- next cell
        pipe = (
            nbpipe.source([' "a.jpg" ', '"b/c.png"'])
            .map(str.strip)
            .map(json.loads, prefetch=3)
            .map(os.path.splitext)
            .map(" ".join)
            .map(Sample)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("@dataclass\nclass Sample:\n    name: str")
    assert exported.tuned == {"loads_prefetch": 3}


def test_annotations_as_text(notebook: Notebook):
    """Names in annotations as text are imported where they are known, and else let be."""
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        from typing import TYPE_CHECKING, Optional
        if TYPE_CHECKING:
            from collections.abc import Iterator
        # ---- next cell
        def each(x: "int", y: "Optional[np.ndarray]" = None) -> "Iterator[int]":
            found: "np.float32" = x
            yield found

        def last(x: "Nowhere") -> "list[Nowhere]":
            return x
        # ---- next cell
        pipe = nbpipe.source(range(4)).flat_map(each).map(last)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("from collections.abc import Iterator")
    assert exported.has("import numpy as np")
    assert "Optional" in exported.found["names"]


def test_frozen_classes_and_locks(notebook: Notebook):
    """Frozen classes of attrs and dataclasses, what has them as keys, and locks of asyncio."""
    pytest.importorskip("attrs")
    exported = notebook.exported(
        """
        import asyncio
        import attrs
        import nbpipe
        from dataclasses import dataclass

        @attrs.frozen
        class Size:
            height: int
            width: int = 2

        @dataclass(frozen=True, slots=True)
        class Point:
            x: int

        SIZE = Size(3)
        PLACES = {Point(1): "a", Point(2): "b"}
        LIMIT, ONE, DONE = asyncio.Semaphore(4), asyncio.Lock(), asyncio.Event()
        # ---- next cell
        async def decode(x):
            async with LIMIT, ONE:
                DONE.set() if x > 10 else DONE.clear()
                return x * SIZE.height, PLACES[Point(1 + x % 2)]
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("@attrs.frozen\nclass Size:\n    height: int\n    width: int = 2")
    assert exported.has('PLACES = {Point(1): "a", Point(2): "b"}')
    assert exported.has("LIMIT, ONE, DONE = asyncio.Semaphore(4), asyncio.Lock(), asyncio.Event()")


def test_submodules_that_something_else_imported(notebook: Notebook):
    """A submodule that code reads of its package is imported, where the package does not do it.

    Two functions of one name in two submodules are told apart.
    """
    package = notebook.folder / "shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("def double(x):\n    return x * 2\n")
    notebook.exported(
        """
        import os
        import sys
        import nbpipe
        import xml
        import xml.dom.minidom as minidom
        import xml.sax

        sys.path.insert(0, "")
        import shapes
        from shapes.ops import double
        # ---- next cell
        PARSERS = {}
        # ---- next cell
        PARSERS["sax"] = xml.sax.parse
        PARSERS["dom"] = xml.dom.minidom.parse
        # ---- next cell
        def parse(x):
            text = xml.dom.minidom.parseString(f"<a{x}/>").documentElement.tagName
            return text, os.path.sep, [PARSERS[word].__module__ for word in ("sax", "dom")]
        # ---- next cell
        pipe = nbpipe.source(range(4)).map(shapes.ops.double).map(parse)
        report = pipe.export("loader.py")
        """
    )


def test_imports_of_a_package(notebook: Notebook):
    """A chain that a package of the user's builds, with relative imports of its own."""
    package = notebook.folder / "shapes"
    package.mkdir()
    (package / "__init__.py").write_text("from .build import make\n")
    (package / "ops.py").write_text("SIZE = 3\n\n\ndef double(x):\n    return x * 2\n")
    (package / "build.py").write_text(
        "import nbpipe\n\nfrom . import ops\nfrom .ops import double as twice\n\n\n"
        "def make(n):\n"
        "    pipe = nbpipe.source(range(n)).map(ops.double)\n"
        "    return pipe.map(lambda x: twice(x) + ops.SIZE)\n"
    )
    notebook.exported(
        """
        import nbpipe
        import sys

        sys.path.insert(0, "")
        import shapes

        pipe = shapes.make(4)
        # ---- next cell
        report = pipe.export("loader.py")
        """
    )
