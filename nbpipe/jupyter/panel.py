"""Panel: the live panel of a run, one small widget, and the front end that was built for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from time import monotonic
from typing import Any, final

import anywidget
import traitlets

from ..errors import ArgumentError, FrontEndMissingError
from ..show.messages import Ack, ExportedMessage, Remote, Views
from ..show.snapshot import HistoryPart, Snapshot, history, snapshot_key
from ..show.watch import Watched
from .kernel import cure
from .publisher import TICK_S, publisher


# -- The built front end: one ES module and its styles ---------------------------------------------
@cache
def front_end() -> tuple[str, str]:
    """Return the panel's module and its styles as text.

    Raises:
        FrontEndMissingError: they were not built, as in a clone before `make js`.
    """
    static = resources.files(__package__) / "static"
    try:
        return (
            (static / "panel.js").read_text(encoding="utf-8"),
            (static / "panel.css").read_text(encoding="utf-8"),
        )
    except FileNotFoundError:
        raise FrontEndMissingError(
            "the panel's front end is not built; in a clone, type: make js"
        ) from None


# -- Panel: the live panel of a run, one small widget ----------------------------------------------
_KEEP_S = 10.0  # what is kept of a run under way is at most so old [s]
_NOTHING: HistoryPart = {"time_s": [], "stages": {}, "changes": [], "epoch": None}
_GOING = ("running", "paused")


@final
class Panel(anywidget.AnyWidget):  # type: ignore[misc]
    """Shows a run and turns its knobs, in any number of views.

    Nothing is sent while no view is open. The synced trait `snapshot` holds the last look at a
    run at rest: it is what a page shows that was reloaded, or saved without a kernel.

    Args:
        run: the run; it is held weakly.

    Attributes:
        settled: called with the run, in any thread, when what is kept of it is out of date.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Watched) -> None:
        self._remote = Remote(run)
        self._open_views = Views()
        self._sending = threading.Lock()
        self._sent: Snapshot | None = None
        self._settled_s = monotonic()
        self.settled: Callable[[Any], object] = lambda _: None
        module, styles = front_end()
        super().__init__(_esm=module, _css=styles, snapshot=self._remote.snapshot())
        self.on_msg(Panel._receive)
        cure(self.comm, self._handle_msg)

    # -- what the publisher asks ----------------------------------------------------------
    @property
    def wanted(self) -> bool:
        """Whether a view is open, of a run that may still change."""
        over = self._sent is not None and self._sent["state"] == "closed"
        return bool(self._open_views) and not over and self.comm is not None

    def publish(self) -> None:
        """Send what changed since the last time."""
        with self._sending:
            shown, before = self._remote.snapshot(), self._sent
            if before is None or snapshot_key(shown) != snapshot_key(before):
                self._sent = shown
                self.send({"type": "tick", "snapshot": _news(shown, before)})
        going = shown["state"] in _GOING
        comes_to_rest = before is not None and before["state"] in _GOING and not going
        if comes_to_rest or (going and monotonic() - self._settled_s > _KEEP_S):
            self._settle()

    def rest(self) -> None:
        """Called when the run has come to rest; it may be gone before it is looked at again."""
        self._remote.snapshot()
        if monotonic() - self._settled_s < TICK_S:
            return
        if self.wanted:
            self.publish()
        else:
            self._settle()

    def _settle(self) -> None:
        self._settled_s = monotonic()
        self.snapshot = dict(self._remote.snapshot())
        run = self._remote.run
        if run is not None:
            self.settled(run)

    # -- what a browser says --------------------------------------------------------------
    def _receive(self, content: object, _buffers: object) -> None:
        op = content.get("op") if isinstance(content, Mapping) else None
        if op not in ("view", "alive"):
            self.send(dict(self._remote.handle(content, self._send_exported)))
            return
        assert isinstance(content, Mapping)
        try:
            self._open_views.note(content)
        except ArgumentError as error:
            refused: Ack = {"type": "ack", "id": 0, "ok": False, "value": None}
            self.send({**refused, "error": str(error)})
            return
        if op == "view" and self._open_views:
            self._send_hello()
        publisher.add(self)

    def _send_exported(self, exported: ExportedMessage) -> None:
        self.send(dict(exported))
        if self._open_views:  # a closed run is not looked at again: what the file holds is new
            self.publish()

    def _send_hello(self) -> None:
        run = self._remote.run
        with self._sending:
            self._sent = shown = self._remote.snapshot()
            past = _NOTHING if run is None else history(run)
            self.send({"type": "hello", "snapshot": dict(shown), "history": past})

    # -- the widget -----------------------------------------------------------------------
    def get_state(
        self,
        key: str | Iterable[str] | None = None,
        drop_defaults: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """Return the synced traits; a page that was reloaded gets a fresh look at the run."""
        state: dict[str, Any] = super().get_state(key=key, drop_defaults=drop_defaults)
        if key is None and "snapshot" in state:
            state["snapshot"] = self._remote.snapshot()
        return state

    def close(self) -> None:
        """Take the panel out of all pages."""
        publisher.discard(self)
        self._remote.close()
        super().close()

    def __repr__(self) -> str:
        return f"Panel({self._remote.snapshot()['title']})"


def _news(shown: Snapshot, before: Snapshot | None) -> dict[str, Any]:
    """Return the snapshot without the long lists that are as before."""
    news: dict[str, Any] = dict(shown)
    for part in ("changes", "failures"):
        if before is not None and shown.get(part) == before.get(part):
            news[part] = None
    return news


_panels: weakref.WeakKeyDictionary[Watched, Panel] = weakref.WeakKeyDictionary()


def panel_of(run: Watched) -> Panel:
    """Return the panel of a run; there is one, in however many places it is shown."""
    found = _panels.get(run)
    if found is None or found.comm is None:
        found = _panels[run] = Panel(run)
    return found
