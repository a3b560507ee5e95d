"""The contract of everything that does work for a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Protocol


class Work(Protocol):
    """A piece of work: what an executor sees of a task."""

    def run(self) -> None:
        """Do the work in the calling thread; exceptions of user code stay inside."""

    def begin(self) -> Coroutine[Any, Any, None]:
        """Give the coroutine that does the work; exceptions of user code stay inside."""


class Executor(ABC):
    """Does work for one run, from its first epoch until it is closed."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[Work]:
        """End; give the work still inside user code after `timeout_s`."""
