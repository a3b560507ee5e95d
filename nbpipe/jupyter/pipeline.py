"""PipelineBar: the buttons at a pipeline that a notebook shows: start it here, export it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import anywidget
import traitlets

from ..errors import ArgumentError, NbpipeError, RunClosedError
from ..ops.stage import Chain
from ..show.messages import Ack, ExportedMessage, export_later, got, refused
from ..show.watch import AttendedRun, Exportable
from .kernel import cure
from .panel import front_end

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
        number = message.get("id") if isinstance(message, Mapping) else None
        known = number if isinstance(number, int) and not isinstance(number, bool) else 0
        try:
            if not isinstance(message, Mapping):
                raise ArgumentError(f"a message must be an object, got {got(message)}")
            self._do(message, known)
        except NbpipeError as error:
            self.send(dict(refused(known, error)))
            return
        done: Ack = {"type": "ack", "id": known, "ok": True, "value": None}
        self.send(dict(done))

    def _do(self, message: Mapping[Any, Any], number: int) -> None:
        op, pipe = message.get("op"), self._pipe()
        if op not in ("start", "export"):
            raise ArgumentError(f"op must be start or export, got {got(op)}")
        if pipe is None:
            raise RunClosedError(_GONE)
        if op == "export":
            export_later(pipe, message, number, self._send_exported)
        elif not self.started:
            self.started = self._start(pipe)

    def _send_exported(self, exported: ExportedMessage) -> None:
        self.send(dict(exported))

    def __repr__(self) -> str:
        return "PipelineBar()"
