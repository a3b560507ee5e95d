"""Failed items: what went wrong, where, and with what input."""

from __future__ import annotations

import dataclasses
import time
import traceback
from typing import Any

from ..describe import summarize
from ..errors import (
    ExecutorBrokenError,
    FailureBudgetError,
    StageError,
    StageTimeoutError,
    WorkerDiedError,
    WorkerStartError,
)
from ..executors.inflight import seen
from ..executors.remote_errors import PackedError, pack_error
from ..failure import Failure
from ..operations import FailurePolicy
from ..seeding import Path

_HOPELESS = (ExecutorBrokenError, WorkerStartError)  # the next item would fare no better
KEPT = 100  # failed items remembered by a run
_RATE_AFTER = 100  # items seen before a failure rate is judged


class Failed:
    """Takes the place of a result: the item's call failed."""

    __slots__ = ("exception", "fatal", "record")

    def __init__(self, exception: BaseException, record: Failure, *, fatal: bool) -> None:
        self.exception = exception
        self.record = record
        self.fatal = fatal

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process, whatever the user's exception holds."""
        return _unpacked, (pack_error(self.exception), self.record, self.fatal)


def _unpacked(error: PackedError, record: Failure, fatal: bool) -> Failed:  # noqa: FBT001
    exception = error.unpack()  # here the source of a notebook's cells is known
    shown = _formatted(exception.__cause__ or exception)
    return Failed(exception, dataclasses.replace(record, traceback=shown), fatal=fatal)


def failed(
    error: BaseException,
    *,
    stage: str,
    executor: str,
    epoch: int,
    path: Path,
    value: object,
    attempts: int,
    policy: FailurePolicy,
) -> Failed:
    """Build the record and, where the epoch has to end, the `StageError` that will surface."""
    summary = summarize(seen(value))
    line = one_line(error).removeprefix("nbpipe.errors.")
    record = Failure(
        stage=stage,
        path=path,
        epoch=epoch,
        error=line,
        traceback=_formatted(error),
        input=summary,
        attempts=attempts,
        when_s=time.time(),
    )
    if policy.skips and isinstance(error, Exception) and not isinstance(error, _HOPELESS):
        return Failed(error, record, fatal=False)
    kind: type[StageError] = StageError
    if isinstance(error, StageTimeoutError | WorkerDiedError | ExecutorBrokenError):
        kind = type(error)
    surfaced = kind(
        f"stage {stage!r} failed on item {path}: {line}",
        stage=stage,
        path=path,
        executor=executor,
    )
    surfaced.add_note(
        f"stage {stage!r}, item {path}, epoch {epoch}, executor {executor}, input: {summary}"
    )
    surfaced.__cause__ = error
    return Failed(surfaced, record, fatal=True)


def _formatted(error: BaseException) -> str:
    """Format a traceback; what an exception of the user does meanwhile must not matter."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as problem:
        return f"{type(error).__name__} (its traceback cannot be shown: {type(problem).__name__})"


def one_line(error: BaseException) -> str:
    """Give an exception's type and message; what the exception does meanwhile must not matter."""
    try:
        return "".join(traceback.format_exception_only(error)[:1]).strip()
    except Exception:
        return type(error).__name__


class Budget:
    """Counts the failed items of one stage in one epoch against `max_failures`."""

    __slots__ = ("_limit", "_stage", "failures", "seen")

    def __init__(self, stage: str, limit: int | float | None) -> None:
        self._stage = stage
        self._limit = limit
        self.failures = 0
        self.seen = 0

    def see(self, items: int) -> FailureBudgetError | None:
        """Count items that the stage has done; give the error once too many of them failed."""
        before, self.seen = self.seen, self.seen + items
        return self.exceeded() if before < _RATE_AFTER <= self.seen else None

    def fail(self) -> FailureBudgetError | None:
        """Count a failed item; give the error once there are too many."""
        self.failures += 1
        return self.exceeded()

    def exceeded(self, *, at_end: bool = False) -> FailureBudgetError | None:
        """Give the error to raise when too many items failed, else None."""
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
            f"stage {self._stage!r} failed on {self.failures} of {self.seen} items, more than "
            f"{allowed}; run.failures() lists the last of them",
            stage=self._stage,
        )
