"""Batches: collate samples, gather by cost, take apart again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..collate import collate
from ..errors import ArgumentError
from ..operations import Batch, as_float
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

    def __init__(self, spec: Batch) -> None:
        self._spec = spec
        self._collate = Collate(spec)
        self._entries: list[Entry] = []
        self._sum = 0.0
        self.finished = False
        self.holds_items = False

    def push(self, entry: Entry) -> Entry | None:
        """Add an item; give the batch before it where it does not fit any more."""
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
