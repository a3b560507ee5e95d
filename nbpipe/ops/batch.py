"""batch and unbatch: samples are collated, batches taken apart again."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..base.checks import (
    Function,
    as_float,
    boolean,
    integer,
    plain_function,
    refuse_coroutine,
    refuse_table,
)
from ..base.collate import BatchMemory, check_options, collate
from ..base.seeding import Entry
from ..base.tree import children, is_tensor, is_tensor_collection, rebuild
from ..errors import ArgumentError, LengthUnknownError
from .call import executor_spec_of, joined, place
from .chain import BATCHES, append_plain, new_name
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import WORDS_TEXT, Chain, ExecutorSpec, Operation, Runs, Stage, given, regions_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch(Operation):
    """Gather `size` items, or items whose `cost` sums to at most `size`."""

    label: ClassVar[str] = "batch"
    runs: ClassVar[Runs] = "batch"
    may_branch: ClassVar[bool] = True
    unit: ClassVar[Literal["items", "batches"] | None] = "batches"
    gathers: ClassVar[bool] = True
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

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Count the batches, the last one too where it is not dropped."""
        if self.cost is not None:
            raise LengthUnknownError(f"{stage.name!r} gathers by cost: the batches are not known")
        if number == math.inf:
            return number
        return number // self.size if self.drop_last else -(-number // self.size)

    def state_words(self) -> dict[str, Any]:
        """Return what decides which items are in a batch."""
        by_cost = self.cost is not None
        return {"size": self.size, "drop_last": self.drop_last, "by_cost": by_cost}

    @property
    def remembers(self) -> bool:
        """It does where it gathers by cost: their sum."""
        return self.cost is not None

    @property
    def made_of(self) -> int:
        """How many items a whole batch has, unless that is a matter of cost."""
        return int(self.size) if self.cost is None else 1

    def of_chosen(self) -> Batch:
        """Return the last batch too: there may be no whole one."""
        return replace(self, drop_last=False)

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Gather by cost."""
        return BatchByCost(self, node_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unbatch(Operation):
    """Take batches apart again."""

    label: ClassVar[str] = "unbatch"
    uncounted: ClassVar[bool] = True
    runs: ClassVar[Runs] = "unbatch"
    may_branch: ClassVar[bool] = True
    unit: ClassVar[Literal["items", "batches"] | None] = "items"


def append_batch(
    chain: Chain, size: Any, options: Mapping[str, Any], name: str | None, prefetch: int | None
) -> Chain:
    """Append a batch stage."""
    stage_name, named = new_name(chain, "batch", None, name)
    spec = _batch_spec(stage_name, size, options)
    executor_spec = _batch_placement(stage_name, options, by_cost=spec.cost is not None)
    executor_spec = executor_spec or _followed(chain, spec, options["executor"])
    if executor_spec is not None:
        knobs = (options["concurrency"], prefetch)
        return place(
            chain, spec, executor_spec, *knobs, name=stage_name, named=named, prefetch_else=BATCHES
        )
    held = BATCHES if prefetch is None else prefetch
    return (
        *chain,
        Stage(
            spec,
            name=stage_name,
            named=named,
            prefetch=held,
            given=given(prefetch=prefetch, executor=options["executor"]),
        ),
    )


def _followed(chain: Chain, spec: Batch, executor: object) -> ExecutorSpec | None:
    """Return the worker processes above if batches can be made there and no option forbids it."""
    above = chain[-1].executor_spec if chain else None
    if executor is not None or spec.cost is not None or above is None:
        return None
    follows = ExecutorSpec("process", copy=above.copy, follows=True)
    if joined(chain, spec, follows) is None:
        return None
    calls: list[Any] = [stage.spec for stage in regions_of(chain)[-1]]
    return follows if all(call.ordered for call in calls) else None


def _batch_spec(stage_name: str, size: Any, options: Mapping[str, Any]) -> Batch:
    cost, collate, names = options["cost"], options["collate"], options["names"]
    if cost is None:
        size = integer("batch size", size, minimum=1, maximum=2**31, unit="items")
    elif not 0 < as_float(size) < math.inf:
        raise ArgumentError(f"batch size must be a finite number above 0 with cost, got {size!r}")
    for word in ("cost", "collate"):
        if options[word] is not None:
            plain_function(f"{stage_name} {word}", options[word])
    given = [word for word in ("names", "dtype", "pad") if options[word] is not None]
    if collate is not None and given:
        raise ArgumentError(
            f"{stage_name} collate replaces the stacking, so {', '.join(given)} would do "
            "nothing; leave one out"
        )
    check_options(names, options["dtype"], options["pad"])
    return Batch(
        size=size,
        drop_last=boolean(f"{stage_name} drop_last", options["drop_last"]),
        collate=collate,
        names=None if names is None else tuple(names),
        dtype=options["dtype"],
        pad=options["pad"],
        cost=cost,
    )


def _batch_placement(
    stage_name: str, options: Mapping[str, Any], *, by_cost: bool
) -> ExecutorSpec | None:
    executor = options["executor"]
    executor_spec = executor_spec_of(stage_name, executor, {})
    if executor not in (None, "thread") and executor_spec is None:
        raise ArgumentError(
            f"{stage_name} executor must be 'thread', {WORDS_TEXT}, an Executor or a Dask "
            f"client, got {executor!r}"
        )
    if executor_spec is not None and by_cost:
        raise ArgumentError(
            f"{stage_name} executor={executor!r} does not go with cost: batches of a budget are "
            "gathered one after the other; leave executor out, and collate in a stage after it"
        )
    if executor_spec is None and options["concurrency"] is not None:
        raise ArgumentError(
            f"{stage_name} concurrency needs workers: batches are gathered one after the other; "
            'leave it out, or use executor="process"'
        )
    return executor_spec


def append_unbatch(chain: Chain) -> Chain:
    """Append an unbatch stage."""
    return append_plain(chain, Unbatch())


class Collate:
    """Calls the user's collate function, or stacks as `collate` does.

    Attributes:
        memory: allocates what samples are stacked into, or None.
    """

    def __init__(self, spec: Batch) -> None:
        self._spec = spec
        self.memory: BatchMemory | None = None

    def __call__(self, samples: list[Any]) -> Any:
        """Make one batch."""
        spec = self._spec
        if spec.collate is not None:
            made = spec.collate(samples)
            refuse_coroutine("collate", made)
            return made
        return collate(
            samples, names=spec.names, dtype=spec.dtype, pad=spec.pad, memory=self.memory
        )


class BatchByCost(StatefulOp):
    """Gathers items while the sum of their costs stays within `size`.

    A batch is given when the item after it comes, and in a route it stands in that item's place.
    So where the batch after it is not needed any more, the first item of that one still is: it
    comes again as a batch of its own, which is not given. Its size is negative in a state.
    """

    def __init__(self, spec: Batch, node_state: dict[str, Any]) -> None:
        self._spec = spec
        self.collate = Collate(spec)
        self._known = deque(node_state.get("sizes", ()))  # of batches that the loop has not got
        # For each batch given: how many items before it were not given, and its size; the first is
        # number `_first`, and has so many items before it.
        self._sizes: deque[tuple[int, int]] = deque()
        self._first = self._before = self._left_out = 0
        self._lock = threading.Lock()  # another thread may ask during a push
        self._entries: list[Entry] = []
        self._sum = 0.0

    def rest_of_input(self, rest: IndexRanges, node_state: dict[str, Any]) -> IndexRanges:
        """Return how many items belong to the batches that are not wanted."""
        with self._lock:
            given, known = [*self._sizes, (self._left_out, 0)], list(self._known)
        again: list[int] = []
        gone: list[tuple[int, int]] = []
        at, closes = self._before, False  # whether the item there closes a batch that is wanted
        for number, (left_out, size) in enumerate(given, self._first):
            is_wanted = bool(size) and number in rest
            begins, ends = at + left_out, at + left_out + size
            if closes and (left_out or (size and not is_wanted)):
                again.append(-1)
                at += 1
            if is_wanted:
                again.append(size)
                ends = begins
            if at < ends:
                gone.append((at, ends))
            at, closes = begins + size, is_wanted
        node_state["sizes"] = [*again, *known]
        return IndexRanges.of(self._before, gone)

    def forget(self, start: int) -> None:
        """Forget the sizes of the batches before number `start`."""
        for _ in range(min(start - self._first, len(self._sizes))):
            self._before += sum(self._sizes.popleft())
            self._first += 1

    def process(self, entry: Entry) -> Entry | None:
        """Add an item; give the batch before it where it does not fit any more."""
        full = None
        if self._is_as_before():
            full = self._close()  # now as it was given before: some item came after it
        if not self._known:
            cost = self._cost(entry)
            if self._entries and self._sum + cost > self._spec.size:
                full = self._close()
            self._sum += cost
        self._entries.append(entry)
        return full

    def _cost(self, entry: Entry) -> float:
        assert self._spec.cost is not None
        given = self._spec.cost(entry[1])
        refuse_coroutine("batch cost", given)
        cost = as_float(given)
        if not 0 <= cost <= self._spec.size:
            raise ArgumentError(
                f"batch cost of an item must be a number in [0, {self._spec.size:g}], got "
                f"{given!r}; filter such items out, or raise the size"
            )
        return cost

    def _is_as_before(self) -> bool:
        """Return whether a batch has the size that it had when the state was taken."""
        return bool(self._known) and len(self._entries) == abs(self._known[0])

    def _close(self) -> Entry | None:
        entries, self._entries, self._sum = self._entries, [], 0.0
        with self._lock:
            if self._known and self._known.popleft() < 0:
                self._left_out += len(entries)
                return None
            self._sizes.append((self._left_out, len(entries)))
            self._left_out = 0
        return (entries[0][0], self.collate([entry[1] for entry in entries]))

    def finish(self) -> Iterator[Entry]:
        """Return the last batch, unless it is dropped."""
        if self._entries and (self._is_as_before() or not self._spec.drop_last):
            last = self._close()
            if last is not None:
                yield last


def split_batch(batch: Any) -> list[Any]:
    """Take a batch apart along the first dimension of everything in it.

    Raises:
        ArgumentError: the parts differ in length, or the item has no first dimension.
        ArgumentTypeError: a part is a table.
    """
    refuse_table("unbatch must be given", batch)
    if is_tensor_collection(batch) and len(batch.batch_size):
        return list(batch.unbind(0))
    if is_tensor(batch) and batch.is_nested:
        return list(batch.unbind())
    if isinstance(batch, Mapping) and not is_tensor_collection(batch):
        columns = [split_batch(value) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in _rows(columns)]
    if isinstance(batch, tuple):
        columns = [split_batch(value) for value in batch]
        make = type(batch)._make if hasattr(batch, "_make") else tuple
        return [make(row) for row in _rows(columns)]
    if _is_dataclass(batch):
        columns = [split_batch(value) for _, value in children(batch) or ()]
        return [rebuild(batch, list(row)) for row in _rows(columns)]
    sized = hasattr(batch, "__getitem__") and hasattr(batch, "__len__")
    if sized and not isinstance(batch, str | bytes | Mapping) and getattr(batch, "ndim", 1) > 0:
        return list(batch)
    raise ArgumentError(
        f"unbatch needs a batch with a first dimension, got {type(batch).__name__}; "
        "use flat_map with a function that takes it apart"
    )


def _is_dataclass(batch: Any) -> bool:
    found = dataclasses.is_dataclass(batch) and not isinstance(batch, type)
    return found and not is_tensor_collection(batch)


def _rows(columns: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ArgumentError(f"unbatch needs parts of equal length, got lengths {sorted(lengths)}")
    return zip(*columns, strict=True)
