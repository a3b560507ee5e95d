"""What a stage does, as frozen values: one class for each operation of a pipeline."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, UnpicklableError
from .index import Tail
from .sample import Draw, Store

if TYPE_CHECKING:
    from .plan import IndexPlan

# -- What a stage does, as frozen values: one class for each operation of a pipeline ---------------
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Retry:
    """Try a failed call again.

    Args:
        times: how often to try again, 1 to 1,000 [calls].
        backoff_s: wait before the first repetition, doubled before each further one [s].
        then: what to do when every try failed: "raise" or "skip".

    Raises:
        ArgumentError: a value out of range.
    """

    digest_module: ClassVar[str] = "nbpipe.operations"  # in cache folders written before
    times: int
    backoff_s: float = field(default=0.0, kw_only=True)
    then: Literal["raise", "skip"] = field(default="raise", kw_only=True)

    def __post_init__(self) -> None:
        whole("Retry times", self.times, minimum=1, maximum=1000, unit="calls")
        seconds("Retry backoff_s", self.backoff_s, zero=True)
        if self.then not in ("raise", "skip"):
            raise ArgumentError(f"Retry then must be 'raise' or 'skip', got {self.then!r}")


OnError = Literal["raise", "skip"] | Retry


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What happens to an item whose call failed, and how many may fail in one epoch."""

    digest_module: ClassVar[str] = "nbpipe.operations"
    retry: Retry | None = None
    skips: bool = False
    max_failures: int | float | None = None

    @classmethod
    def of(cls, stage: str, on_error: OnError, max_failures: int | float | None) -> FailurePolicy:
        """Check the arguments `on_error` and `max_failures` of stage `stage`."""
        retry = on_error if isinstance(on_error, Retry) else None
        word = retry.then if retry else on_error
        if not isinstance(word, str) or word not in ("raise", "skip"):
            raise ArgumentError(
                f"{stage} on_error must be 'raise', 'skip' or nbpipe.Retry(times), got {on_error!r}"
            )
        skips = word == "skip"
        if max_failures is None:
            return cls(retry, skips)
        return cls(retry, skips, _budget(stage, max_failures, skips=skips))


def _budget(stage: str, budget: object, *, skips: bool) -> int | float:
    count = as_int(budget)
    counts = count is not None and count >= 0
    rates = isinstance(budget, float) and 0 < budget < 1
    if not counts and not rates:
        raise ArgumentError(
            f"{stage} max_failures must be an int of at least 0 [items] or a float between "
            f"0 and 1 [share of items], got {budget!r}"
        )
    if not skips:
        raise ArgumentError(
            f"{stage} max_failures={budget!r} has no effect with on_error='raise': the first "
            "failure ends the epoch; use on_error='skip' or nbpipe.Retry(times, then='skip')"
        )
    return float(budget) if count is None else count  # type: ignore[arg-type]


class Operation:
    """Base of all operations; `label` is the word shown in tables."""

    __slots__ = ()
    label: ClassVar[str]

    def detail(self) -> str:
        """Return the arguments worth showing in one short text."""
        return ""


