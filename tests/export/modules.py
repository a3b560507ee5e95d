"""Modules as values, each with the text that one would write by hand."""

from dataclasses import dataclass

from nbpipe.export.module import Import, Module, Parameter

from .building import SOURCE, chained, constant, definition, module


@dataclass(frozen=True)
class Case:
    """A module and its text."""

    name: str
    module: Module
    text: str


def case(name, full, text):
    """Build a case; its text begins on the line below the quotes."""
    docstring = '"""Build the pipeline with the values tuned in the notebook."""'
    return Case(name, full, text[1:].replace("<docstring>", docstring))


CASES = [
    case(
        "helpers",
        module(
            [
                definition(
                    "# scale, then normalise\ndef decode(x: int) -> float:\n"
                    "    '''Decode one item.'''\n    y = x * SCALE  # keep me\n"
                    "    return float(_norm(y))",
                    3,
                    1,
                    later="SCALE _norm",
                ),
                definition("def _norm(x):\n    return x - MEAN.sum()", 3, later="MEAN"),
                constant("SCALE = 4", 2, 1),
                constant(
                    "# ImageNet mean, per channel\n"
                    "MEAN = np.array([0.5, 0.25], dtype='float32')  # rgb-ish",
                    2,
                    now="np",
                ),
                SOURCE,
            ],
            chained(
                ("map", "decode", "concurrency=decode_concurrency", "prefetch=decode_prefetch")
            ),
            imports=(Import("numpy", alias="np"),),
            parameters=(
                Parameter("decode_concurrency", "int", "3"),
                Parameter("decode_prefetch", "int", "4"),
            ),
        ),
        r"""
import nbpipe
import numpy as np

# ImageNet mean, per channel
MEAN = np.array([0.5, 0.25], dtype='float32')  # rgb-ish
SCALE = 4


def _norm(x):
    return x - MEAN.sum()


# scale, then normalise
def decode(x: int) -> float:
    '''Decode one item.'''
    y = x * SCALE  # keep me
    return float(_norm(y))


def build_pipeline(
    *,
    decode_concurrency: int = 3,
    decode_prefetch: int = 4,
) -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(decode, concurrency=decode_concurrency, prefetch=decode_prefetch)
    )
""",
    ),
    case(
        "lambdas",
        module(
            [
                SOURCE,
                definition("def map_1(x):\n    return (x, 'é')", 1, 0),
                definition("def map_2(t):\n    return t[0] * 2", 1, 1),
                definition("def filter_3(x):\n    return x > 2", 1, 2),
            ],
            chained(("map", "map_1"), ("map", "map_2"), ("filter", "filter_3")),
        ),
        r"""
import nbpipe


def map_1(x):
    return (x, 'é')


def map_2(t):
    return t[0] * 2


def filter_3(x):
    return x > 2


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(map_1)
        .map(map_2)
        .filter(filter_3)
    )
""",
    ),
    case(
        "closures",
        module(
            [
                SOURCE,
                constant("OFF = 1", 1),
                definition(
                    "def _inner(k, x):\n    # scaled\n    return x * k + OFF", 1, 1, later="OFF"
                ),
                constant("by2 = partial(_inner, 2)", 1, 2, now="_inner partial"),
                constant("by3 = partial(_inner, 3)", 1, 3, now="_inner partial"),
            ],
            chained(("map", "by2", 'name="inner"'), ("map", "by3", 'name="inner_2"')),
            imports=(Import("functools", "partial"),),
        ),
        r"""
from functools import partial

import nbpipe

OFF = 1


def _inner(k, x):
    # scaled
    return x * k + OFF


by2 = partial(_inner, 2)
by3 = partial(_inner, 3)


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(by2, name="inner")
        .map(by3, name="inner_2")
    )
""",
    ),
    case(
        "imports",
        module(
            [
                SOURCE,
                definition(
                    "def decode(x):\n    e = xml.etree.ElementTree.fromstring('<a/>')\n"
                    "    return floor(sqrt(x * pi)), e.tag, osp.join('a', str(x)), "
                    "isinstance([], collections.abc.Sized)",
                    1,
                ),
            ],
            chained(("map", "decode")),
            imports=(
                Import("math", "sqrt"),
                Import("math", "pi"),
                Import("xml.etree.ElementTree"),
                Import("os.path", alias="osp"),
                Import("math", "floor"),
                Import("collections.abc"),
            ),
        ),
        r"""
import collections.abc
import os.path as osp
import xml.etree.ElementTree
from math import floor, pi, sqrt

import nbpipe


def decode(x):
    e = xml.etree.ElementTree.fromstring('<a/>')
    return floor(sqrt(x * pi)), e.tag, osp.join('a', str(x)), isinstance([], collections.abc.Sized)


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(decode)
    )
""",
    ),
    case(
        "constants",
        module(
            [
                SOURCE,
                constant("log = logging.getLogger('loader')", 1, 4),
                constant("TOKEN = os.environ.get('HF_TOKEN')", 1, 5),
                constant(r"PAT = re.compile(r'(\d)', re.I)", 1, 2),
                constant("ROOT = Path('/data') / 'train'", 1, 3),
                definition(
                    "def decode(x):\n    log.debug('x %s', x)\n"
                    r"    return PAT.sub(r'<\1>', str(ROOT / str(x))), TOKEN is None",
                    2,
                    later="PAT ROOT TOKEN",
                ),
            ],
            chained(("map", "decode")),
            imports=(Import("re"), Import("os"), Import("logging"), Import("pathlib", "Path")),
        ),
        r"""
import logging
import os
import re
from pathlib import Path

import nbpipe

PAT = re.compile(r'(\d)', re.I)
ROOT = Path('/data') / 'train'
log = logging.getLogger('loader')
TOKEN = os.environ.get('HF_TOKEN')


def decode(x):
    log.debug('x %s', x)
    return PAT.sub(r'<\1>', str(ROOT / str(x))), TOKEN is None


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(decode)
    )
""",
    ),
    case(
        "async",
        module(
            [
                definition("def explode(x):\n    yield x\n    yield -x", 1, 2),
                definition(
                    "async def fetch(x):\n    await asyncio.sleep(0)\n    return x + 1", 1, 1
                ),
                SOURCE,
            ],
            chained(("map", "fetch"), ("flat_map", "explode"), ("batch", "batch_size")),
            imports=(Import("asyncio"),),
            parameters=(Parameter("batch_size", "int", "3"),),
        ),
        r"""
import asyncio

import nbpipe


async def fetch(x):
    await asyncio.sleep(0)
    return x + 1


def explode(x):
    yield x
    yield -x


def build_pipeline(
    *,
    batch_size: int = 3,
) -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(fetch)
        .flat_map(explode)
        .batch(batch_size)
    )
""",
    ),
    case(
        "future",
        module(
            [
                SOURCE,
                definition(
                    "def decode(x: Undefined_ok | None, y: np.ndarray | None = None)"
                    " -> 'np.ndarray':\n    return x",
                    3,
                    later="Undefined_ok np",
                ),
                definition("class Undefined_ok:\n    pass", 4),
            ],
            chained(("map", "decode")),
            imports=(Import("numpy", alias="np"),),
            future=True,
        ),
        r"""
from __future__ import annotations

import nbpipe
import numpy as np


class Undefined_ok:
    pass


def decode(x: Undefined_ok | None, y: np.ndarray | None = None) -> 'np.ndarray':
    return x


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(decode)
    )
""",
    ),
    case(
        "state",
        module(
            [
                SOURCE,
                constant("LOCK = threading.Lock()", 1, 3, now="threading"),
                constant("seen = 0", 1),
                constant("CACHE = {}", 1, 1),
                definition(
                    "def decode(x):\n    global seen\n    with LOCK:\n        seen += 1\n"
                    "    CACHE[x] = x\n    return x",
                    2,
                    later="seen LOCK CACHE",
                ),
            ],
            chained(("map", "decode")),
            imports=(Import("threading"),),
        ),
        r"""
import threading

import nbpipe

seen = 0
CACHE = {}
LOCK = threading.Lock()


def decode(x):
    global seen
    with LOCK:
        seen += 1
    CACHE[x] = x
    return x


def build_pipeline() -> nbpipe.Pipeline:
    <docstring>
    return (
        nbpipe.source(src)
        .map(decode)
    )
""",
    ),
]
