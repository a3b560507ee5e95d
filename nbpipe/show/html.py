"""The static picture of a snapshot: HTML without scripts, for notebooks that were saved."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from ..base.format import format_rate, one_block, shortened, style_sheet
from ..ops.stage import CONSUMER, LOOP
from .rules import FAILED, HANGS, KEEPS_UP
from .snapshot import (
    ChangePart,
    DiagnosisPart,
    FailurePart,
    HistoryPart,
    Snapshot,
    StagePart,
    history,
    snapshot,
)
from .watch import Watched
from .words import (
    HEAD,
    as_of,
    call_words,
    diagnosis_line,
    export_line,
    failure_words,
    has_begun,
    headline,
    knob_words,
    latency_words,
    loop_shares,
    loop_words,
    picture_markdown,
    picture_text,
    queue_words,
    rate_words,
    shares_of,
    state_words,
    worker_words,
)

# -- The static picture of a snapshot: HTML without scripts, for notebooks that were saved ---------
# Where styles are taken away, as on GitHub, it still reads as a plain table.
_CHANGES, _FAILURES = 12, 3  # so many of the last are shown
_TRACE = 800  # last characters of a traceback
_NAME = 40
_POINTS = 40  # of a line
_WIDTH, _HEIGHT = 80, 16  # of a line [px]
_LEAST_TOP = 1.0  # of a line: a rate far below one item a second does not fill it
_KINDS = (*[' class="n"'] * 4, "")  # of the cells after the third: not to be broken
_COLOURS = {  # told apart by the colour-blind, in the light and in the dark
    "busy": "#0072b2",
    "starved": "#e69f00",
    "blocked": "#b8558f",
    "waiting": "#999999",
}
_STYLE = style_sheet(
    ".nbpipe-saved{font-size:13px;line-height:1.4;width:100%;max-width:1100px;"
    "container-type:inline-size;"
    "color:var(--jp-content-font-color1,inherit)}"
    ".nbpipe-saved p{margin:2px 0 6px}.nbpipe-saved .wide{overflow-x:auto}"
    ".nbpipe-saved table{display:table;table-layout:auto;border-collapse:collapse;margin:0;"
    "font-size:inherit;font-variant-numeric:tabular-nums;width:100%}"
    ".nbpipe-saved tr{background:none!important}"
    ".nbpipe-saved th,.nbpipe-saved td{text-align:left!important;vertical-align:top;"
    "padding:3px 8px;border:0;border-bottom:1px solid "
    "var(--jp-border-color2,rgba(128,128,128,.4))}"
    ".nbpipe-saved th{font-weight:600;white-space:nowrap}"
    ".nbpipe-saved .n{white-space:nowrap}.nbpipe-saved small{opacity:.75;font-size:11px}"
    ".nbpipe-saved svg{display:block;margin:2px 0}"
    ".nbpipe-saved tr.limits{background:rgba(230,159,0,.14)!important}"
    ".nbpipe-saved tr.broken{background:rgba(213,60,60,.14)!important}"
    ".nbpipe-saved pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:11px;margin:4px 0;"
    "font-family:var(--jp-code-font-family,monospace)}"
    ".nbpipe-saved td:nth-child(3){min-width:140px}"
    ".nbpipe-saved summary{cursor:pointer}"
    # In a narrow place every stage is a card.
    "@container (max-width:780px){.nbpipe-saved .wide thead{display:none}"
    ".nbpipe-saved .wide tr{display:flex;flex-wrap:wrap;padding:3px 0;border-bottom:1px solid "
    "var(--jp-border-color2,rgba(128,128,128,.4))}.nbpipe-saved .wide td{border:0;padding:1px 8px}"
    ".nbpipe-saved .wide td:nth-child(-n+2){flex:1 0 40%}.nbpipe-saved .wide td:empty{display:none}"
    ".nbpipe-saved .wide td:nth-child(3){flex:1 0 90%}"
    ".nbpipe-saved .wide td[data-l]:before{content:attr(data-l) ' ';opacity:.75}}"
)


def picture_html(snapshot: Snapshot, history: HistoryPart | None = None) -> str:
    """Draw a snapshot as self-contained HTML; all text in it is escaped.

    Args:
        snapshot: what is drawn.
        history: rates over time; each stage then shows them as a small line.
    """
    lines = {} if history is None else _lines(history)
    marked = snapshot["diagnosis"]
    rows = [_row(stage, marked, lines) for stage in snapshot["stages"]]
    head = "".join(f"<th>{_escaped(title)}</th>" for title in HEAD)
    body = "".join([*rows, _loop_row(snapshot, marked, lines)])
    return (
        f'<div class="nbpipe-saved">{_STYLE}{_head(snapshot)}<div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{_changes(snapshot['changes'] or [])}{_failures(snapshot['failures'] or [])}</div>"
    )


def _mark(address: str, diagnosis: DiagnosisPart) -> str:
    """Return the word that stands at the name of a stage; none where nothing is wrong with it."""
    named = address == diagnosis["stage"] and diagnosis["kind"] != KEEPS_UP
    return diagnosis["kind"] if named else ""


def _head(snapshot: Snapshot) -> str:
    state, *phrases = headline(snapshot)
    error = f"<p><b>Error:</b> {_escaped(snapshot['error'])}</p>" if snapshot["error"] else ""
    sentences = diagnosis_line(snapshot["diagnosis"]), export_line(snapshot["export"])
    below = "".join(f"<p>{_escaped(one)}</p>" for one in sentences if one)
    title = _escaped(shortened(snapshot["title"], 200))
    return (
        f"<p><b>{title}</b> <small>{as_of(snapshot)}</small><br>"
        f"<b>{_escaped(state)}</b>, {_escaped(', '.join(phrases))}</p>{error}{below}"
    )


def _row(stage: StagePart, marked: DiagnosisPart, lines: Mapping[str, str]) -> str:
    address = stage["address"]
    mark = _mark(address, marked)
    kind = ", ".join(filter(None, (stage["op"], stage["place"], worker_words(stage))))
    shares, line = shares_of(stage), lines.get(address, "")
    cells = (
        _name(address, kind, mark),
        f"{_escaped(rate_words(stage))}{line}",
        f"{_bar(shares)}{_escaped(state_words(shares))}",
        queue_words(stage),
        call_words(stage),
        _escaped(latency_words(stage)),
        _escaped(failure_words(stage)),
        _escaped(knob_words(stage)),
    )
    return _cells(cells, mark)


def _loop_row(snapshot: Snapshot, marked: DiagnosisPart, lines: Mapping[str, str]) -> str:
    mark = _mark(CONSUMER, marked)
    bar = _bar(loop_shares(snapshot)) if has_begun(snapshot) else ""
    rate, line = format_rate(snapshot["items_per_s"], snapshot["unit"]), lines.get(CONSUMER, "")
    cells = (
        _name(LOOP, "consumer in run.stats()", mark),
        f"{_escaped(rate)}{line}",
        f"{bar}{_escaped(loop_words(snapshot))}",
        *[""] * 5,
    )
    return _cells(cells, mark)


def _name(address: str, kind: str, mark: str) -> str:
    flag = f" ◀ {_escaped(mark)}" if mark else ""
    shown = _escaped(shortened(address, _NAME))
    return f"<b>{shown}</b>{flag}<br><small>{_escaped(kind)}</small>"


def _cells(cells: Sequence[str], mark: str) -> str:
    first = "".join(f"<td>{cell}</td>" for cell in cells[:3])
    found = first + "".join(
        f'<td{kind} data-l="{title}">{cell}</td>' if cell else "<td></td>"
        for kind, title, cell in zip(_KINDS, HEAD[3:], cells[3:], strict=True)
    )
    if not mark:
        return f"<tr>{found}</tr>"
    return f'<tr class="{"broken" if mark in (FAILED, HANGS) else "limits"}">{found}</tr>'


def _bar(shares: Mapping[str, float]) -> str:
    """Draw shares as one bar; the words beside it say the same."""
    parts, at = [], 0.0
    for state, share in shares.items():
        left, at = round(at), at + 100 * share
        if round(at) > left:
            part = f'<rect x="{left}" width="{round(at) - left}" height="8" '
            parts.append(f'{part}fill="{_COLOURS[state]}"/>')
    return (
        '<svg width="140" height="8" viewBox="0 0 100 8" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(parts)}</svg>'
    )


def _lines(history: HistoryPart) -> dict[str, str]:
    """Draw the rates of each stage over time."""
    time_s = history["time_s"]
    return {address: _line(time_s, rates) for address, rates in history["stages"].items()}


def _line(time_s: Sequence[float], rates: Sequence[float | None]) -> str:
    """Draw rates over time, from 0 to their largest, or to 1/s; where nothing ran, a gap."""
    top = max((rate for rate in rates if rate), default=0.0)
    if not top > 0:
        return ""
    begun_s, lasted_s = time_s[0], max(1.0, time_s[-1] - time_s[0])
    timed = [
        (_WIDTH * (at_s - begun_s) / lasted_s, rate)
        for at_s, rate in zip(time_s, rates, strict=True)
    ]
    high = (_HEIGHT - 2) / max(top, _LEAST_TOP)
    strokes = []
    for runs, part in groupby(timed, lambda one: one[1] is not None):
        if runs:
            xs, ys = zip(*((x, rate or 0.0) for x, rate in part), strict=True)
            most = max(2, _POINTS * len(xs) // len(timed))
            spots = zip(averaged(xs, most), averaged(ys, most), strict=True)
            strokes.append(" ".join(f"{x:.0f},{_HEIGHT - 1 - high * y:.0f}" for x, y in spots))
    drawn = "M".join(["", *strokes])
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" aria-hidden="true"><path d="{drawn}" '
        'fill="none" stroke="currentColor" stroke-opacity=".7"/></svg>'
    )


def averaged(numbers: Sequence[float], most: int) -> list[float]:
    """Return at most `most` numbers: averages of neighbours."""
    parts = min(len(numbers), most)
    edges = [place * len(numbers) // parts for place in range(parts + 1)] if parts else [0]
    return [sum(numbers[low:high]) / (high - low) for low, high in pairwise(edges)]


def _changes(changes: Sequence[ChangePart]) -> str:
    if not changes:
        return ""
    rows = "".join(
        f"<tr><td>{_clock(one['when_s'])}</td><td>{_escaped(one['knob'])}</td>"
        f"<td>{one['old']} → {one['new']}</td><td>{_escaped(one['by'])}</td>"
        f"<td>{_escaped(shortened(one['why'], 100))}</td></tr>"
        for one in changes[: -_CHANGES - 1 : -1]
    )
    return (
        f"<details><summary>Knob changes ({len(changes)})</summary><table><thead><tr>"
        "<th>when</th><th>knob</th><th>change</th><th>by</th><th>why</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></details>"
    )


def _input(text: str) -> str:
    return f"<br><small>input: {_escaped(shortened(text, 100))}</small>" if text else ""


def _failures(failures: Sequence[FailurePart]) -> str:
    if not failures:
        return ""
    parts = "".join(
        f"<p><b>{_escaped(shortened(one['stage'], _NAME))}</b>, item {_escaped(one['path'])}, "
        f"epoch {one['epoch']}, {_clock(one['when_s'])}, attempts: {one['attempts']}<br>"
        f"{_escaped(shortened(one['error'], 200))}{_input(one['input'])}</p>"
        f"<pre>{one_block(one['traceback'][-_TRACE:])}</pre>"
        for one in failures[: -_FAILURES - 1 : -1]
    )
    return f"<details><summary>Failed items ({len(failures)})</summary>{parts}</details>"


def _clock(when_s: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(when_s))


def _escaped(text: str) -> str:
    return html.escape(text, quote=True).replace(" %", "&nbsp;%")


# -- Bundle: a run as an output of a notebook holds it, where no panel is alive --------------------
def bundle(watched: Watched, shown: Snapshot | None = None) -> dict[str, str]:
    """Draw a run as HTML, as Markdown and as text, by MIME type.

    Args:
        watched: the run.
        shown: the snapshot to draw, where there is one already.
    """
    drawn = snapshot(watched) if shown is None else shown
    return {
        "text/html": picture_html(drawn, history=history(watched)),
        "text/markdown": picture_markdown(drawn),
        "text/plain": picture_text(drawn),
    }
