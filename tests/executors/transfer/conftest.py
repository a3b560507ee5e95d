"""A fake device for whole pipelines."""

import pytest

from nbpipe.executors import device
from tests.executors.transfer.fake import World


@pytest.fixture
def world(monkeypatch):
    """Give a machine with two fake devices, whose streams stand still until they are told."""
    made = World()
    monkeypatch.setitem(device.BACKENDS, "fake", made)
    return made
