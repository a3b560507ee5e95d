"""Publisher: one daemon thread that keeps open panels up to date."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from typing import Protocol, final

LOG = logging.getLogger("nbpipe")
TICK_S = 0.25


class Published(Protocol):
    """What is kept up to date."""

    @property
    def wanted(self) -> bool:
        """Whether anyone looks."""

    def publish(self) -> None:
        """Send what is new."""


@final
class Publisher:
    """Makes feeds publish four times a second, while there is one that is wanted.

    A feed that is garbage may be discarded at any moment, by any thread: one that holds the lock,
    or one that begins while another waits for it to begin.

    Args:
        tick_s: time between two looks [s].
    """

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._feeds: dict[int, Published] = {}
        self._thread: threading.Thread | None = None
        self._wake = _thread.allocate_lock()  # an event has a lock that is not reentrant
        self._wake.acquire()

    def add(self, feed: Published) -> None:
        """Keep `feed` up to date from now on."""
        self._feeds[id(feed)] = feed
        thread = None
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._wake.acquire(blocking=False)
                thread = self._thread = threading.Thread(
                    target=self._loop, name="nbpipe-panels", daemon=True
                )
        if thread is not None:
            thread.start()  # it waits for the thread, which may meet garbage as it begins

    def discard(self, feed: Published) -> None:
        """Keep `feed` up to date no longer; without any feed the thread ends."""
        self._feeds.pop(id(feed), None)  # no lock: see above
        if not self._feeds:
            with contextlib.suppress(RuntimeError):  # it is open
                self._wake.release()

    def _loop(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return  # another one was begun before this one was alive
                feeds = self._wanted()
                if not feeds:
                    self._thread = None
                    return
            while feeds:
                self._publish(feeds.pop(0))
            self._wake.acquire(timeout=self._tick_s)

    def _wanted(self) -> list[Published]:
        """Drop the feeds at which nobody looks, and return the others."""
        for key, feed in self._feeds.copy().items():
            if not feed.wanted:
                self._feeds.pop(key, None)
        return list(self._feeds.copy().values())

    def _publish(self, feed: Published) -> None:
        try:
            feed.publish()
        except Exception:
            LOG.exception("a panel could not be brought up to date; it is left as it is")
            self.discard(feed)


publisher = Publisher()
