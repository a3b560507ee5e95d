"""Devices: where batches are copied to, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .operations import Operation


@dataclass(frozen=True, slots=True)
class Target:
    """A device, and the stream to use on it.

    Attributes:
        device: as torch names it, "cuda:0".
        stream: a stream of the user's, or None: the run's own.
    """

    device: str
    stream: object = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToDevice(Operation):
    """Copy batches to a device, or back."""

    label: ClassVar[str] = "to_device"
    device: str

    def detail(self) -> str:
        """Name the device."""
        return self.device
