"""Rich display of runs in a notebook: the live panel, and a picture that stays in the file.

A notebook that is saved keeps no widgets, unless it is told to. So a run is shown as two outputs:
the panel, and behind it a picture as plain HTML, which is brought up to date when the run comes
to rest. Where the panel is alive, the picture is hidden; where it is not (a notebook opened again
without its kernel, nbconvert, a site that shows notebooks), the picture is all there is.

A pipeline is shown as its table, and above it, where widgets are, its buttons and empty outputs:
there stand the panel and the picture of the run that is started by them.
"""

from __future__ import annotations

import logging
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, MutableSet
from typing import TYPE_CHECKING, Any, Protocol

from ..base.format import style_sheet
from ..errors import FrontEndMissingError, MissingExtraError
from ..show.picture import bundle
from ..show.snapshot import Snapshot, snapshot, snapshot_key
from ..show.watch import Shown, Watched
from . import panel_of

if TYPE_CHECKING:
    from .panel import Panel, PipelineBar, Startable

LOG = logging.getLogger("nbpipe")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_EMPTY = {"text/html": "", "text/plain": ""}
# Beside a live panel the picture is hidden; while a panel is being loaded, for a while; and beside
# a picture, the line is hidden that says that a panel was not found.
_CHILD, _KEPT = ".jp-OutputArea-child", ".jp-OutputArea-child:has(.nbpipe-kept)"
_BESIDE = style_sheet(
    f"{_CHILD}:has(.nbpipe-panel)+{_KEPT}{{display:none}}"
    f"{_CHILD}:has(>.lm-Panel.jupyter-widgets):has(+{_CHILD} .nbpipe-kept){{display:none}}"
    f"{_CHILD}:has(>.lm-Panel:not(.jupyter-widgets))+{_KEPT}"
    "{max-height:0;overflow:hidden;animation:nbpipe-late 0s 4s forwards}"
    "@keyframes nbpipe-late{to{max-height:none}}"
)


class Outputs(Protocol):
    """IPython's way to a notebook's outputs."""

    def publish(
        self,
        data: Mapping[str, Any],
        *,
        transient: Mapping[str, str],
        update: bool,
    ) -> None:
        """Show `data`, or put it in the place of what was shown under the same `display_id`."""


class RunDisplay:
    """Shows runs in the outputs of one kernel.

    Args:
        outputs: where they are written.
        cell: names the cell that runs; None where it has no name of its own.
    """

    def __init__(self, outputs: Outputs, cell: Callable[[], object] = lambda: None) -> None:
        self._outputs = outputs
        self._cell = cell
        self._shown_in: dict[object, list[Callable[[], object]]] = {}  # by cell: take them away
        self._places: weakref.WeakKeyDictionary[Watched, list[str]] = weakref.WeakKeyDictionary()
        self._views: weakref.WeakKeyDictionary[Panel, set[str]] = weakref.WeakKeyDictionary()
        self._shown: weakref.WeakKeyDictionary[Watched, Snapshot] = weakref.WeakKeyDictionary()

    def show(self, run: Watched, shown: MutableSet[Shown] | None = None) -> None:
        """Show a run where the running cell shows things.

        Args:
            run: the run.
            shown: takes what the panel shows, where the run tells it when it comes to rest.
        """
        panel = self._show(run, uuid.uuid4().hex, self._cell())
        if panel is not None and shown is not None:
            shown.add(panel.feed)

    def begin(self, cell: object) -> None:
        """Called when a cell is about to run: what it has shown goes from the page.

        Panels of runs that are over go with it, unless another cell shows them: each has comms,
        and a page that is loaded again would ask for them all.
        """
        for leave in self._shown_in.pop(cell, ()):
            leave()

    def _note(self, run: Watched, panel: Panel | None, place: str, cell: object) -> None:
        """Note that an output of a cell shows a run."""
        self._places.setdefault(run, []).append(place)
        if panel is not None:
            self._views.setdefault(panel, set()).add(place)
        if cell is not None:
            reference = weakref.ref(run)
            leave = self._shown_in.setdefault(cell, [])
            leave.append(lambda: self._leave(reference(), panel, place))

    def _leave(self, run: Watched | None, panel: Panel | None, place: str) -> None:
        """Forget an output that is gone, and its panel if it was the last one of a run's end."""
        if run is not None and place in self._places.get(run, ()):
            self._places[run].remove(place)
        views = set() if panel is None else self._views.get(panel, set())
        views.discard(place)
        if panel is not None and not views and (run is None or run.closed):
            panel.close()

    def show_bar(self, pipe: Startable, start: Callable[[Startable], tuple[Watched, str]]) -> None:
        """Show the buttons of a pipeline where the running cell shows things.

        Args:
            pipe: the pipeline.
            start: starts a run of it; returns the run and its variable.
        """
        panel_place, place, cell = uuid.uuid4().hex, uuid.uuid4().hex, self._cell()

        def start_here(pipe: Startable) -> str:
            run, name = start(pipe)
            self._show(run, place, cell, panel_place)
            return name

        bar = _bar(pipe, start_here)
        if bar is not None:
            if cell is not None:
                self._shown_in.setdefault(cell, []).append(bar.close)
            beside = {"text/html": _kept(""), "text/plain": ""}
            for data in ({WIDGET_VIEW: bar.get_view_spec(), **_EMPTY}, beside):
                self._outputs.publish(data, transient={}, update=False)
            for one in (panel_place, place):
                self._outputs.publish(_EMPTY, transient={"display_id": one}, update=False)

    def _show(self, run: Watched, place: str, cell: object, panel_place: str = "") -> Panel | None:
        """Show a run in a new output, or in the place of two that are there; return its panel."""
        panel, update = _panel(run), bool(panel_place)
        if panel is not None:
            panel.settled = self.keep
            data = {WIDGET_VIEW: panel.get_view_spec(), "text/plain": repr(run)}
            where = {"display_id": panel_place} if update else {}
            self._outputs.publish(data, transient=where, update=update)
        self._note(run, panel, place, cell)
        self._keep(run, snapshot(run), [place], update=update)
        return panel

    def keep(self, run: Watched) -> None:
        """Bring the pictures of a run up to date, where it has changed."""
        before, now = self._shown.get(run), snapshot(run)
        if before is None or snapshot_key(before) != snapshot_key(now):
            self._keep(run, now, self._places.get(run, []), update=True)

    def _keep(self, run: Watched, now: Snapshot, places: list[str], *, update: bool) -> None:
        self._shown[run] = now
        data = bundle(run, now)
        data["text/html"] = _kept(data["text/html"])
        for place in places:
            self._outputs.publish(data, transient={"display_id": place}, update=update)

    def keep_all(self) -> None:
        """Bring all pictures up to date."""
        for run in tuple(self._places):
            self.keep(run)


def _kept(html: str) -> str:
    """Return what stands behind a widget: it is hidden where the widget lives, else the other."""
    return f'<div class="nbpipe-kept">{_BESIDE}{html}</div>'


def _panel(run: Watched) -> Panel | None:
    if run.closed:
        return None
    try:
        return panel_of(run)
    except (MissingExtraError, FrontEndMissingError) as error:
        LOG.warning("%s", str(error))  # the error itself holds the run
        return None


def _bar(pipe: Startable, start: Callable[[Startable], str]) -> PipelineBar | None:
    """Return the buttons of a pipeline; None where there are no widgets, or no cells: in Voila."""
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):
        return None
    try:
        from .panel import PipelineBar

        return PipelineBar(pipe, start)
    except (ModuleNotFoundError, FrontEndMissingError):
        return None
