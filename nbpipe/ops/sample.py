"""sample, balance, claim: orders that are drawn by weight, or taken chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, final

import numpy as np
from numpy.random import Generator

from ..base.checks import boolean, integer
from ..base.tree import as_key
from ..errors import ArgumentError, ArgumentTypeError, DuplicateNameError, UnpicklableError
from .chain import append_plain, check_name, index_plan, not_indexed
from .index import Draw, Draws, Store, Weights
from .plan import IndexPlan, default_rank
from .ranges import Indices
from .stage import Chain, Operation, Stage, numbered, taken_names

_MOST_ROWS = 2**62


class DrawnRows(Operation):
    """Indices drawn by weight: what `sample` and `balance` have in common."""

    __slots__ = ()
    new_order: ClassVar[bool | None] = True
    derived: ClassVar[tuple[str, ...]] = ("draw",)
    draw: Draw
    n: int | None
    seed: int

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Draw rows."""
        return plan.sample(self.draw, self.n, self.seed)

    def state_words(self) -> dict[str, Any]:
        """Return a digest of the weights in the place of them."""
        words = {"draw": self.draw.digest, "weights": None, "labels": None}
        return Operation.state_words(self) | words


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample(DrawnRows):
    """Indices drawn by weight: `weights` as they were given, `draw` made of them."""

    label: ClassVar[str] = "sample"
    positional: ClassVar[tuple[str, ...]] = ("weights",)
    weights: Any
    draw: Draw
    n: int | None = None
    replacement: bool = True
    seed: int = 0

    def detail(self) -> str:
        """Return seed, count, and whether a row may come twice."""
        count = "" if self.n is None else f"{self.n}, "
        return f"{count}seed {self.seed}" + ("" if self.replacement else ", without replacement")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Balance(DrawnRows):
    """Indices drawn so that every label comes equally often."""

    label: ClassVar[str] = "balance"
    positional: ClassVar[tuple[str, ...]] = ("labels",)
    labels: Any
    draw: Draw
    n: int | None = None
    seed: int = 0

    def detail(self) -> str:
        """Return seed and count."""
        return ("" if self.n is None else f"{self.n}, ") + f"seed {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Claim(Operation):
    """Chunks of the order, each for the rank that comes first; `place` names their cursor."""

    label: ClassVar[str] = "claim"
    claims: ClassVar[bool] = True
    derived: ClassVar[tuple[str, ...]] = ("place",)
    new_order: ClassVar[bool | None] = True
    ordered: ClassVar[bool] = False  # which rank gets a row is a matter of time
    chunk: int
    store: Store | None = None
    place: str = ""

    def detail(self) -> str:
        """Return the size of a chunk."""
        return f"chunks of {self.chunk}"

    def __reduce__(self) -> NoReturn:
        """Stay in the process that belongs to the job: another one has no place in its group."""
        raise UnpicklableError(
            "a pipeline that claims must run in the process of its rank; start it without "
            "isolate=True, or give each rank a shard"
        )

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Claim chunks of rows."""
        return plan.claim(self.chunk, self.store, self.place)

    @property
    def part(self) -> tuple[int, int] | None:
        """This rank, and how many there are."""
        return default_rank() or (0, 1)


def append_sample(chain: Chain, weights: Any, n: int | None, options: dict[str, Any]) -> Chain:
    """Append a sample stage."""
    plan = _plan_before(chain, "sample")
    kind = WithReplacement if boolean("sample replacement", options["replacement"]) else None
    draw = (kind or WithoutReplacement)(checked_weights(weights))
    count, seed = _checked("sample", plan, draw, n, options["seed"])
    return append_plain(chain, Sample(weights, draw, count, kind is not None, seed))


def append_balance(chain: Chain, labels: Any, n: int | None, seed: int) -> Chain:
    """Append a balance stage."""
    plan = _plan_before(chain, "balance")
    draw = WithReplacement(class_weights(labels))
    count, seed = _checked("balance", plan, draw, n, seed)
    return append_plain(chain, Balance(labels, draw, count, seed))


def append_claim(chain: Chain, chunk: int, store: Store | None, name: str | None) -> Chain:
    """Append a claim stage."""
    plan = _plan_before(chain, "claim")
    chunk = integer("claim chunk", chunk, minimum=1, maximum=_MOST_ROWS, unit="items")
    if store is not None and not callable(getattr(store, "add", None)):
        raise ArgumentTypeError(
            "claim store must be a torch.distributed.Store, or anything with add(key, amount), "
            f"got {type(store).__name__}"
        )
    taken = taken_names(chain)
    if name is not None and check_name("claim", name) in taken:
        raise DuplicateNameError(
            f"claim name must be new in its pipeline, got {name!r}, which is taken"
        )
    found = numbered("claim", taken) if name is None else name
    place = f"{chain[0].name}/{found}"
    plan.claim(chunk, store, place)  # refuses one rank's part
    return (*chain, Stage(Claim(chunk, store, place), name=found, named=name is not None))


def _plan_before(chain: Chain, verb: str) -> IndexPlan:
    """Return the index order that a chain is.

    Raises:
        ArgumentError: it is more than that, or none.
    """
    plan = index_plan(chain)
    if plan is not None:
        return plan
    raise ArgumentError(
        f"{verb} must follow a source that is read by index, with nothing but take, skip, "
        f"enumerate, shuffle, repeat or concat between, but {not_indexed(chain)}; {verb} right "
        "after the source, for example source(range(len(dataset)))"
    )


def _checked(
    verb: str, plan: IndexPlan, draw: Draw, n: int | None, seed: int
) -> tuple[int | None, int]:
    """Check how many rows are drawn of an index order, and by which seed."""
    if n is not None:
        n = integer(f"{verb} n", n, minimum=0, maximum=_MOST_ROWS, unit="items")
    seed = integer(f"{verb} seed", seed, minimum=-(2**63), maximum=2**64)
    plan.sample(draw, n, seed)  # refuses what never ends, and one rank's part
    draw.check(plan.length(), draw.rows if n is None else n)
    return n, seed


@final
class WithReplacement(Draw):
    """A row may come again; each draw is made by itself, in constant memory beside the weights.

    Source: Devroye, "Non-Uniform Random Variate Generation", 1986, III.2: inversion of the
    distribution function by bisection.
    """

    __slots__ = ("_sums",)

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._sums = np.cumsum(_scaled(weights))

    def _check_count(self, count: int) -> None:
        if count and not self.drawable:
            raise ArgumentError(
                f"sample weights must have one above 0, got none in {self.rows} rows"
            )

    def images(self, count: int, generator: Generator) -> Draws:
        """Return the draws without making them."""
        return Draws(self._sums, generator)


@final
class WithoutReplacement(Draw):
    """No row comes twice: as if drawn one by one, each from the rows that are left.

    Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
    Processing Letters 97, 2006: the rows with the greatest u ** (1 / weight), in that order; here
    in the form of exponential times divided by weights, the smallest first.
    """

    __slots__ = ("_weights",)

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._weights = _scaled(weights)

    def _check_count(self, count: int) -> None:
        if count > self.drawable:
            raise ArgumentError(
                f"sample n must be at most {self.drawable} without replacement, the rows with a "
                f"weight above 0, got {count}; give n={self.drawable}, or replacement=True"
            )

    def images(self, count: int, generator: Generator) -> Indices:
        """Draw all rows at once."""
        times = np.full(self.rows, np.inf)
        drawable = self._weights > 0
        times[drawable] = generator.standard_exponential(self.drawable) / self._weights[drawable]
        if count >= self.rows:
            return times.argsort(kind="stable")
        first = np.argpartition(times, count)[:count]
        return first[times[first].argsort(kind="stable")]


def checked_weights(values: object) -> Weights:
    """Copy weights into an array.

    Raises:
        ArgumentError: not one finite number of at least 0 for each row.
        ArgumentTypeError: no sequence.
    """
    held = _on_host(_sequence("sample weights", values))
    try:
        found = np.array(held, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"sample weights must be numbers, one for each row: {error}") from None
    if found.ndim != 1:
        raise ArgumentError(
            f"sample weights must be one number for each row, got an array of shape {found.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        raise ArgumentError(
            "sample weights must be finite numbers of at least 0, got "
            f"{float(found[wrong[0]])!r} for row {wrong[0]}"
        )
    return found


def class_weights(labels: object) -> Weights:
    """Return each row one divided by the number of rows with its label.

    Raises:
        ArgumentError: labels of more than one dimension.
        ArgumentTypeError: no sequence, or a label that is not hashable.
    """
    held: Any = _on_host(_sequence("balance labels", labels))
    if getattr(held, "ndim", 1) != 1:
        raise ArgumentError(
            f"balance labels must be one for each row, got an array of shape {held.shape}; of "
            "one-hot rows give labels.argmax(1)"
        )
    numbers: dict[Any, int] = {}
    try:
        ids = [numbers.setdefault(as_key(label), len(numbers)) for label in held]
    except TypeError as error:
        raise ArgumentTypeError(f"balance labels must be hashable: {error}") from None
    rows = np.array(ids, np.int64)
    return 1.0 / np.bincount(rows)[rows] if ids else np.zeros(0)


def _sequence(what: str, values: object) -> object:
    sized = hasattr(type(values), "__len__") and hasattr(type(values), "__iter__")
    if not sized or isinstance(values, str | bytes | Mapping | set | frozenset):
        raise ArgumentTypeError(
            f"{what} must be a sequence with one for each row, got {type(values).__name__}"
        )
    return values


def _on_host(values: Any) -> Any:
    """Return a tensor, wherever it lies, as an array."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _scaled(weights: Weights) -> Weights:
    """Bring the greatest weight to 1, so that no sum is infinite."""
    most = weights.max(initial=0.0)
    return weights / most if most else weights
