"""Child: one contender on one kind, in a process of its own, that runs when its parent says so.

It reads a command in each line of stdin and answers with a line of JSON. Whatever else prints goes
to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS, in_order
from .kinds import KINDS, MB, World

LOOK_S = 0.05


class Driver:
    """The training loop of a contender.

    Args:
        kind: name of the kind.
        contender: name of the contender.
        pace: how long things take: 1, or less in a quick run.
    """

    def __init__(self, kind: str, contender: str, pace: float) -> None:
        self._world = World()
        self._kind = KINDS[kind](self._world)
        self._contender = CONTENDERS[contender](self._kind, pace)
        self._batches = self._contender.batches()
        self._count, self._identical = 0, True
        self._base, self._peak = resident_bytes(), 0
        self._times_s: list[float] = []  # of the batches, while it learns
        self._begun_s = time.time()

    def learn(self, phase: int, seconds: float) -> dict[str, Any]:
        """Let it learn a load for some seconds, or for as long as it needs."""
        self._world.phase = phase
        mb = self._kind.memory_mb
        self._contender.begin(None if mb is None else self._base + mb * MB)
        seconds = getattr(self._contender, "seconds", seconds)
        since_s = time.perf_counter()
        with self._watched():
            while time.perf_counter() - since_s < seconds:
                self._contender.learn(self._count, resident_bytes() if mb else 0)
                self._take()
                self._times_s.append(time.time() - self._begun_s)
        return {"seconds": seconds}

    def settle(self) -> dict[str, Any]:
        """End the learning."""
        self._contender.settle()
        return {}

    def measure(self, settles_s: float, seconds: float) -> dict[str, float]:
        """Return the batches a second, some time after it goes on."""
        since_s = time.perf_counter()
        while time.perf_counter() - since_s < settles_s:
            self._take()
        first, since_s = self._count, time.perf_counter()
        while time.perf_counter() - since_s < seconds:
            self._take()
        return {"rate": (self._count - first) / (time.perf_counter() - since_s)}

    def end(self) -> dict[str, Any]:
        """Close it, and return what it did."""
        about = self._contender.about()
        about["turns"] = [(when_s - self._begun_s, *rest) for when_s, *rest in about["turns"]]
        self._contender.close()
        mb = self._kind.memory_mb
        return {
            **about,
            "times_s": self._times_s,
            "identical": float(self._identical),
            "memory": (self._peak - self._base) / (mb * MB) if mb else 0.0,
        }

    def _take(self) -> None:
        batch = next(self._batches)
        self._identical = self._identical and in_order(batch, self._count)
        self._count += 1
        del batch
        self._kind.step()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note the most memory while it learns, where there is a ceiling."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(LOOK_S):
                self._peak = max(self._peak, resident_bytes())

        thread = threading.Thread(target=watch)
        if self._kind.memory_mb:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()


def resident_bytes() -> int:
    """Return the resident memory of this process [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Do what the lines of stdin ask for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    with answers:
        for line in sys.stdin:
            word, *arguments = json.loads(line)
            answers.write(json.dumps(getattr(driver, word)(*arguments)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
