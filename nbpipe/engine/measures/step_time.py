"""Step time: how long a step of the training loop takes beside its workers, and while they rest.

A step is the time from one batch to the next that the loop asks for, without waits. Its clock shows
that steps are longer than they were; only a rest of the workers shows that these are the reason.
"""

from __future__ import annotations

import math
import statistics
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol, final

from ...base.gil import Switches, lock_wait, switches
from ...base.threads import core_times_ns

STEP_NS = 1_000_000  # steps of a quicker loop are not timed
LOCK, CORES, UNKNOWN = "lock", "cores", "unknown"
STEP_EVENT = "training loop.step_ms"  # stands for a knob in the event that workers slow the loop
SLOWER = 1.10  # so many times as long as it was, or as at rest, is a longer step

_PROBE_NS = 50_000_000  # from one look at the thread's counters to the next, at least
_REVIEW_NS = 250_000_000  # likewise from one look at the median to the next
_SPAN_NS, _NEAR_NS = 2_000_000_000, 500_000_000  # a median is of so much time; before a rest, less
_FEW, _MOST = 8, 256  # and of so many steps
_REST_NS, _LONGEST_NS = 100_000_000, 500_000_000  # a rest takes so long; at most, with long calls
_CHANGING = 0.1  # of a step at rest may be before the last call has ended
_WORK_NS = 600_000_000  # between two rests of a comparison
_LATER_NS = 15_000_000_000  # to the next rest once there is a verdict
_AGAIN_NS = 60_000_000_000  # likewise where workers were found to be no reason
_WINDOW_NS, _SHARE = 20_000_000_000, 0.03  # of each so long time, workers rest at most so much
_RESTS, _ENOUGH = 5, 20  # rests that a verdict takes, and that end a comparison
_ERRORS = 2.0  # standard errors that two times differ by
_SURE = 6  # reviews in a row, to be sure that steps are longer
_VAIN, _IN_VAIN = 10, 4  # refused rests until it is reported; one that shows nothing counts as more
_LEAST_LOCK, _LEAST_CORES = 0.05, 0.2  # of a step


class Rests(Protocol):
    """Lets workers stand still for a moment."""

    def hold(self, most_ns: int) -> bool:
        """Begin no further call for so long at most; return False where few batches are ready."""

    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while some are in progress, None if it is over."""

    def release(self) -> None:
        """Let calls begin again."""


class Usage(NamedTuple):
    """What a thread has used so far.

    Attributes:
        cpu_ns: time that it computed [ns].
        lacked_ns: time that it waited for a core [ns].
        switches: how often it left its core.
    """

    cpu_ns: int
    lacked_ns: int
    switches: Switches


def usage() -> Usage:
    """Return what this thread has used so far."""
    return Usage(*core_times_ns(), switches())


class StepFindings(NamedTuple):
    """Findings about the steps of the loop.

    Attributes:
        step_s: median step lately [s]; None where steps are short, or not known.
        before_s: median step before it became longer, while it is not known why [s]; else None.
        at_rest_s: median step while workers rest [s]; None where that was not measured.
        slowed_by: why the loader slows the loop: LOCK, CORES or UNKNOWN; "" where it does not.
        untold: rests were too short to tell.
        cpu_share: share of its own steps in which the loop's thread computes; None if not known.
    """

    step_s: float | None = None
    before_s: float | None = None
    at_rest_s: float | None = None
    slowed_by: str = ""
    untold: bool = False
    cpu_share: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return them as fields of a status."""
        return {
            "step_s": self.step_s,
            "step_before_s": self.before_s,
            "step_at_rest_s": self.at_rest_s,
            "slowed_by": self.slowed_by,
            "step_untold": self.untold,
            "step_cpu_share": self.cpu_share,
        }


class _Shares(NamedTuple):
    """Parts of one step in which its thread waited for the lock, and for a core."""

    lock: float
    cores: float


