"""Job: one measurement, taken in a fresh Python process with a time limit.

`python -m benchmarks.job` is that process: it reads a job from stdin and writes its numbers to
stdout. Whatever else prints goes to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from .catalogue import BY_NAME
from .workload import BY_KEY

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Job:
    """What a child process is asked to measure; travels as JSON.

    Attributes:
        workload: key of the workload, as "W2".
        contender: name of the contender, as "spdl".
        items: items that go through.
        options: settings of the contender for this workload.
        is_warm: the warm-up is the beginning of the epoch that is measured.
        warmup: items of the epoch that goes through before the clock starts; 0 for none.
        cycles: starts and stops (W7), growths and shrinks (live).
        window_s: how long is watched (idle, metrics) [s].
        burn_loops: loops of Python: of the consumer for each batch (W2b), of the stage for
            each item (W4).
        floats: float32 numbers in each array (W4, W6).
        photos: folder of the JPEG files (W3).
        cores: cores this process may use.
    """

    workload: str
    contender: str
    items: int
    options: Mapping[str, Any] = field(default_factory=dict)
    is_warm: bool = False
    warmup: int = 0
    cycles: int = 1
    window_s: float = 1.0
    burn_loops: int = 0
    floats: int = 0
    photos: str = ""
    cores: int = 1

    def option(self, name: str, *, default: Any) -> Any:
        """Return a setting of the contender, or `default`."""
        return self.options.get(name, default)

    def changed(self, **parts: Any) -> Job:
        """Return the same job with other parts."""
        return dataclasses.replace(self, **parts)


class ChildError(RuntimeError):
    """A child process gave no numbers."""


def measure_in_process(job: Job, limit_s: float) -> dict[str, float]:
    """Measure a job in a process of its own.

    Raises:
        ChildError: it failed, or took longer than `limit_s`; it and its children are ended.
    """
    numbers: dict[str, float] = answer_of(__name__, dataclasses.asdict(job), limit_s)
    return numbers


def answer_of(module: str, question: Mapping[str, Any], limit_s: float) -> Any:
    """Run a module in a fresh process: it gets the question as JSON and answers with JSON.

    Raises:
        ChildError: it failed, or took longer than `limit_s`; it and its children are ended.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    ) as child:
        try:
            answer, errors = child.communicate(json.dumps(question), timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"ended after {limit_s:g} s") from None
        finally:
            _end(child)
    if child.returncode != 0:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise ChildError(f"exit code {child.returncode}: {last}")
    return json.loads(answer)


def _end(child: subprocess.Popen[str]) -> None:
    """End what is left of the child's session: itself and the workers it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def measure(job: Job) -> dict[str, float]:
    """Measure a job in this process."""
    workload = BY_KEY[job.workload]
    peer = import_module(f"{__package__}.peers.{BY_NAME[job.contender].module}")
    if workload.shape == "io":
        import_module(f"{__package__}.tensors")
    module = import_module(f"{__package__}.{workload.measure}")
    numbers: dict[str, float] = module.measure(job, workload.shape, peer)
    return numbers


def main() -> None:
    """Take the job from stdin, keep stdout for the answer."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.load(sys.stdin))
    with answer:
        json.dump(measure(job), answer)


if __name__ == "__main__":
    main()
