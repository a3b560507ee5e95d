"""Free-threaded: the same pipelines with and without an interpreter lock; no peers, no torch.

Run it as `python -m benchmarks.free_threaded PYTHON PYTHON`, with interpreters that have numpy and
what nbpipe needs; without any it measures the one that runs it. It takes about a minute for each.
The best of some rounds counts: whatever else runs on the machine makes a round slower.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import nbpipe

from .machine import cores
from .tasks import BATCH, CONVERT_S, FETCH_S, same

ROUNDS = 9
COMPUTED = 300  # items of a stage of pure Python
LOOPS = 20_000  # of each call: 0.5 to 1 ms
PASSED = 100_000  # items of W1
FETCHED = 3200  # items of W2
FETCHERS, CONVERTERS = 32, 8
Numbers = dict[str, float]


def main(pythons: list[str]) -> None:
    """Measure every workload with every interpreter, in turn; print a table."""
    found: dict[str, dict[str, list[Numbers]]] = {python: {} for python in pythons}
    for _ in range(ROUNDS):
        for workload in WORKLOADS:
            for python in pythons:
                found[python].setdefault(workload, []).append(measured(python, workload))
    print(f"{cores()} cores; best of {ROUNDS} rounds\n")
    print("| | " + " | ".join(map(name_of, pythons)) + " |")
    print("|---|" + "---:|" * len(pythons))
    for title, row in ROWS:
        print(f"| {title} | " + " | ".join(row(found[python]) for python in pythons) + " |")


def measured(python: str, workload: str) -> Numbers:
    """Measure a workload once, in a fresh process of an interpreter."""
    command = [python, "-m", "benchmarks.free_threaded", "--measure", workload]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers: Numbers = json.loads(answer)
    return numbers


def name_of(python: str) -> str:
    """Return an interpreter's version, and whether it has a lock."""
    code = (
        "import sys; locks = getattr(sys, '_is_gil_enabled', lambda: True)(); "
        "print(sys.version.split()[0] + ('' if locks else ', free-threaded'))"
    )
    answer = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return f"Python {answer.stdout.strip()}"


# -- in the process that measures ------------------------------------------------------------------
def compute(item: int) -> int:
    """Compute in pure Python."""
    total = item
    for number in range(LOOPS):
        total += number & 3
    return total


def fetch(item: int) -> int:
    """Wait as a read does."""
    time.sleep(FETCH_S)
    return item


def convert(item: int) -> Any:
    """Wait as a conversion in C does; give an array of shape (1,)."""
    time.sleep(CONVERT_S)
    return np.full(1, item)


def computing(threads: int) -> Callable[[int], nbpipe.Pipeline]:
    """Return what makes the pipeline with one stage of pure Python."""
    return lambda items: nbpipe.source(range(items)).map(compute, concurrency=threads)


def passing(items: int) -> nbpipe.Pipeline:
    """Return the pipeline of W1."""
    pipe = nbpipe.source(range(items))
    for _ in range(3):
        pipe = pipe.map(same, concurrency=4)
    return pipe


def fetching(items: int) -> nbpipe.Pipeline:
    """Return the pipeline of W2, with arrays in place of tensors."""
    pipe = nbpipe.source(range(items)).map(fetch, concurrency=FETCHERS)
    return pipe.map(convert, concurrency=CONVERTERS).batch(BATCH)


WORKLOADS: dict[str, tuple[int, int, Callable[[int], nbpipe.Pipeline]]] = {  # with items, warm-up
    "pure 1": (COMPUTED, 50, computing(1)),
    "pure 2": (COMPUTED, 50, computing(2)),
    "W1": (PASSED, 5000, passing),
    "W2": (FETCHED, 640, fetching),
}


def measure(workload: str) -> Numbers:
    """Run one workload here, after a small epoch; give its numbers."""
    items, few, make = WORKLOADS[workload]
    for count in (few, items):
        with make(count).start() as run:
            before, begun_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            for _ in run:
                pass
            elapsed_s = time.perf_counter() - begun_s
            after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "per_s": items / elapsed_s,
        "cpu_us": cpu_s / items * 1e6,
        "switches": (after.ru_nvcsw - before.ru_nvcsw) / items,
    }


# -- the table -------------------------------------------------------------------------------------
Found = dict[str, list[Numbers]]


def fastest(found: Found, workload: str) -> float:
    """Return the items a second of the best round."""
    return max(one["per_s"] for one in found[workload])


def rate(workload: str) -> Callable[[Found], str]:
    """Return what makes a cell with items a second."""
    return lambda found: f"{fastest(found, workload):,.0f}"


def least(workload: str, what: str, form: str) -> Callable[[Found], str]:
    """Return what makes a cell with something that should be small."""
    return lambda found: format(min(one[what] for one in found[workload]), form)


def gain(found: Found) -> str:
    """Return how much faster two threads are than one."""
    return f"{fastest(found, 'pure 2') / fastest(found, 'pure 1'):.2f} x"


def share_of_bare(found: Found) -> str:
    """Return the share of what that many sleeping threads could do at best."""
    best_per_s = min(FETCHERS / FETCH_S, CONVERTERS / CONVERT_S)
    return f"{fastest(found, 'W2') / best_per_s:.0%}"


ROWS: tuple[tuple[str, Callable[[Found], str]], ...] = (
    ("pure Python, 1 thread [items/s]", rate("pure 1")),
    ("pure Python, 2 threads [items/s]", rate("pure 2")),
    ("2 threads against 1", gain),
    ("W1, three no-op stages [items/s]", rate("W1")),
    ("W1, CPU of an item [µs]", least("W1", "cpu_us", ".1f")),
    ("W2, 5 ms and 1 ms of waiting [items/s]", rate("W2")),
    ("W2, of what its sleeps allow", share_of_bare),
    ("W2, CPU of an item [µs]", least("W2", "cpu_us", ".0f")),
    ("W2, voluntary switches an item", least("W2", "switches", ".1f")),
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:] or [sys.executable])
