"""The ticker falls asleep, is woken and leaves, whoever is faster."""

import threading

from tests.engine.inner import Ticker
from tests.gates import HANG_S


def test_ticker_may_be_called_back_while_it_falls_asleep():
    """The ticker is woken twice just as it falls asleep, and goes on."""
    ticks, enough = [], threading.Event()

    def tick():
        ticks.append(1)
        ticker.sleep()
        ticker.attend()  # another thread, before this one has noticed that it may sleep
        if len(ticks) == 5:
            enough.set()

    ticker = Ticker(tick)
    ticker.start()
    came = enough.wait(HANG_S)
    ticker.dismiss()
    ticker.close(HANG_S)
    assert came


def test_ticker_that_falls_asleep_while_it_is_dismissed_leaves():
    """A ticker told to leave does not fall asleep for good in the tick in progress."""
    inside, dismissed = threading.Event(), threading.Event()

    def tick():
        inside.set()
        dismissed.wait(HANG_S)
        ticker.sleep()

    ticker = Ticker(tick)
    ticker.start()
    assert inside.wait(HANG_S)
    ticker.dismiss()
    dismissed.set()
    ticker.close(HANG_S)
    left = "nbpipe-ticker" not in [thread.name for thread in threading.enumerate()]
    if not left:
        ticker.attend()  # so that this test leaves nothing behind
    assert left
