"""Child: `python -m benchmarks.child` reads a job from stdin and writes its numbers to stdout.

Whatever else prints goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib import import_module

from .catalogue import BY_NAME
from .job import Job
from .workload import BY_KEY


def measure(job: Job) -> dict[str, float]:
    """Measure a job in this process."""
    workload = BY_KEY[job.workload]
    peer = import_module(f"{__package__}.peers.{BY_NAME[job.contender].module}")
    if workload.shape == "io":
        import_module(f"{__package__}.tensors")
    measure_module = import_module(f"{__package__}.{workload.measure}")
    numbers: dict[str, float] = measure_module.measure(job, workload.shape, peer)
    return numbers


def main() -> None:
    """Take the job from stdin, keep stdout for the answer."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job.from_json(sys.stdin.read())
    gc.collect()
    gc.freeze()
    with answer:
        json.dump(measure(job), answer)


if __name__ == "__main__":
    main()
