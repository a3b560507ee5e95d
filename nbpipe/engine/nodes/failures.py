"""Failed items: what went wrong, where, and with what input."""

from __future__ import annotations

import copy
import time
import traceback
from dataclasses import dataclass
from typing import Any, cast

from ...base.describe import summarize
from ...base.format import plain
from ...base.seeding import Path
from ...errors import (
    BriefTraceback,
    ExecutorBrokenError,
    StageError,
    StageTimeoutError,
    WorkerDiedError,
    WorkerStartError,
)
from ...executors.device.flight import seen
from ...executors.workers.remote_errors import PackedError, pack_error
from ...ops.call import FailurePolicy


# -- Failure: one item that failed for good --------------------------------------------------------
@dataclass(frozen=True)
class Failure:
    """One item that failed for good.

    Attributes:
        stage: name of the stage.
        path: position of the item in the epoch's global order.
        epoch: number of the epoch.
        error: the exception in one line, for example "ValueError: bad header".
        traceback: the traceback as text, without nbpipe's own frames; with them after
            `nbpipe.debug.full_tracebacks()`.
        input: short description of the item: type, shape, dtype.
        attempts: calls made for this item.
        when_s: time of the failure [seconds since the Unix epoch].
        source: the item of the source that it was made from, for example a file's path; empty
            if unknown. For a batch, its first item.
        index: position of that item in its source, or None.
        external: the order of the epoch came from outside, as in `run.iterate`.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(["1", "one"]).map(int, on_error="skip").start() as run:
        ...     numbers = list(run)
        ...     failure = run.failures()[0]
        >>> failure.stage, failure.source, failure.error
        ('int', 'one', "ValueError: invalid literal for int() with base 10: 'one'")
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


def changed_failure(failure: Failure, **fields: Any) -> Failure:
    """Return a copy with other fields; unlike `dataclasses.replace`, this formats nothing."""
    other = copy.copy(failure)
    vars(other).update(fields)
    return other


class _Formatted:
    """The field `traceback`, formatted when it is first read: few failures are."""

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


class Failed:
    """Takes the place of a result: the item's call failed.

    Attributes:
        exception: the error that ends the epoch; None if it stayed in another process.
        fatal: the stage does not skip failed items.
        ends_epoch: it is fatal, or the one failure too many.
    """

    __slots__ = ("ends_epoch", "exception", "fatal", "record")

    def __init__(self, exception: BaseException | None, record: Failure, *, fatal: bool) -> None:
        self.exception = exception
        self.record = record
        self.fatal = self.ends_epoch = fatal

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it, whatever the user's exception holds."""
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
    """Build the record and, if the epoch has to end, the `StageError` that ends it."""
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
    """Return the traceback of a user exception, even if the exception misbehaves."""
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
    """Format the traceback of a user exception, even if the exception misbehaves."""
    brief = _brief(error)
    return _formatted(brief) if isinstance(brief, BriefTraceback) else str(brief)


def one_line(error: BaseException) -> str:
    """Return the type and message of a user exception, even if it misbehaves."""
    try:
        return plain("".join(traceback.format_exception_only(error)[:1]).strip())
    except Exception:
        return type(error).__name__
