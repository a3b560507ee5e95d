"""Rich display of runs in a notebook: the live panel, and a picture that stays in the file.

IPython formats a run as one bundle: its panel, its picture as HTML and Markdown, its text. Code
that captures outputs gets all of it. A cell gets two outputs, because a saved notebook keeps no
widgets by default: the panel, and after it the picture, which is updated when the run comes to
rest. While the panel is alive, the picture is hidden; where it is not (a notebook opened without
its kernel, nbconvert, a site that shows notebooks), only the picture is there.

A pipeline is shown as its table. Above it, where there are widgets, stand its buttons, and empty
outputs for the panel and the picture of the run that they start.
"""

from __future__ import annotations

import itertools
import logging
import os
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..base.format import style_sheet
from ..base.names import own_class_made, own_classes
from ..errors import FrontEndMissingError, MissingExtraError
from ..show.picture import bundle
from ..show.snapshot import Snapshot, snapshot, snapshot_key
from ..show.watch import RunView
from . import panel_of

if TYPE_CHECKING:
    from .panel import Panel, PipelineBar, Startable

LOG = logging.getLogger("nbpipe")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MARK = "nbpipe"  # in the metadata of a bundle: the number of the object that it shows
OUTSIDE = ""  # stands for the cell where a callback shows something
_EMPTY = {"text/html": "", "text/plain": ""}
# Hidden are: a picture beside a live panel; for a while, one beside a panel that is being loaded;
# and beside a picture, the line that a panel was not found.
_CHILD, _KEPT = ".jp-OutputArea-child", ".jp-OutputArea-child:has(.nbpipe-kept)"
_BESIDE = style_sheet(
    f"{_CHILD}:has(.nbpipe-panel)+{_KEPT}{{display:none}}"
    f"{_CHILD}:has(>.lm-Panel.jupyter-widgets):has(+{_CHILD} .nbpipe-kept){{display:none}}"
    f"{_CHILD}:has(>.lm-Panel:not(.jupyter-widgets))+{_KEPT}"
    "{max-height:0;overflow:hidden;animation:nbpipe-late 0s 4s forwards}"
    "@keyframes nbpipe-late{to{max-height:none}}"
)

_Data = dict[str, Any]
_Cell = tuple[str, ...] | str | None  # a cell that has a name, `OUTSIDE`, or None


class Outputs(Protocol):
    """IPython's way to a notebook's outputs."""

    def publish(
        self,
        data: Mapping[str, Any],
        *,
        transient: Mapping[str, str],
        update: bool,
    ) -> None:
        """Show `data`, or replace the output of the same `display_id`."""


class _Place(NamedTuple):
    """Where a run is shown, by the `display_id` of two outputs.

    Attributes:
        panel: of its panel; "" where that output is not updated.
        picture: of its picture; that of the panel where both are one output.
    """

    panel: str
    picture: str

    @property
    def is_one(self) -> bool:
        """Whether panel and picture are one output."""
        return self.panel == self.picture


