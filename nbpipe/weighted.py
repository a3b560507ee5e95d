"""Weighted orders: rows drawn by weight, with or without replacement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .errors import ArgumentError, ArgumentTypeError
from .index_order import Order, Picked, Rows
from .seeding import uniforms

Weights: TypeAlias = NDArray[np.float64]


class Draw(ABC):
    """How rows are drawn; frozen.

    Args:
        weights: one for each row, finite and at least 0, any scale; shape (n,) float64.

    Attributes:
        rows: how many rows there are to draw from.
        drawable: how many of them have a weight above 0.
        digest: of the weights, for those who compare.
    """

    __slots__ = ("digest", "drawable", "rows")

    def __init__(self, weights: Weights) -> None:
        self.rows = len(weights)
        self.digest = blake2b(weights.tobytes(), digest_size=16).hexdigest()
        self.drawable = int(np.count_nonzero(weights))

    def check(self, rows: int | None, count: int) -> None:
        """Refuse weights that are not those of `rows` rows, or too few to draw `count`.

        Raises:
            ArgumentError: they are.
        """
        if rows != self.rows:
            raise ArgumentError(
                f"weights or labels must be one for each row, got {self.rows} for {rows} rows"
            )
        self._check_count(count)

    @abstractmethod
    def _check_count(self, count: int) -> None:
        """Refuse to draw `count` rows where there are too few."""

    @abstractmethod
    def images(self, count: int, generator: Generator) -> Rows | Draws:
        """Draw `count` rows; numbers of drawn rows are indexed by those of the new order."""


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
        """Give the draws without making them."""
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

    def images(self, count: int, generator: Generator) -> Rows:
        """Draw all rows at once."""
        times = np.full(self.rows, np.inf)
        drawable = self._weights > 0
        times[drawable] = generator.standard_exponential(self.drawable) / self._weights[drawable]
        if count >= self.rows:
            return times.argsort(kind="stable")
        first = np.argpartition(times, count)[:count]
        return first[times[first].argsort(kind="stable")]


@final
class Draws:
    """Draws with replacement in random access."""

    __slots__ = ("_key", "_sums")

    def __init__(self, sums: Weights, generator: Generator) -> None:
        self._sums = sums
        self._key = generator.integers(0, 2**64, dtype=np.uint64)

    def __getitem__(self, rows: Rows) -> Rows:
        """Give what each draw in `rows` drew, an array of shape (n,) int64."""
        places = uniforms(self._key, rows) * self._sums[-1]
        found: Rows = self._sums.searchsorted(places, side="right")
        return found


@final
class SampledOrder(Order):
    """Drawn rows; their paths are their new positions, so a row drawn twice has two."""

    __slots__ = ("_child", "_count", "_draw", "_generator", "_images")

    def __init__(
        self, child: Order, draw: Draw, count: int | None, generator: Callable[[], Generator]
    ) -> None:
        self._count = draw.rows if count is None else count
        self._start_straight(self._count)
        self._child, self._draw, self._generator = child, draw, generator
        self._images: Rows | Draws | None = None

    def pick(self, rows: Rows) -> Picked:
        """Look up what was drawn; the first call draws."""
        if self._images is None:
            self._draw.check(self._child.length, self._count)
            self._images = self._draw.images(self._count, self._generator())
        return (rows,), self._child.pick(self._images[rows])[1]


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
    """Give each row one divided by the number of rows with its label.

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
        ids = [numbers.setdefault(_plain(label), len(numbers)) for label in held]
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
    """Give a tensor, wherever it lies, as an array."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _plain(label: Any) -> Any:
    """Give a label that equals its equals: tensors without dimensions do not."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def _scaled(weights: Weights) -> Weights:
    """Bring the greatest weight to 1, so that no sum is infinite."""
    most = weights.max(initial=0.0)
    return weights / most if most else weights
