"""What a run and the process that holds its pipeline tell each other: the chain, a report."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from ...base.format import format_bytes
from ...engine.failures import Failure
from ...engine.stats import StageStats
from ...errors import ArgumentError
from ...executors.pickling import pickled_bytes
from ...executors.shipping import LARGE_BYTES, Shipped, ship, warn_if_large
from ...ops.stage import Chain, Placement, addresses

LOG = logging.getLogger("nbpipe")

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


def warn_of_size(chain: Chain, shipped: Shipped) -> None:
    """Warn once of what makes a chain large, where it is above 1 MiB."""
    if shipped.size_bytes <= LARGE_BYTES:
        return
    for address, stage in addresses(chain).items():
        spec: Any = stage.spec
        if spec.runs == "call" and stage.placement is None:
            warn_if_large(spec.fn, address)
        elif spec.runs == "source" and not callable(spec.items) and spec.items is not None:
            _warn_of_source(address, spec.items)


def _warn_of_source(address: str, items: Any) -> None:
    size_bytes = pickled_bytes(items)
    if size_bytes > LARGE_BYTES:
        LOG.warning(
            "source %r is sent to the process of the run, once: a %s of %s; give a function that "
            "makes it there, or memory-map it, if that is too much",
            address,
            type(items).__name__,
            format_bytes(size_bytes),
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
        failures: the last failed items; None where they are those of the report before.
        cpu_cores: processor time of the process over the last seconds [cores].
        held_bytes: bytes in all buffers, where there is a budget for them [bytes].
        workers: of the stages that have some, by address.
    """

    stats: dict[str, StageStats]
    failures: tuple[Failure, ...] | None
    cpu_cores: float | None
    held_bytes: int | None
    workers: dict[str, Workers]

    def following(self, before: ChildReport) -> ChildReport:
        """Return the report with what it left out."""
        if self.failures is not None:
            return self
        return dataclasses.replace(self, failures=before.failures)


def seen_s(failures: tuple[Failure, ...] | None) -> float | None:
    """Tell which failures are known, so that they need not be sent again."""
    return failures[-1].when_s if failures else None
