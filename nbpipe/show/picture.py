"""The static picture of a snapshot: as text for terminals, as Markdown, and as HTML."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType

from ..base.format import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    markdown_table,
    markdown_text,
    one_block,
    shortened,
    style_sheet,
    text_table,
    unit_of,
)
from ..engine.measures.stats import worker_count
from ..ops.stage import CONSUMER, LOOP
from .snapshot import (
    ChangePart,
    DiagnosisPart,
    ExportPart,
    FailurePart,
    HistoryPart,
    Snapshot,
    StagePart,
    history,
    snapshot,
)
from .verdict.diagnosis import ERROR, FAILED, GOOD, HANGS, KEEPS_UP, Diagnosis
from .watch import RunView

STATES = ("busy", "starved", "blocked", "waiting")
HEAD = ("stage", "rate", "state", "queue", "calls", "p50 / p95", "errors", "knobs")
WORKERS = "workers"  # head of one more column, where there are any
NONE = "\N{EN DASH}"
_LEAST = 0.005  # smaller shares are left out
_LINE = 200
_NAMED = 3  # so many of the knobs that were turned since an export are named
_GOING = ("running", "paused")


def picture_text(snapshot: Snapshot) -> str:
    """Draw a snapshot as plain text, for a terminal."""
    rows = [_cells(stage) for stage in snapshot["stages"]]
    rows.append(_loop_cells(snapshot))
    workers = [worker_words(stage) for stage in snapshot["stages"]]
    head = [*HEAD[:-1], WORKERS] if any(workers) else HEAD[:-1]
    if any(workers):
        rows = [[*row, cell] for row, cell in zip(rows, [*workers, ""], strict=True)]
    lines = [shortened(snapshot["title"], _LINE), ", ".join(headline(snapshot))]
    sentence = diagnosis_line(snapshot["diagnosis"])
    lines += [shortened(sentence, 2 * _LINE)] if sentence else []
    lines += filter(None, [export_line(snapshot["export"])])
    return "\n".join([*lines, text_table(head, rows)])


def picture_markdown(snapshot: Snapshot) -> str:
    """Draw a snapshot as Markdown: what it is, the state, what is to be said, and a table."""
    state, *phrases = headline(snapshot)
    title = markdown_text(shortened(snapshot["title"], _LINE))
    lines = [f"**{title}** ({as_of(snapshot)})", f"**{state}**, {', '.join(phrases)}"]
    error = f"Error: {snapshot['error']}" if snapshot["error"] else ""
    said = (error, diagnosis_line(snapshot["diagnosis"]), export_line(snapshot["export"]))
    lines += [markdown_text(one) for one in said if one]
    rows = [[*_cells(stage), knob_words(stage)] for stage in snapshot["stages"]]
    return "\n\n".join([*lines, markdown_table(HEAD, [*rows, [*_loop_cells(snapshot), ""]])])


def as_of(snapshot: Snapshot) -> str:
    """Tell that what is shown is a picture, and of when."""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(snapshot["time_s"]))
    return f"as of {at}; not live here"


def headline(snapshot: Snapshot) -> list[str]:
    """Return where a run is, in a few phrases."""
    epoch, epochs, begun = snapshot["epoch"], snapshot["epochs"], snapshot["epochs_begun"]
    which = f" ({begun} of {epochs})" if epochs and begun else ""
    phrases = [snapshot["state"], f"epoch {epoch}{which}"]
    done, total, unit = snapshot["delivered"], snapshot["total"], snapshot["unit"]
    if total:
        phrases.append(f"{done:,}/{total:,} {unit_of(total, unit)} ({format_share(done / total)})")
    else:
        phrases.append(f"{done:,} {unit_of(done, unit)}")
    if snapshot["skipped"]:
        phrases.append(f"{snapshot['skipped']:,} skipped")
    if snapshot["ahead"]:
        phrases.append("the next epoch has begun")
    elapsed_s = snapshot["elapsed_s"]
    if snapshot["state"] in _GOING:
        phrases.append(format_rate(snapshot["items_per_s"], unit))
        phrases.append(f"{format_seconds(elapsed_s)} so far")
    elif elapsed_s > 0:
        rate = (done - snapshot["resumed"]) / elapsed_s
        phrases.append(f"{format_rate(rate, unit)} over {format_seconds(elapsed_s)}")
    if snapshot["left_s"] is not None:
        phrases.append(f"{format_seconds(snapshot['left_s'])} left")
    phrases.append(f"waited {format_seconds(snapshot['waited_s'])} for data")
    memory = snapshot["memory"]
    if memory is not None:
        held, limit = format_bytes(memory["held_bytes"]), format_bytes(memory["limit_bytes"])
        phrases.append(f"{held} of {limit} held")
    return phrases


def diagnosis_line(diagnosis: DiagnosisPart) -> str:
    """Return finding, evidence and advice in one line."""
    text, evidence, advice = diagnosis["text"], diagnosis["evidence"], diagnosis["advice"]
    return str(Diagnosis(text=text, evidence=evidence, advice=advice))


def export_line(export: ExportPart | None) -> str:
    """Return what was turned since the last export; nothing where nothing was."""
    if export is None or not export["turned"]:
        return ""
    named = [
        f"{shortened(one['stage'], _NAME)}.{one['knob']} {one['old']} → {one['new']}"
        for one in export["turned"][:_NAMED]
    ]
    more = len(export["turned"]) - len(named)
    rest = f" and {more} more" if more else ""
    return f"changed since export to {shortened(export['file'])}: {', '.join(named)}{rest}"


def state_words(shares: dict[str, float]) -> str:
    """Return the share of the time that a stage is in each state, without states of no time."""
    known = [f"{state} {format_share(shares[state])}" for state in STATES if state in shares]
    if not any(shares.values()):
        return NONE
    large = [word for word, state in zip(known, shares, strict=True) if shares[state] >= _LEAST]
    return ", ".join(large or known[-1:])


def shares_of(stage: StagePart) -> dict[str, float]:
    """Return the shares of a stage's states, in their order."""
    return {
        "busy": stage["busy"],
        "starved": stage["starved"],
        "blocked": stage["blocked"],
        "waiting": stage["waiting"],
    }


