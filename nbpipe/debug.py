"""Debug: what a run still holds on its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .base.format import format_bytes, shortened
from .errors import ArgumentTypeError, full_tracebacks
from .executors.device.device import Device
from .run.run import Run

__all__ = ["DeviceLeaks", "Leaks", "full_tracebacks", "leaks"]


@dataclass(frozen=True, slots=True, repr=False)
class DeviceLeaks:
    """What a run holds on one device.

    Attributes:
        device: its name, for example "cuda:0".
        tensors: tensors of batches that the loop has not read yet.
        tensor_bytes: their size [bytes].
        sources: tensors that a copy in progress may still read.
        source_bytes: their size [bytes].
        events: events that sources and batches wait for.

    Examples:
        >>> from nbpipe.debug import DeviceLeaks
        >>> bool(DeviceLeaks("cuda:0", 0, 0, 0, 0, 0))
        False
    """

    device: str
    tensors: int
    tensor_bytes: int
    sources: int
    source_bytes: int
    events: int

    def __bool__(self) -> bool:
        """Return whether anything is held."""
        return bool(self.tensors or self.sources or self.events)

    def __repr__(self) -> str:
        return (
            f"{self.device}: {self.tensors} tensors ({format_bytes(self.tensor_bytes)}), "
            f"{self.sources} sources ({format_bytes(self.source_bytes)}), {self.events} events"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Leaks:
    """What a run holds on its devices; true if that is anything.

    Attributes:
        devices: a report for each device that the run has used.

    Examples:
        >>> from nbpipe.debug import Leaks
        >>> Leaks(())
        nothing held
    """

    devices: tuple[DeviceLeaks, ...]

    def __bool__(self) -> bool:
        """Return whether anything is held."""
        return any(self.devices)

    def __iter__(self) -> Iterator[DeviceLeaks]:
        return iter(self.devices)

    def __repr__(self) -> str:
        held = [repr(one) for one in self.devices if one]
        return "nothing held" if not held else "held: " + "; ".join(held)


def leaks(run: Run) -> Leaks:
    """Count what a run holds on its devices: batches, sources of copies, events.

    During an epoch that is work in progress. After the run has closed it is a leak, so test
    `assert not nbpipe.debug.leaks(run)`. Batches that the loop took are not counted.

    Args:
        run: an open or closed run.

    Returns:
        A report for each device; it is false if nothing is held.

    Raises:
        ArgumentTypeError: `run` is not a run.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(3)).start() as run:
        ...     numbers = list(run)
        >>> nbpipe.debug.leaks(run)
        nothing held
    """
    if not isinstance(run, Run):
        raise ArgumentTypeError(
            f"leaks needs a run, as pipe.start() gives it, got {shortened(repr(run))}"
        )
    return Leaks(tuple(map(_held, run._core.devices)))


def _held(device: Device) -> DeviceLeaks:
    counts = device.held()
    return DeviceLeaks(
        device=device.name,
        tensors=counts.tensors,
        tensor_bytes=counts.tensor_bytes,
        sources=counts.sources,
        source_bytes=counts.source_bytes,
        events=counts.events,
    )


def __dir__() -> list[str]:
    return __all__
