"""Plan: the contenders of a kind learn, then take turns, A B B A A B: drift hits all alike."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..job import ChildError
from ..results import FAILED, Measurement, say
from .kinds import KINDS, World

_ROOT = Path(__file__).resolve().parent.parent.parent
LEARN_S, AGAIN_S = 30.0, 20.0  # for the first load, and after it has changed
SETTLES_S, TURN_S = 2.0, 3.0  # what buffers hold is used up before a turn
ROUNDS = 3
_LIMIT_S = 200.0  # of one answer
_WITHIN = 0.9  # of its last rate: it has learned


class Child:
    """A contender in its process.

    Args:
        python: the interpreter.
        kind: name of the kind.
        contender: name of the contender.
        pace: how long things take: 1, or less in a quick run.
    """

    def __init__(self, python: str, kind: str, contender: str, pace: float) -> None:
        self.contender = contender
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.autotune.child", kind, contender, str(pace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            start_new_session=True,
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line.strip()]

    def ask(self, *question: object) -> None:
        """Give it something to do."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for what it gives.

        Raises:
            ChildError: it failed, or took too long.
        """
        assert self._process.stdout is not None
        limit = threading.Timer(_LIMIT_S, self._process.kill)
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            self.end()
            raise ChildError(
                f"{self.contender} failed: {(self._errors or ['it said nothing'])[-1]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it and all its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._reader.join()


def measured(kind: str, pythons: Mapping[str, str], *, pace: float = 1.0) -> Iterator[Measurement]:
    """Measure all contenders on a kind.

    Args:
        kind: its name.
        pythons: by contender, the interpreter that it runs in.
        pace: how long things take: 1, or less in a quick run.

    Yields:
        One measurement for each contender, or one that says why there is none.
    """
    children: list[Child] = []
    try:
        children += [Child(python, kind, name, pace) for name, python in pythons.items()]
        rates = _rates(children, kind, pace)
        for child in children:
            child.ask("end")
            about = child.answer()
            say(f"{kind:17} {child.contender:9} {sum(rates[child.contender]) / ROUNDS:7.2f}/s")
            yield Measurement(
                kind,
                child.contender,
                0,
                options={"at": about["at"], "turns": about["turns"], "log": about.get("log", [])},
                values=_values(about, rates[child.contender], pace),
            )
    except ChildError as error:
        say(f"{kind}: {error}")
        yield Measurement(kind, "all", 0, FAILED, str(error))
    finally:
        for child in children:
            child.end()


def _rates(children: Sequence[Child], kind: str, pace: float) -> dict[str, list[float]]:
    """Let them learn, one after the other where they compute; then take turns."""
    made = KINDS[kind](World())
    for phase in range(made.phases):
        seconds = pace * (AGAIN_S if phase else LEARN_S)
        for child in children:
            child.ask("learn", phase, seconds)
            if made.computes:
                child.answer()
        if not made.computes:
            for child in children:
                child.answer()
    for child in children:
        child.ask("settle")
        child.answer()
    rates: dict[str, list[float]] = {child.contender: [] for child in children}
    for turn in range(ROUNDS):
        for child in reversed(children) if turn % 2 else children:
            child.ask("measure", pace * SETTLES_S, pace * TURN_S)
            rates[child.contender].append(child.answer()["rate"])
    return rates


def _values(about: Mapping[str, Any], rates: Sequence[float], pace: float) -> dict[str, float]:
    """Return the numbers of one contender."""
    calls = [value for name, value in about["at"].items() if name.endswith(".concurrency")]
    return {
        **{f"rate{number}": rate for number, rate in enumerate(rates)},
        "rate": sum(rates) / len(rates),
        "calls": float(sum(calls)),
        "turns": float(len(about["turns"])),
        "reversals": float(reversals(about["turns"], pace * 20.0, pace * LEARN_S)),
        "learned_s": learned_s(about["times_s"], pace),
        "identical": about["identical"],
        "memory": about["memory"],
    }


def reversals(turns: Sequence[Sequence[Any]], from_s: float, to_s: float) -> int:
    """Return how often one knob changed its direction in a part of the time, at most."""
    ways: dict[str, list[bool]] = {}
    for when_s, knob, old, new in turns:
        if from_s <= when_s < to_s:
            ways.setdefault(knob, []).append(new > old)
    return max((sum(a != b for a, b in pairwise(one)) for one in ways.values()), default=0)


def learned_s(times_s: Sequence[float], pace: float) -> float:
    """Return when the rate of two seconds was first near that of the last five [s]."""
    end_s = min(times_s[-1], pace * LEARN_S)
    whole = [one for one in times_s if one <= end_s]
    last = sum(one > end_s - 5 * pace for one in whole) / (5 * pace)
    for number, time_s in enumerate(whole):
        after = [one for one in whole[number:] if one <= time_s + 2 * pace]
        if len(after) >= _WITHIN * last * 2 * pace:
            return time_s
    return end_s


def pythons(tensorflow: str) -> dict[str, str]:
    """Return the interpreter of each contender; tf.data has one where tensorflow is installed."""
    found = dict.fromkeys(("autotune", "best", "written", "random"), sys.executable)
    command = [tensorflow, "-c", "import tensorflow"]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        say("tf.data skipped: pip install tensorflow-cpu, or name an interpreter that has it")
        return found
    return {**found, "tf.data": tensorflow}
