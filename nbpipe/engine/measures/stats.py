"""Stats: what users read of stages and of a run, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from types import MappingProxyType
from typing import NamedTuple

from ...base.format import (
    format_bytes,
    format_rate,
    format_seconds,
    format_share,
    html_table,
    plain,
)
from ...errors import UnknownStageError, near_match
from ...ops.stage import CONSUMER, LOOP

PACE_NS = 1_000_000_000  # a run needs this long after a pause to reach its pace again
Row = dict[str, int | float | str]  # one stage at one second, for a DataFrame


@dataclass(frozen=True, slots=True)
class StageStats:
    """The stats of one stage at one moment, as plain values.

    Attributes:
        items_in: items taken since the run started.
        items_out: items handed on since the run started.
        epoch_in: items taken in the epoch in progress, or in the last one.
        epoch_out: items handed on in that epoch.
        errors: items that failed for good.
        retries: calls that were tried again.
        items_per_s: rate over the last seconds, without the time between epochs [items/s].
        mean_per_s: rate since the first epoch began, without pauses and the time between epochs
            [items/s].
        busy: share of slot-time inside the stage's function over the last 5 s.
        starved: share with no input.
        blocked: share with no room for a result.
        waiting: share in which a call could have run, but no thread was free yet, or the
            run was paused. busy + starved + blocked + waiting = 1.
        running: calls in progress.
        concurrency: limit in force [calls].
        queued: results that wait for the next stage [items].
        prefetch: limit in force [items].
        latency_p50_s: median time of one call, or of one child of a `flat_map`, over the last 5
            to 10 s [s].
        latency_p95_s: 95th percentile [s].
        latency_p99_s: 99th percentile [s].
        bytes_out: bytes handed on, measured on one item of each task [bytes].
        cpu_share: share of the calls' time in which they computed, measured on some calls of the
            last 5 s. Time spent waiting for a core or for the interpreter lock is left out. None
            if it is not known. Stages that run together have one value, in the row of the first.
        cpu_share_p50: the same share for the median call. On a busy machine some calls wait for
            a call that holds a lock and waits for a core; the median is less affected by them.
        lock_share: share of the calls' time, without waits for a core, in which they surely waited
            for the interpreter lock. None if it is not known, as outside the run's threads.
        workers: processes, or Dask workers, that make this stage's calls. Stages that share
            workers have them in the row of the first.
        worker_threads: calls that the workers can make at once: one each, or one for each thread
            of a Dask worker; 0 if it is not known.
        starting: workers that have not done anything yet.
        memory_bytes: resident memory of the worker processes [bytes]. Memory that they share is
            counted in each; 0 if it is not known.
        oldest_s: how long the oldest call in progress has been running [s]; 0 if there is none.
            Stages that share workers have it in the row of the last. After an epoch, this is the
            oldest call that the epoch left in progress: `running` is 0 if it has ended since.
        oldest_item: the item that this call works on, as messages name it, or "first to last"
            of several; empty if it is not known.
        busy_s: slot-time inside the stage's function since the run started [s]. In the row of
            the training loop, time of its own steps.
        starved_s: slot-time with no input [s]; in the row of the loop, time that it waited.
        blocked_s: slot-time with no room for a result [s].
        slot_s: slot-time as a whole [s]. These four leave out pauses and the time between epochs:
            the difference of two moments gives the shares between them.
        item_bytes: size of a result, as a mean of the last ones that were measured [bytes].

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).map(abs).start() as run:
        ...     numbers = list(run)
        ...     row = run.stats()["abs"]
        >>> row.items_out, row.errors, round(row.busy + row.starved + row.blocked + row.waiting)
        (4, 0, 1)
    """

    items_in: int = 0
    items_out: int = 0
    errors: int = 0
    retries: int = 0
    items_per_s: float = 0.0
    mean_per_s: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    waiting: float = 1.0
    running: int = 0
    concurrency: int = 1
    queued: int = 0
    prefetch: int = 0
    latency_p50_s: float = 0.0
    latency_p95_s: float = 0.0
    latency_p99_s: float = 0.0
    bytes_out: int = 0
    cpu_share: float | None = None
    cpu_share_p50: float | None = None
    lock_share: float | None = None
    workers: int = 0
    worker_threads: int = 0
    starting: int = 0
    memory_bytes: int = 0
    oldest_s: float = 0.0
    oldest_item: str = ""
    epoch_in: int = 0
    epoch_out: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    slot_s: float = 0.0
    item_bytes: int = 0

    def as_dict(self) -> dict[str, int | float | str | None]:
        """Return the fields as a dict, in their order.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     numbers = list(run)
            ...     run.stats()["source"].as_dict()["items_out"]
            4
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def table(self) -> list[list[str]]:
        """Return the rows of a table: name and value of each field, with its unit.

        Examples:
            >>> import nbpipe
            >>> nbpipe.StageStats(items_out=4).table()[1]
            ['items_out', '4']
        """
        return [[name, _worded(name, value)] for name, value in self.as_dict().items()]

    def _repr_html_(self) -> str:
        return html_table(("", ""), self.table())


