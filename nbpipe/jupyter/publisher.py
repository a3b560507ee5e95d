"""RunChannel: the messages of one run. Publisher: the thread that sends them."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Literal, Protocol, TypedDict, final

from ..show.controller import RunController
from ..show.messages import (
    EXPORT,
    ExportedMessage,
    Ops,
    Views,
    anything,
    boolean,
    optional,
    text,
    view_name,
    view_names,
)
from ..show.snapshot import HistoryPart, Snapshot, history, snapshot_key
from ..show.watch import RunView

LOG = logging.getLogger("nbpipe")
TICK_S = 0.25
Send = Callable[[Mapping[str, Any]], object]


# -- RunChannel: the messages of one run -----------------------------------------------------------
class Hello(TypedDict):
    """What a view gets that has just opened."""

    type: Literal["hello"]
    snapshot: Snapshot
    history: HistoryPart


class Tick(TypedDict):
    """What views get when something has changed."""

    type: Literal["tick"]
    snapshot: Snapshot


_OPS = Ops()
_CONTROLS: Mapping[str, Callable[[RunController], None]] = {  # what a button asks for, by its op
    "pause": RunController.pause,
    "resume": RunController.resume,
    "stop": RunController.stop,
    "undo": RunController.undo,
    "autotune": RunController.autotune,
    "autotune_stop": RunController.autotune_stop,
    "autotune_undo": RunController.autotune_undo,
}
_KEEP_S = 10.0  # the snapshot kept of a run under way is at most so old [s]
_NOTHING: HistoryPart = {"time_s": [], "stages": {}, "changes": [], "epoch": None}
_GOING = ("running", "paused")


@final
class RunChannel:
    """Connects a run to the views of a front end: sends snapshots, and does what they ask for.

    Nothing is sent while no view is open.

    Args:
        run: the run; it is held weakly.
        send: sends a message to all views; called in any thread.
        keep: called with a snapshot, in any thread, when the one kept is out of date.
    """

    def __init__(
        self, run: RunView, send: Send, keep: Callable[[Snapshot], object] = lambda _: None
    ) -> None:
        self._controller = RunController.of(run)
        self._views = Views()
        self._send = send
        self._keep = keep
        self._sending = threading.Lock()
        self._sent: Snapshot | None = None
        self._settled_s = monotonic()

    @property
    def run(self) -> RunView | None:
        """The run, or None where it is gone."""
        return self._controller.run

    def snapshot(self) -> Snapshot:
        """Return `RunController.snapshot()`."""
        return self._controller.snapshot()

    def glance(self) -> Snapshot:
        """Return `RunController.glance()`."""
        return self._controller.glance()

    # -- what the publisher asks ----------------------------------------------------------
    @property
    def wanted(self) -> bool:
        """Whether a view is open, of a run that may still change."""
        over = self._sent is not None and self._sent["state"] == "closed"
        return bool(self._views) and not over

    def publish(self, *, lately: bool = True) -> None:
        """Send what changed since the last time; `lately` as of `RunController.snapshot`."""
        with self._sending:
            shown, before = self._controller.publish(lately=lately), self._sent
            if before is None or snapshot_key(shown) != snapshot_key(before):
                self._sent = shown
                tick: Tick = {"type": "tick", "snapshot": _without_repeats(shown, before)}
                self._send(tick)
        going = shown["state"] in _GOING
        comes_to_rest = before is not None and before["state"] in _GOING and not going
        if comes_to_rest or (going and monotonic() - self._settled_s > _KEEP_S):
            self._settle()

    def rest(self) -> None:
        """Called when the run has come to rest; it may be gone before the next snapshot."""
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

    # -- what a browser asks for -----------------------------------------------------------
    def receive(self, message: object) -> None:
        """Do what a message from a browser asks for, and answer it; never raises."""
        ack = _OPS.answer(self, message)
        if ack is None:
            return
        if not ack["ok"] and isinstance(message, Mapping):
            ack["value"] = self._controller.in_force(message.get("stage"), message.get("knob"))
        self._send(ack)

    def ask(self, op: str) -> None:
        """Do what a button asks for; a refusal is not sent."""
        _OPS.answer(self, {"op": op})

    @_OPS.op("set", stage=text, knob=text, value=anything)
    def _set(self, stage: str, knob: str, value: object) -> int:
        return self._controller.set(stage, knob, value)

    @_OPS.op(*_CONTROLS, op=text)
    def _control(self, op: str) -> None:
        _CONTROLS[op](self._controller)

    @_OPS.op("give_back", stage=text, knob=text)
    def _give_back(self, stage: str, knob: str) -> None:
        self._controller.give_back(stage, knob)

    @_OPS.op("export", **EXPORT)
    def _export(self, **asked: Any) -> None:
        self._controller.export(self._send_exported, **asked)

    @_OPS.op("view", ack=False, view=view_name, open=optional(boolean, default=True))
    def _view(self, view: str, *, open: bool) -> None:  # noqa: A002  as the message calls it
        if open:
            self._views.open(view)
            self._send_hello()
        else:
            self._views.close(view)

    @_OPS.op("alive", ack=False, views=view_names)
    def _alive(self, views: list[str]) -> None:
        self._views.renew(views)

    def _send_exported(self, exported: ExportedMessage) -> None:
        self._send(exported)
        if self._views:  # a closed run is published once more: the name of the file is new
            self.publish(lately=False)

    def _send_hello(self) -> None:
        run = self.run
        with self._sending:
            self._sent = shown = self.snapshot()
            past = _NOTHING if run is None else history(run)
            hello: Hello = {"type": "hello", "snapshot": shown, "history": past}
            self._send(hello)

    def close(self) -> None:
        """Forget the views."""
        self._views.clear()


def _without_repeats(shown: Snapshot, before: Snapshot | None) -> Snapshot:
    """Return a snapshot without the long lists that are as before."""
    sent: Snapshot = {**shown}
    if before is not None and shown["changes"] == before["changes"]:
        sent["changes"] = None
    tuner, known = shown["tuner"], None if before is None else before["tuner"]
    if tuner is not None and known is not None and tuner["done"] == known["done"]:
        sent["tuner"] = {**tuner, "done": None}
    if before is not None and shown["failures"] == before["failures"]:
        sent["failures"] = None
    return sent


# -- Publisher: one daemon thread that keeps open views up to date ---------------------------------


class Published(Protocol):
    """Something that the publisher keeps up to date."""

    @property
    def wanted(self) -> bool:
        """Whether a view is open."""

    def publish(self) -> None:
        """Send what has changed."""


@final
class Publisher:
    """Makes feeds publish four times a second, while one of them is wanted.

    The garbage collector may discard a feed at any moment, in any thread: one that holds the lock,
    or one that starts while another waits for it to start.

    Args:
        tick_s: time between two rounds [s].
    """

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._feeds: dict[int, Published] = {}
        self._thread: threading.Thread | None = None
        self._wake = _thread.allocate_lock()  # an event has a lock that is not reentrant
        self._wake.acquire()

    def add(self, feed: Published) -> None:
        """Start to keep a feed up to date."""
        self._feeds[id(feed)] = feed
        thread = None
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._wake.acquire(blocking=False)
                thread = self._thread = threading.Thread(
                    target=self._loop, name="nbpipe-panels", daemon=True
                )
        if thread is not None:
            thread.start()  # it waits for the thread, which may collect garbage as it starts

    def discard(self, feed: Published) -> None:
        """Stop to keep a feed up to date; without any feed the thread ends."""
        self._feeds.pop(id(feed), None)  # no lock: see above
        if not self._feeds:
            with contextlib.suppress(RuntimeError):  # it is open
                self._wake.release()

    def _loop(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return  # another one was started before this one was alive
                feeds = self._wanted()
                if not feeds:
                    self._thread = None
                    return
            while feeds:
                self._publish(feeds.pop(0))
            self._wake.acquire(timeout=self._tick_s)

    def _wanted(self) -> list[Published]:
        """Drop the feeds that are not wanted, and return the others, those of one run first."""
        for key, feed in self._feeds.copy().items():
            if not feed.wanted:
                self._feeds.pop(key, None)
        # The list of all runs shows the snapshots that these have just published.
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
