"""What the tests of metrics share."""

import pytest

from tests.gates import set_clock


class Clock:
    """The clock of nbpipe, which stands still until a test sets it [s]."""

    def __init__(self, monkeypatch):
        self.now_s = 1.0
        set_clock(monkeypatch, lambda: int(self.now_s * 1e9))

    def iterate(self, run, step_s):
        """Iterate an epoch; each step takes so long."""
        for _ in run:
            self.now_s += step_s


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that stands still until a test sets it."""
    return Clock(monkeypatch)
