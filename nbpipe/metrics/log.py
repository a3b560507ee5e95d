"""Five numbers of a run, every few seconds, in the thread of the training loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, final

from ..base.checks import function, is_coroutine_function, seconds
from ..base.format import shortened
from ..base.names import names_arguments, own_kind
from ..engine.epoch import LOG
from ..engine.measures.stats import StageStats
from ..errors import ArgumentTypeError
from ..ops.stage import CONSUMER
from ..pipeline import Pipeline
from ..run.shown import ShownRun

NAMES = (
    "nbpipe/items_per_s",
    "nbpipe/wait_share",
    "nbpipe/ready_items",
    "nbpipe/busiest_share",
    "nbpipe/failed_items",
)
Values = dict[str, float]


def values(run: Any) -> Values:
    """Return the five numbers that `nbpipe.log_every` gives its function, as they are now.

    Args:
        run: a run or a `DataLoader`.

    Returns:
        A dict of finite floats. Its keys are `NAMES`, in this order.

    Raises:
        ArgumentTypeError: neither a run nor a `DataLoader`.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).start() as run:
        ...     items = list(run)
        >>> nbpipe.metrics.values(run)["nbpipe/failed_items"]
        0.0
    """
    return _values(run_of("values", run))


def _values(run: Any) -> Values:
    stats = dict(run.stats())
    loop = stats.pop(CONSUMER)
    last = next(reversed(stats.values()), StageStats())
    found = (
        loop.items_per_s,
        loop.starved,
        last.queued,
        max((row.busy for row in stats.values()), default=0.0),
        sum(row.errors for row in stats.values()),
    )
    return dict(zip(NAMES, map(float, found), strict=True))


@final
class MetricsLog:
    """Calls a function with the numbers of a run, until `stop()`; `nbpipe.log_every` makes one.

    Args:
        run: the run, held weakly.
        every_s: time between two calls [s].
        emit: called with the run and its numbers.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).start() as run:
        ...     nbpipe.log_every(run, 10, print)
        MetricsLog(every 10 s)
    """

    def __init__(self, run: Any, every_s: float, emit: Callable[[Any, Values], object]) -> None:
        self._run = weakref.ref(run)
        self._every_s = every_s
        self._emit = emit
        self._next_ns = perf_counter_ns() + int(every_s * 1e9)
        self._stopped = self._has_failed = False

    def __call__(self) -> None:
        """Call the function if it is time; the training loop does this."""
        now_ns = perf_counter_ns()
        if now_ns < self._next_ns or self._stopped:
            return
        run = self._run()
        if run is None or run.paused:
            return
        self._next_ns = now_ns + int(self._every_s * 1e9)
        try:
            self._emit(run, _values(run))
        except Exception as error:  # noqa: BLE001  of the user's function
            if not self._has_failed:
                self._has_failed = True
                LOG.warning(
                    "logging of metrics failed, training continues; further failures of this "
                    "function are not reported: %s: %s",
                    type(error).__name__,
                    shortened(str(error)),
                    exc_info=True,
                )

    def stop(self) -> None:
        """End the calls; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     log = nbpipe.log_every(run, 10, print)
            ...     log.stop()
        """
        self._stopped = True
        run = self._run()
        if run is not None:
            run._core.no_call_in_loop(self)

    def __repr__(self) -> str:
        stopped = ", stopped" if self._stopped else ""
        return f"MetricsLog(every {self._every_s:g} s{stopped})"


@names_arguments
def log_every(run: Any, every_s: float, fn: Callable[[Values], object]) -> MetricsLog:
    """Call `fn` with five numbers of a run every few seconds, while the run is iterated.

    The thread that iterates calls it, when it asks for the next item or while it waits for one. So
    `fn` may use what your loop uses: its step number, its writer. There are no calls during a
    pause.

    Args:
        run: a run or a `DataLoader`.
        every_s: time between two calls [s]. The numbers are averages of the last 5 s, so a
            shorter time shows the same seconds again.
        fn: called with a dict of floats; its keys are `nbpipe.metrics.NAMES`. If it raises, a
            warning is logged once, and the epoch continues.

    Returns:
        A `MetricsLog`; its `stop()` ends the calls.

    Raises:
        ArgumentError: `every_s` is no time above 0.
        ArgumentTypeError: neither a run nor a `DataLoader`, or `fn` cannot be called.

    Examples:
        >>> import nbpipe
        >>> run = nbpipe.source(range(4)).start()
        >>> log = nbpipe.log_every(run, 10, lambda values: print(values["nbpipe/wait_share"]))
        >>> list(run)  # in less than 10 s
        [0, 1, 2, 3]
        >>> run.close()
    """
    if is_coroutine_function(function("log_every fn", fn)):
        raise ArgumentTypeError("log_every fn must be a plain function, got an async one")
    return logged("log_every", run, every_s, lambda _, found: fn(found))


def logged(
    what: str, run: Any, every_s: float, emit: Callable[[Any, Values], object]
) -> MetricsLog:
    """Have the loop of a run call a function with the run and its numbers."""
    found = run_of(what, run)
    log = MetricsLog(found, seconds(f"{what} every_s", every_s), emit)
    found._core.call_in_loop(log)
    return log


def run_of(what: str, given: Any) -> Any:
    """Return a run, or the run of a loader."""
    if isinstance(given, ShownRun):
        return given
    if own_kind(type(given)) == "loader":
        return given.run
    start = "; start it with run = pipe.start()" if isinstance(given, Pipeline) else ""
    raise ArgumentTypeError(
        f"{what} must be given a run or a nbpipe.DataLoader, got a {type(given).__name__}{start}"
    )


def method_of(what: str, given: Any, name: str, kind: str) -> Callable[..., object]:
    """Return a method of an object of another library; refuse an object without it."""
    method = getattr(given, name, None)
    if not callable(method):
        raise ArgumentTypeError(
            f"{what} must be {kind}, got a {type(given).__name__}, which has no {name}()"
        )
    return method  # type: ignore[no-any-return]