def at_the_pace_of(stats: StageStats, other: StageStats) -> StageStats:
    """Return the counts of `stats` with the rate and the shares of another moment."""
    pace = ("items_per_s", "busy", "starved", "blocked", "waiting")
    return replace(stats, **{name: getattr(other, name) for name in pace})


def with_mean(stats: StageStats, active_ns: int) -> StageStats:
    """Return `stats` with the mean rate of a run that was active for this long [ns]."""
    return replace(stats, mean_per_s=1e9 * stats.items_out / max(1, active_ns))


def _worded(name: str, value: int | float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name.endswith("_per_s"):
        return format_rate(value)
    if name.endswith("_s"):
        return format_seconds(value)
    if name.endswith("_bytes") or name == "bytes_out":
        return format_bytes(value)
    return format_share(value) if isinstance(value, float) else f"{value:,}"


# -- RunStats: the stats of all stages at one moment, by address -----------------------------------
def worker_count(count: int, starting: int, memory_bytes: int) -> str:
    """Describe workers: how many there are, how many are starting, and their memory.

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


_HOLDS = {  # by column of a table of stats, what it holds
    "stage": "name of the stage",
    "items": "items or batches that it has handed on",
    "rate": "what it handed on each second, in the last 5 s",
    "busy": "share of the last 5 s inside its function",
    "starved": "share of the last 5 s without input",
    "blocked": "share of the last 5 s without room for its results",
    "calls": "calls in progress / the most at a time",
    "queue": "results that wait for the next stage / prefetch",
    "p50": "median time of a call",
    "workers": "worker processes and their memory",
}


class RunStats(Mapping[str, StageStats]):
    """Frozen stats by stage name; prints as a table.

    Args:
        rows: stats by name.
        units: what each stage passes on, by name, in the order of the stages: "items" or
            "batches". The training loop takes those of the last stage.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).batch(2).start() as run:
        ...     batches = list(run)
        ...     {name: row.items_out for name, row in run.stats().items()}
        {'source': 4, 'batch': 2, 'consumer': 2}
    """

    __slots__ = ("_rows", "_units")

    def __init__(
        self, rows: Mapping[str, StageStats], units: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._rows = dict(rows)
        self._units = {CONSUMER: next(reversed(tuple(units.values())), "items"), **units}

    def __getitem__(self, stage: str) -> StageStats:
        """Return the stats of a stage.

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
        """Return the head and the rows of a table, as text.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     head, rows = run.stats().table()
            >>> head[:3], [row[0] for row in rows]
            (['stage', 'items', 'rate'], ['source', 'training loop'])
        """
        head = list(_HOLDS)[:-1]
        rows = [
            [
                LOOP if name == CONSUMER else name,
                str(row.items_out),
                format_rate(row.items_per_s, self._units.get(name, "items")),
                format_share(row.busy),
                format_share(row.starved),
                format_share(row.blocked),
                "" if name == CONSUMER else f"{row.running}/{row.concurrency}",
                "" if name == CONSUMER else f"{row.queued}/{row.prefetch}",
                format_seconds(row.latency_p50_s) if row.latency_p50_s else "",
            ]
            for name, row in self._rows.items()
        ]
        crews = [worker_count(*_crew(row)) if any(_crew(row)) else "" for row in self.values()]
        if any(crews):
            head = list(_HOLDS)
            rows = [[*row, crew] for row, crew in zip(rows, crews, strict=True)]
        return head, rows

    def __repr__(self) -> str:
        from ...base.format import text_table

        return text_table(*self.table())

    def _repr_html_(self) -> str:
        from ...base.format import html_table

        return html_table(*self.table(), hints=_HOLDS)


def _crew(row: StageStats) -> tuple[int, int, int]:
    return row.workers, row.starting, row.memory_bytes


