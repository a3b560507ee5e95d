"""The figure of a profile: what each stage could feed, by its calls, beside the training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError
from ..show.figure import COLOURS, DASHES, INK, MARK, labels_of, styled
from .stage_rate import StageRate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_HEIGHT = 420
_LEVELS = ("dash", "dot")


def figure(rows: Sequence[StageRate], levels: Mapping[str, float], unit: str) -> Figure:
    """Draw a profile.

    Args:
        rows: what was measured.
        levels: rates that no stage has, by name.
        unit: what the training loop gets, "items" or "batches".

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        from plotly import graph_objects
    except ImportError as error:
        raise MissingExtraError.of("plotly", "jupyter", "a figure of a profile") from error

    drawn = graph_objects.Figure()
    by_stage: dict[str, list[StageRate]] = {}
    for row in rows:
        if row.per_s and row.feeds_per_s < math.inf:
            by_stage.setdefault(row.stage, []).append(row)
    labels = labels_of([*by_stage])
    calls = sorted({row.calls or 1 for found in by_stage.values() for row in found}) or [1]
    for place, (name, found) in enumerate(by_stage.items()):
        _draw_stage(drawn, labels[name], found, calls, place)
    for name, rate in levels.items():
        _draw_level(drawn, name, rate, calls, dash=_LEVELS[len(drawn.data) % len(_LEVELS)])
    ticks = {"tickvals": calls, "ticktext": [str(one) for one in calls]}
    drawn.update_xaxes(type="log", title_text="calls at once", **ticks)
    drawn.update_yaxes(type="log", title_text=f"{unit}/s that the training loop could get")
    return styled(drawn, _HEIGHT, " > ".join(by_stage))


def _draw_stage(
    drawn: Any, label: str, rows: list[StageRate], calls: list[int], place: int
) -> None:
    """Draw the rates of a stage: a level where it has no knob; the present value is marked."""
    has_knob = rows[0].calls is not None
    at = [row.calls or 1 for row in rows] if has_knob else [calls[0], calls[-1]]
    rates = [row.feeds_per_s for row in rows] if has_knob else [rows[0].feeds_per_s] * 2
    drawn.add_scatter(
        x=at,
        y=rates,
        name=label,
        mode="lines+markers" if has_knob else "lines",
        line={"color": COLOURS[place % len(COLOURS)], "dash": DASHES[place % len(DASHES)]},
        marker={
            "size": [11 if row.now else 6 for row in rows] if has_knob else 6,
            "line": {"color": MARK, "width": 1},
        },
        error_y={
            "type": "data",
            "array": [row.feeds_per_s * row.spread for row in rows] if has_knob else [0, 0],
            "visible": has_knob,
        },
        hovertemplate="%{y:.4~s}/s at %{x} calls",
    )


def _draw_level(drawn: Any, name: str, rate: float, calls: list[int], dash: str) -> None:
    drawn.add_scatter(
        x=[calls[0], calls[-1]],
        y=[rate, rate],
        name=name,
        mode="lines",
        line={"color": INK, "width": 3, "dash": dash},
        hovertemplate="%{y:.4~s}/s",
    )
