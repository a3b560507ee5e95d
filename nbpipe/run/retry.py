"""The pipeline of `run.retry_failed()`: the source items that failed, with all stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any, final

import numpy as np

from ..base.describe import summarize
from ..engine.epoch import LOG
from ..errors import ArgumentTypeError
from ..ops.chain import absorbed
from ..ops.source import source_of
from ..ops.stage import Chain, Stage, changed


@dataclass(frozen=True, slots=True)
class SourceItem:
    """An item of a source.

    Attributes:
        items: the source.
        index: index of the item in it.
        read: reads the item as the epoch did, numbered by `enumerate`; None in a stream.
    """

    items: Any
    index: int
    read: Callable[[], Any] | None = None

    @property
    def text(self) -> str:
        """The item in one line: a path, another value, or its index. Nothing slow is read."""
        known = type(self.items) in (list, tuple, range, np.ndarray)
        if not known or self.index >= len(self.items):
            kind = getattr(self.items, "__name__", type(self.items).__name__)
            return f"item {self.index} of {kind}"
        value = self.items[self.index]
        if isinstance(value, str | PurePath):
            return " ".join(os.fspath(value).split())[:1000]
        return summarize(value)


def items_of(head: Stage) -> Any:
    """Return the items of a source; None for another operation."""
    return getattr(head.spec, "items", None)


@final
class FailedItems(Sequence[Any]):
    """Some items of a source, read when they are needed.

    Args:
        found: the items.
    """

    def __init__(self, found: Sequence[SourceItem]) -> None:
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        read = self.found[index].read
        return None if read is None else read()


@final
class FailedOfStream:
    """Some items of a source that can only be read from the start.

    Args:
        found: the items, at least one.
    """

    def __init__(self, found: Sequence[SourceItem]) -> None:
        self.found = sorted(found, key=lambda one: one.index)

    def __iter__(self) -> Iterator[Any]:
        items, places = self.found[0].items, {one.index for one in self.found}
        values = items if hasattr(items, "__iter__") else items()
        for place, value in enumerate(islice(values, max(places) + 1)):
            if place in places:
                yield value


def retried(chain: Chain, failed: Sequence[tuple[SourceItem, ...]]) -> Chain:
    """Return the chain with only the source items that failed, each once.

    Args:
        chain: the stages.
        failed: for each failed item the source items that it was made of; empty if not known.

    Raises:
        ArgumentTypeError: the chain does not begin with one source, or with an async one.
    """
    source, used = absorbed(chain)
    head = chain[0]
    stream = (
        head.spec.runs == "source" and not head.inputs and not hasattr(items_of(head), "__aiter__")
    )
    if source is None and not stream:
        what = "is another pipeline" if head.spec.runs == "source" else "joins several"
        raise ArgumentTypeError(
            f"retry_failed needs a pipeline that begins with one source, got {head.name!r}, which "
            f"{what}; run.failures() names the items, nbpipe.source([...]) takes them"
        )
    unknown = failed.count(())
    if unknown:
        LOG.warning("retry_failed leaves out %d failed items: their source is not known", unknown)
    found = list({(id(one.items), one.index): one for some in failed for one in some}.values())
    spec = source_of(FailedOfStream(found) if found and source is None else FailedItems(found))
    later = ((stage, stage.spec.of_chosen()) for stage in chain[max(1, used) :])
    kept = (changed(stage, spec=again) for stage, again in later if again is not None)
    return changed(head, spec=spec, inputs=()), *kept
