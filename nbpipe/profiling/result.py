"""Profile: how fast each stage is alone, beside the training step, and what follows from it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from ..base.format import format_rate, html_table, shortened, text_table
from ..base.gil import LockUse
from .rates import NOISY
from .stage_rate import LONGEST_NAME, StageRate, noise

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CORES, LOCK = "cores", "lock"  # what limits where no stage does
_ENOUGH = 1.05  # of what the loop takes: a stage feeds it
_SAME = 0.03  # rates that differ by less are equal
_CLOSE = 0.1  # of the loop's rate: data and training are about equally fast
_LESS = 0.8  # of what it could be: a run is slower than its parts
_HEAD = {  # by column, what it holds
    "stage": "the stage, alone; the one after + shares its calls",
    "calls": "calls at once; → is the present value",
    "hands on": "median rate of three rounds",
    "feeds": "what the training loop could get from it",
    "note": "noisy: the rounds differ by 15% or more",
}


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Profile:
    """How fast each stage is alone, and the training step; prints as a verdict and a table.

    Rates are medians of three rounds.

    Attributes:
        rows: a `StageRate` for each stage and number of calls.
        unit: what the training loop gets, "items" or "batches".
        ceiling: rate of the training step on replayed batches; None without a step.
        live: rate that a run of the whole pipeline reached, with the step; None if not measured.
        spreads: by "ceiling" and "live", half the range of the rounds as a share of the rate.
        cores: cores that this process may use.
        locks: by address, how much of a call holds the interpreter lock.
        complete: whether everything was measured; False after an interrupt.

    Examples:
        >>> import nbpipe
        >>> pipe = nbpipe.source(range(64)).map(abs).batch(8)
        >>> found = nbpipe.profile(pipe, concurrency=[1, 2], seconds=0.02)
        >>> [(row.stage, row.calls) for row in found.rows]
        [('source', None), ('abs', 1), ('abs', 2), ('batch', None)]
    """

    rows: tuple[StageRate, ...]
    unit: str
    ceiling: float | None
    live: float | None
    spreads: Mapping[str, float]
    cores: float
    locks: Mapping[str, LockUse]
    complete: bool

    # -- what follows from the rates ----------------------------------------------------------
    @property
    def feeds(self) -> float:
        """What the pipeline can feed at the present knobs, by what limits it."""
        return self._fed(self._now)[0]

    @property
    def limit(self) -> str:
        """What limits it: the address of a stage, "cores", or "lock" for the interpreter lock."""
        return self._fed(self._now)[1]

    @property
    def _now(self) -> list[StageRate]:
        return [row for row in self.rows if row.now]

    def _fed(self, rows: Sequence[StageRate]) -> tuple[float, str]:
        """Return what stages can feed together, and which of them limits, or what they share."""
        found = [(row.feeds_per_s, row.stage) for row in rows if row.per_s]
        used_s = sum(row.cpu_s for row in rows)
        if used_s:
            found.append((self.cores / used_s, CORES))
        held_s = sum(self._held_s(row.stage) for row in rows)
        if held_s:
            found.append((1.0 / held_s, LOCK))
        return min(found, default=(0.0, ""))

    def _held_s(self, stage: str) -> float:
        """Return how long a stage holds the interpreter lock for each item of the loop [s]."""
        lock = self.locks.get(stage)
        times_s = [row.slot_s for row in self.rows if row.stage == stage and not row.beside]
        return (lock.share or 0.0) * min(times_s, default=0.0) if lock is not None else 0.0

    def suggest(self) -> dict[str, int]:
        """Return values for `concurrency`: the fewest calls that feed the training step.

        Without a step, they feed what the slowest stage reaches with any number of calls.

        Returns:
            Calls by address, for each stage that has the knob.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(64)).map(abs)
            >>> found = nbpipe.profile(pipe, concurrency=[1], seconds=0.02)
            >>> for address, calls in found.suggest().items():
            ...     pipe[address].concurrency = calls
            >>> found.suggest()
            {'abs': 1}
        """
        return {row.stage: row.calls for row in self._suggested() if row.calls is not None}

    def _suggested(self) -> list[StageRate]:
        """Return the row of each stage with the suggested number of calls."""
        by_stage: dict[str, list[StageRate]] = {}
        for row in self.rows:
            if row.per_s:
                by_stage.setdefault(row.stage, []).append(row)
        best = [max(rows, key=lambda one: one.feeds_per_s) for rows in by_stage.values()]
        target = self._fed(best)[0]
        if self.ceiling is not None:
            target = min(target, _ENOUGH * self.ceiling)
        found = []
        for rows in by_stage.values():
            most = max(row.feeds_per_s for row in rows)
            enough = min(target, (1 - _SAME) * most)
            found.append(next(row for row in rows if row.feeds_per_s >= enough))
        return found

    # -- verdict, table, figure ---------------------------------------------------------------
    def verdict(self) -> list[str]:
        """Return the finding, the evidence and the action, a sentence or two each.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(64)).map(abs)
            >>> found = nbpipe.profile(pipe, concurrency=[1], seconds=0.02)
            >>> len(found.verdict()) > 1
            True
        """
        if not any(row.now and row.per_s for row in self.rows):
            return ["Nothing was measured at the present knobs."]
        lines = [self._finding(), " ".join(self._evidence())]
        if not self.complete:
            lines.insert(0, "Interrupted: this is what was measured until then.")
        return [*lines, *self._actions()]

    def _finding(self) -> str:
        name = _limit_name(self.limit)
        ends = "" if self.limit == CORES else "s"
        if self.ceiling is None:
            return f"{name} limit{ends} the pipeline."
        doubt = self._limit_spread + self.spreads.get("ceiling", 0.0)
        if doubt > _CLOSE and 1 / (1 + doubt) < self.feeds / self.ceiling < 1 + doubt:
            return "Too noisy to tell: measure again when less runs on the machine."
        if self.feeds >= (1 + _CLOSE) * self.ceiling:
            return "Data is not the problem: the training step is slower than the pipeline."
        if self.feeds > (1 - _CLOSE) * self.ceiling:
            return f"Data and training are about equally fast; {name} limit{ends} the data."
        return f"Data is the problem: {name} limit{ends} it."

    @property
    def _limit_spread(self) -> float:
        """The spread of the stage that limits."""
        return next((row.spread for row in self._now if row.stage == self.limit), 0.0)

    def _evidence(self) -> Iterator[str]:
        feeds = self._rate(self.feeds, self._limit_spread)
        yield f"At the present knobs the pipeline feeds {feeds}."
        if self.ceiling is not None:
            yield f"The training step alone reaches {self._rate(self.ceiling, 'ceiling')}."
        if self.live is not None:
            yield f"A run of everything reached {self._rate(self.live, 'live')}."

    def _rate(self, per_s: float, spread: float | str = 0.0) -> str:
        if isinstance(spread, str):
            spread = self.spreads.get(spread, 0.0)
        noisy = noise(spread, noisy=2 * spread >= NOISY)
        return format_rate(per_s, self.unit) + (f" ({noisy[0]})" if noisy else "")

    def _actions(self) -> Iterator[str]:
        suggested = self._suggested()
        fed, limit = self._fed(suggested)
        turned = [row for row in suggested if row.calls is not None and not row.now]
        gains = fed > (1 + _SAME) * self.feeds
        most = math.inf if self.ceiling is None else self.ceiling
        if gains and turned and self.feeds < _ENOUGH * most:
            knobs = " and ".join(f"{row.stage}.concurrency to {row.calls}" for row in turned)
            yield f"Set {knobs}: the pipeline then feeds about {self._rate(fed)}."
        reached = fed if gains else self.feeds
        if self.ceiling is not None and reached < (1 - _CLOSE) * most:
            yield self._cheaper(limit if gains else self.limit)
        if self.live is not None and (self.complete or self.ceiling is not None):
            doubt = self.spreads.get("live", 0.0) + self._limit_spread
            most_live = (1 + doubt) * self.live
            if most_live < _LESS * min(self.feeds, most):
                yield (
                    "The run is slower than its parts: they share cores, memory or the "
                    "interpreter lock. run.diagnose() names the cause while it trains."
                )

    def _cheaper(self, limit: str) -> str:
        if limit == CORES:
            return f"More calls do not help: all {self.cores:g} cores compute."
        if limit == LOCK:
            most = max(self.locks, key=self._held_s)
            return f'More threads do not help: use executor="process" for {_limit_name(most)}.'
        has_knob = any(row.calls is not None for row in self.rows if row.stage == limit)
        name = _limit_name(limit)
        if has_knob:
            return f"More calls do not help further: make {name} cheaper."
        return f"{name} does one thing at a time: make it cheaper."

    def table(self) -> list[dict[str, Any]]:
        """Return one dict for each row, for `pandas.DataFrame(profile.table())`.

        Returns:
            The fields of `StageRate`, and `lock_share`: the share of a call's time that holds the
            interpreter lock, or None.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(64)).map(abs)
            >>> found = nbpipe.profile(pipe, concurrency=[1], seconds=0.02)
            >>> [(row["stage"], row["calls"], row["unit"]) for row in found.table()]
            [('source', None, 'items'), ('abs', 1, 'items')]
        """
        shares = {name: lock.share for name, lock in self.locks.items()}
        return [{**asdict(row), "lock_share": shares.get(row.stage)} for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values; a rate that is not known is None.

        Examples:
            >>> import json, nbpipe
            >>> pipe = nbpipe.source(range(64)).map(abs)
            >>> found = nbpipe.profile(pipe, concurrency=[1], seconds=0.02)
            >>> json.loads(json.dumps(found.as_dict()))["suggest"]
            {'abs': 1}
        """
        rows = [
            {key: None if value == math.inf else value for key, value in row.items()}
            for row in self.table()
        ]
        feeds = None if self.feeds == math.inf else self.feeds
        return {
            "unit": self.unit,
            "ceiling": self.ceiling,
            "feeds": feeds,
            "live": self.live,
            "limit": self.limit,
            "suggest": self.suggest(),
            "complete": self.complete,
            "verdict": self.verdict(),
            "locks": self._lock_lines(),
            "rows": rows,
        }

    def figure(self) -> Figure:
        """Draw what each stage could feed, by its calls, beside the training step.

        Returns:
            A `plotly.graph_objects.Figure`.

        Raises:
            MissingExtraError: plotly is not installed.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(64)).map(abs)
            >>> found = nbpipe.profile(pipe, concurrency=[1, 2], seconds=0.02)
            >>> type(found.figure()).__name__
            'Figure'
        """
        from .drawing import figure

        levels = {"training step alone": self.ceiling, "a run of all": self.live}
        known = {name: rate for name, rate in levels.items() if rate is not None}
        return figure(self.rows, known, self.unit)

    def _lock_lines(self) -> list[str]:
        return [lock.sentence(shortened(name, LONGEST_NAME)) for name, lock in self.locks.items()]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        return list(_HEAD), [row.row(self.unit) for row in self.rows]

    def __repr__(self) -> str:
        return "\n".join((*self.verdict(), "", text_table(*self._cells()), *self._lock_lines()))

    def _repr_html_(self) -> str:
        finding, *others = self.verdict()
        lines = [f"<b>{html.escape(finding)}</b>", *map(html.escape, others)]
        above = "".join(f"<div>{line}</div>" for line in lines)
        below = "".join(f"<div>{html.escape(line)}</div>" for line in self._lock_lines())
        return f"{above}{html_table(*self._cells(), hints=_HEAD)}{below}"


def _limit_name(limit: str) -> str:
    if limit == LOCK:
        return "the interpreter lock"
    return "the cores" if limit == CORES else shortened(limit, LONGEST_NAME)
