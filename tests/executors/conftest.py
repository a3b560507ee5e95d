"""What the tests of executors share."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
def engine() -> Iterator[ThreadPoolExecutor]:
    """Threads that call."""
    with ThreadPoolExecutor(8) as executor:
        yield executor