def loop_shares(snapshot: Snapshot) -> dict[str, float]:
    """Return the shares of the training loop: it is at work, or waits for data, or is paused."""
    if snapshot["state"] == "paused":
        return {"waiting": 1.0}
    waited = snapshot["waited_share"]
    return {"busy": round(1.0 - waited, 3), "starved": waited}


def loop_words(snapshot: Snapshot) -> str:
    """Return what share of its time the loop trains, and waits; none where it had nothing."""
    if snapshot["state"] == "paused":
        return "paused"
    shares = [format_share(share) for share in loop_shares(snapshot).values()]
    return "training {}, waits for data {}".format(*shares) if loop_has_time(snapshot) else NONE


def loop_has_time(snapshot: Snapshot) -> bool:
    """Return whether the loop had something of an epoch, or waits for it."""
    had_some = snapshot["delivered"] > snapshot["resumed"]
    return snapshot["elapsed_s"] > 0 and (had_some or snapshot["state"] in _GOING)


def _loop_cells(snapshot: Snapshot) -> list[str]:
    """Return the row of the training loop."""
    rate = format_rate(snapshot["items_per_s"], snapshot["unit"])
    return [LOOP, rate, loop_words(snapshot), "", "", step_words(snapshot), ""]


def step_words(snapshot: Snapshot) -> str:
    """Return the time of a step of the loop, and that beside resting workers."""
    step_s, at_rest_s = snapshot["step_s"], snapshot["step_at_rest_s"]
    if step_s is None or snapshot["state"] == "paused":
        return ""
    at_rest = "" if at_rest_s is None else f" ({format_seconds(at_rest_s)} at rest)"
    return f"step {format_seconds(step_s)}{at_rest}"


def queue_words(stage: StagePart) -> str:
    """Return what waits for the next stage, and the most there may be."""
    fused = stage["executor"] == "inline"  # it has no slots and no buffer of its own
    return "" if fused or not stage["bound"] else f"{stage['queued']}/{stage['bound']}"


def call_words(stage: StagePart) -> str:
    """Return the calls in progress, and the most there may be."""
    fused = stage["executor"] == "inline" or stage["shares"] is not None
    return "" if fused else f"{stage['running']}/{stage['concurrency']}"


