"""profile(): how fast each stage is alone, the training loop too: is data the problem at all?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from ..base.checks import function, integer, is_coroutine_function
from ..base.checks import seconds as checked_seconds
from ..base.format import format_seconds, parse_bytes
from ..base.machine import Machine
from ..base.names import names_arguments, own_kind
from ..errors import ArgumentError, ArgumentTypeError
from ..executors.workers.serialize import can_be_sent
from ..ops.chain import settled, units
from ..ops.stage import Chain, addresses
from ..peek import lock_uses, read_only
from ..pipeline import Pipeline
from ..progress import display_for
from ..run.core import RunCore
from ..run.run import Run
from .rates import ROUNDS, Rate, WindowRunner, step_window
from .replay import Segment, StagePass
from .result import Profile
from .stage_rate import StageRate

if TYPE_CHECKING:
    from ..base.gil import LockUse


@names_arguments
def profile(
    pipe: Pipeline,
    step: Callable[[Any], object] | None = None,
    *,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    seconds: float = 2.0,
    items: int = 256,
    memory: int | str = "1 GB",
) -> Profile:
    """Measure each stage alone, and your training step on batches that are there already.

    Functions are called more than once per item, and `step` is called for real: give it a copy of
    the model, or load the weights again. Stages are called from as many threads or processes as
    `concurrency` says. A cache is read, never written. Nothing is left running.

    Args:
        pipe: the pipeline; its knobs stay as they are.
        step: your training step, a function of one batch; None measures only the data.
        concurrency: calls at once with which each stage is measured [calls]; its present value is
            added.
        seconds: the most time for each figure, in three rounds [s]; a call that takes longer is
            waited for.
        items: results to keep of each stage [items].
        memory: the most bytes to keep: "2 GB", or a number [bytes].

    Returns:
        A `Profile`: prints as a verdict and a table, with `table()`, `figure()`, `suggest()`. After
        an interrupt, it has what was measured until then.

    Raises:
        ArgumentTypeError: `pipe` is not a pipeline, or `step` is no plain function.
        ArgumentError: a value is out of range, or a stage gives nothing.
        StageError: a stage failed.

    Examples:
        >>> import nbpipe
        >>> pipe = nbpipe.source(range(64)).map(abs).batch(8)
        >>> found = nbpipe.profile(pipe, step=len, concurrency=[1], seconds=0.02)
        >>> found.feeds > 0, found.ceiling > 0
        (True, True)
    """
    if not isinstance(pipe, Pipeline):
        raise ArgumentTypeError(_no_pipeline(pipe))
    if step is not None and is_coroutine_function(function("profile step", step)):
        raise ArgumentTypeError(
            "profile step must be a plain function, got an async one; call asyncio.run in it"
        )
    chain = read_only(settled(pipe.chain, can_be_sent))
    profiler = Profiler(
        chain,
        step,
        _checked_calls(chain, concurrency),
        checked_seconds("profile seconds", seconds),
        integer("profile items", items, minimum=1, unit="items"),
        parse_bytes(memory),
    )
    return profiler.profile()


def _no_pipeline(given: object) -> str:
    kind = own_kind(type(given))
    word = {"loader": "loader.pipeline", "run": "the pipeline that it was started from"}.get(kind)
    way = f"give {word}" if word else "begin one with nbpipe.source(items)"
    return f"profile must be given a pipeline, got a {type(given).__name__}; {way}"


def _checked_calls(chain: Chain, calls: object) -> tuple[int, ...]:
    """Check the numbers of calls; no stage may be asked for more than it can have."""
    if isinstance(calls, str) or not isinstance(calls, Sequence) or not calls:
        raise ArgumentError(
            f"profile concurrency must be a list of numbers of calls, got {calls!r}; "
            "for example (1, 2, 4, 8)"
        )
    found = sorted({integer("profile concurrency", one, minimum=1, unit="calls") for one in calls})
    for address, stage in addresses(chain).items():
        knob = stage.knobs.get("concurrency")
        if knob is not None and found[-1] > knob.maximum:
            raise ArgumentError(
                f"profile concurrency must be at most {knob.maximum} calls for {address!r}, got "
                f"{found[-1]}"
            )
    return tuple(found)


@final
@dataclass
class Profiler:
    """Makes a profile.

    Args:
        chain: the stages.
        step: the training step, or None.
        calls: calls at once with which stages are measured, ascending.
        seconds: for each figure [s].
        items: results to keep of each stage [items].
        memory_bytes: for all that is kept [bytes].
    """

    chain: Chain
    step: Callable[[Any], object] | None
    calls: tuple[int, ...]
    seconds: float
    items: int
    memory_bytes: int
    _rates: dict[tuple[str, int], Rate] = field(default_factory=dict)
    _live: Rate = field(default_factory=Rate)
    _own: Rate = field(default_factory=Rate)
    _locks: dict[str, LockUse] = field(default_factory=dict)
    _runners: list[tuple[Segment | None, int, WindowRunner]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._told = _Told()

    def profile(self) -> Profile:
        """Measure everything; after an interrupt, return what there is."""
        passed = StagePass(
            self.chain, units(self.chain), self.items, self.seconds, self.memory_bytes, self._pass
        )
        complete = False
        try:
            passed.make()
            with ExitStack() as runs:
                self._start(passed, runs)
                for number in range(1, ROUNDS + 1):
                    self._round(number, passed)
            self._told.at("how long functions hold the interpreter lock")
            self._locks = lock_uses(self.chain, self.seconds)
            complete = True
        except KeyboardInterrupt:
            if not any(rate.windows for rate in (self._live, self._own, *self._rates.values())):
                raise
        finally:
            self._told.over(complete=complete)
        return self._result(passed, complete=complete)

    def _pass(self, address: str) -> None:
        self._told.at(f"one pass: {address}")

    # -- measuring ----------------------------------------------------------------------------
    def _start(self, passed: StagePass, runs: ExitStack) -> None:
        """Start the measured runs: the whole pipeline, and each segment."""
        core = RunCore(self.chain, times_steps=False, listed=False)
        live = WindowRunner(runs.enter_context(Run(core)), self.step)
        self._runners = [(None, 1, live)]
        for segment in passed.segments:
            if segment.why_not:
                continue
            runner, knob = WindowRunner(runs.enter_context(segment.run())), segment.knob
            for calls in sorted({*self.calls, knob.value}) if knob is not None else (1,):
                self._runners.append((segment, calls, runner))
                self._rates[segment.addresses[0], calls] = Rate()
        self._told.plan(ROUNDS * (len(self._runners) + (self.step is not None)), self._most_s)

    @property
    def _most_s(self) -> float:
        return self.seconds / ROUNDS

    def _round(self, number: int, passed: StagePass) -> None:
        """Measure everything once."""
        where = f"round {number} of {ROUNDS}"
        for segment, calls, runner in self._runners:
            name = "" if segment is None else segment.addresses[0]
            words = f"{name} at concurrency {calls}" if segment and segment.knob else name
            self._told.at(f"{where}: {words or 'all stages together'}")
            window = runner.window(segment, calls, self._most_s)
            (self._rates[name, calls] if name else self._live).windows.append(window)
        if self.step is not None:
            self._told.at(f"{where}: your training step")
            self._own.windows.append(step_window(self.step, passed.outputs, self._most_s))

    # -- the result ---------------------------------------------------------------------------
    def _result(self, passed: StagePass, *, complete: bool) -> Profile:
        measured = {"ceiling": self._own, "live": self._live}
        shown = {name for segment in passed.segments for name in segment.addresses}
        known = {word: rate for word, rate in measured.items() if rate.windows}
        return Profile(
            rows=tuple(row for segment in passed.segments for row in self._rows(segment)),
            unit=next(reversed(tuple(passed.units.values()))),
            ceiling=known["ceiling"].per_s if "ceiling" in known else None,
            live=known["live"].per_s if "live" in known else None,
            spreads={word: rate.spread for word, rate in known.items()},
            cores=Machine().cores(),
            locks={name: one for name, one in self._locks.items() if name in shown},
            complete=complete,
        )

    def _rows(self, segment: Segment) -> Iterator[StageRate]:
        name, knob = segment.addresses[0], segment.knob
        found = [
            (c, rate) for (one, c), rate in self._rates.items() if one == name and rate.windows
        ]
        note = segment.kept
        for calls, rate in sorted(found, key=lambda one: one[0]):
            yield StageRate(
                stage=name,
                beside=segment.addresses[1:],
                calls=calls if knob is not None else None,
                now=knob is None or calls == knob.default,
                per_s=rate.per_s,
                unit=segment.unit,
                feeds_per_s=rate.per_s / segment.need if segment.need else float("inf"),
                spread=rate.spread,
                is_noisy=rate.is_noisy,
                slot_s=rate.slot_s * segment.need,
                cpu_s=rate.cpu_s * segment.need,
                note=note,
            )
            note = ""
        if not found:
            yield StageRate(name, segment.addresses[1:], note=segment.why_not or "not measured yet")


@final
class _Told:
    """Shows how far it is."""

    def __init__(self) -> None:
        self._shown = display_for(None)
        self._begun_s = monotonic()
        self._next_s = 0.0
        self._done = self._count = 0
        self._each_s = 0.0

    def plan(self, count: int, each_s: float) -> None:
        """Take the number of windows that are to come."""
        self._count, self._each_s = count, each_s

    def at(self, what: str) -> None:
        """Show the present measurement, unless it was shown just before."""
        share, left = None, ""
        if self._count:
            share, left_s = self._done / self._count, (self._count - self._done) * self._each_s
            left = f"; at most {format_seconds(left_s)} left"
            self._done = min(self._count, self._done + 1)
        if monotonic() >= self._next_s:
            self._next_s = monotonic() + self._shown.every_s
            self._shown.show(f"profile: {what}{left}", share)

    def over(self, *, complete: bool) -> None:
        """Show that it has ended."""
        if complete:
            self._shown.end(
                f"profile: took {format_seconds(monotonic() - self._begun_s)}", empty=False
            )
        else:
            self._shown.leave()
