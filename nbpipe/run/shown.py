"""ShownRun: how a run is shown, whether it belongs to a pipeline or to a `DataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.names import own
from ..show.watch import RunView

if TYPE_CHECKING:
    from ipywidgets import VBox
    from plotly.graph_objects import Figure

    from ..show.verdict.diagnosis import Diagnosis


@own("run")
class ShownRun:
    """A `RunView` that shows itself: as a panel, as text, as a figure."""

    def _export_goal_(self) -> str:
        """Return the expression after this object's name that gives its pipeline."""
        return ".pipeline"

    def _ipython_key_completions_(self: RunView) -> list[str]:
        return list(self.stages)

    def __bool__(self) -> bool:
        return True

    def diagnose(self: RunView) -> Diagnosis:
        """Name the bottleneck of the last 5 s, and what to try.

        Returns:
            A `Diagnosis`, which prints as one line: the finding, the evidence and the advice.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     run.diagnose()
            Waiting for your loop. Run `for batch in run:` in a cell.
        """
        from ..show.diagnose import diagnose

        return diagnose(self)

    def summary(self: RunView) -> str:
        """Return how the run goes, or went, as text: position, rates, bottleneck, a row per stage.

        Print it at the end of a script; it works after `close()` too.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     numbers = list(run)
            >>> print(run.summary())
            source
            closed, epoch 0, 4/4 items (100%), ...
        """
        from ..show.picture import picture_text
        from ..show.snapshot import snapshot

        return picture_text(snapshot(self))

    def plot(self: RunView) -> Figure:
        """Draw the history: rates of the stages, knob changes, how full the buffers are.

        Returns:
            A `plotly.graph_objects.Figure`.

        Raises:
            MissingExtraError: plotly is not installed.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     type(run.plot()).__name__
            'Figure'
        """
        from ..show.figure import figure

        return figure(self)

    def controls(self: RunView) -> VBox:
        """Return sliders and buttons for the knobs, to lay out in a dashboard of your own.

        In a notebook, the run itself as a cell's last line shows the whole panel.

        Returns:
            An `ipywidgets.VBox`.

        Raises:
            MissingExtraError: ipywidgets is not installed.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     type(run.controls()).__name__
            'VBox'
        """
        from ..jupyter import controls_of

        return controls_of(self)

    def _repr_mimebundle_(self: RunView, **_: object) -> dict[str, str]:
        from ..show.picture import bundle

        return bundle(self)

    def _display_(self: RunView) -> Any:
        """Return what marimo shows: marimo calls this."""
        from ..jupyter import shown_in_marimo

        return shown_in_marimo(self)
