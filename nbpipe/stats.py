"""RunStats: the stats of all stages at one moment, by address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import UnknownStageError, near_match
from .metrics import StageStats
from .units import format_bytes, format_rate, format_seconds, format_share


def worker_count(count: int, starting: int, memory_bytes: int) -> str:
    """Say how many workers there are, how many of them only start, and what memory they take.

    Examples:
        >>> worker_count(4, 0, 1_200_000_000)
        '4 workers, 1.2 GB'
        >>> worker_count(2, 2, 0)
        'starting 2 workers'
    """
    if starting >= count:
        return f"starting {_workers(starting)}" if starting else "no workers"
    if starting:
        return f"{_workers(count)}, {starting} starting"
    return f"{_workers(count)}, {format_bytes(memory_bytes)}" if memory_bytes else _workers(count)


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


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
        crews = [worker_count(*_crew(row)) if any(_crew(row)) else "" for row in self.values()]
        if any(crews):
            head = [*head, "workers"]
            rows = [[*row, crew] for row, crew in zip(rows, crews, strict=True)]
        return head, rows

    def __repr__(self) -> str:
        from .text import text_table

        return text_table(*self.table())

    def _repr_html_(self) -> str:
        from .text import html_table

        return html_table(*self.table())


def _crew(row: StageStats) -> tuple[int, int, int]:
    return row.workers, row.starting, row.memory_bytes