class RankPace(NamedTuple):
    """How the loop of one rank goes.

    Attributes:
        rank: number of the rank.
        waits: share of the last seconds in which it waited for data, 0 to 1.
        batches_per_s: batches, or items, that it took a second [batches/s].
    """

    rank: int
    waits: float
    batches_per_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run is.

    Attributes:
        state: "ready" before the first epoch; "running" or "paused" during one; "finished",
            "stopped", "cancelled" or "failed" after it; "closed".
        epoch: number of the epoch in progress, or of the last one.
        epochs: epochs that `train` was asked for [epochs]; None in a loop of the user's own.
        epochs_begun: how many of them have begun [epochs].
        delivered: items handed to the loop in this epoch.
        resumed: how many of them the loop had before this run resumed from a state.
        total: items of an epoch; None if it is not known before they are made.
        units: what each stage hands on, by address: "items" or "batches".
        elapsed_s: time since the epoch began, or that it took, without pauses [s].
        waited_s: time that the loop waited for items in this epoch, without pauses [s].
        since_pause_s: time since the last pause in this epoch ended [s]; None if there was none.
        cpu_cores: processor time of the whole process over the last seconds [cores]; None
            if it is not known yet.
        idle_cores: how many of the cores that it may use had nothing to do over the last seconds
            [cores]; None if the system does not report it.
        error: why the last epoch failed, in one line, else empty.
        held_bytes: bytes in all buffers; None without a budget for them [bytes].
        limit_bytes: the budget; None without one [bytes].
        links: the pages that show the workers of stages, by address, as far as they are known.
        skipped: items that failed in this epoch and were left out [items].
        ahead: calls of the next epoch have started already.
        isolated: addresses of the stages that run in a process of their own.
        process_bytes: memory of that process [bytes]; 0 where there is none.
        by_loop: the loop makes its items itself, so knobs have no effect.
        called: the name of the run in the code that iterates: "run", or "loader.run".
        outcome: how the last epoch ended, even if the run is closed: "finished", "stopped",
            "cancelled" or "failed"; "ready" before the first. If empty, `state` has it.
        rank: number of this rank in a job of several.
        world_size: number of ranks of the job.
        ranks: how their loops go, as far as they reported it in the last seconds.
    """

    state: str
    epoch: int
    epochs: int | None = None
    epochs_begun: int | None = None
    delivered: int = 0
    total: int | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    cpu_cores: float | None = None
    idle_cores: float | None = None
    error: str = ""
    held_bytes: int | None = None
    limit_bytes: int | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    resumed: int = 0
    skipped: int = 0
    ahead: bool = False
    isolated: tuple[str, ...] = ()
    process_bytes: int = 0
    by_loop: bool = False
    called: str = "run"
    since_pause_s: float | None = None
    outcome: str = ""
    step_s: float | None = None
    step_before_s: float | None = None
    step_at_rest_s: float | None = None
    slowed_by: str = ""
    step_untold: bool = False
    step_cpu_share: float | None = None
    rank: int = 0
    world_size: int = 1
    ranks: tuple[RankPace, ...] = ()

    @property
    def came_to_its_end(self) -> bool:
        """Whether the last epoch gave all its items."""
        return self.is_over and (self.outcome or self.state) == "finished"

    @property
    def unit(self) -> str:
        """What the loop is handed: "items" or "batches"."""
        return next(reversed(tuple(self.units.values())), "items")

    @property
    def has_begun(self) -> bool:
        """Whether there was an epoch."""
        return self.state not in ("ready", "closed") or self.elapsed_s > 0

    @property
    def is_over(self) -> bool:
        """Whether the last epoch has ended, in one way or another."""
        return self.state not in ("ready", "running", "paused")

    @property
    def waited_share(self) -> float:
        """Share of the epoch, so far or as a whole, in which the loop waited for items, 0 to 1."""
        return min(1.0, self.waited_s / self.elapsed_s) if self.elapsed_s > 0 else 0.0

    def _repr_html_(self) -> str:
        """Return the fields that hold something, one in each row; long values wrap."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        rows = [
            (name, _status_words(name, value))
            for name, value in values
            if value or name in ("epoch", "delivered")
        ]
        left = 'style="text-align:left"'
        wraps = 'style="text-align:left;white-space:normal;overflow-wrap:anywhere"'
        shown = [
            f"<tr><td {left}>{name}</td><td {wraps}>{escape(plain(words))}</td></tr>"
            for name, words in rows
        ]
        return f'<table style="max-width:60em;color:inherit">{"".join(shown)}</table>'


def _status_words(name: str, value: object) -> str:
    """Return a value of a status as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if name.endswith("_cores"):
        return f"{value:.1f} cores"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return _worded(name, value) if isinstance(value, int | float | str) else str(value)
