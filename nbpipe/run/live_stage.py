"""LiveStage: a stage of a run, with the workers that serve it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from ..executors.interface import Served
from ..ops.stage import Stage


@final
class LiveStage:
    """A stage with the workers that it has in one run; other attributes are those of the stage.

    Attributes:
        stage: the stage.
    """

    __slots__ = ("_served", "stage")

    stage: Stage

    def __init__(self, stage: Stage, served: Callable[[], Served]) -> None:
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "_served", served)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return int(self._served().workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return tuple(self._served().pids)

    @property
    def link(self) -> str | None:
        """Address of a page that shows the workers, or None."""
        found: str | None = self._served().link
        return found

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; shared memory counts in each of them."""
        return int(self._served().memory_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.stage, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.stage)} - {"stage"})

    def __repr__(self) -> str:
        return f"{self.stage!r} with {self.workers} workers"
