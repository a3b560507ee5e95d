"""Search: which knobs to turn next; a generator without threads and without a clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import NamedTuple, final

from .board import COMPUTES, Board
from .curve import Curve
from .point import SAME, Measure, Point

KEEPS_UP, SETTLED = "keeps up", "nothing more to gain"  # states in which it only watches
CONTENT = 0.03  # a loop that waits less gains nothing
HEADROOM = 0.95  # share of its slots that a stage may need to be busy
QUIET_S = 30.0  # a knob that was searched is left alone for so long
_LEAP = 4  # a leap multiplies calls by so much at most
_PROMISE = 0.6  # of the gain that the closed form predicts
_LONGER = 1.3  # calls that take so much longer are in each other's way
_STARVES = 0.4  # of the time: a loop that waits longer needs a much deeper buffer
_DEEP = 32  # results that wait for an earlier one, for each call
_HELD = 0.2  # blocked for so much of the time
_FULL = 0.7  # a stage so busy may be the one that limits
_TRIALS, _ROUNDS = 5, 2
_ROUGH = 0.03  # of the rate: a point with such an error is measured again
_BOUND = 0.92  # of the calls that a rate needs by the slot-time of few calls: fewer are too few
_MAYBE = 0.95  # of the best rate: what may be as good if it is measured again
_SURE = Measure(least_s=2.5, most_s=3.0, settles=False)  # that the load has changed a little;
_TWICE = 2  # in a row
_MUCH = 0.25  # when the rate differs so much, a second window like the first is enough
_UNEVEN_S = 3.0  # a window in which a few calls take long
_REST = Measure(least_s=8.0, most_s=8.0, settles=False)  # after a trial that cost much
_MANY, _SLOWED = 10, 1.1  # batches that show how long a step is; a step so much longer is slowed
_TINY = 0.02  # of a call


class Turn(NamedTuple):
    """A knob to turn; the answer is whether it changed.

    Attributes:
        stage: address.
        knob: "concurrency" or "prefetch".
        value: the new value.
        why: the reason, in one line.
    """

    stage: str
    knob: str
    value: int
    why: str


class Keep(NamedTuple):
    """The present setting is kept, and what the tuner is doing now.

    Attributes:
        state: in a few words.
        note: a decision, for the log; empty without one.
        changed: the load has changed.
    """

    state: str
    note: str = ""
    changed: bool = False


class Doing(NamedTuple):
    """What the tuner is doing now.

    Attributes:
        state: in a few words.
    """

    state: str


Action = Turn | Keep | Doing | Measure
Steps = Generator[Action, Point | bool | None, Point]
Turns = Generator[Action, Point | bool | None, bool]


class LoadChangedError(Exception):
    """All that was measured is of another load.

    Args:
        point: the first measurement of the new load.
    """

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point


@final
class Search:
    """Finds the setting at which the loop gets most batches a second.

    Args:
        board: the knobs.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._now_s = 0.0
        self._uneven = False  # a few calls take long: short windows may miss them
        self.forget()

    def forget(self) -> None:
        """Forget all that was measured."""
        self._quiet: dict[tuple[str, str], float] = {}  # knobs to leave alone until then [s]
        self._short: frozenset[str] = frozenset()
        self._leaps = 0
        self._landed = False  # the closed form does not hold for this load
        self._first = self._top = 0.0  # the rates: where the search began, and the best
        self._step_s = math.inf  # the loop's own step, where it was shortest [s]
        self._own_s = math.inf  # likewise, of windows with many batches
        # By stage: the least slot-time per batch [s], and the calls with which it was measured.
        self._light: dict[str, tuple[float, int]] = {}
        self._few: dict[str, tuple[int, float]] = {}  # the fewest calls, and their slot-time [s]
        self._curve: dict[str, dict[int, Point]] = defaultdict(dict)  # by calls, while it limited

    # -- the whole ----------------------------------------------------------------------------
    def run(self) -> Steps:
        """Tune for ever."""
        yield Doing("measuring")
        point = yield from self._measured(Measure(batches=5, within=0.2, settles=False))
        while True:
            try:
                while True:
                    point = yield from self._tuned(point)
                    point = yield from self._watched(point)
            except LoadChangedError as changed:
                point = changed.point
            yield Keep("measuring", "the load has changed", changed=True)
            self.forget()
            if point.wait >= CONTENT:  # buffers were full of what came before
                point = yield from self._window(Measure(within=0.05, settles=False))
            self._learn(point)

    def _tuned(self, point: Point) -> Steps:
        for _ in range(_ROUNDS):
            before = point.rate
            for part in (self._leapt, self._buffered, self._searched):
                if point.wait >= CONTENT:
                    point = yield from part(point)
            if point.wait < CONTENT or point.rate < (1 + SAME) * before:
                break
        point = yield from self._lowered(point)
        return (yield from self._trimmed(point))

    # -- measuring ----------------------------------------------------------------------------
    def _measured(self, measure: Measure) -> Steps:
        point = yield from self._window(measure)
        self._learn(point)
        return point

    def _window(self, measure: Measure) -> Steps:
        if self._uneven:
            most_s = max(_UNEVEN_S, measure.most_s)
            measure = measure._replace(least_s=_UNEVEN_S, most_s=most_s, floor=0.0)
        point = yield measure._replace(step_s=self._step_s)
        assert isinstance(point, Point)
        self._now_s = point.time_s
        return point

    def _learn(self, point: Point) -> None:
        self._short = point.short
        if point.wait >= CONTENT:
            for name in (name for name, busy in point.busy.items() if busy > 0.75):  # noqa: PLR2004
                self._curve[name][point.calls[name]] = point.lasting  # it limits
        if point.worse:
            return
        self._step_s = min(self._step_s, point.step_s)
        if point.batches >= _MANY:
            self._own_s = min(self._own_s, point.step_s)
        self._first = self._first or point.rate
        self._top = max(self._top, point.rate)
        for name, slots_s in point.slots_s.items():
            if point.busy[name] > 0.05:  # noqa: PLR2004  of a stage that hardly works
                least = self._light.get(name, (math.inf, 0))
                self._light[name] = min(least, (slots_s, point.calls[name]))
                new, old = (point.calls[name], slots_s), self._few.get(name)
                self._few[name] = new if old is None or new[0] < old[0] else old

    def _turned(self, stage: str, value: int, why: str, knob: str = "concurrency") -> Turns:
        return bool((yield Turn(stage, knob, value, why)))

    @property
    def _tunable(self) -> list[str]:
        """The stages whose calls may be changed: in chunks, concurrency means something else."""
        return [name for name in self._board.tunable if name not in self._short]

    def _is_quiet(self, stage: str, knob: str) -> bool:
        return self._quiet.get((stage, knob), -math.inf) > self._now_s

    def _leave(self, stage: str, knob: str, times: float = 1.0) -> None:
        self._quiet[stage, knob] = self._now_s + times * QUIET_S

    def _light_s(self, stage: str) -> float:
        return self._light.get(stage, (0.0, 0))[0]

    # -- leaps --------------------------------------------------------------------------------
    def _wanted(self, point: Point) -> dict[str, int]:
        """Return the calls of each stage that the loop's own pace asks for, where they are more."""
        board, pace_s = self._board, HEADROOM * self._step_s
        names = [name for name in self._tunable if not self._is_quiet(name, "concurrency")]
        wanted = {
            name: min(
                max(_LEAP, (_LEAP if self._leaps else 2) * point.calls[name]),
                board.most_alone(name),
                math.ceil(min(point.slots_s[name] / pace_s, 1e6) - _TINY),
            )
            for name in names
        }
        wanted = board.within_cores(wanted, point)
        return {name: value for name, value in wanted.items() if value > point.calls[name]}

    def _leapt(self, point: Point) -> Steps:
        """Give each stage the calls that the loop's own pace asks for."""
        while not self._landed:
            ups = self._wanted(point)
            hope = min(
                [1.0 / self._step_s]
                + [ups.get(n, point.calls[n]) / max(1e-9, s) for n, s in point.slots_s.items()]
            )
            turned = []
            for name, value in ups.items():
                yield Doing("raising " + ", ".join(ups))
                why = f"the loop waits {point.wait:.0%}; {value} calls keep its pace"
                if (yield from self._turned(name, value, why)):
                    turned.append(name)
            if not turned:
                return point
            self._leaps += 1
            new = yield from self._measured(Measure(within=0.1, floor=point.rate))
            if new.wait < CONTENT and new.rate >= (1 - SAME) * point.rate:
                yield Keep("measuring")
                return new
            if new.rate - point.rate < _PROMISE * (hope - point.rate):
                deepened = self._deepens(new)
                if deepened is None:
                    return (yield from self._landed_at(point, new))
                before = self._board.value(deepened, "prefetch")
                new = yield from self._buffered(new)
                if self._board.value(deepened, "prefetch") == before:
                    return (yield from self._landed_at(point, new))
            yield Keep("measuring")
            point = new
        return point

    def _landed_at(self, before: Point, after: Point) -> Steps:
        """A leap brought little: go to the calls that the best rate needs while they are light."""
        self._landed = True
        rate, fell = max(before.rate, after.rate), after.rate < before.rate
        grew = any(s > _LONGER * self._light_s(name) for name, s in after.slots_s.items())
        if not fell and (self._uneven or not grew):
            yield Keep("measuring")
            return after
        turned = False
        for name in self._tunable:
            need = max(1, math.ceil(self._light_s(name) * rate / HEADROOM - _TINY))
            law = Curve(self._curve[name]).law if self._curve[name] else None
            if law is not None:
                need = max(need, law)
            elif fell:
                need = min(need, before.calls[name])
            if self._board.value(name) > need:
                why = (
                    f"calls took longer, the more there were ({before.calls[name]}: "
                    f"{before.rate:.3g}/s, {after.calls[name]}: {after.rate:.3g}/s)"
                )
                turned = (yield from self._turned(name, need, why)) or turned
        if not turned:
            return after
        floor = 0.0 if fell else rate
        new = yield from self._measured(Measure(floor=floor))
        if after.worse and after.rate < self._first:
            new = yield from self._measured(_REST)
        if new.lasting.rate + 2 * new.error >= (1 - SAME) * rate:
            yield Keep("measuring")
            return new
        for name in self._tunable:
            value = before.calls[name] if fell else after.calls[name]
            yield from self._turned(name, value, f"fewer gave {new.rate:.3g}/s")
        new = yield from self._measured(Measure())
        yield Keep("measuring")
        return new

    # -- the search of one stage --------------------------------------------------------------
    def _limiting(self, point: Point) -> str | None:
        """Return the busiest stage that may be turned; of equals the upper one."""
        names = [name for name in self._tunable if not self._is_quiet(name, "concurrency")]
        top = max((point.busy[name] for name in names), default=0.0)
        near = (name for name in names if point.busy[name] >= top - 0.05)
        return next(near, None) if top >= _FULL else None

    def _searched(self, point: Point) -> Steps:
        for _ in range(_ROUNDS):
            stage = self._limiting(point)
            if stage is None or point.wait < CONTENT:
                return point
            yield Doing(f"searching {stage}")
            point = yield from self._search(stage, point)
            yield Keep("measuring")
            self._leave(stage, "concurrency")
        return point

    def _search(self, stage: str, point: Point) -> Steps:
        begun = point.calls[stage]
        if point.error > _ROUGH * point.rate:
            point = point.averaged((yield from self._measured(Measure(settles=False))))
        known = {**self._curve[stage], begun: point}
        for _ in range(_TRIALS):
            value = self._curve_of(stage, known, point).next()
            rates = ", ".join(f"{calls}: {one.rate:.3g}/s" for calls, one in sorted(known.items()))
            top = max(one.rate for one in known.values())
            if value is None or not (yield from self._turned(stage, value, f"trying ({rates})")):
                break
            found = yield from self._measured(Measure(most_s=3.0, within=0.03, floor=top))
            known[self._board.value(stage)] = found.lasting
            if found.wait < CONTENT:
                break
            if value > begun and not found.worse and self._limiting(found) not in (stage, None):
                break
        yield from self._compared(stage, known)
        best = Curve(known).best
        if self._board.value(stage) == best:
            return known[best]
        why = f"the fewest calls that are as fast as any ({best}: {known[best].rate:.3g}/s)"
        yield from self._turned(stage, best, why)
        if best == begun:
            return (yield from self._measured(Measure()))
        new = yield from self._measured(Measure(floor=known[begun].rate))
        if best >= begun or new.rate + new.error >= (1 - SAME) * known[begun].rate:
            return new
        yield from self._turned(stage, begun, f"{best} calls gave {new.rate:.3g}/s this time")
        return (yield from self._measured(Measure()))

    def _compared(self, stage: str, known: dict[int, Point]) -> Turns:
        """Measure once more, in turn, the best and the fewest calls that may be as good."""
        best = Curve(known).best
        fewest = min(n for n, one in known.items() if one.rate >= _MAYBE * known[best].rate)
        for calls in (best, fewest) if fewest < best else ():
            yield from self._turned(stage, calls, "for comparison")
            point = yield from self._measured(Measure(most_s=3.0, within=0.03))
            known[calls] = known[calls].averaged(point.lasting)
        return True

    def _curve_of(self, stage: str, known: Mapping[int, Point], point: Point) -> Curve:
        most = self._board.limit(stage, point)
        computes = point.cores.get(stage, 0.0) >= COMPUTES
        return Curve(
            known,
            few=self._few.get(stage, (1, 0.0)),
            rate=self._top,
            most=most,
            crowded=computes and self._board.value(stage) >= most - 1,
        )

    # -- a loop that its workers slow ---------------------------------------------------------
    def _lowered(self, point: Point) -> Steps:
        """Try fewer calls where the loop does not wait and its own steps became longer."""
        for _ in range(_TRIALS):
            longer = point.batches >= _MANY and point.step_s > _SLOWED * self._own_s
            if point.wait >= CONTENT or not longer:
                return point
            names = [n for n in self._tunable if not self._is_quiet(n, "fewer")]
            stage = max(names, key=lambda name: point.calls[name], default=None)
            if stage is None or point.calls[stage] <= 1:
                return point
            value = min(point.calls[stage] - 1, round(point.calls[stage] / 1.25))
            if value < _BOUND * self._few.get(stage, (1, 0.0))[1] * point.rate:
                return point  # fewer cannot be as fast
            took = f"a step of the loop takes {1e3 * point.step_s:.3g} ms"
            why = f"{took}, {1e3 * self._own_s:.3g} with fewer calls"
            if not (yield from self._turned(stage, value, why)):
                return point
            new = yield from self._measured(Measure(floor=point.rate))
            if new.lasting.rate <= (1 + SAME) * point.rate:
                yield from self._turned(
                    stage, point.calls[stage], f"{value} calls gave {new.rate:.3g}/s"
                )
                self._leave(stage, "fewer", 2.0)
                new = yield from self._measured(Measure())
                yield Keep("measuring")
                return new
            yield Keep("measuring")
            point = new
        return point

    # -- buffers ------------------------------------------------------------------------------
    def _deepens(self, point: Point) -> str | None:
        """Return the stage whose buffer holds back the loop."""
        names = [*point.held_back, *([list(point.busy)[-1]] if point.swings else [])]
        for name in names:
            knob = self._board.knob(name, "prefetch")
            if knob is not None and not self._is_quiet(name, "prefetch"):
                return name
        return None

    def _buffered(self, point: Point) -> Steps:
        """Deepen a buffer that is empty and full in turn, or where results wait for their order."""
        name = self._deepens(point)
        if name is None:
            return point
        yield Doing(f"searching {name}")
        self._uneven = self._uneven or bool(point.held_back)
        old = self._board.value(name, "prefetch")
        why = f"it is blocked {point.blocked[name]:.0%} while the loop waits {point.wait:.0%}"
        times = _LEAP if point.wait < _STARVES or point.burst else _LEAP**2
        deep = max(times * old, math.ceil(1.2 * point.burst))
        if not (yield from self._turned(name, deep, why, "prefetch")):
            self._leave(name, "prefetch")
            return point
        deep = self._board.value(name, "prefetch")
        new = yield from self._measured(Measure())
        gain, doubt = new.rate - point.rate, math.hypot(new.error, point.error)
        if not new.differs(point) and gain <= max(2 * SAME * point.rate, doubt):
            yield from self._turned(name, old, "for comparison", "prefetch")
            point = point.averaged((yield from self._measured(Measure())))
            yield from self._turned(name, deep, "for comparison", "prefetch")
            new = new.averaged((yield from self._measured(Measure())))
        if new.rate > (1 + SAME) * point.rate:
            yield Keep("measuring")
            return new
        yield from self._turned(name, old, f"it gained nothing ({new.rate:.3g}/s)", "prefetch")
        self._leave(name, "prefetch")
        return (yield from self._measured(Measure()))

    # -- idle calls ---------------------------------------------------------------------------
    def _idle(self, point: Point) -> dict[str, int]:
        """Return the calls that are needed of each stage that has many more."""
        rate = max(point.rate, self._top)
        needed = {
            name: max(1, math.ceil(1.08 * point.slots_s[name] * rate + 0.2))
            for name in self._tunable
            if not self._is_quiet(name, "trim")
        }
        return {name: need for name, need in needed.items() if need < 0.9 * point.calls[name]}

    def _trimmed(self, point: Point) -> Steps:
        """Take away calls that are idle; restore them at once if that costs."""
        old: dict[str, int] = {}
        for name, need in self._idle(point).items():
            why = f"they are idle {1 - point.busy[name]:.0%} of the time"
            if (yield from self._turned(name, need, why)):
                old[name] = point.calls[name]
        if not old:
            return point
        depths = {}
        for name, depth, why in self._deeper(point, old):
            depths[name] = self._board.value(name, "prefetch")
            yield from self._turned(name, depth, why, "prefetch")
        new = yield from self._measured(Measure(least_s=1.5, floor=point.rate))
        waits = point.wait < CONTENT <= new.wait
        least = max((1 - 0.7 * SAME) * point.rate, (1 - 1.5 * SAME) * self._top)
        if new.rate < least or waits:
            why = f"fewer gave {new.rate:.3g}/s"
            for name, value in old.items():
                yield from self._turned(name, value, why)
                self._leave(name, "trim", 2.0)
            for name, depth in depths.items():
                yield from self._turned(name, depth, why, "prefetch")
            new = yield from self._measured(Measure())
        yield Keep("measuring")
        return new

    def _deeper(self, point: Point, fewer: Collection[str]) -> Iterator[tuple[str, int, str]]:
        """Yield the buffers that fewer calls need to be deeper, with the depth and the reason."""
        last, burst = list(point.busy)[-1], math.ceil(1.2 * point.burst)
        if burst > self._board.value(last, "prefetch"):
            yield last, burst, f"a pause of the loop is worth {burst} batches"
        for name in fewer if self._uneven else ():
            if point.blocked[name] > _HELD and not (name == last and burst):
                depth = _LEAP * self._board.value(name, "prefetch")
                if depth <= _DEEP * self._board.value(name):
                    yield name, depth, f"it is blocked {point.blocked[name]:.0%} of the time"

    # -- watching -----------------------------------------------------------------------------
    def _watched(self, point: Point) -> Steps:
        """Look on until two windows in a row differ; take away calls that became idle.

        Raises:
            LoadChangedError: the load has changed.
        """
        if point.wait < CONTENT:
            yield Keep(KEEPS_UP, f"{KEEPS_UP}: {point.rate:.3g} batches/s")
        else:
            yield Keep(SETTLED, f"{SETTLED}: {point.rate:.3g} batches/s")
        odd = idle = waits = 0
        gap = 0.0
        while max(odd, idle, waits) < _TWICE:
            measure = _SURE if odd and gap < _MUCH else Measure(most_s=3.0, settles=False)
            now = yield from self._window(measure)
            gap = abs(now.rate / point.rate - 1)
            differs = gap > max(0.1, 4 * now.error / now.rate)
            odd = odd + 1 if differs and max(now.wait, point.wait) >= CONTENT else 0
            idle = idle + 1 if self._idle(now) else 0
            waits = waits + 1 if point.wait < CONTENT and now.wait > 2 * CONTENT else 0
        if odd >= _TWICE or (waits >= _TWICE and differs):
            raise LoadChangedError(now)
        return now
