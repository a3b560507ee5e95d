"""The figure a person asks for: rates, the loop's waits and queues of a run over time."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.format import shortened
from ..base.knobs import KnobChange
from ..engine.measures.stats import Row
from ..errors import MissingExtraError
from ..ops.stage import CONSUMER, LOOP
from .history import Tick, steady_ticks, unix_zero_s, with_gaps
from .watch import RunView, taken_back, title_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

INK, _GRID = "#808080", "rgba(128,128,128,0.25)"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a39a00")
DASHES = ("solid", "dash", "dot", "dashdot")
_WIDEST, _NARROWEST, _STEP = 6.0, 2.0, 1.0  # of lines [px]
MARK = "#d55e00"
_WAITS = "Share of its time that the training loop waits for data"
_QUEUES = (
    "How full each queue is: bright, it is full and waits for the stage below; dark, it is empty "
    "and the stage below waits"
)
_NAME = 18
_LONGER = (2 * _NAME, 4 * _NAME)  # where names would be alike
_MOST_MARKS = 100
_PALE = 0.35  # opacity of the mark of a trial that was taken back
_FEW = 4  # times of which a line shows little
_UNITS = ((10_800.0, 3600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))
_BEFORE = "No history yet: there is a row each second while an epoch runs."


@dataclass(frozen=True, slots=True)
class Columns:
    """A run's history in columns.

    Attributes:
        at: times since the run began, in `unit`.
        unit: "s", "min" or "h".
        unit_s: length of it [s].
        rows: a row for each time, by stage; None where there is none.
        units: what each stage hands on, by address.
    """

    at: Sequence[float]
    unit: str
    unit_s: float
    rows: Mapping[str, Sequence[Row | None]]
    units: Mapping[str, str]

    def column(self, stage: str, key: str, factor: float = 1.0) -> list[float | None]:
        """Return one number of a stage over time."""
        return [None if row is None else factor * float(row[key]) for row in self.rows[stage]]


def figure(watched: RunView) -> Figure:
    """Draw a run's history.

    From top to bottom: the rate of each stage that hands on items, of each that hands on
    batches, how long the loop waited, and how full each queue was: the bottleneck is below the
    last full one. Knob changes are marked.

    Args:
        watched: the run.

    Returns:
        A `plotly.graph_objects.Figure` that fills the width it is given.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        from plotly import graph_objects
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise MissingExtraError.of("plotly", "jupyter", "a figure of a run") from error

    ticks = steady_ticks(watched.history())
    if not ticks:
        return styled(graph_objects.Figure(), 220, title_of(watched), empty=True)
    past = _columns_of(ticks, watched.status().units)
    groups = _groups(past)
    stages = watched.stages
    queues = [name for name in stages if name in past.rows and stages[name].executor != "inline"]
    rows = len(groups) + 1 + bool(queues)
    heights = [3.0] * len(groups) + [1.2] + [0.6 + 0.3 * len(queues)] * bool(queues)
    drawn = make_subplots(
        rows=rows,
        shared_xaxes=True,
        vertical_spacing=0.07,
        row_heights=heights,
        subplot_titles=[*(f"Rate of each stage that hands on {unit}" for unit in groups), _WAITS]
        + [_QUEUES] * bool(queues),
    )
    drawn.update_annotations(x=0, xanchor="left", font={"size": 12})
    for place, (unit, names) in enumerate(groups.items(), 1):
        _draw_rates(drawn, past, unit, names, row=place)
    _draw_wait(drawn, past, row=len(groups) + 1)
    if queues:
        _draw_queues(drawn, past, queues, row=rows)
    _draw_changes(drawn, past, watched, unix_zero_s(ticks), next(iter(groups.values())))
    drawn.update_xaxes(title_text=f"time since the run began [{past.unit}]", row=rows, col=1)
    return styled(drawn, round(130 + 62 * sum(heights)), title_of(watched))


# -- the numbers -----------------------------------------------------------------------------------


def _columns_of(ticks: Sequence[Tick], units: Mapping[str, str]) -> Columns:
    """Lay a history out in columns, with an empty place where nothing ran between epochs."""
    names = {str(row["stage"]): None for tick in ticks for row in tick}
    timed = with_gaps(ticks)
    by_stage = [{str(row["stage"]): row for row in tick} for _, tick in timed]
    rows = {name: [found.get(name) for found in by_stage] for name in names}
    unit_s, unit = next((s, word) for least, s, word in _UNITS if timed[-1][0] >= least)
    return Columns([time_s / unit_s for time_s, _ in timed], unit, unit_s, rows, units)


