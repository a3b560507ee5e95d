"""Random notebooks: every pipeline comes back from its module with the same items and knobs."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.export.notebooks import NEXT, Notebook
from tests.export.nursery import Nursery
from tests.strategies import examples

pytestmark = pytest.mark.slow

BEGIN = """\
import asyncio
import operator
from dataclasses import dataclass
from functools import lru_cache, partial, wraps

import nbpipe
import numpy as np

pipes = []
"""
# Ways to write a stage of whole numbers: the cell that defines it, and expressions that name it.
# NN is a number of its own, KK a random one.
STAGES = """
SHIFT_NN = KK  # shift NN
def add_NN(x):
    return x + SHIFT_NN
# use: add_NN
# ----
def twice_NN(x):
    # helper NN
    return x * 2

def deep_NN(x):
    return twice_NN(x) - KK
# use: deep_NN | partial(deep_NN)
# ----
def make_NN(k, *, more=1):
    def inner_NN(x):
        return x * k + more
    return inner_NN

by_NN = make_NN(KK, more=3)
# use: by_NN | make_NN(KK)
# ----
# use: lambda x: x - KK | abs | partial(operator.add, KK) | operator.neg
# ----
def crop_NN(x, *, size=9):
    '''Crop NN.'''
    return x % size
# use: partial(crop_NN, size=KK) | crop_NN
# ----
@dataclass(frozen=True)
class Scale_NN:
    by: int = KK  # factor

    def __call__(self, x):
        return x * self.by

    def less(self, x):
        return x - self.by

scale_NN = Scale_NN(7)
# use: Scale_NN(KK) | scale_NN | scale_NN.less | Scale_NN(by=KK).less
# ----
class Plain_NN:
    kept = KK

    def __init__(self, start):
        self.start = start

    def __call__(self, x):
        return x + self.start + self.kept

plain_NN = Plain_NN(KK)
# use: plain_NN | Plain_NN(KK)
# ----
async def fetch_NN(x):
    await asyncio.sleep(0)
    return x + KK
# use: fetch_NN
# ----
def jitter_NN(x, rng):
    return x + int(rng.integers(KK + 1))
# use: jitter_NN
# ----
WEIGHTS_NN = np.array([KK, 2])  # weights NN
WEIGHTS_NN += 1
def weigh_NN(x):
    return int(WEIGHTS_NN[x % 2]) + x
# use: weigh_NN
# ----
TABLE_NN = {}
for key in range(KK):
    TABLE_NN[key] = key * key
def look_up_NN(x):
    return TABLE_NN.get(x, x)
# use: look_up_NN
# ----
def checked_NN(function):
    @wraps(function)
    def wrapper(x):
        return function(x) + KK
    return wrapper

@lru_cache
def slow_NN(x):
    return x // 2

@checked_NN
def wrapped_NN(x):
    return slow_NN(x)
