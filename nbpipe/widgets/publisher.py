"""Publisher: one daemon thread that keeps open panels up to date."""

from __future__ import annotations

import logging
import threading
from typing import Protocol, final

LOG = logging.getLogger("nbpipe")
TICK_S = 0.25


class Feed(Protocol):
    """What is kept up to date."""

    @property
    def wanted(self) -> bool:
        """Whether anyone looks."""

    def publish(self) -> None:
        """Send what is new."""


@final
class Publisher:
    """Lets feeds publish four times a second, while there is one that is wanted.

    Args:
        tick_s: time between two looks [s].
    """

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._feeds: dict[int, Feed] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, feed: Feed) -> None:
        """Keep `feed` up to date from now on."""
        with self._lock:
            self._feeds[id(feed)] = feed
            if self._thread is None or not self._thread.is_alive():
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._loop, name="nbpipe-panels", daemon=True
                )
                self._thread.start()

    def discard(self, feed: Feed) -> None:
        """Leave `feed` alone; without any feed the thread ends."""
        with self._lock:
            self._feeds.pop(id(feed), None)
            if not self._feeds:
                self._wake.set()

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._feeds = {key: feed for key, feed in self._feeds.items() if feed.wanted}
                feeds = list(self._feeds.values())
                if not feeds:
                    self._thread = None
                    return
            for feed in feeds:
                self._publish(feed)
            feeds.clear()
            self._wake.wait(self._tick_s)

    def _publish(self, feed: Feed) -> None:
        try:
            feed.publish()
        except Exception:
            LOG.exception("a panel could not be brought up to date; it is left as it is")
            self.discard(feed)


publisher = Publisher()
