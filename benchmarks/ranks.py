"""Ranks: fixed shards against chunks claimed from a shared cursor, with one rank that is slow.

Run it as `python -m benchmarks.ranks`; it takes about 20 seconds. Two processes share a TCPStore.
A training step is a sleep; that of rank 1 takes `SLOWER` times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import chain
from statistics import median
from typing import Any

from .report import markdown
from .results import say

ITEMS = 400
STEP_S = 0.0025
SLOWER = 3
WAYS = (  # words, chunk (0: shards), prefetch of source and stage (None: the defaults)
    ("shard", 0, None),
    ("claim, chunks of 64", 64, None),
    ("claim, chunks of 16", 16, None),
    ("claim, chunks of 4", 4, None),
    ("claim, chunks of 4, prefetch 1", 4, 1),
)
CLAIMS = 5000
ROUNDS = 3
Numbers = dict[str, Any]


def main() -> None:
    """Measure in two processes; print a table."""
    command = [sys.executable, "-m", "benchmarks.ranks"]
    with subprocess.Popen(
        [*command, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        port = first.stdout.readline().strip()
        with subprocess.Popen([*command, "1", port], stdout=subprocess.PIPE, text=True) as second:
            answers = [json.loads(process.communicate()[0]) for process in (first, second)]
    rows = [
        row(how, [answer["epochs"][number] for answer in answers])
        for number, (how, _, _) in enumerate(WAYS)
    ]
    head = ("how", "time of the slowest rank [s]", "items of ranks 0, 1", "each item once")
    say(
        f"{os.cpu_count()} cores, {ITEMS} items, steps of {STEP_S * 1e3:g} ms, rank 1 {SLOWER} "
        f"times slower; median of {ROUNDS} rounds\n\n{markdown(head, rows)}\n\n"
        f"one claim, both ranks at once: {max(a['claim_us'] for a in answers):.0f} µs"
    )


def row(how: str, ranks: list[list[Numbers]]) -> list[str]:
    """Return the cells of what one way took."""
    rounds = list(zip(*ranks, strict=True))
    elapsed_s = median(max(rank["elapsed_s"] for rank in one) for one in rounds)
    counts = ", ".join(str(len(rank["items"])) for rank in rounds[-1])
    items = [sorted(chain(*(rank["items"] for rank in one))) for one in rounds]
    once = all(one == list(range(ITEMS)) for one in items)
    return [how, f"{elapsed_s:.2f}", counts, "yes" if once else "NO"]


def work(rank: int, port: int) -> None:
    """Be a rank: measure, and answer with JSON."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        print(store.port, flush=True)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    epochs = [[epoch(way, rank, number) for number in range(ROUNDS)] for way in WAYS]
    dist.barrier()
    claim_us = cost_of_claims_us(store)
    dist.barrier()
    print(json.dumps({"epochs": epochs, "claim_us": claim_us}))
    dist.destroy_process_group()


def epoch(way: tuple[str, int, int | None], rank: int, number: int) -> Numbers:
    """Time one epoch, from when both ranks begin to the last step of this one."""
    import torch.distributed as dist

    import nbpipe

    _, chunk, prefetch = way
    order = nbpipe.source(range(ITEMS), prefetch=prefetch or 16).shuffle(seed=number)
    pipe = order.claim(chunk=chunk) if chunk else order.shard()
    step_s = STEP_S * (SLOWER if rank else 1)
    items = []
    with pipe.map(abs, prefetch=prefetch).start() as run:
        dist.barrier()
        start_s = time.perf_counter()
        for item in run:
            time.sleep(step_s)
            items.append(item)
        elapsed_s = time.perf_counter() - start_s
        dist.barrier()
    return {"elapsed_s": elapsed_s, "items": items}


def cost_of_claims_us(store: Any) -> float:
    """Give the mean time of one claim [us]."""
    start_s = time.perf_counter()
    for _ in range(CLAIMS):
        store.add("cost", 64)
    return (time.perf_counter() - start_s) / CLAIMS * 1e6


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        work(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
