"""Loader: epochs of `torch.utils.data.DataLoader` and of `nbpipe.DataLoader` over one dataset.

`python -m benchmarks.loader [--rounds 5] [--workers 2]` prints a table of ratios. Rounds are
interleaved; each number is the median of the quotients within a round, torch's time by ours.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import nbpipe

from .report import markdown
from .results import say
from .tasks import burn

Maker = Callable[[Any, int, int], Iterable[Any]]


@dataclass(frozen=True)
class Samples(Dataset[torch.Tensor]):
    """Samples that take some time to make.

    Attributes:
        items: how many there are.
        loops: of Python for each.
        wait_s: as for a disk or a network [s].
        floats: in each sample.
    """

    items: int
    loops: int = 0
    wait_s: float = 0.0
    floats: int = 16

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(self.loops)
        if self.wait_s:
            time.sleep(self.wait_s)
        return torch.from_numpy(np.full(self.floats, index, np.float32))


class Case(NamedTuple):
    """One dataset, and the size of its batches."""

    name: str
    dataset: Samples
    batch_size: int


CASES = (
    Case("light: 16 floats, no work", Samples(40_000), 64),
    Case("Python: 0.5 ms of Python", Samples(4_000, loops=1_600), 32),
    Case("waits: 2 ms of waiting", Samples(2_000, wait_s=0.002), 32),
    Case("large: 600 KB a sample, 19 MB a batch", Samples(1_000, floats=150_528), 32),
)


def _torchs(dataset: Any, batch_size: int, workers: int) -> Iterable[Any]:
    return DataLoader(dataset, batch_size, num_workers=workers, persistent_workers=workers > 0)


def _ours(
    dataset: Any, batch_size: int, workers: int, kind: Literal["process", "thread"] = "process"
) -> Iterable[Any]:
    return nbpipe.DataLoader(
        dataset, batch_size, num_workers=workers, workers=kind, persistent_workers=workers > 0
    )


PEERS: dict[str, tuple[Maker, bool]] = {  # what makes ours, and whether there are workers
    "processes": (_ours, True),
    "threads": (partial(_ours, kind="thread"), True),
    "no workers": (_ours, False),
}


def timed(make: Maker, case: Case, workers: int) -> tuple[float, float]:
    """Iterate two epochs.

    Returns:
        The time to the first batch, start of the workers included, and of the second epoch [s].
    """
    gc.collect()
    begun_s = time.perf_counter()
    loader = make(case.dataset, case.batch_size, workers)
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - begun_s
    for _ in batches:
        continue
    begun_s = time.perf_counter()
    seen = sum(int(batch.shape[0]) for batch in loader)
    next_s = time.perf_counter() - begun_s
    if seen != len(case.dataset):
        raise RuntimeError(f"an epoch of {case.name!r} gave {seen} of {len(case.dataset)} samples")
    if isinstance(loader, nbpipe.DataLoader):
        loader.close()
    return first_s, next_s


def rows(rounds: int, workers: int) -> list[list[str]]:
    """Measure all cases and peers, and give the lines of a table."""
    made = []
    for case in CASES:
        for name, (make, has_workers) in PEERS.items():
            count = workers if has_workers else 0
            pairs = [(timed(make, case, count), timed(_torchs, case, count)) for _ in range(rounds)]
            first = median(torchs[0] / ours[0] for ours, torchs in pairs)
            later = median(torchs[1] / ours[1] for ours, torchs in pairs)
            rate = len(case.dataset) / median(ours[1] for ours, _ in pairs)
            made.append([case.name, name, f"{later:.2f}", f"{first:.2f}", f"{rate:,.0f}"])
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    warm = nbpipe.DataLoader(Samples(4), num_workers=1)
    list(warm)  # the fork server starts once in the life of a process
    head = ("dataset", "nbpipe's workers", "epoch, x torch", "first batch, x torch", "samples/s")
    say(markdown(head, rows(options.rounds, options.workers)))


if __name__ == "__main__":
    main()
