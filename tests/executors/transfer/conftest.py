"""A fake device for whole pipelines."""

import pytest

from tests.executors.transfer.fake import machine


@pytest.fixture
def world(monkeypatch):
    """Give a machine with two fake devices, whose streams stand still until they are told."""
    return machine(monkeypatch)