class RunDisplay:
    """Shows runs in the outputs of one kernel.

    Args:
        outputs: where they are written.
        cell: names the cell that runs; None where it has no name of its own, and `OUTSIDE` where
            no cell runs.

    Attributes:
        show_pipeline: shows the part above the table of a pipeline.
        variable_of: names the variable of a run; "" where it has none.
        for_type: tells IPython what formats the objects of a class.
    """

    def __init__(self, outputs: Outputs, cell: Callable[[], _Cell] = lambda: None) -> None:
        self._write = outputs.publish  # `listen` puts another in its place
        self._cell = cell
        self.show_pipeline: Callable[[Any], object] = lambda _: None
        self.variable_of: Callable[[RunView], str] = lambda _: ""
        self.for_type: Callable[[type, Callable[[Any], object]], object] = lambda *_: None
        self._marks = itertools.count(1)
        self._runs: weakref.WeakValueDictionary[int, RunView] = weakref.WeakValueDictionary()
        self._pipes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Each run has one place of its own, which any number of outputs share.
        self._own: weakref.WeakKeyDictionary[RunView, _Place] = weakref.WeakKeyDictionary()
        self._named: dict[str, _Place] = {}  # by the `display_id` that the user gave
        self._places: weakref.WeakKeyDictionary[RunView, dict[_Place, set[_Cell]]]
        self._places = weakref.WeakKeyDictionary()  # with the cells that show them
        self._panels: weakref.WeakKeyDictionary[Panel, set[_Cell]]
        self._panels = weakref.WeakKeyDictionary()  # with the cells that show them
        self._bars: dict[_Cell, list[PipelineBar]] = {}  # by cell
        self._shown: weakref.WeakKeyDictionary[RunView, Snapshot] = weakref.WeakKeyDictionary()

    # -- what IPython asks for ------------------------------------------------------------
    def format_class(self, cls: type, kind: str) -> None:
        """Have IPython format the objects of a class by this display."""
        formats: dict[str, Callable[[Any], tuple[_Data, _Data]]] = {
            "run": self.bundle_of,
            "loader": lambda loader: self.bundle_of(loader.run),
            "pipeline": self.bundle_of_pipeline,
        }
        self.for_type(cls, formats[kind])

    def bundle_of(self, run: RunView) -> tuple[_Data, _Data]:
        """Return a run as IPython formats it, and a mark that identifies it when published."""
        panel, data = self._panel(run), bundle(run)
        view = {} if panel is None else {WIDGET_VIEW: panel.get_view_spec()}
        return {**view, **data}, {MARK: self._mark(self._runs, run)}

    def bundle_of_pipeline(self, pipe: Any) -> tuple[_Data, _Data]:
        """Return a pipeline as IPython formats it, and its mark."""
        return {"text/html": pipe._repr_html_()}, {MARK: self._mark(self._pipes, pipe)}

    def _mark(self, known: weakref.WeakValueDictionary[int, Any], one: object) -> int:
        number = next((number for number, other in known.items() if other is one), 0)
        number = number or next(self._marks)
        known[number] = one
        return number

    def takes(self, mark: object, name: str = "", *, update: bool = False) -> bool:
        """Called when something is about to be published; return whether it was published here.

        Args:
            mark: of a bundle; None where there is none.
            name: the `display_id` that it is given, or "".
            update: it replaces what was shown under this name.
        """
        number = mark if isinstance(mark, int) else 0
        run, pipe = self._runs.get(number), self._pipes.get(number)
        before = self._named.pop(name, None) if update else None
        if run is None:
            if before is not None:  # something else replaces a run
                self._leave(before)
                self._publish(_EMPTY, before.picture, update=True)
            if pipe is not None and not update:
                self.show_pipeline(pipe)
            return False
        if not name:
            self._show(run, self._own.setdefault(run, _Place("", uuid.uuid4().hex)))
            return True
        if before is not None:
            self._leave(before)
        place = before or _Place(name, name if update else uuid.uuid4().hex)
        self._named[name] = place
        self._show(run, place, update=update)
        return True

    def show(self, run: RunView) -> None:
        """Show a run where the running cell shows things."""
        self.takes(self._mark(self._runs, run))

    # -- cells ----------------------------------------------------------------------------
    def begin(self, cell: _Cell) -> None:
        """Called when a cell is about to run: its outputs disappear from the page.

        Panels of runs that are over are closed, unless another cell shows them: each has comms,
        and a page that is loaded again would ask for them all.
        """
        if not cell:
            return
        for bar in self._bars.pop(cell, ()):
            bar.close()
        for run, places in tuple(self._places.items()):
            for place, cells in tuple(places.items()):
                cells.discard(cell)
                if not cells:
                    self._forget(run, place)
        for panel, cells in tuple(self._panels.items()):
            if cell in cells:
                cells.discard(cell)
                if not cells and panel.is_over:
                    panel.close()
                    del self._panels[panel]

    def _sweep(self, shown: Panel | None) -> None:
        """Close the panels of runs that are over which callbacks have shown; pictures stay."""
        for panel, cells in tuple(self._panels.items()):
            if cells == {OUTSIDE} and panel is not shown and panel.is_over:
                panel.close()
                del self._panels[panel]

    def _leave(self, place: _Place) -> None:
        """Forget a place, whichever run it shows."""
        for run, places in tuple(self._places.items()):
            if place in places:
                self._forget(run, place)

    def _forget(self, run: RunView, place: _Place) -> None:
        self._places.get(run, {}).pop(place, None)
        if self._named.get(place.panel) == place:
            del self._named[place.panel]

    # -- pipelines ------------------------------------------------------------------------
    def show_bar(self, pipe: Startable, start: Callable[[Startable], tuple[RunView, str]]) -> None:
        """Show the buttons of a pipeline where the running cell shows things.

        Args:
            pipe: the pipeline.
            start: starts a run of it; returns the run and its variable.
        """
        place, cell = _Place(uuid.uuid4().hex, uuid.uuid4().hex), self._cell()

        def start_here(pipe: Startable) -> str:
            run, name = start(pipe)
            self._show(run, place, cell, update=True)
            return name

        bar = _bar(pipe, start_here)
        if bar is not None:
            if cell:
                self._bars.setdefault(cell, []).append(bar)
            self._publish({WIDGET_VIEW: bar.get_view_spec(), **_EMPTY})
            self._publish(_kept(_EMPTY))
            for one in place:
                self._publish(_EMPTY, one)

    # -- runs -----------------------------------------------------------------------------
    def _panel(self, run: RunView, cell: _Cell = None) -> Panel | None:
        """Return the panel of a run that is open, which the running cell shows."""
        panel = _panel(run)
        cell = cell or self._cell()
        if panel is not None:
            panel.settled = self.keep
            panel.variable = self.variable_of(run)
            self._panels.setdefault(panel, set()).add(cell)
            shown = getattr(run, "shown", None)
            if shown is not None:  # that of a loader tells its panel of the end of each epoch
                shown.add(panel.feed)
        if cell == OUTSIDE:
            self._sweep(panel)
        return panel

    def _show(
        self, run: RunView, place: _Place, cell: _Cell = None, *, update: bool = False
    ) -> None:
        """Show a run in new outputs, or in the place of those that are there."""
        panel = self._panel(run, cell)
        cells = self._places.setdefault(run, {}).setdefault(place, set())
        cells.add(cell or self._cell())
        view = {} if panel is None else {WIDGET_VIEW: panel.get_view_spec()}
        now = self._shown[run] = snapshot(run)
        data = bundle(run, now)
        if place.is_one:
            self._publish({**view, **data}, place.picture, update=update)
            return
        if view or place.panel:
            self._publish({**view, "text/plain": ""}, place.panel, update=update)
        self._publish(_kept(data), place.picture, update=update)

    def keep(self, run: RunView) -> None:
        """Update the pictures of a run, where it has changed."""
        before, now = self._shown.get(run), snapshot(run)
        if before is None or snapshot_key(before) != snapshot_key(now):
            self._shown[run] = now
            data = bundle(run, now)
            for place in tuple(self._places.get(run, ())):
                if not place.is_one:
                    self._publish(_kept(data), place.picture, update=True)
                elif run.closed:  # before, its panel would be drawn again
                    self._publish(data, place.picture, update=True)
            for panel in tuple(self._panels):
                if panel.feed.run is run:
                    panel.keep(panel.feed.snapshot())  # with what it may be asked for

    def keep_closed(self, run: RunView) -> None:
        """Called when a run was closed: it may be gone before the next snapshot."""
        if run in self._places:
            self.keep(run)

    def keep_all(self) -> None:
        """Update all pictures."""
        for run in tuple(self._places):
            self.keep(run)

    def _publish(self, data: Mapping[str, Any], name: str = "", *, update: bool = False) -> None:
        self._write(data, transient={"display_id": name} if name else {}, update=update)