def latency_words(stage: StagePart) -> str:
    """Return the time of a call, median and 95th percentile."""
    if not stage["latency_p50_s"]:
        return ""
    return f"{format_seconds(stage['latency_p50_s'])} / {format_seconds(stage['latency_p95_s'])}"


def failure_words(stage: StagePart) -> str:
    """Return the errors of a stage, and what was tried again."""
    errors, retries = stage["errors"], stage["retries"]
    tried = f", {format_count(retries)} retried" if retries else ""
    return f"{format_count(errors)}{tried}" if errors or retries else "0"


def knob_words(stage: StagePart) -> str:
    """Return the values of a stage's knobs."""
    return ", ".join(f"{knob['name']} {knob['value']}" for knob in stage["knobs"])


def worker_words(stage: StagePart) -> str:
    """Return the workers of a stage outside the run's threads, or the stage it shares them with."""
    if stage["shares"] is not None:
        return f"with {shortened(stage['shares'], 30)}"
    workers = stage["workers"]
    if workers is None:
        return ""
    return worker_count(workers["count"], workers["starting"], workers["memory_bytes"])


def _cells(stage: StagePart) -> list[str]:
    return [
        shortened(stage["address"], 30),
        format_rate(stage["items_per_s"], stage["unit"]),
        state_words(shares_of(stage)),
        queue_words(stage),
        call_words(stage),
        latency_words(stage),
        failure_words(stage),
    ]


# -- As HTML without scripts, for notebooks that were saved: laid out as the panel is --------------
# Where styles are taken away, as on GitHub, it still reads as lines and plain tables.
_CHANGES, _FAILURES = 12, 3  # so many of the last are shown
_TRACE = 800  # last characters of a traceback
_NAME = 40
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B|[nµm]?s|min|[kMGT])(?!\w))")  # no line ends there
_POINTS = 40  # of a line
_WIDTH, _HEIGHT = 80, 16  # of a line [px]
_LEAST_TOP = 1.0  # of a line: a rate far below one item a second does not fill it
_ROW = ("stage", "where time goes", "rate", "calls", "concurrency")
_REST = ("stage", "runs", "last minute", "queue", "p50 / p95", "errors", "knobs")
_COLOURS = {  # told apart by the colour-blind, in the light and in the dark
    "busy": "#0072b2",
    "starved": "#e69f00",
    "blocked": "#b8558f",
    "waiting": "#999999",
}
_LOOP_WORDS = {"busy": "training", "starved": "waits", "waiting": "paused"}
_STYLE = style_sheet(
    ".nbpipe-saved{font-size:13px;line-height:18px;width:100%;max-width:1100px;"
    "--line:1px solid var(--jp-border-color2,rgba(128,128,128,.4));"
    "--grey:light-dark(#5b6169,#a4abb5);--tint:transparent;--ink:inherit;"
    "color:var(--jp-content-font-color1,inherit);border:var(--line);border-radius:4px;"
    ':is([data-jp-theme-light="false"],[data-theme="dark"],[data-vscode-theme-kind$="dark"]) &'
    "{color-scheme:dark}"
    "& p{margin:0;padding:4px 12px}& small{color:var(--grey);font-size:12px}"
    "& .limits{--tint:light-dark(#fff6ec,#2f2720);--ink:light-dark(#a84300,#ffb26b)}"
    "& .broken{--tint:light-dark(#fdeeec,#3a2322);--ink:light-dark(#b3261e,#ff8a80)}"
    "& .good{--ink:light-dark(#1b7a3d,#7bd88f)}"
    "& .bar{display:block;width:100%;background:rgba(128,128,128,.25)}& rect{height:100%}"
    "& .verdict{background:var(--tint);border-bottom:var(--line)}"
    "& .verdict b{color:var(--ink);font-size:15px;line-height:20px}"
    "& .wide{overflow-x:auto}"
    "& table{display:table;table-layout:auto;border-collapse:collapse;margin:0;border:0;"
    "font-size:inherit;font-variant-numeric:tabular-nums;width:100%}"
    "& tr{background:none!important}"
    "& th,& td{text-align:left!important;padding:4px 12px;border:0;white-space:nowrap;"
    "max-width:none}"
    "& tbody tr+tr{border-top:var(--line)}"
    "& th{color:var(--grey);font-size:11px;font-weight:400;padding:0 12px}"
    "& tr:is(.limits,.broken){background:var(--tint)!important;"
    "box-shadow:inset 3px 0 0 var(--ink)}"
    "& tr b+b{color:var(--ink);margin-left:8px;font-size:12px}"
    "& td svg{display:inline-block;vertical-align:middle;margin:0 8px 0 0;border-radius:2px}"
    "& .rest td{vertical-align:top;font-size:12px}"
    "& details{border-top:var(--line)}"
    "& summary{cursor:pointer;color:var(--grey);font-size:12px;padding:3px 12px}"
    "& pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:11px;margin:0;padding:0 12px 4px;"
    "font-family:var(--jp-code-font-family,monospace)}}"
)
_LOOKS = {ERROR: "broken", GOOD: "good"}  # of a verdict, by how bad it is


