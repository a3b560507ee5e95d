"""The ranks of all tests here: they start once."""

from collections.abc import Iterator

import pytest

from tests.ranks.world import World


@pytest.fixture(scope="package")
def ranks() -> Iterator[World]:
    """Give three ranks that do one job after the other."""
    pytest.importorskip("torch")
    found = World(3)
    yield found
    found.kill()
