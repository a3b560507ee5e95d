"""What notebooks are made of, each part in cells of its own, and all of it in one notebook."""

from typing import NamedTuple

import pytest

from tests.export.notebooks import NEXT, Notebook

pytestmark = pytest.mark.slow


class Part(NamedTuple):
    """Cells; an expression with `x` that uses them; and what the module must have of them."""

    cells: str
    use: str
    kept: tuple[str, ...] = ()


PARTS = {
    "parsed arguments, and namespaces that were changed": Part(
        """
import argparse
from types import SimpleNamespace
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=3)
args = parser.parse_args([])
cfg = SimpleNamespace(root="x", deep=SimpleNamespace(k=1))  # settings
cfg.deep.k = 4
""",
        "(x * args.size + cfg.deep.k, cfg.root)",
    ),
    "what decorators have put into a registry": Part(
        """
READERS = {}  # by file type
def reader(function):
    READERS[function.__name__] = function
    return function
# ---- next cell
@reader
def jpg(x): return x
@reader
def png(x): return -x
""",
        'READERS["png" if x % 2 else "jpg"](x)',
        ("READERS = {}  # by file type", "@reader\ndef jpg(x): return x"),
    ),
    "a registry that a class fills by `cls`": Part(
        """
class Step:
    known = {}
    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls.known[cls.__name__] = cls
# ---- next cell
class Twice(Step):
    def __call__(self, x): return x * 2
""",
        'Step.known["Twice"]()(x)',
    ),
    "an instance that its own calls have changed begins anew": Part(
        """
class Counter:
    def __init__(self, by):
        self.by, self.calls, self.cache = by, 0, {}
    def __call__(self, x):
        self.calls += 1
        self.cache[x] = x * self.by
        return self.cache[x]
# ---- next cell
counter = Counter(3)  # thrice
counter(1), counter(2)
""",
        "counter(x)",
        ("counter = Counter(3)  # thrice",),
    ),
    "an instance that was changed from outside": Part(
        """
class Scale:
    def __init__(self, by): self.by = by
scale = Scale(2)
scale.by = 5
""",
        "scale.by * x",
    ),
    "a name that is bound several times": Part(
        "K = 1  # first\n# ---- next cell\nK = 5  # second\nK = K + 1  # third\n",
        "K + x",
    ),
    "a name that is another module by now": Part(
        "import math as tools\n# ---- next cell\nimport operator as tools\n"
        "factor = 3\nfrom math import e as factor\n",
        "tools.add(x, factor)",
        ("import operator as tools", "from math import e as factor"),
    ),
    "functions in branches and loops": Part(
        """
FAST = True
if FAST:
    # the quick way
    def quick(x):
        # fast
        return step(x) + 1
else:
    def quick(x): return x
for n in range(3):
    def step(x, n=n): return x * n
""",
        "quick(x)",
        ("# the quick way\ndef quick(x):\n    # fast\n    return step(x) + 1",),
    ),
    "values of loops, conditions, walrus and unpacking; a long one whose text gives it": Part(
        """
import numpy as np
SIZES = {}
for side in (1, 2):
    SIZES[side] = side * side
if len(SIZES) > 1:
    MODE = "many"
first, *REST = [4, 5, 6]
(LIMIT := 10)
A = B = [1]
B.append(2)
LIMIT += 5  # raised
WINDOW = np.hanning(256)  # as in training
""",
        "(SIZES.get(x), MODE, REST, LIMIT, A, first, B, float(WINDOW.sum()))",
        ("WINDOW = np.hanning(256)  # as in training",),
    ),
    "a logger that is set up": Part(
        """
import logging
logging.basicConfig(level=logging.INFO)
log = logging.getLogger("prep")
""",
        'log.debug("item %s", x)',
        ('log = logging.getLogger("prep")',),
    ),
    "a logger of the module, and its docstring": Part(
        """
own_log = logging.getLogger(__name__)
""",
        "(own_log.isEnabledFor(99), __name__ == 3, __doc__ == 3)",
        ("own_log = logging.getLogger(__name__)",),
    ),
    "habits that a linter dislikes": Part(
        """
halve = lambda x: x / 2  # quick
l = [1, 2]
def careless(x):
    unused = f"nothing"
    if x == None: return -1
    try:
        return halve(x) + l[x % 2]; print("never")
    except:
        return 0
""",
        "careless(x)",
        ('    try:\n        return halve(x) + l[x % 2]; print("never")',),
    ),
    "semicolons, backslashes, triple quotes and raw strings": Part(
        r'''
C = 1; D = 2  # both
LONG = "one " \
    "two"
TEXT = """first
    second "line"
third"""
RAW = r"\d+\s" ; OCT = 0o17; BIG = 1_000_000
def laid_out(
    x, /, a=C,  # first
    *rest: int,
    b=D,
    **more,
):
    """Has 'quotes' and \\ in it."""
    match x:
        case 0 | 1:
            return TEXT, RAW, LONG
        case int() if (y := x * a) > 2:
            return {**more, "y": y, "b": b, "o": OCT, "big": BIG}
    return [*rest, f"{x!r:>{a + 3}}"]
''',
        "laid_out(x)",
        (
            'LONG = "one " \\\n    "two"',
            'TEXT = """first\n    second "line"\nthird"""',
            "BIG = 1_000_000",
            "def laid_out(\n    x, /, a=C,  # first\n    *rest: int,",
        ),
    ),
    "functions that call one another, a class that makes its own": Part(
        """
def is_even(n): return n == 0 or is_odd(n - 1)
class Tree:
    size = 3
    @classmethod
    def grown(cls, n) -> "Tree": return cls(n, [cls.grown(n - 1)] if n else [])
    def __init__(self, n, children): self.n, self.children = n, children
    def total(self): return self.n + sum(one.total() for one in self.children) + MOST
# ---- next cell
def is_odd(n): return n != 0 and is_even(n - 1)
MOST = Tree.size * 2
""",
        "(is_even(x), [Tree.grown(n).total() for n in range(x)])",
        ("MOST = Tree.size * 2",),
    ),
    "constants that class bodies, defaults and decorators read": Part(
        """
from dataclasses import dataclass, field
@dataclass
class Config:
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    edge: int = 4
# ---- next cell
EDGE = 7
class Crop:
    edge = EDGE  # in pixels
    def __call__(self, x, config=Config(edge=EDGE)):
        return x + self.edge + config.edge + sum(config.sizes)
crop = Crop()
""",
        "crop(x)",
    ),
}


def test_parts(notebook: Notebook):
    """Each part is in the module, with the user's own lines; what changes is noted."""
    cells = [f"{part.cells}def use_{n}(x):\n    return {part.use}\n" for n, part in _numbered()]
    calls = ", ".join(f"use_{n}(x)" for n, _ in _numbered())
    last = "pipe = nbpipe.source(range(5)).map(decode)\nreport = pipe.export('loader.py')\n"
    cells = ["import nbpipe\n", *cells, f"def decode(x): return [{calls}]\n", last]
    exported = notebook.exported(NEXT.join(cells), state=["calls", "cache"])
    missing = [
        (what, text) for what, part in PARTS.items() for text in part.kept if not exported.has(text)
    ]
    assert missing == []
    assert "ArgumentParser" not in exported.text
    assert "\n__name__ = " not in exported.text
    assert exported.noted("counter")


def _numbered() -> list[tuple[int, Part]]:
    return list(enumerate(PARTS.values()))