@final
class _Probe:
    """Counts what the loop's thread lacks in some of its steps; the cost is bounded."""

    def __init__(self, read: Callable[[], Usage]) -> None:
        self._read = read
        self._shares: deque[_Shares] = deque(maxlen=64)
        self._computes: deque[float] = deque(maxlen=64)
        self._begun: tuple[int, Usage] | None = None
        self._next_ns = 0

    def begin(self, now_ns: int) -> None:
        """Called as a step begins."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _PROBE_NS
            self._begun = get_ident(), self._read()

    def end(self, step_ns: int, *, counts: bool) -> None:
        """Called at the end of a step; it counts while workers work and the loop does not wait."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != get_ident():
            return
        before, now = begun[1], self._read()
        cpu_ns, lacked_ns = now.cpu_ns - before.cpu_ns, max(0, now.lacked_ns - before.lacked_ns)
        off_ns = step_ns - cpu_ns - lacked_ns
        wait = lock_wait(off_ns, lacked_ns, before.switches, now.switches)
        lock_ns = 0 if wait is None else wait.sure_ns
        self._computes.append(min(1.0, cpu_ns / max(1, cpu_ns, step_ns - lacked_ns - lock_ns)))
        if not counts:
            return
        self._shares.append(_Shares(min(1.0, lock_ns / step_ns), min(1.0, lacked_ns / step_ns)))

    def forget(self) -> None:
        """Begin to count again."""
        self._shares.clear()
        self._computes.clear()

    @property
    def cpu_share(self) -> float | None:
        """Share of the last steps in which the thread computed; None if there were few."""
        return statistics.mean(self._computes) if len(self._computes) >= _FEW else None

    @property
    def shares(self) -> _Shares:
        """The means of the counted steps."""
        found = self._shares
        if len(found) < _FEW:
            return _Shares(0.0, 0.0)
        return _Shares(*(sum(column) / len(found) for column in zip(*found, strict=True)))


