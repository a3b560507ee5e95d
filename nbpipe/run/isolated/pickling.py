"""A chain on its way to the process of an isolated run: checked, sent, built again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ...base.format import format_bytes
from ...base.knobs import Knob
from ...errors import ArgumentError
from ...executors.pickling import pickled_bytes
from ...executors.shipping import LARGE_BYTES, Shipped, load, ship, warn_if_large
from ...ops.stage import Chain, Placement, addresses

LOG = logging.getLogger("nbpipe")

Values = dict[tuple[str, str], int]  # of knobs, by the stage's address and the knob's name


# -- in the process that starts the run ---------------------------------------------------
def split(chain: Chain) -> tuple[Chain, Chain]:
    """Return the stages that go to the other process, and those that stay with the loop.

    A batch does not leave the process in which it was copied to a device.
    """
    count = sum(stage.executor != "device" for stage in chain)
    return chain[:count], chain[count:]


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


# -- in the process that does the work ----------------------------------------------------
def unpickled(data: bytes) -> Chain:
    """Build the chain again."""
    _, chain = load(data)
    built: Chain = chain
    return built


def disconnect(chain: Chain) -> None:
    """Close the clients with which a chain that was built again is connected to clusters."""
    for stage in addresses(chain).values():
        if stage.executor == "dask":
            given: Any = stage.placement and stage.placement.given
            given.client.close()


def knobs_of(chain: Chain) -> Iterator[tuple[tuple[str, str], Knob]]:
    """Return all knobs with their places."""
    for address, stage in addresses(chain).items():
        for name, knob in stage.knobs.items():
            yield (address, name), knob


def set_values(chain: Chain, values: Values) -> None:
    """Turn knobs to what they are elsewhere."""
    stages = addresses(chain)
    for (address, name), value in values.items():
        stages[address].knob(name).set(value)
