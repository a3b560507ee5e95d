"""shard: every so many-th item, for one rank of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..base.checks import integer
from ..base.seeding import Entry
from ..errors import ArgumentError
from .chain import append_plain
from .index import LONGEST, Tail
from .plan import IndexPlan, default_rank
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import Chain, Operation, Stage, given


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shard(Operation):
    """Every `world_size`-th item from `rank` on."""

    label: ClassVar[str] = "shard"
    chooses: ClassVar[bool] = True
    new_order: ClassVar[bool | None] = False
    positional: ClassVar[tuple[str, ...]] = ("rank", "world_size")
    rank: int
    world_size: int
    tail: Tail = "pad"

    def detail(self) -> str:
        """Return rank and world size."""
        return f"{self.rank} of {self.world_size}, {self.tail}"

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Keep the rows of this rank, where they end."""
        if plan.length() is None:
            return None
        return plan.shard(self.rank, self.world_size, self.tail)

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Count this rank's items."""
        if number in (0, math.inf):
            return number
        if self.tail == "drop":
            return number // self.world_size
        if self.tail == "pad":
            return -(-number // self.world_size)
        return max(0, -(-(number - self.rank) // self.world_size))

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Keep this rank's items of the stream."""
        return Sharding(self, node_state)

    @property
    def part(self) -> tuple[int, int] | None:
        """This rank, and how many there are."""
        return self.rank, self.world_size

    @property
    def keeps_neighbours(self) -> bool:
        """What lies between the items of this rank is left out."""
        return False

    def arguments(self, given: frozenset[str]) -> list[tuple[str, Any]]:
        """Return rank and world size only where they were given: else they are those of the job."""
        found = Operation.arguments(self, given)
        return found if "rank" in given else found[2:]


def append_shard(chain: Chain, rank: int | None, world_size: int | None, tail: Tail) -> Chain:
    """Append a shard stage."""
    if any(stage.spec.claims for stage in chain):
        raise ArgumentError(
            "shard cannot follow claim, which splits the order itself; leave one out"
        )
    words = given(rank=rank, world_size=world_size)
    if rank is None and world_size is None:
        known = default_rank()
        if known is None:
            raise ArgumentError(
                "shard needs rank and world_size, for example shard(0, 2): torch.distributed is "
                "not initialised, so they are not known"
            )
        rank, world_size = known
    if rank is None or world_size is None:
        raise ArgumentError(
            f"shard needs both rank and world_size or none, got {rank!r} and {world_size!r}"
        )
    world = integer("shard world_size", world_size, minimum=1, unit="ranks")
    if tail not in ("pad", "drop", "uneven"):
        raise ArgumentError(f"shard tail must be 'pad', 'drop' or 'uneven', got {tail!r}")
    spec = Shard(integer("shard rank", rank, minimum=0, maximum=world - 1), world, tail)
    return append_plain(chain, spec, words=words)


class Sharding(StatefulOp):
    """Every `world_size`-th item of a stream from `rank` on."""

    def __init__(self, spec: Shard, node_state: NodeState) -> None:
        self._rank = spec.rank
        self._world = spec.world_size
        self._tail = spec.tail
        self._rounds = IndexRanges.read(node_state.get("rest", [0, []]))
        self._begun = self._seen = min(self._rounds.start * self._world, node_state.get("seen", 0))
        self._padded: bool = node_state.get("padded", False)
        self._inputs = self._wanted(self._rounds, self._begun)
        self._numbers = self._inputs.numbers(LONGEST)
        self._given = 0
        self._held: Entry | None = None
        self._first: list[Entry] = []  # what "pad" repeats

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Begin with the next round; what is to pad the last one is read again."""
        rounds = self._rounds.of_wanted(rest)
        node_state.update(rest=rounds.data, seen=self._seen)
        node_state["padded"] = self._padded or rest.start > self._given
        return self._inputs.ranked(self._wanted(rounds, self._seen))

    def _wanted(self, rounds: IndexRanges, seen: int) -> IndexRanges:
        """Return the items of the whole stream that are wanted, given the rounds that are."""
        world = self._world
        start = min(rounds.start * world, seen)
        gaps = [(first * world, end * world) for first, end in rounds.gaps]
        if self._tail != "pad":
            return IndexRanges.of(start, gaps)
        return IndexRanges.of(0, [(min(world, start), start), *gaps])

    def process(self, entry: Entry) -> Entry | None:
        """Keep this rank's items; with "drop", until their round is whole."""
        number = next(self._numbers)
        if self._tail == "pad" and len(self._first) < self._world:
            self._first.append(entry)
        if number < self._begun:
            return None
        self._seen = number + 1
        found = self._passed(entry, number % self._world)
        self._given += found is not None
        return found

    def _passed(self, entry: Entry, place: int) -> Entry | None:
        if self._tail != "drop":
            return entry if place == self._rank else None
        if place == self._rank:
            self._held = entry
        if place == self._world - 1:
            whole, self._held = self._held, None
            return whole
        return None

    def finish(self) -> Iterator[Entry]:
        """With "pad", give one of the first items where the last round is short."""
        short = self._seen % self._world
        if self._tail != "pad" or self._padded or not short or self._rank < short:
            return
        place = self._seen - short + self._rank
        path, value = self._first[(place - self._seen) % len(self._first)][:2]
        yield ((*path, place) if isinstance(path, tuple) else (path, place), value)
