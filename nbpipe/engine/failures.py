"""Failed items: what went wrong, where, and with what input."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..base.describe import summarize
from ..base.format import plain
from ..base.seeding import Path
from ..errors import (
    BriefTraceback,
    ExecutorBrokenError,
    FailureBudgetError,
    StageError,
    StageTimeoutError,
    WorkerDiedError,
    WorkerStartError,
)
from ..executors.remote_errors import PackedError, pack_error
from ..executors.transfer import seen
from ..ops.call import FailurePolicy


# -- Failure: one item that failed for good --------------------------------------------------------
@dataclass(frozen=True)
class Failure:
    """One item that failed for good.

    Attributes:
        stage: address of the stage.
        path: position of the item in the epoch's global order.
        epoch: number of the epoch.
        error: the exception in one line, as "ValueError: bad header".
        traceback: the traceback as text, without nbpipe's own frames; with them after
            `nbpipe.debug.full_tracebacks()`.
        input: short description of the item: type, shape, dtype.
        attempts: calls made for this item.
        when_s: time of the failure [seconds since the Unix epoch].
        source: the item of the source that it was made of, as a file's path; empty where that
            is not known. Of a batch, its first item.
        index: place of that item in its source, or None.
        external: the order of the epoch came from outside, as in `run.iterate`.
    """

    stage: str
    path: Path
    epoch: int
    error: str
    traceback: str
    input: str
    attempts: int
    when_s: float
    source: str = ""
    index: int | None = None
    external: bool = False

    def changed(self, **fields: Any) -> Failure:
        """Return it with other fields, as `dataclasses.replace` does, but format nothing."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other


class _Formatted:
    """The field `traceback`: it is formatted when it is read, as few failures are looked at."""

    def __get__(self, failure: Failure, _: type) -> str:
        kept = vars(failure)["traceback"]
        if isinstance(kept, BriefTraceback):
            kept = vars(failure)["traceback"] = _formatted(kept)
        return str(kept)

    def __set__(self, failure: Failure, value: object) -> None:
        vars(failure)["traceback"] = value


cast(Any, Failure).traceback = _Formatted()


# -- Failed items: what went wrong, where, and with what input -------------------------------------
_HOPELESS = (ExecutorBrokenError, WorkerStartError)  # the next item would fare no better
KEPT = 100  # failed items remembered by a run
_RATE_AFTER = 100  # items seen before a failure rate is judged


class Failed:
    """Takes the place of a result: the item's call failed.

    Attributes:
        exception: what ends the epoch; None where it was left behind in another process.
        fatal: the stage does not skip what fails.
        ends_epoch: so, or with this one too many have failed.
    """

    __slots__ = ("ends_epoch", "exception", "fatal", "record")

    def __init__(self, exception: BaseException | None, record: Failure, *, fatal: bool) -> None:
        self.exception = exception
        self.record = record
        self.fatal = self.ends_epoch = fatal

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process, whatever the user's exception holds."""
        packed = pack_error(self.exception) if self.fatal and self.exception else None
        return _unpacked, (packed, self.record, self.fatal)


def _unpacked(error: PackedError | None, record: Failure, fatal: bool) -> Failed:  # noqa: FBT001
    return Failed(None if error is None else error.unpack(), record, fatal=fatal)


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
    brief = _brief(error)
    line = plain(getattr(brief, "line", "")) or one_line(error)
    line = line.removeprefix("nbpipe.errors.")
    record = Failure(
        stage=stage,
        path=path,
        epoch=epoch,
        error=line,
        traceback=brief,
        input=summarize(seen(value)),
        attempts=attempts,
        when_s=time.time(),
    )
    if policy.skips and isinstance(error, Exception) and not isinstance(error, _HOPELESS):
        return Failed(error, record, fatal=False)
    surfaced = _surfaced(error, record, executor)
    return Failed(surfaced, record, fatal=True)


def _surfaced(error: BaseException, record: Failure, executor: str) -> StageError:
    """Return the error that ends the epoch."""
    stage, path = record.stage, record.path
    kind: type[StageError] = StageError
    if isinstance(error, StageTimeoutError | WorkerDiedError | ExecutorBrokenError):
        kind = type(error)
    surfaced = kind(
        f"stage {stage!r} failed on item {path}: {record.error}",
        stage=stage,
        path=path,
        executor=executor,
    )
    surfaced.add_note(
        f"stage {stage!r}, item {path}, epoch {record.epoch}, executor {executor}, "
        f"input: {record.input}"
    )
    surfaced.__cause__ = error
    return surfaced


def _brief(error: BaseException) -> Any:
    """Take a traceback; what an exception of the user does meanwhile must not matter."""
    try:
        return BriefTraceback(error)
    except Exception as problem:
        return f"{type(error).__name__} (its traceback cannot be shown: {type(problem).__name__})"


def _formatted(brief: BriefTraceback) -> str:
    try:
        return plain(brief.format())
    except Exception as problem:
        return f"its traceback cannot be shown: {type(problem).__name__}"


def formatted(error: BaseException) -> str:
    """Format a traceback; what an exception of the user does meanwhile must not matter."""
    brief = _brief(error)
    return _formatted(brief) if isinstance(brief, BriefTraceback) else str(brief)


def one_line(error: BaseException) -> str:
    """Return an exception's type and message; what the exception does meanwhile must not matter."""
    try:
        return plain("".join(traceback.format_exception_only(error)[:1]).strip())
    except Exception:
        return type(error).__name__


class Budget:
    """Counts the failed items of one stage in one epoch against `max_failures`.

    Args:
        stage: its address.
        limit: how many may fail, what share of them, or None for any number.
        before: how many had failed, and how many were done, before the epoch went on here.
        earlier: how many were in earlier passes of a repeat, where that counts for itself.

    Attributes:
        failures: items that failed.
        seen: items that the stage has done, those before included.
        missed: items that never came to it: a stage that runs with it had left them out.
        broken: 1 when the last failure was one too many.
    """

    __slots__ = ("_limit", "_stage", "before", "broken", "earlier", "failures", "missed", "seen")

    def __init__(
        self,
        stage: str,
        limit: int | float | None,
        before: Sequence[int] = (0, 0),
        earlier: Sequence[int] = (0, 0),
    ) -> None:
        self._stage = stage
        self._limit = limit
        self.earlier = earlier
        self.failures, self.before = earlier[0] + before[0], earlier[1] + before[1]
        self.seen = self.before
        self.missed = self.broken = 0

    @property
    def is_share(self) -> bool:
        """Whether a share of the items may fail."""
        return isinstance(self._limit, float)

    @property
    def is_limited(self) -> bool:
        """Whether there may be too many."""
        return self._limit is not None

    def judges_within(self, items: int) -> bool:
        """Tell whether a share is to be judged for the first time among so many items."""
        return self.is_share and self.seen < _RATE_AFTER <= self.seen + items

    def see(self) -> FailureBudgetError | None:
        """Count an item that the stage has done; give the error once too many of them failed."""
        self.seen += 1
        return self.exceeded() if self.seen == _RATE_AFTER else None

    def fail(self) -> FailureBudgetError | None:
        """Count a failed item; give the error once there are too many."""
        self.failures += 1
        error = self.exceeded()
        self.broken = int(error is not None)
        return error

    def exceeded(self, *, at_end: bool = False) -> FailureBudgetError | None:
        """Return the error to raise when too many items failed, else None."""
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
