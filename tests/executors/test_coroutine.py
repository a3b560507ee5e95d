"""The event loop of a run, by itself."""

import gc
import threading

from nbpipe.executors.coroutine import EventLoop


class Source:
    """Gives no work."""

    def advance_loop(self, done):
        return ()

    def end_turn(self):
        pass


class Quick:
    """A call that ends at once."""

    async def begin(self):
        pass


def test_loop_that_is_closed_again_and_again(caplog):
    """However often it is told to end while it ends, it leaves no task behind."""
    for _ in range(20):
        loop = EventLoop(Source())
        loop.submit([Quick()])
        (thread,) = (one for one in threading.enumerate() if one.name == "nbpipe-event-loop")
        while thread.is_alive():
            loop.close(0)
    del loop
    gc.collect()
    assert caplog.messages == []
