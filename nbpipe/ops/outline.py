"""Outline: a chain of stages as data, as text and as a table."""

from __future__ import annotations

from typing import Any

from ..base.format import html_table, text_table
from ..errors import LengthUnknownError
from .order import length
from .stage import Chain, Stage, addresses, share_workers

_HEAD = ("stage", "operation", "detail", "executor")
_KNOBS = ("concurrency", "prefetch", "depth")


def graph(chain: Chain) -> list[dict[str, Any]]:
    """Return for each stage its name, operation, executor, knobs, and whose workers it shares."""
    rows: list[dict[str, Any]] = []
    above: Stage | None = None
    for address, stage in addresses(chain).items():
        shares = above is not None and share_workers(above, stage)
        rows.append(
            {
                "name": address,
                "op": stage.op,
                "detail": stage.spec.detail(),
                "executor": stage.executor,
                "shares": (rows[-1]["shares"] or rows[-1]["name"]) if shares else None,
                "knobs": {name: knob.value for name, knob in stage.knobs.items()},
            }
        )
        above = stage
    return rows


def _table(chain: Chain) -> tuple[tuple[str, ...], list[list[str]]]:
    rows = graph(chain)
    knobs = _KNOBS if any("depth" in row["knobs"] for row in rows) else _KNOBS[:2]
    return (*_HEAD, *knobs), [
        [
            row["name"],
            row["op"],
            row["detail"],
            f"{row['executor']}, with {row['shares']}" if row["shares"] else row["executor"],
            *(str(row["knobs"].get(knob, "")) for knob in knobs),
        ]
        for row in rows
    ]


def _caption(chain: Chain) -> str:
    stages = len(addresses(chain))
    try:
        return f"Pipeline of {stages} stages, {length(chain):,} items an epoch"
    except LengthUnknownError:
        return f"Pipeline of {stages} stages"


def as_text(chain: Chain) -> str:
    """Draw a table in plain text."""
    return f"{_caption(chain)}\n{text_table(*_table(chain))}"


def as_html(chain: Chain) -> str:
    """Draw a table in HTML."""
    return html_table(*_table(chain), caption=_caption(chain))
