"""A run in a notebook: its panel and controls, the rules of cells, the pump of the kernel.

It knows a run by the protocol in `show/watch.py` alone. Widgets need the extra `jupyter`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import FrontEndMissingError, MissingExtraError
from ..show.picture import bundle
from ..show.watch import RunView

if TYPE_CHECKING:
    from .panel import Panel


def panel_of(run: RunView, *, whole: bool = False) -> Panel:
    """Return the panel of a run; there is one, in however many places it is shown.

    Args:
        run: the run.
        whole: the panel holds its code itself: for a front end that shares no widget.

    Raises:
        MissingExtraError: anywidget is not installed.
        FrontEndMissingError: the front end was not built.
    """
    try:
        from .panel import panel_of as found
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("anywidget", "jupyter", "the live panel") from error
    return found(run, whole=whole)


_IN_MARIMO = "In marimo the panel is live between two cells, and while `run.train(step)` iterates."


def shown_in_marimo(run: RunView) -> Any:
    """Return what marimo shows of a run: when its panel answers there, and the panel."""
    marimo: Any = importlib.import_module("marimo")
    try:
        panel = panel_of(run, whole=True)
    except (MissingExtraError, FrontEndMissingError):
        return marimo.Html(bundle(run)["text/html"])
    return marimo.vstack([marimo.md(_IN_MARIMO), panel])


def controls_of(run: RunView) -> Any:
    """Return a box of sliders and buttons for a run, an `ipywidgets.VBox`.

    Raises:
        MissingExtraError: ipywidgets is not installed.
    """
    try:
        from .controls import controls_of as made
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("ipywidgets", "jupyter", "run.controls()") from error
    return made(run)
