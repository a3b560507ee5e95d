"""Samples that the tests of many rooms take apart and put together again."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@dataclass
class Sample:
    """A dataclass."""

    image: Any
    label: Any = 0


class Colour(IntEnum):
    """An enumeration of numbers."""

    RED = 1
    BLUE = 2