def _kept(data: Mapping[str, str]) -> dict[str, str]:
    """Return the output after a widget: it is hidden while the widget is alive."""
    return {**data, "text/html": f'<div class="nbpipe-kept">{_BESIDE}{data["text/html"]}</div>'}


def listen(ip: Any, display: RunDisplay) -> None:
    """Have IPython format nbpipe's objects by a display, and publish through it.

    Args:
        ip: IPython's shell.
        display: shows runs and pipelines.
    """
    display.for_type = ip.display_formatter.mimebundle_formatter.for_type
    for cls, kind in own_classes.items():
        display.format_class(cls, kind)
    own_class_made.append(display.format_class)
    publish, write = ip.display_pub.publish, ip.displayhook.write_format_data

    def publish_through(data: _Data, metadata: _Data | None = None, *more: Any, **how: Any) -> None:
        known = dict(metadata or {})
        name = (how.get("transient") or {}).get("display_id", "")
        if not display.takes(known.pop(MARK, None), name, update=bool(how.get("update"))):
            publish(data, known, *more, **how)

    def write_through(data: _Data, metadata: _Data | None = None) -> None:
        known = dict(metadata or {})
        if not display.takes(known.pop(MARK, None)):
            write(data, known)

    ip.display_pub.publish = publish_through
    ip.displayhook.write_format_data = write_through


def unlisten(ip: Any, display: RunDisplay) -> None:
    """Let IPython publish as it did before."""
    own_class_made.remove(display.format_class)
    for cls in own_classes:
        ip.display_formatter.mimebundle_formatter.pop(cls, None)
    vars(ip.display_pub).pop("publish", None)
    vars(ip.displayhook).pop("write_format_data", None)


def _panel(run: RunView) -> Panel | None:
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