@final
class StepTimes:
    """Times the steps of a loop, and compares them with those at rest, where they are longer.

    All methods but `turned` are called in the thread of the loop.

    Args:
        found: called with the findings when it becomes known that the loader slows the loop.
        clock: gives the time [ns].
        read: gives what this thread has used.

    Attributes:
        findings: about the steps so far; replaced, never changed, so any thread may read them.
    """

    def __init__(
        self,
        found: Callable[[StepFindings], object] = lambda _: None,
        *,
        clock: Callable[[], int] = perf_counter_ns,
        read: Callable[[], Usage] = usage,
    ) -> None:
        self.findings = StepFindings()
        self._found = found
        self._clock = clock
        self._probe = _Probe(read)
        self._lock = allocate_lock()  # several threads may take items in turn
        self._turned = False
        self._begun_ns = 0  # when the step in progress began
        self._before = 0, 0  # waited, and paused, until then [ns]
        self._mean_ns = 0.0
        self._skips = True  # the next step is none of those at work
        self._work: deque[int] = deque(maxlen=_MOST)  # steps since the last rest
        self._rest: list[int] = []  # steps in the rest that is on
        self._held_ns = 0  # when it began, or 0
        self._rests: deque[tuple[int, int]] = deque()  # ends and lengths
        self._next_rest_ns = self._next_review_ns = 0
        self._pairs: deque[tuple[float, float]] = deque(maxlen=_ENOUGH)  # at work, at rest
        self._vain = 0
        self._shortest_ns = math.inf  # median
        self._longer = 0  # reviews in a row in which the step was longer
        self._again_ns = 0  # before, only steps that are longer than these are suspicious

    # -- called by the loop -----------------------------------------------------------------
    def begin(self) -> None:
        """Called when an epoch begins."""
        self._begun_ns, self._held_ns, self._skips = 0, 0, True
        self._rest.clear()

    def turned(self) -> None:
        """Called when a knob was turned: what was compared before is of another setting."""
        self._turned = True

    def take(self, waited_ns: int, paused_ns: int, rests: Rests) -> bool:
        """Called when the loop asks for a batch; return whether to continue.

        Args:
            waited_ns: time that the loop has waited so far [ns].
            paused_ns: time of all pauses so far [ns].
            rests: lets the workers rest.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._take(waited_ns, paused_ns, rests)
            finally:
                self._lock.release()
        goes_on = not self._mean_ns or self._mean_ns >= STEP_NS / 2
        if not goes_on:
            self._leave()
        return goes_on

    def _leave(self) -> None:
        """Forget all steps of a loop that is too quick to be timed."""
        self.begin()
        self.turned()
        self.findings = StepFindings()
        self._mean_ns, self._shortest_ns = 0.0, math.inf

    def _take(self, waited_ns: int, paused_ns: int, rests: Rests) -> None:
        now_ns, begun_ns, before = self._clock(), self._begun_ns, self._before
        self._before = waited_ns, paused_ns
        if begun_ns and paused_ns == before[1]:
            step_ns = max(1, now_ns - begun_ns - (waited_ns - before[0]))
            self._step(begun_ns, now_ns, step_ns, rests)
        elif self._held_ns:
            self._end(now_ns, rests)
        self._begun_ns = begun_ns = self._clock()
        self._probe.begin(begun_ns)

    def _step(self, begun_ns: int, now_ns: int, step_ns: int, rests: Rests) -> None:
        waits = step_ns < now_ns - begun_ns
        self._probe.end(step_ns, counts=not (waits or self._held_ns))
        self._mean_ns = 0.8 * self._mean_ns + 0.2 * step_ns if self._mean_ns else step_ns
        if self._turned:
            self._forget(now_ns)
        if self._held_ns:
            self._at_rest(begun_ns, now_ns, step_ns, rests)
        elif self._skips:
            self._skips = False
        else:
            self._work.append(step_ns)
            if now_ns >= self._next_review_ns and len(self._work) >= _FEW:
                self._next_review_ns = now_ns + _REVIEW_NS
                self._review(now_ns, rests)

    def _forget(self, now_ns: int) -> None:
        """Forget what was compared; a loop that was slowed is looked at again soon."""
        self._turned = False
        self._pairs.clear()
        self._work.clear()
        self._probe.forget()
        self._vain = self._longer = 0
        self._next_rest_ns = self._again_ns = now_ns
        at_rest_s = self.findings.at_rest_s
        if at_rest_s is not None:
            self._shortest_ns, self._longer = 1e9 * at_rest_s, _SURE
            self._publish(before_s=at_rest_s, at_rest_s=None, slowed_by="")

    # -- beside workers ---------------------------------------------------------------------
    def _review(self, now_ns: int, rests: Rests) -> None:
        """Look at the median, and let workers rest where it, or the counters, are suspicious."""
        step_ns = statistics.median(self._work)
        while len(self._work) > max(_FEW, _SPAN_NS / step_ns):
            self._work.popleft()
        if now_ns >= self._again_ns:
            self._shortest_ns = min(self._shortest_ns, step_ns)
        longer = step_ns >= SLOWER * self._shortest_ns
        self._longer = self._longer + 1 if longer else 0
        unexplained = self._longer >= _SURE and not self.findings.slowed_by
        self._publish(
            step_s=step_ns / 1e9,
            before_s=self._shortest_ns / 1e9 if unexplained else None,
            untold=unexplained and self._vain >= _VAIN,
            cpu_share=self._probe.cpu_share,
        )
        if now_ns >= self._next_rest_ns and self._suspects(now_ns):
            self._begin(now_ns, step_ns, rests)

    def _suspects(self, now_ns: int) -> bool:
        if self.findings.slowed_by or self._pairs or self._longer >= _SURE:
            return True
        lock, cores = self._probe.shares
        lacks = cores >= _LEAST_CORES or lock >= _LEAST_LOCK
        return lacks and now_ns >= self._again_ns

    def _may_rest(self, now_ns: int, more_ns: float) -> bool:
        """Return whether workers may rest so long again."""
        while self._rests and self._rests[0][0] < now_ns - _WINDOW_NS:
            self._rests.popleft()
        return sum(rest_ns for _, rest_ns in self._rests) + more_ns <= _SHARE * _WINDOW_NS

    # -- beside resting ones ----------------------------------------------------------------
    def _begin(self, now_ns: int, step_ns: float, rests: Rests) -> None:
        """Let workers rest, for some steps."""
        if not self._may_rest(now_ns, step_ns / 2):
            return
        if step_ns <= _LONGEST_NS and rests.hold(_LONGEST_NS):
            self._held_ns = now_ns
        else:
            self._vain += 1

    def _at_rest(self, begun_ns: int, now_ns: int, step_ns: int, rests: Rests) -> None:
        """Note a step that began in a rest, or just before its last call ended."""
        rested_ns, held_ns = rests.rested_ns(), now_ns - self._held_ns
        if rested_ns and rested_ns - begun_ns <= _CHANGING * step_ns:
            self._rest.append(step_ns)
        enough = self._rest and held_ns + step_ns / 2 >= _REST_NS
        if rested_ns is None or enough or held_ns >= _LONGEST_NS:
            self._end(now_ns, rests)

    def _end(self, now_ns: int, rests: Rests) -> None:
        """End a rest, and compare."""
        rests.release()
        self._rests.append((now_ns, now_ns - self._held_ns))
        self._held_ns, self._skips = 0, True
        self._next_rest_ns = now_ns + _WORK_NS
        if self._rest and self._work:
            self._vain = 0
            self._pairs.append((self._before_rest(), statistics.median(self._rest)))
            self._judge(now_ns)
        else:
            self._vain += _IN_VAIN
        self._work.clear()
        self._rest.clear()

    def _before_rest(self) -> float:
        """Return the median step just before a rest: what others do with the machine changes."""
        count = max(_FEW, int(_NEAR_NS / statistics.median(self._work)))
        return statistics.median(list(self._work)[-count:])

    def _judge(self, now_ns: int) -> None:
        """Return whether steps are longer at work than at rest, once enough were compared."""
        if len(self._pairs) < _RESTS:
            return
        ratios = [math.log(work / rest) for work, rest in self._pairs]
        mean, error = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
        error *= 1 + 2 / len(ratios)  # of few rests, the error is itself not known well
        if mean >= math.log(SLOWER) and mean > _ERRORS * error:
            self._slowed(now_ns)
        elif mean + _ERRORS * error < math.log(SLOWER) or len(self._pairs) >= _ENOUGH:
            self._cleared(now_ns)

    def _slowed(self, now_ns: int) -> None:
        before = self.findings.slowed_by
        work_ns, rest_ns = (statistics.median(column) for column in zip(*self._pairs, strict=True))
        cause = self._cause()
        self._publish(step_s=work_ns / 1e9, before_s=None, at_rest_s=rest_ns / 1e9, slowed_by=cause)
        self._next_rest_ns = now_ns + _LATER_NS
        while len(self._pairs) >= _RESTS:  # with the next one, there are as many again
            self._pairs.popleft()
        if not before:
            self._found(self.findings)

    def _cause(self) -> str:
        lock, cores = self._probe.shares
        if lock >= _LEAST_LOCK:
            return LOCK
        return CORES if cores >= _LEAST_CORES else UNKNOWN

    def _cleared(self, now_ns: int) -> None:
        """Take note that workers are no reason: steps as long as these are no longer suspicious."""
        self._shortest_ns = max(work for work, _ in self._pairs)
        self._again_ns = now_ns + _AGAIN_NS
        self._longer = 0
        self._pairs.clear()
        self._publish(before_s=None, at_rest_s=None, slowed_by="", untold=False)

    def _publish(self, **changes: object) -> None:
        self.findings = self.findings._replace(**changes)  # type: ignore[arg-type]