def _groups(past: Columns) -> dict[str, list[str]]:
    """Return the stages by what they hand on; the loop takes what the last one hands on."""
    loop = next(reversed(tuple(past.units.values())), "items")
    groups: dict[str, list[str]] = {}
    for name in past.rows:
        unit = loop if name == CONSUMER else past.units.get(name, "items")
        groups.setdefault(unit, []).append(name)
    return groups


# -- what is drawn ---------------------------------------------------------------------------------


def _draw_rates(drawn: Any, past: Columns, unit: str, names: Sequence[str], *, row: int) -> None:
    """Draw rates; where lines lie on one another, the wider ones show beside the narrower ones."""
    order, labels = list(past.rows), labels_of([*past.rows])
    for name in names:
        place = order.index(name)
        line = {
            "color": INK if name == CONSUMER else COLOURS[place % len(COLOURS)],
            "dash": DASHES[place % len(DASHES)],
            "width": min(_WIDEST, _NARROWEST + _STEP * (len(names) - 1 - names.index(name))),
        }
        drawn.add_scatter(
            x=past.at,
            y=past.column(name, "items_per_s"),
            name=LOOP if name == CONSUMER else labels[name],
            mode="lines+markers" if len(past.at) < _FEW else "lines",
            line=line,
            hovertemplate=f"%{{y:.4~s}} {unit}/s at %{{x:.4~g}} {past.unit}",
            row=row,
            col=1,
        )
    drawn.update_yaxes(title_text=f"{unit}/s", rangemode="tozero", row=row, col=1)


def _draw_wait(drawn: Any, past: Columns, *, row: int) -> None:
    if CONSUMER in past.rows:
        shares = past.column(CONSUMER, "starved", 100)
        at, filled = filled_area(past.at, shares)
        drawn.add_scatter(
            x=at,
            y=filled,
            mode="lines",
            line={"width": 0},
            fill="tozeroy",
            fillcolor="rgba(128,128,128,0.35)",
            showlegend=False,
            hoverinfo="skip",
            row=row,
            col=1,
        )
        drawn.add_scatter(
            x=past.at,
            y=shares,
            name="training loop waits",
            mode="lines",
            line={"color": INK, "width": 1},
            hovertemplate=f"%{{y:.0f}}% at %{{x:.4~g}} {past.unit}",
            row=row,
            col=1,
        )
    drawn.update_yaxes(title_text="training<br>loop waits<br>[%]", range=[0, 100], row=row, col=1)


