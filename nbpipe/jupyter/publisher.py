"""RunChannel: the messages about one run. Publisher: the thread that sends them."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol, final

from ..errors import ArgumentError
from ..show.messages import ExportedMessage, RunController, Views, refused
from ..show.snapshot import HistoryPart, Snapshot, history, snapshot_key
from ..show.watch import RunView

LOG = logging.getLogger("nbpipe")
TICK_S = 0.25
Send = Callable[[dict[str, Any]], object]


# -- RunChannel: the messages about one run -------------------------------------
_KEEP_S = 10.0  # what is kept of a run under way is at most so old [s]
_NOTHING: HistoryPart = {"time_s": [], "stages": {}, "changes": [], "epoch": None}
_GOING = ("running", "paused")


@final
class RunChannel:
    """One run for the views of a front end: what they are sent, and what they ask for.

    Nothing is sent while no view is open.

    Args:
        run: the run; it is held weakly.
        send: sends a message to all views; called in any thread.
        keep: called with a snapshot, in any thread, when what is kept of the run is out of date.
    """

    def __init__(
        self, run: RunView, send: Send, keep: Callable[[Snapshot], object] = lambda _: None
    ) -> None:
        self._remote = RunController.of(run)
        self._views = Views()
        self._send = send
        self._keep = keep
        self._sending = threading.Lock()
        self._sent: Snapshot | None = None
        self._settled_s = monotonic()

    @property
    def run(self) -> RunView | None:
        """The run, or None where it is gone."""
        return self._remote.run

    def snapshot(self) -> Snapshot:
        """Return how the run is, as `RunController.snapshot` does."""
        return self._remote.snapshot()

    def glance(self) -> Snapshot:
        """Return how the run is, as `RunController.glance` does."""
        return self._remote.glance()

    # -- what the publisher asks ----------------------------------------------------------
    @property
    def wanted(self) -> bool:
        """Whether a view is open, of a run that may still change."""
        over = self._sent is not None and self._sent["state"] == "closed"
        return bool(self._views) and not over

    def publish(self, *, lately: bool = True) -> None:
        """Send what changed since the last time; `lately` as of `RunController.snapshot`."""
        with self._sending:
            shown, before = self._remote.publish(lately=lately), self._sent
            if before is None or snapshot_key(shown) != snapshot_key(before):
                self._sent = shown
                self._send({"type": "tick", "snapshot": _news(shown, before)})
        going = shown["state"] in _GOING
        comes_to_rest = before is not None and before["state"] in _GOING and not going
        if comes_to_rest or (going and monotonic() - self._settled_s > _KEEP_S):
            self._settle()

    def rest(self) -> None:
        """Called when the run has come to rest; it may be gone before it is looked at again."""
        self.snapshot()
        if monotonic() - self._settled_s < TICK_S:
            return
        if self.wanted:
            self.publish()
        else:
            self._settle()

    def _settle(self) -> None:
        self._settled_s = monotonic()
        self._keep(self.snapshot())

    # -- what a browser says --------------------------------------------------------------
    def receive(self, message: object) -> None:
        """Do what a message from a browser asks for, and answer it; never raises."""
        op = message.get("op") if isinstance(message, Mapping) else None
        if op not in ("view", "alive"):
            self._send(dict(self._remote.handle(message, self._send_exported)))
            return
        assert isinstance(message, Mapping)
        try:
            self._views.note(message)
        except ArgumentError as error:
            self._send(dict(refused(0, error)))
            return
        if op == "view" and self._views:
            self._send_hello()

    def ask(self, op: str) -> None:
        """Do what a button asks for; what it is answered is not sent."""
        self._remote.handle({"op": op})

    def _send_exported(self, exported: ExportedMessage) -> None:
        self._send(dict(exported))
        if self._views:  # a closed run is not looked at again: what the file holds is new
            self.publish(lately=False)

    def _send_hello(self) -> None:
        run = self.run
        with self._sending:
            self._sent = shown = self.snapshot()
            past = _NOTHING if run is None else history(run)
            self._send({"type": "hello", "snapshot": dict(shown), "history": past})

    def close(self) -> None:
        """Forget the views."""
        self._views.clear()


def _news(shown: Snapshot, before: Snapshot | None) -> dict[str, Any]:
    """Return the snapshot without the long lists that are as before."""
    news: dict[str, Any] = dict(shown)
    for part in ("changes", "failures"):
        if before is not None and shown.get(part) == before.get(part):
            news[part] = None
    return news


# -- Publisher: one daemon thread that keeps open views up to date ---------------------------------


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
        """Drop the feeds at which nobody looks, and return the others, those of one run first."""
        for key, feed in self._feeds.copy().items():
            if not feed.wanted:
                self._feeds.pop(key, None)
        # Whoever shows many runs glances at what they have just published.
        return sorted(
            self._feeds.copy().values(), key=lambda feed: not isinstance(feed, RunChannel)
        )

    def _publish(self, feed: Published) -> None:
        try:
            feed.publish()
        except Exception:
            LOG.exception("a panel could not be brought up to date; it is left as it is")
            self.discard(feed)


publisher = Publisher()
