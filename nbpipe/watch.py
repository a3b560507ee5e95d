"""What those who show or turn a run know of it: a protocol, and its state as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .failure import Failure
from .knobs import KnobChange
from .metrics import Row, StageStats
from .stage import Stage


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run is.

    Attributes:
        state: "ready" before the first epoch; "running" or "paused" during one; "finished",
            "stopped", "cancelled" or "failed" after it; "closed".
        epoch: number of the epoch in progress, or of the last one.
        epochs: epochs that `train` was asked for [epochs]; None in a loop of the user's own.
        epochs_begun: those of them that have begun [epochs].
        delivered: items handed to the loop in this epoch.
        resumed: those of them that the loop had before this run went on from a state.
        total: items of an epoch; None where it is not known before they are made.
        units: what each stage hands on, by address: "items" or "batches".
        elapsed_s: time since the epoch began, or that it took [s].
        waited_s: time that the loop waited for items in this epoch [s].
        cpu_cores: processor time of the whole process over the last seconds [cores]; None
            where that is not known yet.
        error: why the last epoch failed, in one line, else empty.
        held_bytes: bytes in all buffers, where there is a budget for them [bytes].
        limit_bytes: the budget [bytes].
        links: by address of a stage, the page that shows its workers; what is not known here is
            not there.
        by_loop: the loop makes its items itself: no knob has an effect.
        called: what the code that iterates calls it: "run", or "loader.run".
    """

    state: str
    epoch: int
    epochs: int | None
    epochs_begun: int | None
    delivered: int
    total: int | None
    units: Mapping[str, str]
    elapsed_s: float
    waited_s: float
    cpu_cores: float | None
    error: str
    held_bytes: int | None
    limit_bytes: int | None
    links: Mapping[str, str] = field(default_factory=dict)
    resumed: int = 0
    by_loop: bool = False
    called: str = "run"


class Written(Protocol):
    """What an export says of the module that it wrote."""

    @property
    def path(self) -> Path:
        """The file, absolute."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the module should know."""


class Watched(Protocol):
    """Something that runs, seen from outside: it is looked at, and its knobs are turned."""

    @property
    def title(self) -> str:
        """Names of its stages."""

    @property
    def stages(self) -> Mapping[str, Stage]:
        """Its stages by address, in order."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change, oldest first."""

    def status(self) -> Status:
        """Say where it is."""

    def stats(self) -> Mapping[str, StageStats]:
        """Give stats by address, and of the training loop as "consumer"."""

    def history(self) -> list[Row]:
        """Give one row a second and stage."""

    def failures(self) -> tuple[Failure, ...]:
        """Give the last failed items, oldest first."""

    def pause(self) -> None:
        """Let no further call start."""

    def resume(self) -> None:
        """Go on."""

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted."""

    def export(self, path: str, *, overwrite: bool = False) -> Written:
        """Write its pipeline, as it is tuned now, to a module of plain Python.

        Raises:
            ExportError: it cannot be written; nothing was.
        """
