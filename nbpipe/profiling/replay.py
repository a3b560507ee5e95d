"""Replay: the inputs of every stage are kept from one pass, so that each stage can run alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, final

from ..base.knobs import Knob
from ..base.tree import map_leaves, size_bytes
from ..engine.measures.stats import RunStats
from ..errors import ArgumentError
from ..ops.chain import absorbed
from ..ops.route import with_own_knobs
from ..ops.source import source_of
from ..ops.stage import Chain, Stage, address_book, changed, numbered
from ..run.core import RunCore
from ..run.run import Run
from ..tune.point import slots_of

_ENDLESS = 1 << 40  # items: a replay is left long before
_PREFETCH = 16
_MOST_INPUTS = 4  # of a join with more pipelines, the first one is measured for all
_MEASURED = ("call", "batch", "unbatch", "device", "route")
_WHY_NOT = {
    "join": "not measured: it only passes items on",
    "cache": "not measured: it only keeps items",
    "repeat": "not measured: it only repeats items",
}
_REMEMBERS = "not measured: it needs the items of a whole epoch"


@final
class Replay:
    """Kept items, read by index again and again.

    Containers are copied, since a function may change its item; arrays and objects are shared.

    Args:
        items: at least one.
        length: how many items it gives.
    """

    def __init__(self, items: Sequence[Any], length: int = _ENDLESS) -> None:
        self._items = items
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return fresh(self._items[index % len(self._items)])


def fresh(item: Any) -> Any:
    """Return an item in new containers; what they hold is shared."""
    try:
        return map_leaves(_itself, item)
    except ArgumentError:  # nested too deep
        return item


def _itself(leaf: Any) -> Any:
    return leaf


@dataclass(eq=False)
class Segment:
    """Stages that run together: one, or neighbours that share their calls.

    Attributes:
        addresses: of its stages, in the pipeline; then those of the pipelines and branches in it.
        chain: its stages, with knobs of their own.
        unit: what it hands on, "items" or "batches".
        inputs: what came to it; None if it begins with its own source.
        why_not: why it is not measured; empty if it is.
        kept: how many of its results were kept, if time or memory ended its pass; else empty.
        need: results for each item of the training loop.
    """

    addresses: tuple[str, ...]
    chain: Chain
    unit: str
    inputs: Sequence[Any] | None = None
    why_not: str = ""
    kept: str = ""
    need: float = 1.0

    @property
    def knob(self) -> Knob | None:
        """Its limit of calls, or None."""
        if self.inputs is None:
            return None
        return next((s.knobs["concurrency"] for s in self.chain if "concurrency" in s.knobs), None)

    @property
    def made_of(self) -> int:
        """Inputs of a whole result, as far as that is known beforehand."""
        return math.prod(stage.spec.made_of for stage in self.chain)

    def run(self, length: int = _ENDLESS) -> Run:
        """Start it alone, with what came to it."""
        chain = self.chain
        if self.inputs is not None:
            chain = (_replayed("replay", self.inputs, length, chain), *chain)
        return Run(RunCore(chain, times_steps=False, listed=False))

    def used(self, stats: RunStats) -> float:
        """Return the slot-time that its calls have taken so far in its run [s]."""
        (slots,) = slots_of({stage.name: stage for stage in self.chain})
        return slots.used_s(stats)

    def inputs_each(self, stats: RunStats) -> float:
        """Return how many inputs it takes for a result."""
        exact = not any(
            stage.spec.may_lose or stage.spec.expands or stage.spec.remembers
            for stage in self.chain
        )
        if exact and not self.why_not:
            return self.made_of
        rows, book = list(stats.values()), address_book(self.chain)
        first, last = (stats.get(book[self.chain[place].name]) for place in (0, -1))
        taken = rows[0].items_out if first is None else first.items_in  # or it orders the replay
        return taken / max(1, (rows[-1] if last is None else last).items_out)


def _replayed(name: str, items: Sequence[Any], length: int, beside: Chain) -> Stage:
    taken = {stage.name for stage in beside}
    spec = source_of(Replay(items, length))
    return Stage(spec, name=numbered(name, taken), named=True, prefetch=_PREFETCH)


class _Link(NamedTuple):
    """A step on the way of an item, with the pipelines that it joins.

    Attributes:
        segment: its stages.
        ratio: inputs of a result.
        joined: the pipelines before it, each with its share of the inputs.
    """

    segment: Segment
    ratio: float
    joined: Sequence[tuple[list[_Link], float]] = ()


@final
@dataclass
class StagePass:
    """One pass through a pipeline, stage by stage.

    Args:
        chain: the stages.
        units: what each hands on, by address.
        items: results to keep of each segment [items].
        seconds: time for each segment [s].
        memory_bytes: for all that is kept [bytes].
        told: called with the address of each segment before its pass.

    Attributes:
        segments: in the order of the stages.
        outputs: what the training loop gets.
    """

    chain: Chain
    units: dict[str, str]
    items: int
    seconds: float
    memory_bytes: int
    told: Callable[[str], object]
    segments: list[Segment] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    _book: dict[str, str] = field(default_factory=dict)
    _held_bytes: int = 0

    def make(self) -> None:
        """Run every segment once.

        Raises:
            StageError: a stage failed.
            ArgumentError: a stage gave nothing.
        """
        self._book = address_book(self.chain)
        self.outputs, links = self._recorded(self.chain, "")
        _set_needs(links, 1.0)

    def _recorded(self, chain: Chain, place: str) -> tuple[list[Any], list[_Link]]:
        begin = _head(chain)
        if begin:
            head = self._segment(chain[:begin], place, None)
            outputs, stats = self._passed(head)
            links = [_Link(head, 1.0)]
        else:
            begin = 1
            outputs, link = self._joined(chain[0], place)
            links = [link]
        for group in _groups(chain[begin:]):
            segment = self._segment(group, place, outputs)
            outputs, stats = self._passed(segment)
            links.append(_Link(segment, segment.inputs_each(stats)))
        return outputs, links

    def _segment(self, chain: Chain, place: str, inputs: list[Any] | None) -> Segment:
        own = [self._book[place + stage.name] for stage in chain]
        inside = [self._book.get(place + name, "") for name in address_book(chain)]
        names = (*own, *(name for name in inside if name and name not in own))
        first = chain[0].spec
        why_not = ""
        if inputs is not None and first.runs not in _MEASURED:
            why_not = _WHY_NOT.get(first.runs, _REMEMBERS)
        copies = with_own_knobs(chain, lambda stage: stage.name)
        segment = Segment(names, copies, self.units[own[-1]], inputs, why_not)
        self.segments.append(segment)
        return segment

    def _joined(self, stage: Stage, place: str) -> tuple[list[Any], _Link]:
        """Make a pass through the pipelines of a join, and through the join."""
        chains = stage.inputs if len(stage.inputs) <= _MOST_INPUTS else stage.inputs[:1]
        found = [self._recorded(one, f"{place}{n}/") for n, one in enumerate(chains)]
        all_outputs = [outputs for outputs, _ in found]
        all_outputs += all_outputs[:1] * (len(stage.inputs) - len(found))
        inputs = tuple(
            (_replayed(f"replay{n}", outputs, len(outputs), ()),)
            for n, outputs in enumerate(all_outputs)
        )
        segment = self._segment((changed(stage, inputs=inputs),), place, None)
        segment.why_not = _WHY_NOT["join"]
        if len(chains) < len(stage.inputs):
            segment.why_not += f"; its first pipeline was measured for all {len(stage.inputs)}"
        outputs, stats = self._passed(segment)
        taken = [stats[f"replay{n}"].items_out for n in range(len(inputs))]
        whole = max(1, stats[stage.name].items_out)
        shares = [sum(taken) / whole] if len(found) < len(inputs) else [n / whole for n in taken]
        joined = [(links, share or 1.0) for (_, links), share in zip(found, shares, strict=True)]
        return outputs, _Link(segment, 1.0, joined)

    def _passed(self, segment: Segment) -> tuple[list[Any], RunStats]:
        """Run a segment on its inputs, and keep its results."""
        self.told(segment.addresses[0])
        made_of, given = segment.made_of, len(segment.inputs or ())
        outputs: list[Any] = []
        begun_s, why = 0.0, ""
        with segment.run(-(-max(given, made_of) // made_of) * made_of) as run:
            for item in run:
                begun_s = begun_s or monotonic()  # workers are there now
                outputs.append(item)
                self._held_bytes += size_bytes(item)
                if self._held_bytes >= self.memory_bytes:
                    why = "memory is full"
                elif monotonic() - begun_s >= self.seconds:
                    why = "time is over"
                if why or len(outputs) >= self.items:
                    break
            stats = run.stats()
        if not outputs:
            raise ArgumentError(_nothing(segment, given))
        if why and len(outputs) < self.items:
            count = len(outputs)
            segment.kept = f"kept {count:,} result{'s' * (count != 1)}: {why}"
        return outputs, stats


def _nothing(segment: Segment, given: int) -> str:
    name = segment.addresses[-1]
    of = "" if segment.inputs is None else f" for {given:,} of its inputs"
    return (
        f"profile needs a pipeline that gives something, but {name!r} gave nothing{of}; "
        "check it with pipe.peek(), or give profile larger items= or seconds="
        if segment.inputs is not None
        else f"profile needs a pipeline that gives something, but {name!r} has no items; "
        "check its path, pattern or arguments"
    )


def _set_needs(links: Sequence[_Link], need: float) -> None:
    """Write into each segment how many of its results the loop needs for one of its items."""
    for link in reversed(links):
        link.segment.need = need
        need *= link.ratio
        for joined, share in link.joined:
            _set_needs(joined, need * share)


def _head(chain: Chain) -> int:
    """Return how many stages read the items: a source, what orders its indices, a full cache.

    0 where the chain begins with joined pipelines.
    """
    kept = [place for place, stage in enumerate(chain) if _is_complete(stage)]
    count = kept[-1] + 1 if kept else absorbed(chain)[1]
    if not count:
        count = 0 if chain[0].inputs else 1
    while 0 < count < len(chain) and _is_inline(chain[count]):
        count += 1
    return count


def _is_complete(stage: Stage) -> bool:
    return stage.spec.kept_in is not None and bool(stage.spec.kept_in.complete)


def _is_inline(stage: Stage) -> bool:
    return stage.executor == "inline" and stage.spec.runs == "call"


def _groups(chain: Chain) -> Iterator[Chain]:
    """Part a chain into what runs together."""
    known = {stage.name: stage for stage in chain}
    for slots in slots_of(known):
        yield tuple(known[name] for name in slots.members)
