"""The widgets of nbpipe, and their built front end: a run's live panel, a pipeline's buttons."""

from __future__ import annotations

import gzip
import hashlib
import json
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Protocol, final

import anywidget
import ipywidgets
import traitlets

from ..errors import FrontEndMissingError, RunClosedError
from ..ops.stage import Chain
from ..show.messages import EXPORT, ExportedMessage, Ops, export_later
from ..show.snapshot import Snapshot
from ..show.watch import AttendedRun, Exportable, RunView
from .kernel import cure
from .publisher import RunChannel, publisher


# -- The built front end: for each widget an ES module and its styles ------------------------------
@cache
def front_end(name: str) -> str:
    """Return a file of the built front end as text.

    Raises:
        FrontEndMissingError: it was not built, as in a clone before `make js`.
    """
    try:
        return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FrontEndMissingError(
            "the panel's front end is not built; in a clone, type: make js"
        ) from None


@final
class SharedCode(ipywidgets.Widget):  # type: ignore[misc]
    """The module and the styles that all widgets of one kind share.

    A widget brings a stub of a few hundred bytes, which finds this one by its id. So a kernel
    sends the code once, a saved notebook holds it once, and a page loads each version once.
    """

    packed = traitlets.Bytes().tag(sync=True)  # both, as JSON in gzip
    digest = traitlets.Unicode().tag(sync=True)

    @staticmethod
    def of(kind: str) -> SharedCode:
        """Return the code of "panel" or "pipeline"; it is made again where it was closed."""
        found = _codes.get(kind)
        if found is None or found.comm is None:
            code = json.dumps([front_end(f"{kind}.js"), front_end(f"{kind}.css")]).encode()
            digest = hashlib.sha256(code).hexdigest()[:12]
            packed = gzip.compress(code, mtime=0)
            found = _codes[kind] = SharedCode(packed=packed, digest=digest)
        return found

    def __repr__(self) -> str:
        return f"SharedCode({self.digest})"


_codes: dict[str, SharedCode] = {}
_layouts: list[ipywidgets.Layout] = []


def _stub(kind: str) -> dict[str, Any]:
    """Return the traits of a widget that shares its code with others."""
    if not _layouts or _layouts[0].comm is None:
        _layouts[:] = [ipywidgets.Layout()]
    code = SharedCode.of(kind).model_id
    name = uuid.uuid4().hex  # the page stores the state of one widget under it
    return {"_esm": front_end("stub.js"), "code": code, "name": name, "layout": _layouts[0]}


def _whole(kind: str) -> dict[str, Any]:
    """Return the traits of a widget that holds its code itself."""
    return {"_esm": front_end(f"{kind}.js"), "_css": front_end(f"{kind}.css")}


# -- Panel: the live panel of a run, one small widget ----------------------------------------------
@final
class Panel(anywidget.AnyWidget):  # type: ignore[misc]
    """Shows a run and turns its knobs, in any number of views.

    Nothing is sent while no view is open. The synced trait `snapshot` holds the last snapshot of a
    run at rest, as JSON: a page that was reloaded, or saved without a kernel, shows it. `variable`
    names the run in the loop that the panel proposes; "" where it has no variable.

    Args:
        run: the run; it is held weakly.
        code: the traits that hold its front end, or the id of the widget that holds it.

    Attributes:
        feed: its messages.
        settled: called with the run, in any thread, when pictures of it are out of date.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)
    variable = traitlets.Unicode().tag(sync=True)
    snapshot = traitlets.Unicode().tag(sync=True)

    def __init__(self, run: RunView, code: Mapping[str, Any]) -> None:
        self.feed = RunChannel(run, self.send, self._keep)
        self.settled: Callable[[Any], object] = lambda _: None
        super().__init__(**code, snapshot=_written(self.feed.snapshot()))
        self.on_msg(Panel._receive)
        cure(self.comm, self._handle_msg)

    @property
    def is_over(self) -> bool:
        """Whether its run is closed, or gone."""
        run = self.feed.run
        return run is None or run.closed

    def keep(self, shown: Snapshot) -> None:
        """Update the snapshot that a page without a kernel shows."""
        self.snapshot = _written(shown)

    def _keep(self, shown: Snapshot) -> None:
        self.keep(shown)
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
        """Return the synced traits; a page that was reloaded gets a fresh snapshot."""
        state: dict[str, Any] = super().get_state(key=key, drop_defaults=drop_defaults)
        if key is None and "snapshot" in state:
            state["snapshot"] = _written(self.feed.snapshot())
        return state

    def close(self) -> None:
        """Take the panel out of all pages."""
        self.feed.close()
        publisher.discard(self.feed)
        super().close()

    def __repr__(self) -> str:
        return f"Panel({self.feed.snapshot()['title']})"


def _written(shown: Snapshot) -> str:
    """Write a snapshot as text: a notebook would have each of its values on a line."""
    return json.dumps(shown, separators=(",", ":"))


_panels: weakref.WeakKeyDictionary[RunView, Panel] = weakref.WeakKeyDictionary()


def panel_of(run: RunView, *, whole: bool = False) -> Panel:
    """Return the panel of a run; all places that show the run share it."""
    found = _panels.get(run)
    if found is None or found.comm is None:
        code = _whole("panel") if whole else _stub("panel")  # a panel that fails leaves a layout
        found = _panels[run] = Panel(run, code)
    return found


# -- PipelineBar: the buttons at a pipeline that a notebook shows: start it here, export it --------
_OPS = Ops()
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
    code = traitlets.Unicode().tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)
    started = traitlets.Unicode().tag(sync=True)

    def __init__(self, pipe: Startable, start: Callable[[Startable], str]) -> None:
        self._pipe = weakref.ref(pipe)
        self._start = start
        super().__init__(**_stub("pipeline"))
        self.on_msg(PipelineBar._receive)
        cure(self.comm, self._handle_msg)

    def _receive(self, message: object, _buffers: object) -> None:
        ack = _OPS.answer(self, message)
        if ack is not None:
            self.send(ack)

    @_OPS.op("start")
    def _start_once(self) -> None:
        pipe = self._there()
        if not self.started:
            self.started = self._start(pipe)

    @_OPS.op("export", **EXPORT)
    def _export(self, **asked: Any) -> None:
        export_later(self._there(), self._send_exported, **asked)

    def _send_exported(self, exported: ExportedMessage) -> None:
        self.send(exported)

    def _there(self) -> Startable:
        pipe = self._pipe()
        if pipe is None:
            raise RunClosedError(_GONE)
        return pipe

    def __repr__(self) -> str:
        return "PipelineBar()"
