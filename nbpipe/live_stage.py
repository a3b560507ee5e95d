"""LiveStage: a stage as its run has it: the same knobs, and the workers that live."""

from __future__ import annotations

from typing import Any, final

from .executors.base import Caller
from .operations import whole
from .stage import Stage


@final
class LiveStage:
    """A stage whose calls run in workers of one run; everything else is the stage's.

    Attributes:
        stage: the stage itself.
    """

    __slots__ = ("_caller", "stage")

    stage: Stage

    def __init__(self, stage: Stage, caller: Caller) -> None:
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "_caller", caller)

    @property
    def workers(self) -> int:
        """Workers there are; setting it asks a cluster for so many, where it may be scaled.

        Raises:
            ArgumentError: on setting: not an int of at least 1, or these workers follow the
                stage's concurrency, or scaling the cluster was not allowed.
        """
        return int(self._caller.workers)

    @workers.setter
    def workers(self, count: int) -> None:
        self._caller.scale(whole(f"{self.stage.name} workers", count, minimum=1, unit="workers"))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return tuple(self._caller.pids)

    @property
    def link(self) -> str | None:
        """Address of a page that shows the workers, or None."""
        link: str | None = self._caller.link
        return link

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; what they share is counted in each."""
        return int(self._caller.memory_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "workers":
            object.__setattr__(self, name, value)
        else:
            setattr(self.stage, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.stage)})

    def __repr__(self) -> str:
        return f"{self.stage!r} with {self.workers} workers"
