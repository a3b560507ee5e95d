"""Failures: the failed items of a run, as a table."""

from __future__ import annotations

from typing import final

from ..base.format import html_table, markdown_table, text_table
from ..engine.nodes.failures import Failure

_SHOWN = 20  # rows of a table
_WIDE = 40  # characters of a source item
_TRACE = 4000  # characters of a traceback, its end
_HEAD = ("stage", "source item", "error", "input", "epoch")


@final
class Failures(tuple[Failure, ...]):
    """The last failed items, oldest first; shown as a table, tracebacks folded."""

    __slots__ = ()

    def _caption(self) -> str:
        if not self:
            return "No failed items"
        shown = f", the last {_SHOWN} shown" if len(self) > _SHOWN else ""
        again = "; run.retry_failed() gives their source items as a pipeline"
        known = any(one.index is not None for one in self)
        return f"Failed items: {len(self)}{shown}{again if known else ''}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (one.stage, _end_of(one.source), one.error, one.input, str(one.epoch))
            for one in self[-_SHOWN:]
        ]

    def __repr__(self) -> str:
        return f"{self._caption()}\n{text_table(_HEAD, self._rows())}" if self else self._caption()

    def _repr_html_(self) -> str:
        if not self:
            return f"<div>{self._caption()}</div>"
        folds = {_HEAD.index("error"): [one.traceback[-_TRACE:] for one in self[-_SHOWN:]]}
        return html_table(_HEAD, self._rows(), caption=self._caption(), folds=folds)

    def _repr_markdown_(self) -> str:
        table = markdown_table(_HEAD, self._rows())
        return f"{self._caption()}\n\n{table}" if self else self._caption()


def _end_of(text: str) -> str:
    """Shorten a path at its start: its end tells files apart."""
    return text if len(text) <= _WIDE else "…" + text[1 - _WIDE :]
