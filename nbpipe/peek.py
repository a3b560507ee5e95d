"""Peek: a few items through a pipeline, in the calling thread, and what each stage made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

from .describe import Description, describe, thumbnail_png
from .engine.lane import Lane
from .engine.task import Entry
from .failure import Failure
from .inline import InlineEngine
from .operations import Cache, Concat, Enumerate, Route
from .order import absorbed
from .stage import Chain, Stage, address_book, addresses
from .text import html_table, text_table
from .tree import children
from .units import format_seconds

_HEAD = ("stage", "operation", "items", "output", "range", "per call", "note")
_FIELDS = 8  # fields of an item that are looked through for a picture


@final
@dataclass(frozen=True, slots=True)
class StagePeek:
    """What one stage did.

    Attributes:
        address: name of the stage in its pipeline.
        op: word for its operation.
        items: items that it gave.
        calls: calls of its function, or reads of its source.
        time_s: mean time of a call [s]; 0.0 where there was none.
        output: type, shape, dtype and range of the first item; None where there was none.
        thumbnail: PNG of the image in the first item, or None.
        note: what else there is to know: items skipped, calls tried again.
    """

    address: str
    op: str
    items: int
    calls: int
    time_s: float
    output: Description | None
    thumbnail: bytes | None
    note: str

    def row(self) -> list[str]:
        """Give the cells of a table."""
        shown = self.output
        return [
            self.address,
            self.op,
            str(self.items),
            "" if shown is None else shown.text,
            "" if shown is None else _range(shown),
            format_seconds(self.time_s) if self.time_s else "",
            self.note,
        ]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Peek:
    """What came out, and what each stage did; prints as a table.

    Attributes:
        items: the items that came out.
        stages: for each stage what it gave and how long a call took.
    """

    items: tuple[Any, ...]
    stages: tuple[StagePeek, ...]

    def _caption(self) -> str:
        return f"{_counted(self.items, 'item')} through {_counted(self.stages, 'stage')}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        noted = any(stage.note for stage in self.stages)
        end = len(_HEAD) if noted else -1
        return list(_HEAD[:end]), [stage.row()[:end] for stage in self.stages]

    def __repr__(self) -> str:
        return f"{self._caption()}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        pictures = [stage.thumbnail for stage in self.stages]
        return html_table(*self._table(), caption=self._caption(), pictures=pictures)


def peek(chain: Chain, n: int) -> Peek:
    """Run items through `chain` until `n` came out; leave nothing running.

    It is the beginning of epoch 0 with seed 0. A cache is read, never written.

    Raises:
        StageError: a stage failed before the last of the items, as in a run.
    """
    table = _Table(chain)
    engine = InlineEngine(chain, table)
    items = engine.items(n)
    return Peek(items=tuple(items), stages=tuple(table.rows(engine.lanes)))


def _counted(things: tuple[Any, ...], word: str) -> str:
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _range(shown: Description) -> str:
    if shown.shape is None or shown.low is None or shown.high is None:
        return ""
    return f"{shown.low:g} to {shown.high:g}"


def _picture(value: Any) -> bytes | None:
    """Draw the image that an item is, or the first one in its fields."""
    png = thumbnail_png(value)
    held = () if png else (child for _, child in (children(value) or [])[:_FIELDS])
    return png or next(filter(None, map(thumbnail_png, held)), None)


# -- what is shown ------------------------------------------------------------------------


@dataclass
class _Mark:
    """What is known of one stage so far."""

    items: int = 0
    output: Description | None = None
    thumbnail: bytes | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class _Table:
    """Notes what each stage gives."""

    def __init__(self, chain: Chain) -> None:
        self._stages = addresses(chain)
        self._book = address_book(chain)
        self._marks = {address: _Mark() for address in self._stages}
        # A source reads in the order that the stages right after it ask for: those have no work
        # of their own. By the source's address, each of them and how to get at its own item.
        self._together: dict[str, list[tuple[str, int]]] = {}
        for part, place in _parts(chain, ""):
            self._look_for_absorbed(part, place)
            self._look_for_cached(part, place)

    def _look_for_absorbed(self, chain: Chain, place: str) -> None:
        _, used = absorbed(chain)
        group: list[tuple[str, int]] = []
        wrapped = 0
        for stage in reversed(chain[:used]):
            group.append((self._book[place + stage.name], wrapped))
            wrapped += isinstance(stage.spec, Enumerate)
        if used:
            self._together[self._book[place + chain[0].name]] = group
        if used and isinstance(chain[0].spec, Concat):
            self._note_all(chain[0], place, f"read by index, by {chain[0].name!r}")

    def _look_for_cached(self, chain: Chain, place: str) -> None:
        kept = [
            n for n, s in enumerate(chain) if isinstance(s.spec, Cache) and s.spec.store.complete
        ]
        for stage in chain[: kept[-1]] if kept else ():
            note = f"not run: {chain[kept[-1]].name!r} is complete"
            self._marks[self._book[place + stage.name]].notes.append(note)
            self._note_all(stage, place, note)

    def _note_all(self, stage: Stage, place: str, note: str) -> None:
        for number, inner in enumerate(stage.inputs):
            for part, where in _parts(inner, _inside(stage, place, number)):
                for one in part:
                    self._marks[self._book[where + one.name]].notes.append(note)

    def gave(self, address: str, entries: Iterable[Entry]) -> None:
        """Note what a stage gave; the first item is described before anyone changes it."""
        for entry in entries:
            for name, wrapped in self._together.get(address, ((address, 0),)):
                mark = self._marks[name]
                mark.items += 1
                if mark.output is None:
                    value = entry[1]
                    for _ in range(wrapped):
                        value = value[1]
                    mark.output, mark.thumbnail = describe(value), _picture(value)

    def failed(self, failure: Failure) -> None:
        """Note an item that failed."""
        self._marks[failure.stage].failures.append(failure)

    def rows(self, lanes: dict[str, Lane]) -> Iterator[StagePeek]:
        """Give what was noted, stage by stage."""
        for address, stage in self._stages.items():
            mark = self._marks[address]
            counters = lanes[address].counters if address in lanes else None
            calls = counters.items_in if counters and counters.busy_ns else 0
            if counters and counters.retries:
                mark.notes.append(f"{counters.retries} tried again")
            if mark.failures:
                mark.notes.append(f"{len(mark.failures)} skipped, last: {mark.failures[-1].error}")
            yield StagePeek(
                address=address,
                op=stage.op,
                items=mark.items,
                calls=calls,
                time_s=counters.busy_ns / calls / 1e9 if counters and calls else 0.0,
                output=mark.output,
                thumbnail=mark.thumbnail,
                note="; ".join(dict.fromkeys(mark.notes)),
            )


def _parts(chain: Chain, place: str) -> Iterator[tuple[Chain, str]]:
    """Give a chain and all chains that are joined in it, with their places."""
    yield chain, place
    for stage in chain:
        for number, inner in enumerate(stage.inputs):
            yield from _parts(inner, _inside(stage, place, number))


def _inside(stage: Stage, place: str, number: int) -> str:
    return place if isinstance(stage.spec, Route) else f"{place}{number}/"
