"""source: where items come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.digest import source_digest
from ..errors import LengthUnknownError
from .stage import Chain, Operation, Runs, Stage

if TYPE_CHECKING:
    from .plan import IndexPlan


# Neither compared nor printed: fewer generated methods make the import 10 ms shorter.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(Operation):
    """Where items come from; `plan` where they are read by index.

    The source that is another pipeline has it as the input of its stage.
    """

    label: ClassVar[str] = "source"
    runs: ClassVar[Runs] = "source"
    items: Any
    plan: IndexPlan | None = None

    def detail(self) -> str:
        """Name the kind of source."""
        return "pipeline" if self.items is None else type(self.items).__name__

    def indexed(self, stage: Stage, plan_of: Callable[[Chain], Any]) -> Source | None:
        """Return itself, where it is read by index."""
        return self if self.plan is not None else None

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the length of the items, or of the pipeline that they come from."""
        if stage.inputs:
            return length_of(stage.inputs[0])
        try:
            return len(self.items)
        except TypeError:
            raise LengthUnknownError(
                f"source {stage.name!r} ({type(self.items).__name__}) has no length"
            ) from None

    def fingerprint(self) -> dict[str, str]:
        """Return a digest of the items."""
        return {"items": source_digest(self.items)}

    def state_words(self) -> dict[str, Any]:
        """Return nothing: the number of the items is compared by itself."""
        return {}

    @property
    def rows(self) -> int | None:
        """How many items there are now, where they are read by index."""
        return None if self.plan is None else len(self.items)