# use: wrapped_NN
"""
OTHERS = [
    ("filter", "def is_small_NN(x):\n    return x < KK * 20\n", "is_small_NN"),
    ("filter", "", "lambda x: x % 3 != 0"),
    ("flat_map", "def both_NN(x):\n    yield x\n    yield x + KK\n", "both_NN"),
    ("flat_map", "", "lambda x: (x, KK)"),
]
SOURCES = [
    ("", "range(KK + 3)"),
    ("NUMBERS_NN = [KK, 5, 1, 8]  # by hand", "NUMBERS_NN"),
    ("def numbers_NN():\n    return iter(range(KK + 2))", "numbers_NN"),
    ("", "[3, KK, 4]"),
]
ENDS = [
    "",
    ".batch(KK)",
    ".batch(KK, drop_last=True)",
    ".enumerate()",
    ".window(2)",
    ".take(KK + 1).repeat(2)",
    ".skip(1).batch(2).unbatch()",
    ".shuffle(seed=KK, buffer_size=4).batch(2, prefetch=3)",
]
small = st.integers(1, 9)


def blocks() -> list[tuple[str, list[str]]]:
    """List the ways to write a stage: a cell, and the expressions."""
    found = (block.partition("# use: ") for block in STAGES.split("# ----\n"))
    return [(cell, uses.strip().split(" | ")) for cell, _, uses in found]


def filled(text: str, n: int, k: int) -> str:
    """Put the numbers into a text."""
    return text.replace("NN", str(n)).replace("KK", str(k))


@st.composite
def stages(draw, numbers) -> tuple[list[tuple[str, str]], str]:
    """Draw cells, each with an older one or none, and the steps of a chain that use them."""
    cells, steps = [], []
    for _ in range(draw(st.integers(0, 3))):
        n, k = next(numbers), draw(small)
        if draw(st.integers(0, 3)):
            cell, uses = draw(st.sampled_from(blocks()))
            method, use = "map", draw(st.sampled_from(uses))
        else:
            method, cell, use = draw(st.sampled_from(OTHERS))
        older = filled(cell, n, k + 1) if draw(st.integers(0, 3)) == 0 else ""
        cells.append((older, filled(cell, n, k)))
        options = draw(knobs())
        steps.append(f".{method}({', '.join([filled(use, n, k), *options])})")
    return cells, "".join(steps)


@st.composite
def knobs(draw) -> list[str]:
    """Draw the options of a stage."""
    options = {"concurrency": draw(st.none() | st.integers(1, 4))}
    options["prefetch"] = draw(st.none() | st.integers(1, 9))
    if draw(st.integers(0, 4)) == 0:
        options["on_error"] = "'skip'"
    return [f"{name}={value}" for name, value in options.items() if value is not None]


@st.composite
def chains(draw, numbers) -> tuple[list[tuple[str, str]], str]:
    """Draw cells, each with an older one or none, and an expression that gives a pipeline."""
    n, k = next(numbers), draw(small)
    cell, items = draw(st.sampled_from(SOURCES))
    cells, steps = draw(stages(numbers))
    cells.append(("", filled(cell, n, k)))
    head = f"nbpipe.source({filled(items, n, k)})"
    if draw(st.integers(0, 3)) == 0:
        more, chain = draw(stages(numbers))
        cells += more
        head = f"nbpipe.concat({head}, nbpipe.source(range(3)){chain})"
    return cells, head + steps + filled(draw(st.sampled_from(ENDS)), n, k)


@st.composite
def notebooks(draw) -> tuple[list[str], int]:
    """Draw the cells of a notebook, and how many pipelines it exports."""
    numbers = iter(range(1000))
    older: list[str] = []
    cells: list[str] = []
    ends: list[str] = []
    count = draw(st.integers(3, 4))
    for pipe in range(count):
        pairs, expression = draw(chains(numbers))
        older += [old for old, _ in pairs if old]
        cells += [cell for _, cell in pairs if cell]
        tuned = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=2))
        ends += [f"pipes.append({expression})\n", *map(tuning, tuned)]
        ends.append(f"pipes[-1].export('module_{pipe}.py')\n")
    return [BEGIN, *older, *draw(st.permutations(cells)), "".join(ends)], count


def tuning(turn: tuple[int, int]) -> str:
    """Write lines that turn a knob of some stage, where that has any."""
    place, value = turn
    return (
        f"held = list(pipes[-1].stages[{place} % len(pipes[-1].stages)].knobs.values())\n"
        f"for knob in held[:1]:\n    knob.set({value})\n"
    )


@pytest.mark.timeout(240)
@settings(
    max_examples=examples(0.1),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink would take minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(notebooks())
def test_round_trip(nursery: Nursery, drawn: tuple[list[str], int]):
    """Whatever is exported gives the notebook's items and knobs in a fresh process."""
    cells, count = drawn
    with tempfile.TemporaryDirectory() as folder:
        notebook = Notebook(nursery, Path(folder))
        try:
            notebook.run(NEXT.join(cell + "\n" for cell in cells))
            for n in range(count):
                notebook.examined(pipe=f"pipes[{n}]", name=f"module_{n}")
        finally:
            notebook.close()
