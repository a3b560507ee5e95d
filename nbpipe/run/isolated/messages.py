"""What a run and the process that holds its pipeline tell each other: the chain, a report."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.failures import Failure
from ...engine.stats import StageStats
from ...errors import ArgumentError
from ...executors.shipping import Shipped, ship
from ...ops.stage import Chain, Placement, addresses

Values = dict[tuple[str, str], int]  # of knobs, by the stage's address and the knob's name


# -- the chain ----------------------------------------------------------------------------
def pickled(chain: Chain) -> Shipped:
    """Make a chain ready to be sent; knobs go with the values that they were made with.

    Raises:
        ArgumentError: a stage has an executor that lives in this process.
        UnpicklableError: part of a stage cannot be pickled; the message names it.
    """
    known = list(addresses(chain).items())  # sent, too: an error names a stage by its address
    for address, stage in known:
        if stage.placement is not None:
            _check_placement(stage.placement, address)
    return ship((known, chain), stage=known[0][0])


def _check_placement(placement: Placement, address: str) -> None:
    if placement.executor == "executor":
        kind = type(placement.given).__name__
        raise ArgumentError(
            f"stage {address!r} has an executor object ({kind}), which lives in this process "
            "and cannot be used with isolate=True; give executor='process' or 'thread', or "
            "start the run without isolate"
        )
    if placement.executor == "dask":
        from ...executors.dask import dask_executor_of

        executor = dask_executor_of(placement.given or "dask")
        if executor is not None and executor.address.startswith("inproc:"):
            raise ArgumentError(
                f"stage {address!r} uses a Dask cluster inside this process "
                f"({executor.address}), which another process cannot reach: with isolate=True, "
                "make the client with processes=True"
            )


# -- what the process tells of it ---------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of a stage, as its `Caller` knows them."""

    count: int = 0
    pids: tuple[int, ...] = ()
    link: str | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A pipeline at one moment.

    Attributes:
        stats: of its stages, by address.
        failures: the last failed items.
        cpu_cores: processor time of the process over the last seconds [cores].
        held_bytes: bytes in all buffers, where there is a budget for them [bytes].
        workers: of the stages that have some, by address.
        process_bytes: resident memory of the process [bytes].
        skipped: items of its epoch that failed and were left out [items].
    """

    stats: dict[str, StageStats]
    failures: tuple[Failure, ...]
    cpu_cores: float | None
    held_bytes: int | None
    workers: dict[str, Workers]
    process_bytes: int
    skipped: int
