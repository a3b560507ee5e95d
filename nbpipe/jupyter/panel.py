"""The widgets of nbpipe, and their built front end: a run's live panel, a pipeline's buttons."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Protocol, final

import anywidget
import traitlets

from ..errors import ArgumentError, FrontEndMissingError, NbpipeError, RunClosedError
from ..ops.stage import Chain
from ..show.messages import Ack, export_later, got, number_of, refused
from ..show.snapshot import Snapshot
from ..show.watch import AttendedRun, Exportable, Watched
from .kernel import cure
from .publisher import RunFeed, publisher


# -- The built front end: for each widget an ES module and its styles ------------------------------
@cache
def front_end(name: str = "panel") -> tuple[str, str]:
    """Return a widget's module and its styles as text.

    Raises:
        FrontEndMissingError: they were not built, as in a clone before `make js`.
    """
    static = resources.files(__package__) / "static"
    try:
        return (
            (static / f"{name}.js").read_text(encoding="utf-8"),
            (static / f"{name}.css").read_text(encoding="utf-8"),
        )
    except FileNotFoundError:
        raise FrontEndMissingError(
            "the panel's front end is not built; in a clone, type: make js"
        ) from None


# -- Panel: the live panel of a run, one small widget ----------------------------------------------
@final
class Panel(anywidget.AnyWidget):  # type: ignore[misc]
    """Shows a run and turns its knobs, in any number of views.

    Nothing is sent while no view is open. The synced trait `snapshot` holds the last look at a
    run at rest: it is what a page shows that was reloaded, or saved without a kernel.

    Args:
        run: the run; it is held weakly.

    Attributes:
        feed: what its views are sent, and what they ask for.
        settled: called with the run, in any thread, when what is kept of it is out of date.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    snapshot = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Watched) -> None:
        self.feed = RunFeed(run, self.send, self._keep)
        self.settled: Callable[[Any], object] = lambda _: None
        module, styles = front_end()
        super().__init__(_esm=module, _css=styles, snapshot=self.feed.snapshot())
        self.on_msg(Panel._receive)
        cure(self.comm, self._handle_msg)

    def _keep(self, shown: Snapshot) -> None:
        self.snapshot = dict(shown)
        run = self.feed.run
        if run is not None:
            self.settled(run)

    def _receive(self, content: object, _buffers: object) -> None:
        self.feed.receive(content)
        if self.feed.wanted:
            publisher.add(self.feed)

    def get_state(
        self,
        key: str | Iterable[str] | None = None,
        drop_defaults: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """Return the synced traits; a page that was reloaded gets a fresh look at the run."""
        state: dict[str, Any] = super().get_state(key=key, drop_defaults=drop_defaults)
        if key is None and "snapshot" in state:
            state["snapshot"] = self.feed.snapshot()
        return state

    def close(self) -> None:
        """Take the panel out of all pages."""
        self.feed.close()
        publisher.discard(self.feed)
        self.layout.close()  # a comm of its own
        super().close()

    def __repr__(self) -> str:
        return f"Panel({self.feed.snapshot()['title']})"


_panels: weakref.WeakKeyDictionary[Watched, Panel] = weakref.WeakKeyDictionary()


def panel_of(run: Watched) -> Panel:
    """Return the panel of a run; there is one, in however many places it is shown."""
    found = _panels.get(run)
    if found is None or found.comm is None:
        found = _panels[run] = Panel(run)
    return found


# -- PipelineBar: the buttons at a pipeline that a notebook shows: start it here, export it --------
_GONE = "this pipeline is gone; run the cell that shows it again"


class Startable(Exportable, Protocol):
    """A pipeline."""

    chain: Chain

    def start(self) -> AttendedRun:
        """Start a run of it."""


@final
class PipelineBar(anywidget.AnyWidget):  # type: ignore[misc]
    """Starts a pipeline, and exports it. The synced trait `started` names the run's variable.

    Args:
        pipe: the pipeline; it is held weakly.
        start: starts a run of it and shows it; returns the run's variable.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    started = traitlets.Unicode().tag(sync=True)

    def __init__(self, pipe: Startable, start: Callable[[Startable], str]) -> None:
        self._pipe = weakref.ref(pipe)
        self._start = start
        module, styles = front_end("pipeline")
        super().__init__(_esm=module, _css=styles)
        self.on_msg(PipelineBar._receive)
        cure(self.comm, self._handle_msg)

    def _receive(self, message: object, _buffers: object) -> None:
        number = number_of(message)
        try:
            if not isinstance(message, Mapping):
                raise ArgumentError(f"a message must be an object, got {got(message)}")
            self._do(message, number)
        except NbpipeError as error:
            self.send(dict(refused(number, error)))
            return
        done: Ack = {"type": "ack", "id": number, "ok": True, "value": None}
        self.send(dict(done))

    def _do(self, message: Mapping[Any, Any], number: int) -> None:
        op, pipe = message.get("op"), self._pipe()
        if op not in ("start", "export"):
            raise ArgumentError(f"op must be start or export, got {got(op)}")
        if pipe is None:
            raise RunClosedError(_GONE)
        if op == "export":
            export_later(pipe, message, number, lambda exported: self.send(dict(exported)))
        elif not self.started:
            self.started = self._start(pipe)

    def close(self) -> None:
        """Take the buttons out of all pages."""
        self.layout.close()  # a comm of its own
        super().close()

    def __repr__(self) -> str:
        return "PipelineBar()"