def filled_area(
    at: Sequence[float], shares: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Make what is filled fall to 0 at both edges of a gap: plotly would fill across it."""
    edges = list(at)
    for place, share in enumerate(shares):
        if share is None:
            ends = place > 0 and shares[place - 1] is not None
            edges[place] = at[place - 1] if ends else at[min(place + 1, len(at) - 1)]
    return edges, [share or 0.0 for share in shares]


def _draw_queues(drawn: Any, past: Columns, names: Sequence[str], *, row: int) -> None:
    fill: list[list[float | None]] = []
    words: list[list[str]] = []
    labels = labels_of([*past.rows])
    for name in names:
        bounds = [None if one is None else _bound(one) for one in past.rows[name]]
        queued = past.column(name, "queued")
        pairs = list(zip(queued, bounds, strict=True))
        fill.append([min(1.0, q / b) if q is not None and b else None for q, b in pairs])
        words.append([f"{labels[name]}: {q or 0:.0f} of {b or 0:.0f}" for q, b in pairs])
    drawn.add_heatmap(
        x=past.at,
        y=list(range(len(names))),
        z=fill,
        text=words,
        zmin=0,
        zmax=1,
        colorscale="Cividis",
        colorbar=_colour_bar(drawn.layout[f"yaxis{row if row > 1 else ''}"].domain),
        hovertemplate=f"%{{text}} at %{{x:.4~g}} {past.unit}<extra></extra>",
        row=row,
        col=1,
    )
    drawn.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[labels[name] for name in names],
        autorange="reversed",
        showgrid=False,
        row=row,
        col=1,
    )


def _colour_bar(beside: Sequence[float]) -> dict[str, Any]:
    return {
        "x": 1.0,
        "xpad": 6,
        "len": max(0.2, beside[1] - beside[0]),
        "y": sum(beside) / 2,
        "thickness": 10,
        "tickvals": [0, 0.5, 1],
        "ticktext": ["empty", "half", "full"],
    }


def _bound(row: Row) -> float:
    """Return the most that a stage holds: a chunk of cheap items may be more."""
    return max(float(row["prefetch"]) + float(row["concurrency"]), float(row["queued"]))


def _draw_changes(
    drawn: Any, past: Columns, watched: RunView, zero_s: float, names: Sequence[str]
) -> None:
    """Mark knob changes by a line through all plots, and a marker that says what was turned.

    Trials that a tuner has taken back are pale.
    """
    trials, changes = taken_back(watched), watched.events[-_MOST_MARKS:]
    marks = [((one.when_s - zero_s) / past.unit_s, one) for one in changes]
    marks = [(max(at, past.at[0]), one) for at, one in marks if at <= past.at[-1]]
    if not marks:
        return
    pale = [(one.when_s, one.knob) in trials for _, one in marks]
    shades = [_PALE if one else 1.0 for one in pale]
    line = {"color": MARK, "width": 1, "dash": "dot"}
    for (at, _), shade in zip(marks, shades, strict=True):
        place = {"x0": at, "x1": at, "y0": 0, "y1": 1, "xref": "x", "yref": "paper"}
        drawn.add_shape(type="line", line=line, opacity=shade, **place)
    rates = [rate for name in names for rate in past.column(name, "items_per_s") if rate]
    drawn.add_scatter(
        x=[at for at, _ in marks],
        y=[max(rates, default=1.0) * 1.12] * len(marks),
        name="knob change",
        mode="markers",
        marker={"symbol": "triangle-down", "size": 10, "color": MARK, "opacity": shades},
        cliponaxis=False,
        hovertext=[
            f"{_words(one)}{'<br>taken back' * back}"
            for (_, one), back in zip(marks, pale, strict=True)
        ],
        hovertemplate=f"%{{hovertext}}<br>at %{{x:.4~g}} {past.unit}<extra></extra>",
        row=1,
        col=1,
    )


def _words(change: KnobChange) -> str:
    why = f": {plain_label(change.why, 80)}" if change.why else ""
    turned = f"{plain_label(change.knob, 60)} {change.old} → {change.new}"
    return f"{turned}<br>by {plain_label(change.by)}{why}"


def styled(drawn: Any, height: int, title: str, *, empty: bool = False) -> Any:
    """Return it colours that read in the light and in the dark, and let it fill its place."""
    drawn.update_layout(
        template="none",
        title={"text": plain_label(title, 70), "font": {"size": 14}, "x": 0.01, "y": 0.985},
        autosize=True,
        height=height,
        margin={"l": 70, "r": 10, "t": 56, "b": 100},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 12},
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": -72 / height, "yanchor": "top"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": INK},
    )
    drawn.update_xaxes(gridcolor=_GRID, zeroline=False, linecolor=INK, automargin=True)
    drawn.update_yaxes(gridcolor=_GRID, zeroline=False, linecolor=INK, automargin=True)
    if empty:
        drawn.update_xaxes(visible=False)
        drawn.update_yaxes(visible=False)
        drawn.add_annotation(
            text=_BEFORE, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False
        )
    return drawn


def plain_label(text: str, most: int = _NAME) -> str:
    """Return text of others as plotly shows it unchanged: it knows some tags, entities and TeX."""
    return html.escape(shortened(text, most), quote=False).replace("$", "&#36;")


def labels_of(names: Sequence[str]) -> dict[str, str]:
    """Return what stages are called: in so many letters as tell them apart."""
    for most in (_NAME, *_LONGER):
        labels = {name: _short(name, most) for name in names}
        if len(set(labels.values())) == len(labels):
            break
    return labels


def _short(name: str, most: int) -> str:
    """Return a stage's name, cut in the middle where it is long: its end tells it from its like."""
    head = most // 2
    cut = name if len(name) <= most else f"{name[:head]}…{name[head + 1 - most :]}"
    return plain_label(cut, most)