def picture_html(snapshot: Snapshot, history: HistoryPart | None = None) -> str:
    """Draw a snapshot as self-contained HTML; all text in it is escaped.

    Args:
        snapshot: what is drawn.
        history: rates over time; each stage then shows them as a small line.
    """
    lines = {}
    if history is not None:
        lines = {name: _line(history["time_s"], one) for name, one in history["stages"].items()}
    marked, stages = snapshot["diagnosis"], snapshot["stages"]
    rows = [*(_row(stage, marked) for stage in stages), _loop_row(snapshot, marked)]
    rest = [*(_rest(stage, lines) for stage in stages), _loop_rest(snapshot, lines)]
    return (
        f'<div class="nbpipe-saved">{_STYLE}{_head(snapshot)}{_verdict(snapshot)}'
        f"{_table(_ROW, rows)}<details><summary>All numbers</summary>"
        f"{_table(_REST, rest, 'wide rest')}</details>"
        f"{_changes(snapshot['changes'] or [])}{_failures(snapshot['failures'] or [])}</div>"
    )


def _table(head: Sequence[str], rows: Sequence[str], kind: str = "wide") -> str:
    titles = "".join(f"<th>{title}</th>" for title in head)
    return (
        f'<div class="{kind}"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _mark(address: str, diagnosis: DiagnosisPart) -> str:
    """Return the word that stands at the name of a stage; none where nothing is wrong with it."""
    named = address == diagnosis["stage"] and diagnosis["kind"] != KEEPS_UP
    return diagnosis["kind"] if named else ""


def _head(snapshot: Snapshot) -> str:
    """Draw the state and the numbers of the epoch in a line, and the progress as a bar."""
    state, *phrases = headline(snapshot)
    title = html.escape(shortened(snapshot["title"], 200), quote=True)
    done, total = snapshot["delivered"], snapshot["total"]
    width = round(100 * min(1.0, done / total)) if total else 0
    return (
        f'<p title="{title}"><b>{_escaped(state)}</b>, {_escaped(", ".join(phrases))} '
        f"<small>{as_of(snapshot)}</small></p>"
        '<svg class="bar" height="4" aria-hidden="true">'
        f'<rect width="{width}%" fill="#1976d2"/></svg>'
    )


def _verdict(snapshot: Snapshot) -> str:
    """Draw the finding large, and below it how it was seen and what to do."""
    found, error = snapshot["diagnosis"], snapshot["error"]
    finding, evidence, advice = found["text"], found["evidence"], found["advice"]
    lines = []
    if error and error not in f"{finding} {evidence}":
        lines.append(f'<p class="verdict broken"><b>Error:</b> {_escaped(error)}</p>')
    if finding:
        look = _LOOKS.get(found["severity"], "limits" if found["stage"] else "")
        seen = f"<br><small>{_escaped(evidence)}</small>" if evidence else ""
        lines.append(
            f'<p class="verdict {look}"><b>{_escaped(finding)}</b>{seen} {_escaped(advice)}</p>'
        )
    changed = export_line(snapshot["export"])
    if changed:
        lines.append(f"<p><small>{_escaped(changed)}</small></p>")
    return "".join(lines)


def _row(stage: StagePart, marked: DiagnosisPart) -> str:
    address, shares = stage["address"], shares_of(stage)
    mark = _mark(address, marked)
    cells = (
        _name(address, mark),
        f"{_bar(shares)}{_largest(shares)}",
        _escaped(format_rate(stage["items_per_s"], stage["unit"])),
        call_words(stage),
        _concurrency(stage),
    )
    return _table_row(cells, mark)


def _rest(stage: StagePart, lines: Mapping[str, str]) -> str:
    """Draw the numbers of a stage that are looked at less often."""
    kind = ", ".join(filter(None, (stage["op"], stage["place"], worker_words(stage))))
    size = stage["bytes_per_s"]
    mean = format_rate(stage["mean_per_s"], stage["unit"])
    words = _escaped(state_words(shares_of(stage)))
    cells = (
        f"{_escaped(shortened(stage['address'], _NAME))}<br><small>{words}</small>",
        _escaped(kind),
        lines.get(stage["address"], "")
        + _escaped(mean if size is None else f"{mean}, {format_bytes(size)}/s"),
        queue_words(stage),
        _escaped(latency_words(stage)),
        _escaped(failure_words(stage)),
        _escaped(knob_words(stage)),
    )
    return _table_row(cells, "")


def _concurrency(stage: StagePart) -> str:
    """Return the concurrency of a stage, or the one that it shares; empty where it has none."""
    if stage["shares"] is not None:
        return _escaped(worker_words(stage))
    return "".join(str(knob["value"]) for knob in stage["knobs"] if knob["name"] == "concurrency")


def _loop_row(snapshot: Snapshot, marked: DiagnosisPart) -> str:
    mark = _mark(CONSUMER, marked)
    shares = loop_shares(snapshot) if loop_has_time(snapshot) else {}
    rate = format_rate(snapshot["items_per_s"], snapshot["unit"])
    bar = f"{_bar(shares)}{_largest(shares, _LOOP_WORDS)}" if shares else NONE
    cells = (_name(LOOP, mark), bar, _escaped(rate), "", _escaped(step_words(snapshot)))
    return _table_row(cells, mark)


def _loop_rest(snapshot: Snapshot, lines: Mapping[str, str]) -> str:
    words = f"{LOOP}<br><small>{_escaped(loop_words(snapshot))}</small>"
    return _table_row((words, "consumer in run.stats()", lines.get(CONSUMER, ""), *[""] * 4), "")


def _name(address: str, mark: str) -> str:
    flag = f" <b>◀ {_escaped(mark)}</b>" if mark else ""
    return f"<b>{_escaped(shortened(address, _NAME))}</b>{flag}"


def _table_row(cells: Sequence[str], mark: str) -> str:
    found = "".join(f"<td>{cell}</td>" for cell in cells)
    if not mark:
        return f"<tr>{found}</tr>"
    return f'<tr class="{"broken" if mark in (FAILED, HANGS) else "limits"}">{found}</tr>'


def _largest(shares: Mapping[str, float], words: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what takes the most of the time, in words."""
    state = max(shares, key=lambda one: shares[one])
    if shares[state] < _LEAST:
        return NONE
    return _escaped(f"{words.get(state, state)} {format_share(shares[state])}")


def _bar(shares: Mapping[str, float]) -> str:
    """Draw shares as one bar; the words beside it say the same."""
    parts, at = [], 0.0
    for state, share in shares.items():
        left, at = round(at), at + 100 * share
        if round(at) > left:
            part = f'<rect x="{left}%" width="{round(at) - left}%" '
            parts.append(f'{part}fill="{_COLOURS[state]}"/>')
    return f'<svg width="140" height="10" aria-hidden="true">{"".join(parts)}</svg>'


def _line(time_s: Sequence[float], rates: Sequence[float | None]) -> str:
    """Draw rates over time, from 0 to their largest, or to 1/s; where nothing ran, a gap."""
    top = max((rate for rate in rates if rate), default=0.0)
    if not top > 0 or len(time_s) < 2:  # noqa: PLR2004  a point is no line
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
    return _UNIT.sub("\N{NO-BREAK SPACE}", html.escape(text, quote=True))


# -- Bundle: a run as an output of a notebook holds it, where no panel is alive --------------------
def bundle(watched: RunView, shown: Snapshot | None = None) -> dict[str, str]:
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
