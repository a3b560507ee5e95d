"""What stages do that only order the indices of a source, beside those in `operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from .claims import Store
from .errors import UnpicklableError
from .operations import Operation
from .weighted import Draw


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample(Operation):
    """Rows drawn by weight: `weights` as they were given, `draw` made of them."""

    label: ClassVar[str] = "sample"
    weights: Any
    draw: Draw
    n: int | None = None
    replacement: bool = True
    seed: int = 0

    def detail(self) -> str:
        """Give seed, count, and whether a row may come twice."""
        count = "" if self.n is None else f"{self.n}, "
        return f"{count}seed {self.seed}" + ("" if self.replacement else ", without replacement")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Balance(Operation):
    """Rows drawn so that every label comes equally often."""

    label: ClassVar[str] = "balance"
    labels: Any
    draw: Draw
    n: int | None = None
    seed: int = 0

    def detail(self) -> str:
        """Give seed and count."""
        return ("" if self.n is None else f"{self.n}, ") + f"seed {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Claim(Operation):
    """Chunks of the order, each for the rank that comes first; `place` names their cursor."""

    label: ClassVar[str] = "claim"
    ordered: ClassVar[bool] = False  # which rank gets a row is a matter of time
    chunk: int
    store: Store | None
    place: str

    def detail(self) -> str:
        """Give the size of a chunk."""
        return f"chunks of {self.chunk}"

    def __reduce__(self) -> NoReturn:
        """Stay in the process that belongs to the job: another one has no place in its group."""
        raise UnpicklableError(
            "a pipeline that claims must run in the process of its rank; start it without "
            "isolate=True, or give each rank a shard"
        )
