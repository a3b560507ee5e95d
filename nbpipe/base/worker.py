"""What a stage's function may ask about the call that it is in."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .seeding import Path, seed_for


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The call in progress, seen from inside a stage's function.

    Attributes:
        stage: address of the stage.
        worker: number of the worker process, from 0; in a thread of the run, 0.
        epoch: number of the epoch.
        seed: 64-bit seed of this item in this stage; it depends on the run's seed, the epoch,
            the stage and the item alone.
    """

    stage: str
    worker: int
    epoch: int
    seed: int


class CurrentCall(threading.local):
    """The call that a thread is in; the engine writes it, `worker_info` reads it."""

    stage = ""
    epoch = 0
    run_seed = 0
    path: Path = 0


CALL = CurrentCall()
NUMBER = [0]  # of this process among the workers of its region


def worker_info() -> WorkerInfo | None:
    """Tell which stage, worker and epoch the calling code runs in; None outside a stage.

    A stage knows it in worker processes and on Dask; stages in threads of the run, and inline
    and async stages, share one process, and there it is None: a parameter named `rng` gives
    them random numbers of their own.
    """
    if not CALL.stage:
        return None
    seed = seed_for(CALL.run_seed, CALL.epoch, CALL.stage, CALL.path)
    return WorkerInfo(CALL.stage, NUMBER[0], CALL.epoch, seed)
