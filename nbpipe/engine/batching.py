"""Batches: collate samples, gather by cost, take apart again."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ..collate import collate
from ..errors import ArgumentError
from ..operations import Batch, as_float
from ..rest import Rest
from .task import Entry


class Collate:
    """Calls the user's collate function, or stacks as `collate` does."""

    def __init__(self, spec: Batch) -> None:
        self._spec = spec

    def __call__(self, samples: list[Any]) -> Any:
        """Make one batch."""
        spec = self._spec
        if spec.collate is not None:
            return spec.collate(samples)
        return collate(samples, names=spec.names, dtype=spec.dtype, pad=spec.pad)


class BatchByCost:
    """Gathers items while the sum of their costs stays within `size`."""

    def __init__(self, spec: Batch, stands: dict[str, Any]) -> None:
        self._spec = spec
        self._collate = Collate(spec)
        self._known = deque(stands.get("sizes", ()))  # of batches that the loop has not got
        self._sizes: deque[int] = deque()  # of those given; the first is number `_first`
        self._first = self._before = 0
        self._entries: list[Entry] = []
        self._sum = 0.0
        self.finished = False
        self.holds_items = False

    def rest_of_input(self, rest: Rest, stands: dict[str, Any]) -> Rest:
        """Say how many items belong to the batches that are not wanted."""
        sizes = list(enumerate(tuple(self._sizes), self._first))
        ends = list(itertools.accumulate((size for _, size in sizes), initial=self._before))
        again = [size for number, size in sizes if number in rest]
        stands["sizes"] = [*again, *self._known]
        gone = [ends[n : n + 2] for n, (number, _) in enumerate(sizes) if number not in rest]
        return Rest.of(self._before, [(first, end) for first, end in gone])

    def forget(self, start: int) -> None:
        """Forget the sizes of the batches before number `start`."""
        for _ in range(min(start - self._first, len(self._sizes))):
            self._before += self._sizes.popleft()
            self._first += 1

    def push(self, entry: Entry) -> Entry | None:
        """Add an item; give the batch before it where it does not fit any more."""
        if self._known:
            self._entries.append(entry)
            return self._close() if len(self._entries) == self._known[0] else None
        assert self._spec.cost is not None
        given = self._spec.cost(entry[1])
        cost = as_float(given)
        if not 0 <= cost <= self._spec.size:
            raise ArgumentError(
                f"batch cost of an item must be a number in [0, {self._spec.size:g}], got "
                f"{given!r}; filter such items out, or raise the size"
            )
        full = None
        if self._entries and self._sum + cost > self._spec.size:
            full = self._close()
        self._entries.append(entry)
        self._sum += cost
        return full

    def _close(self) -> Entry:
        entries, self._entries, self._sum = self._entries, [], 0.0
        if self._known:
            self._known.popleft()
        self._sizes.append(len(entries))
        return (entries[0][0], self._collate([entry[1] for entry in entries]))

    def flush(self) -> Iterator[Entry]:
        """Give the last batch, unless it is dropped."""
        if self._entries and not self._spec.drop_last:
            yield self._close()


def split_batch(batch: Any) -> list[Any]:
    """Take a batch apart along the first dimension of everything in it.

    Raises:
        ArgumentError: the parts differ in length, or the item has no first dimension.
    """
    if isinstance(batch, Mapping):
        columns = [split_batch(value) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in _rows(columns)]
    if isinstance(batch, tuple):
        columns = [split_batch(value) for value in batch]
        make = type(batch)._make if hasattr(batch, "_make") else tuple
        return [make(row) for row in _rows(columns)]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        columns = [split_batch(getattr(batch, name)) for name in names]
        return [
            dataclasses.replace(batch, **dict(zip(names, row, strict=True)))
            for row in _rows(columns)
        ]
    if hasattr(batch, "__getitem__") and hasattr(batch, "__len__") and _has_rows(batch):
        return list(batch)
    raise ArgumentError(
        f"unbatch needs a batch with a first dimension, got {type(batch).__name__}; "
        "use flat_map with a function that takes it apart"
    )


def _has_rows(batch: Any) -> bool:
    return not isinstance(batch, str | bytes) and getattr(batch, "ndim", 1) > 0


def _rows(columns: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ArgumentError(f"unbatch needs parts of equal length, got lengths {sorted(lengths)}")
    return zip(*columns, strict=True)