# Neither compared nor printed: fewer generated methods make the import 10 ms shorter.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(Operation):
    """Where items come from; `plan` where they are read by index.

    The source that is another pipeline has it as the input of its stage.
    """

    label: ClassVar[str] = "source"
    items: Any
    plan: IndexPlan | None = None

    def detail(self) -> str:
        """Name the kind of source."""
        return "pipeline" if self.items is None else type(self.items).__name__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Operation):
    """A user's function for each item: base of map, filter and flat_map."""

    label: ClassVar[str] = "call"
    fn: Function
    policy: FailurePolicy = FailurePolicy()
    ordered: bool = True
    timeout_s: float | None = None
    wants_rng: bool = False

    def detail(self) -> str:
        """Name what differs from the defaults."""
        words = [] if self.ordered else ["completion order"]
        if self.policy.retry:
            words.append(f"retry {self.policy.retry.times}")
        if self.policy.skips:
            words.append("skip errors")
        if self.timeout_s is not None:
            words.append(f"timeout {self.timeout_s:g} s")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Map(Call):
    """One result for each item; on a device, where there is one."""

    label: ClassVar[str] = "map"
    device: str | None = None

    def detail(self) -> str:
        """Name what differs from the defaults."""
        words = Call.detail(self)
        if self.device is None:
            return words
        return f"on {self.device}, {words}" if words else f"on {self.device}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Filter(Call):
    """Keep the items for which the function is true."""

    label: ClassVar[str] = "filter"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FlatMap(Call):
    """Any number of results for each item."""

    label: ClassVar[str] = "flat_map"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch(Operation):
    """Gather `size` items, or items whose `cost` sums to at most `size`."""

    label: ClassVar[str] = "batch"
    size: float
    drop_last: bool = False
    collate: Function | None = None
    names: tuple[str, ...] | None = None
    dtype: Any = None
    pad: Any = None
    cost: Function | None = None

    def detail(self) -> str:
        """Return the size."""
        return f"{self.size:g}" + (" by cost" if self.cost else "")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unbatch(Operation):
    """Take batches apart again."""

    label: ClassVar[str] = "unbatch"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Window(Operation):
    """Lists of `size` neighbours, `stride` apart."""

    label: ClassVar[str] = "window"
    size: int
    stride: int = 1

    def detail(self) -> str:
        """Return size and stride."""
        return f"{self.size} by {self.stride}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shuffle(Operation):
    """A permutation of the index order, or a buffer from which items are drawn."""

    label: ClassVar[str] = "shuffle"
    seed: int = 0
    buffer_size: int | None = None

    def detail(self) -> str:
        """Return seed and buffer."""
        buffer = "" if self.buffer_size is None else f", buffer {self.buffer_size}"
        return f"seed {self.seed}{buffer}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shard(Operation):
    """Every `world_size`-th item from `rank` on."""

    label: ClassVar[str] = "shard"
    rank: int
    world_size: int
    tail: Tail = "pad"

    def detail(self) -> str:
        """Return rank and world size."""
        return f"{self.rank} of {self.world_size}, {self.tail}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Take(Operation):
    """The first `count` items."""

    label: ClassVar[str] = "take"
    count: int

    def detail(self) -> str:
        """Return the count."""
        return str(self.count)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Skip(Operation):
    """All but the first `count` items."""

    label: ClassVar[str] = "skip"
    count: int

    def detail(self) -> str:
        """Return the count."""
        return str(self.count)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Repeat(Operation):
    """`times` passes, or passes for ever."""

    label: ClassVar[str] = "repeat"
    times: int | None = None

    def detail(self) -> str:
        """Return the number of passes."""
        return "for ever" if self.times is None else str(self.times)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enumerate(Operation):
    """Pairs of a number and an item."""

    label: ClassVar[str] = "enumerate"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cache(Operation):
    """Items of the first whole epoch, kept for the later ones."""

    label: ClassVar[str] = "cache"
    store: Any

    def detail(self) -> str:
        """Tell where the items are kept."""
        return str(self.store.place)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Zip(Operation):
    """Tuples of one item from each pipeline."""

    label: ClassVar[str] = "zip"
    strict: bool = True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concat(Operation):
    """One pipeline after the other."""

    label: ClassVar[str] = "concat"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mix(Operation):
    """Draws by weight."""

    label: ClassVar[str] = "mix"
    weights: tuple[float, ...]
    seed: int = 0
    stop: Literal["longest", "shortest"] = "longest"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interleave(Operation):
    """Turns between `cycle` pipelines that are open at once."""

    label: ClassVar[str] = "interleave"
    cycle: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Route(Operation):
    """Branches by the value of `key(item)`; the stage's inputs are the branches."""

    label: ClassVar[str] = "route"
    key: Function
    values: tuple[Any, ...]

    def detail(self) -> str:
        """Return the values."""
        return ", ".join(str(value) for value in self.values)


def whole(
    what: str, value: object, *, minimum: int, maximum: int | None = None, unit: str = ""
) -> int:
    """Check that `value` is an integer in a range, and give it as an int.

    Raises:
        ArgumentError: it is not; the message starts with `what`.
    """
    number = as_int(value)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        rule = f"in [{minimum}, {maximum}]" if maximum is not None else f"of at least {minimum}"
        raise ArgumentError(
            f"{what} must be an int {rule}{' ' + unit if unit else ''}, got {value!r}"
        )
    return number


def as_int(value: object) -> int | None:
    """Return any integer (`__index__`, not a bool) as an int; None for everything else."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_float(value: object) -> float:
    """Return any real number (not a bool) as a float; NaN for everything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def seconds(what: str, value: object, *, zero: bool = False) -> float:
    """Check that `value` is a finite, positive time [s]."""
    number = as_float(value)
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        rule = "of at least 0" if zero else "above 0"
        raise ArgumentError(f"{what} must be a number {rule} [s], got {value!r}")
    return number


def flag(what: str, value: object) -> bool:
    """Check that `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} must be True or False, got {value!r}")
    return bool(value)


def function(what: str, value: object) -> Function:
    """Check that `value` can be called."""
    if not callable(value):
        raise ArgumentTypeError(f"{what} must be a function, got {value!r}")
    return value


# -- Devices: where batches are copied to, as frozen values ----------------------------------------
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


# -- What stages do that only order the indices of a source, beside those in `operations` ----------
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
        """Return seed, count, and whether a row may come twice."""
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
        """Return seed and count."""
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
        """Return the size of a chunk."""
        return f"chunks of {self.chunk}"

    def __reduce__(self) -> NoReturn:
        """Stay in the process that belongs to the job: another one has no place in its group."""
        raise UnpicklableError(
            "a pipeline that claims must run in the process of its rank; start it without "
            "isolate=True, or give each rank a shard"
        )
