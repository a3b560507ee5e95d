"""RunStats: the stats of all stages at one moment, by address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import UnknownStageError, near_match
from .metrics import StageStats
from .units import format_rate, format_seconds, format_share


class RunStats(Mapping[str, StageStats]):
    """Frozen stats by stage address; prints as a table."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[str, StageStats]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, stage: str) -> StageStats:
        """Give the stats of a stage.

        Raises:
            UnknownStageError: there is no row of this name.
        """
        found = self._rows.get(stage)
        if found is None:
            raise UnknownStageError(
                f"no stats of {stage!r}{near_match(str(stage), self._rows)}; there are rows for "
                + ", ".join(map(repr, self._rows))
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._rows)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Give the head and the rows of a table, as text."""
        head = ["stage", "items", "now", "busy", "starved", "blocked", "calls", "ready", "p50"]
        rows = [
            [
                name,
                str(row.items_out),
                format_rate(row.items_per_s),
                format_share(row.busy),
                format_share(row.starved),
                format_share(row.blocked),
                f"{row.running}/{row.concurrency}",
                f"{row.queued}/{row.prefetch}",
                format_seconds(row.latency_p50_s) if row.latency_p50_s else "",
            ]
            for name, row in self._rows.items()
        ]
        return head, rows

    def __repr__(self) -> str:
        from .text import text_table

        return text_table(*self.table())

    def _repr_html_(self) -> str:
        from .text import html_table

        return html_table(*self.table())
