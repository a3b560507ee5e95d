"""Empty: which stage is why an epoch gives its loop nothing, and what to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base.format import unit_of
from ...engine.measures.stats import StageStats, Status
from ...ops.chain import emptied_by, known_length
from ...ops.stage import CONSUMER, Stage
from .diagnosis import EMPTY, Diagnosis, short_name

_MANY = 100  # a filter that lets none of so many items pass is reported [items]


class _Lost(NamedTuple):
    """A stage that hands on nothing.

    Attributes:
        name: its address, as sentences have it.
        stage: the stage.
        row: its stats.
        came: how many items came to it.
        unit: "items" or "batches".
    """

    name: str
    stage: Stage
    row: StageStats
    came: int
    unit: str

    @property
    def items(self) -> str:
        """What came to it, as "7 items"."""
        return f"{self.came:,} {unit_of(self.came, self.unit)}"


def nothing_came(
    stages: Mapping[str, Stage], status: Status, stats: Mapping[str, StageStats]
) -> Diagnosis | None:
    """Say why an epoch gave its loop nothing; None where it gave something, or may still do so."""
    if status.delivered or not status.has_begun:
        return None
    if not status.is_over:
        return _so_far(stages, status, stats)
    if not status.came_to_its_end:
        return None
    if status.called != "run":
        return _empty(
            next(iter(stages)),
            "The loader gave 0 batches.",
            "Check that the dataset and the sampler have items: drop_last drops a last batch that "
            "is not full.",
        )
    address, count, unit = _culprit(stages, status, stats)
    lost = _Lost(
        short_name(address), stages[address], stats.get(address, StageStats()), count, unit
    )
    finding, advice = _words(lost, status, alone=sum(one.op == "source" for one in stages.values()))
    return _empty(address, f"{finding}.", advice)


def _empty(address: str, text: str, advice: str) -> Diagnosis:
    return Diagnosis(stage=address, cause="empty", text=text, advice=advice, kind=EMPTY)


def _so_far(
    stages: Mapping[str, Stage], status: Status, stats: Mapping[str, StageStats]
) -> Diagnosis | None:
    """Find a filter that has let no item pass, of many."""
    for address, row in stats.items():
        if address == CONSUMER or stages[address].op != "filter" or row.epoch_out:
            continue
        if row.epoch_in >= _MANY:
            lost = _Lost(short_name(address), stages[address], row, row.epoch_in, "items")
            finding, advice = _words(lost, status, alone=1)
            return _empty(address, f"{finding} so far.", advice)
    return None


def _culprit(
    stages: Mapping[str, Stage], status: Status, stats: Mapping[str, StageStats]
) -> tuple[str, int, str]:
    """Return the stage that hands on nothing, and how many items came to it, with their unit."""
    inner = {id(one) for stage in stages.values() for chain in stage.inputs for one in chain}
    look = _Look({id(stage): name for name, stage in stages.items()}, status, stats)
    return look.culprit([stage for stage in stages.values() if id(stage) not in inner])


class _Look(NamedTuple):
    """The stages of an epoch that gave nothing, and their numbers.

    Attributes:
        names: the address of each stage, by its `id`.
        status: of the run.
        stats: by address.
    """

    names: Mapping[int, str]
    status: Status
    stats: Mapping[str, StageStats]

    def given(self, stage: Stage) -> int:
        """Return how many items a stage gave; 0 where it has no row."""
        row = self.stats.get(self.names[id(stage)])
        return 0 if row is None else row.epoch_out

    def culprit(self, chain: Sequence[Stage]) -> tuple[str, int, str]:
        """Return the stage of a chain that hands on nothing, and what came to it."""
        below: Stage | None = None
        for stage in reversed(chain):
            count = self.given(stage)
            if count and below is not None:
                above = self.names[id(stage)]
                return self.names[id(below)], count, self.status.units.get(above, "items")
            if stage.inputs and not stage.spec.branches:
                return self._of_inputs(stage)
            if self.names[id(stage)] in self.stats:
                below = stage
        place, before = emptied_by(tuple(chain)) or (0, 0)
        return self.names[id(chain[place])], before, "items"

    def _of_inputs(self, join: Stage) -> tuple[str, int, str]:
        """Return what leaves an input empty: where most was lost, unless one empty input is enough.

        The others of a `zip` may be cut off before they gave anything.
        """
        silent = [chain for chain in join.inputs if not self.given(chain[-1])]
        known = [chain for chain in silent if join.op == "zip" and known_length(chain) == 0]
        found = [self.culprit(chain) for chain in known or silent]
        if not found:
            return self.names[id(join)], sum(self.given(one[-1]) for one in join.inputs), "items"
        return max(found, key=lambda one: one[1])


def _words(lost: _Lost, status: Status, *, alone: int) -> tuple[str, str]:
    """Return what was found, and what to do."""
    name, op, items = lost.name, lost.stage.op, lost.items
    if op == "source" and lost.row.items_out:
        return (
            f"{name} gave 0 items, and {lost.row.items_out:,} in earlier epochs",
            "Return a new iterator at each call of its function.",
        )
    if op == "source":
        who = "The source" if alone == 1 else name
        return f"{who} gave 0 items", "Check its path or pattern: print the items before the run."
    if status.skipped and lost.row.errors:
        return (
            f"{name} failed on {status.skipped:,} of {items}, and nothing was left",
            f"See {status.called}.failures() for inputs and tracebacks.",
        )
    if op == "batch" and getattr(lost.stage.spec, "drop_last", False):
        return (
            f"{name} dropped the only {items}, which fill no batch",
            f"Set a batch size of at most {lost.came}, or leave out drop_last.",
        )
    if op in _SETTINGS:
        return f"{name} left none of {items}", _SETTINGS[op]
    if op == "filter":
        return f"{name} let none of {items} pass", "Call its function on one item."
    return f"{name} gave nothing for {items}", "Call its function on one item, or see pipe.peek()."


_SETTINGS = {  # what to change in the arguments of an operation that leaves no item
    "take": "Take more than 0 items.",
    "skip": "Skip fewer items.",
    "shard": "Give each rank an item: use fewer ranks.",
    "window": "Use a shorter window.",
}
