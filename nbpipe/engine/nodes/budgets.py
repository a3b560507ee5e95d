"""Budgets: how many items of a stage may fail before the epoch ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from ...errors import FailureBudgetError
from .failures import Failed, Failure
from .provenance import StageStates
from .step import Dropped

_RATE_AFTER = 100  # items seen before a failure rate is judged


class Budget:
    """Counts the failed items of one stage in one epoch against `max_failures`.

    Args:
        stage: address of the stage.
        limit: how many may fail, what share of them, or None for any number.
        before: failed items and all items before the epoch was resumed.
        earlier: failed items and all items in earlier passes of a repeat.

    Attributes:
        failures: failed items.
        seen: items that the stage has done, earlier ones included.
        missed: items that did not reach the stage: one that runs with it dropped them.
        broken: 1 if the last failure was one too many.
    """

    __slots__ = ("_limit", "before", "broken", "earlier", "failures", "missed", "seen", "stage")

    def __init__(
        self,
        stage: str,
        limit: int | float | None,
        before: Sequence[int] = (0, 0),
        earlier: Sequence[int] = (0, 0),
    ) -> None:
        self.stage = stage
        self._limit = limit
        self.earlier = earlier
        self.failures, self.before = earlier[0] + before[0], earlier[1] + before[1]
        self.seen = self.before
        self.missed = self.broken = 0

    @property
    def is_share(self) -> bool:
        """Whether the limit is a share of the items."""
        return isinstance(self._limit, float)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def judges_within(self, items: int) -> bool:
        """Return whether the share is judged for the first time within the next `items` items."""
        return self.is_share and self.seen < _RATE_AFTER <= self.seen + items

    def see(self) -> FailureBudgetError | None:
        """Count an item that the stage has done; return the error if too many failed."""
        self.seen += 1
        return self.exceeded() if self.seen == _RATE_AFTER else None

    def fail(self) -> FailureBudgetError | None:
        """Count a failed item; return the error if too many failed."""
        self.failures += 1
        error = self.exceeded()
        self.broken = int(error is not None)
        return error

    def exceeded(self, *, at_end: bool = False) -> FailureBudgetError | None:
        """Return the error to raise if too many items failed, else None."""
        limit = self._limit
        if limit is None:
            return None
        if isinstance(limit, int):
            if self.failures <= limit:
                return None
            allowed = f"max_failures={limit} items"
        else:
            enough = self.seen >= _RATE_AFTER or at_end
            if not enough or self.failures <= limit * self.seen:
                return None
            allowed = f"max_failures={limit:g} of the items"
        return FailureBudgetError(
            f"stage {self.stage!r} failed on {self.failures} of {self.seen} items, more than "
            f"{allowed}; run.failures() lists the last of them",
            stage=self.stage,
        )


class FailureSink(Protocol):
    """Where failures go: the epoch."""

    skipped: int

    @property
    def remember(self) -> Callable[[Failure], None]:
        """Keeps a failure."""


@final
class FailureCounter:
    """Counts the failed items of a node against the budgets of its stages.

    A node may run several stages one after the other. Items pass its `own` ones first, then the
    others in the order of `watch`.

    Args:
        sink: keeps the failures, and counts the skipped items.
        own: addresses of stages whose dropped items have no number of a step.
        one_each: each input has one result, be it a dropped one.

    Attributes:
        judges: every result has to be counted, as some budget is limited.
    """

    __slots__ = ("_budgets", "_first_step", "_one_each", "_sink", "_stages", "judges")

    def __init__(self, sink: FailureSink, own: Sequence[str], *, one_each: bool) -> None:
        self._sink = sink
        self._one_each = one_each
        self._stages = [*own]
        self._first_step = len(own)  # place of the stage that is step 0 of a task
        self._budgets: list[tuple[int, Budget]] = []  # limited ones, with the place of the stage
        self.judges = False

    def watch(self, budget: Budget) -> None:
        """Count for the budget of an own stage, or of the next one."""
        if budget.stage not in self._stages:
            self._stages.append(budget.stage)
        if budget.is_limited:
            self._budgets.append((self._stages.index(budget.stage), budget))
            self.judges = self._one_each

    def count_passed(self, count: int) -> bool:
        """Count items that passed all stages; return False if one of them has to be judged."""
        if any(budget.judges_within(count) for _, budget in self._budgets):
            return False
        for _, budget in self._budgets:
            budget.seen += count
        return True

    def sift(self, results: Sequence[Any]) -> tuple[list[bool], list[Failed], BaseException | None]:
        """Count results up to the first failure that ends the epoch.

        Returns:
            Which results are items to hand on, which failed, and the error that ends the epoch.
        """
        wanted, failures = [False] * len(results), []
        error: BaseException | None = None
        for number, result in enumerate(results):
            fails = type(result) is Failed
            if self._budgets and (self._one_each or fails):
                error = self._count_item(result)
            if fails:
                failures.append(result)
                error = self._count_failure(result) or error
            else:
                wanted[number] = type(result) is not Dropped
            if error is not None:
                break
        return wanted, failures, error

    def _count_item(self, result: Any) -> BaseException | None:
        """Count an item with the stages that it reached."""
        error: BaseException | None = None
        last = self._last_place(result)
        for place, budget in self._budgets:
            if place <= last:
                found = budget.see()
                error = error or found
            else:
                budget.missed += 1
        return error

    def _last_place(self, result: Any) -> int:
        """Return the place of the last stage that an item reached."""
        if type(result) is Dropped:
            return result.step + self._first_step
        if type(result) is Failed:
            return self._stages.index(result.record.stage)
        return len(self._stages) - 1

    def _count_failure(self, failed: Failed) -> BaseException | None:
        """Count a failed item; return the error if it ends the epoch."""
        self._sink.remember(failed.record)
        self._sink.skipped += not failed.fatal
        stage = failed.record.stage
        errors = (budget.fail() for _, budget in self._budgets if budget.stage == stage)
        error = next(errors, None)
        failed.ends_epoch = failed.fatal or error is not None
        return failed.exception if failed.fatal else error

    def count_input(self) -> BaseException | None:
        """Count an input that gave all its results; return the error if too many failed."""
        errors = [budget.see() for _, budget in self._budgets]
        return next(filter(None, errors), None)

    def error_at_end(self) -> BaseException | None:
        """Return the error if too many of all items failed."""
        errors = (budget.exceeded(at_end=True) for _, budget in self._budgets)
        return next(filter(None, errors), None)

    def record_state(
        self, stages: StageStates, done: int, retried: int, *, with_earlier: bool
    ) -> None:
        """Add the counts to the states of the stages.

        Args:
            stages: the states, by address.
            done: inputs that are done.
            retried: failed inputs that will be tried again.
            with_earlier: include earlier passes of a repeat.
        """
        for _, budget in self._budgets:
            earlier = (0, 0) if with_earlier else budget.earlier
            failures = max(0, budget.failures - earlier[0] - budget.broken - retried)
            seen = budget.before - earlier[1] + done - budget.missed
            if failures or (seen and budget.is_share):
                stages.setdefault(budget.stage, {})["failed"] = [failures, seen]
