"""Index steps: what a plan of an order is made of; each opens an order for one epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from .claims import ClaimOrder, Store
from .index_order import (
    CutOrder,
    ItemsOrder,
    JoinedOrder,
    Lengths,
    NumberedOrder,
    Order,
    RepeatOrder,
    Rows,
    ShardOrder,
    ShuffledOrder,
    Tail,
)
from .seeding import Permutation, order_generator
from .weighted import Draw, SampledOrder

_TABLE_ROWS = 2**20  # a longer permutation is computed block by block instead of kept


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an order depends on beside its plan; `passes` of the nearest repeat first."""

    number: int
    passes: tuple[int, ...]
    lengths: Lengths


class Step(ABC):
    """One step of a plan."""

    __slots__ = ()

    @property
    def inner(self) -> tuple[Step, ...]:
        """The steps that this one reads."""
        return ()

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return any(step.endless for step in self.inner)

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return any(step.shuffles for step in self.inner)

    @property
    def sharded(self) -> bool:
        """Whether the rows are part of a global order."""
        return any(step.sharded for step in self.inner)

    @abstractmethod
    def open(self, epoch: Epoch) -> Order:
        """Make the order of `epoch`."""

    @abstractmethod
    def words(self) -> str:
        """Say what this step and those before it do."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Items(Step):
    """A source from first to last."""

    items: Any

    def open(self, epoch: Epoch) -> Order:
        """Read the source."""
        return ItemsOrder(self.items, epoch.lengths.of(self.items))

    def words(self) -> str:
        """Say what this step and those before it do."""
        return type(self.items).__name__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concat(Step):
    """One order after the other."""

    steps: tuple[Step, ...]

    @property
    def inner(self) -> tuple[Step, ...]:
        """The steps that this one reads."""
        return self.steps

    def open(self, epoch: Epoch) -> Order:
        """Join the orders."""
        return JoinedOrder([step.open(epoch) for step in self.steps])

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"concat of {len(self.steps)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OneInner(Step):
    """A step that reads one other."""

    step: Step

    @property
    def inner(self) -> tuple[Step, ...]:
        """The steps that this one reads."""
        return (self.step,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shuffle(OneInner):
    """A permutation of all rows."""

    seed: int

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return True

    def open(self, epoch: Epoch) -> Order:
        """Make the permutation when the first row is picked."""
        child = self.step.open(epoch)
        length = child.length or 0

        def permutation() -> Rows | Permutation:
            generator = order_generator(self.seed, epoch.number, epoch.passes or 0)
            long = length > _TABLE_ROWS
            return Permutation(length, generator) if long else generator.permutation(length)

        return ShuffledOrder(child, permutation)

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"{self.step.words()}, shuffle {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shard(OneInner):
    """One rank's part."""

    rank: int
    world_size: int
    tail: Tail

    @property
    def sharded(self) -> bool:
        """Whether the rows are part of a global order."""
        return True

    def open(self, epoch: Epoch) -> Order:
        """Keep this rank's rows."""
        return ShardOrder(self.step.open(epoch), self.rank, self.world_size, self.tail)

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"{self.step.words()}, shard {self.rank} of {self.world_size} ({self.tail})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cut(OneInner):
    """Rows from `start` on."""

    start: int
    count: int | None  # None: all that follow

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return self.count is None and self.step.endless

    def open(self, epoch: Epoch) -> Order:
        """Cut the order."""
        return CutOrder(self.step.open(epoch), self.start, self.count)

    def words(self) -> str:
        """Say what this step and those before it do."""
        verb = f"skip {self.start}" if self.count is None else f"take {self.count}"
        return f"{self.step.words()}, {verb}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Repeat(OneInner):
    """Passes over all rows."""

    times: int | None

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return self.times is None or (self.times > 0 and self.step.endless)

    def open(self, epoch: Epoch) -> Order:
        """Open the order anew for each pass."""

        def open_pass(number: int) -> Order:
            return self.step.open(Epoch(epoch.number, (number, *epoch.passes), epoch.lengths))

        return RepeatOrder(open_pass, self.times, shuffles=self.step.shuffles)

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"{self.step.words()}, repeat" + ("" if self.times is None else f" {self.times}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enumerate(OneInner):
    """Items with their numbers."""

    def open(self, epoch: Epoch) -> Order:
        """Number the rows."""
        return NumberedOrder(self.step.open(epoch))

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"{self.step.words()}, enumerate"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample(OneInner):
    """Rows drawn by weight."""

    draw: Draw
    count: int | None  # None: as many as there are rows
    seed: int

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return True

    def open(self, epoch: Epoch) -> Order:
        """Draw when the first row is picked."""

        def generator() -> Generator:
            return order_generator(self.seed, epoch.number, epoch.passes or 0).spawn(1)[0]

        return SampledOrder(self.step.open(epoch), self.draw, self.count, generator)

    def words(self) -> str:
        """Say what this step and those before it do."""
        count = "" if self.count is None else f" {self.count}"
        return f"{self.step.words()}, sample{count} {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Claim(OneInner):
    """Chunks of rows, each for the rank that comes first."""

    chunk: int
    store: Store | None
    name: str

    def open(self, epoch: Epoch) -> Order:
        """Name the cursor by pipeline, epoch and passes."""
        key = f"{self.name}/{epoch.number}/{'/'.join(map(str, epoch.passes))}"
        return ClaimOrder(self.step.open(epoch), self.chunk, self.store, key)

    def words(self) -> str:
        """Say what this step and those before it do."""
        return f"{self.step.words()}, claim {self.chunk}"
