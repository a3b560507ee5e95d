"""A snapshot in words: for terminals, and for the head of every other picture."""

from __future__ import annotations

import time

from ..base.format import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    markdown_table,
    markdown_text,
    shortened,
    text_table,
)
from ..engine.stats import worker_count
from ..ops.stage import LOOP
from .rules import Diagnosis
from .snapshot import DiagnosisPart, ExportPart, Snapshot, StagePart

STATES = ("busy", "starved", "blocked", "waiting")
HEAD = ("stage", "rate", "state", "queue", "calls", "p50 / p95", "errors", "knobs")
WORKERS = "workers"  # head of one more column, where there are any
NONE = "\N{EN DASH}"
_LEAST = 0.005  # smaller shares are left out
_LINE = 200
_NAME = 40
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
    """Tell where a run is, in a few phrases."""
    epoch, epochs, begun = snapshot["epoch"], snapshot["epochs"], snapshot["epochs_begun"]
    which = f" ({begun} of {epochs})" if epochs and begun else ""
    phrases = [snapshot["state"], f"epoch {epoch}{which}"]
    done, total, unit = snapshot["delivered"], snapshot["total"], snapshot["unit"]
    if total:
        phrases.append(f"{done:,}/{total:,} {unit} ({format_share(done / total)})")
    else:
        phrases.append(f"{done:,} {unit}")
    if snapshot["skipped"]:
        phrases.append(f"{snapshot['skipped']:,} skipped")
    if snapshot["ahead"]:
        phrases.append("the next epoch has begun")
    elapsed_s = snapshot["elapsed_s"]
    if snapshot["state"] in _GOING:
        phrases.append(format_rate(snapshot["items_per_s"], unit))
        phrases.append(f"{format_seconds(elapsed_s)} so far")
    elif elapsed_s > 0:
        phrases.append(f"{format_rate(done / elapsed_s, unit)} over {format_seconds(elapsed_s)}")
    if snapshot["left_s"] is not None:
        phrases.append(f"{format_seconds(snapshot['left_s'])} left")
    phrases.append(f"waited {format_seconds(snapshot['waited_s'])} for data")
    memory = snapshot["memory"]
    if memory is not None:
        held, limit = format_bytes(memory["held_bytes"]), format_bytes(memory["limit_bytes"])
        phrases.append(f"{held} of {limit} held")
    return phrases


def diagnosis_line(diagnosis: DiagnosisPart) -> str:
    """Return text and advice as one sentence."""
    return str(Diagnosis(None, diagnosis["text"], diagnosis["advice"]))


def export_line(export: ExportPart | None) -> str:
    """Tell what was turned since the last export; nothing where nothing was."""
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
    """Tell what share of the time a stage is in each state, the states it is never in left out."""
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
    """Tell what share of the time the training loop trains, and waits; none before any epoch."""
    if snapshot["state"] == "paused":
        return "paused"
    shares = [format_share(share) for share in loop_shares(snapshot).values()]
    return "training {}, waits for data {}".format(*shares) if has_begun(snapshot) else NONE


def has_begun(snapshot: Snapshot) -> bool:
    """Tell whether there was an epoch."""
    return snapshot["state"] != "ready" and snapshot["elapsed_s"] > 0


def _loop_cells(snapshot: Snapshot) -> list[str]:
    """Return the row of the training loop."""
    rate = format_rate(snapshot["items_per_s"], snapshot["unit"])
    return [LOOP, rate, loop_words(snapshot), *[""] * 4]


def rate_words(stage: StagePart) -> str:
    """Return the rate of a stage, and its bytes where they are known."""
    rate = format_rate(stage["items_per_s"], stage["unit"])
    size = stage["bytes_per_s"]
    return rate if size is None else f"{rate}, {format_bytes(size)}/s"


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
    """Tell who does the calls of a stage outside the run's threads, or with whom it shares them."""
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
