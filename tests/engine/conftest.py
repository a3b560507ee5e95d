"""Every test here shows where all threads stood when it runs into its time limit."""

import faulthandler
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def dump_on_hang() -> Iterator[None]:
    """Write the stacks of all threads shortly before the time limit of a test."""
    faulthandler.dump_traceback_later(55, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
