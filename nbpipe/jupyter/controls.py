"""Controls: a run's knobs as ordinary ipywidgets, for a dashboard of one's own."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import ipywidgets

from ..base.format import shortened
from ..base.knobs import Knob, KnobChange
from ..errors import NbpipeError
from ..show.controller import RunController
from ..show.snapshot import label, line
from ..show.watch import RunView
from .kernel import cure
from .publisher import publisher

_SLIDER_LEAST = {"concurrency": 16}  # a slider goes at least so far
_SLIDER_ELSE = 32
_NAME = 40  # characters of a stage's name


def controls_of(run: RunView) -> Any:
    """Return a box of sliders and buttons for a run.

    Returns:
        An `ipywidgets.VBox`: buttons to pause, stop and undo, a grid with a row for every knob
        (label, slider, number), and a line for messages. A knob that stages share has one row,
        under the name of the first. You may lay them out again; they still work.
    """
    return _Controls(run).box


@final
class _Controls:
    """The widgets and what they do; the box keeps it alive."""

    def __init__(self, run: RunView) -> None:
        self._controller = RunController(run, by="controls")
        self._message = ipywidgets.HTML(layout={"min_height": "1.6em"})
        cells = [cell for turned in _turned(run) for cell in self._row(*turned)]
        grid = ipywidgets.GridBox(
            cells, layout={"grid_template_columns": "max-content 130px 76px", "grid_gap": "0 8px"}
        )
        self.pause = self._button("pause", self._toggle)
        buttons = [
            self.pause,
            self._button("stop", lambda: self._try(self._controller.stop)),
            self._button("undo", lambda: self._try(self._controller.undo)),
        ]
        self.box = ipywidgets.VBox([ipywidgets.HBox(buttons), grid, self._message])
        self.box.layout.flex = "0 0 auto"  # beside a figure it takes no more than it needs
        self.box._nbpipe_controls = self  # the box may be all that is kept
        self.show_pause()
        publisher.add(_PauseLabel(self))

    # -- widgets --------------------------------------------------------------------------
    def _button(self, op: str, action: Callable[[], object]) -> ipywidgets.Button:
        button = ipywidgets.Button(description=op.capitalize(), layout={"width": "84px"})
        button.on_click(lambda _: action())
        return _cured(button)

    def _toggle(self) -> None:
        controller, paused = self._controller, self.pause.description == "Resume"
        self._try(controller.resume if paused else controller.pause)
        self.show_pause()

    @property
    def run(self) -> RunView | None:
        """The run, or None where it is gone."""
        return self._controller.run

    def show_pause(self) -> None:
        """Update the label of the button: "Pause" or "Resume"."""
        run = self.run
        paused = run is not None and run.status().state == "paused"
        self.pause.description = "Resume" if paused else "Pause"

    def _row(self, knob: Knob, sharers: Sequence[str]) -> tuple[Any, Any, Any]:
        address, name = sharers[0], knob.name.rpartition(".")[2]
        tip = f"{address}.{name} [{knob.unit}]"
        if len(sharers) > 1:
            tip += f", shared by {', '.join(sharers)}"
        title = ipywidgets.Label(shortened(f"{address} {name}", _NAME), tooltip=tip)
        slider = ipywidgets.IntSlider(
            knob.value,
            min=knob.minimum,
            max=_slider_end(name, knob),
            readout=False,
            layout={"width": "auto"},
        )
        number = ipywidgets.IntText(knob.value, layout={"width": "auto"})  # the knob has bounds
        self._bind(label(address), knob, slider, number)
        return title, _cured(slider), _cured(number)

    # -- what they do ---------------------------------------------------------------------
    def _bind(self, address: str, knob: Knob, slider: Any, number: Any) -> None:
        name = knob.name.rpartition(".")[2]

        def turned(change: Any) -> None:
            if change["new"] != knob.value:
                self._try(lambda: self._controller.set(address, name, change["new"]))
                show()

        def show(_: KnobChange | None = None) -> None:
            if slider.comm is None:  # it was closed
                unwatch()
                return
            slider.max = max(slider.max, _slider_end(name, knob))
            slider.value = number.value = knob.value

        slider.observe(turned, "value")
        number.observe(turned, "value")
        unwatch = knob.watch(show)

    def _try(self, action: Callable[[], object]) -> None:
        refusal = ""
        try:
            action()
        except NbpipeError as error:
            refusal = line(str(error))
        self._message.value = html.escape(refusal)


@final
class _PauseLabel:
    """Keeps the label of a pause button right when something else pauses or resumes the run."""

    def __init__(self, controls: _Controls) -> None:
        self._controls = weakref.ref(controls)

    @property
    def wanted(self) -> bool:
        """Whether the button is there, and its run is open."""
        controls = self._controls()
        run = None if controls is None else controls.run
        return controls is not None and not (
            run is None or run.closed or controls.pause.comm is None
        )

    def publish(self) -> None:
        """Bring the label up to date."""
        controls = self._controls()
        if controls is not None:
            controls.show_pause()


def _turned(run: RunView) -> list[tuple[Knob, list[str]]]:
    """Return every knob once, with the addresses of the stages that have it."""
    found: dict[int, tuple[Knob, list[str]]] = {}
    if run.status().by_loop:  # nothing that it could turn has an effect
        return []
    for address, stage in run.stages.items():
        for knob in stage.knobs.values():
            found.setdefault(id(knob), (knob, []))[1].append(address)
    return list(found.values())


def _slider_end(name: str, knob: Knob) -> int:
    least = max(_SLIDER_LEAST.get(name, _SLIDER_ELSE), 2 * knob.value)
    return int(min(knob.maximum, 1 << (least - 1).bit_length()))


def _cured(widget: Any) -> Any:
    cure(widget.comm, widget._handle_msg)
    return widget
