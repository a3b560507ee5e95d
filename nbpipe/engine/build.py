"""Build the nodes of an epoch from a chain of stages."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

from ..base.seeding import Path, order_generator
from ..ops.cache import Made, Store
from ..ops.checkpoint import check_below
from ..ops.index import Rest
from ..ops.operations import (
    Batch,
    Cache,
    Call,
    Concat,
    FlatMap,
    Interleave,
    Mix,
    Repeat,
    Route,
    Source,
    Unbatch,
    Zip,
)
from ..ops.order import absorbed
from ..ops.stage import Chain, Stage, address_book, regions_of
from .expand import (
    CallOpener,
    ExpandNode,
    FedNode,
    ReplayOpener,
    SourceOpener,
    is_async_source,
    rest_in,
)
from .external import Feed, GivenItems
from .failures import Budget
from .fold import (
    Dropping,
    Recording,
    StreamNode,
    StreamOperation,
    StreamStep,
    operation_of,
    split_batch,
)
from .join import (
    Chooser,
    ConcatMover,
    InterleaveMover,
    MergeMover,
    MixMover,
    Mover,
    Outlet,
    PumpNode,
    RepeatMover,
    SplitMover,
    ZipMover,
    numbers_of,
)
from .lane import Lane
from .map import MapNode, Step, step_of
from .node import Node, Stages
from .program import RegionNode, node_of
from .regions import Regions, direct_node, let_read
from .task import EpochContext

if TYPE_CHECKING:
    from .epoch import Epoch

# -- Part: the nodes of one chain, while they are made and put together ----------------------------
_AHEAD = 8  # prefetch of what moves items in front of the first batch


class Part:
    """Nodes of one chain, while it is being built."""

    def __init__(
        self,
        builder: Builder,
        place: str,
        passes: tuple[int, ...],
        nodes: list[Node],
        context: EpochContext,
    ) -> None:
        self._builder = builder
        self._epoch = builder.epoch
        self.own = self._context = context
        self._place = place
        self._own_passes = self._passes = passes
        self._nodes = nodes
        self._batched = False
        self._known: dict[str, dict[str, Any]] = {}

    def _stands(self, lane: Lane) -> dict[str, Any]:
        """Give where a stage stands; asking again gives the same."""
        if lane.address not in self._known:
            self._known[lane.address] = self._builder.stands(lane.address)
        return self._known[lane.address]

    def make_as_of(self, epoch: int, passes: tuple[int, ...]) -> None:
        """Let the stages that follow make the items of this epoch and these passes."""
        self._context = self.own if epoch == self.own.epoch else self.own.as_of(epoch)
        self._passes = passes

    def _lane(self, stage: Stage) -> Lane:
        return self._builder.lane(self._place, stage, batched=self._batched)

    def _input(self, number: int, chain: Chain) -> list[Node]:
        place = f"{self._place}{number}/"
        return self._builder.nodes(chain, place, self._passes, context=self._context)

    def _append(self, node: Node) -> None:
        if self._nodes:
            connect((self._nodes[-1],), node)
        self._nodes.append(node)

    def add(self, group: Sequence[Stage]) -> None:
        """Add the nodes of one stage, or of stages that share their workers."""
        if group[0].placement is not None and self._builder.regions is not None:
            self._region(group, self._builder.regions)
            return
        if group[0].executor == "device":
            for stage in group:
                self._append(direct_node(self._lane(stage), self._epoch, stage))
            return
        for stage in group:
            self._add(stage)

    def _add(self, stage: Stage) -> None:
        spec = stage.spec
        if isinstance(spec, Source):
            self.source(stage, spec)
        elif isinstance(spec, Call):
            self._call(stage, spec)
        elif isinstance(spec, Batch):
            self._batch(stage, spec)
        elif isinstance(spec, Unbatch):
            self._batched = False
            lane = self._lane(stage)
            step = Step(lane.address, split_batch, self._context)
            known = self._children(lane)
            self._append(ExpandNode(lane, self._epoch, CallOpener(step), known=known))
        elif isinstance(spec, Zip | Concat | Mix | Interleave):
            self._join(stage, spec)
        elif isinstance(spec, Route):
            self._route(stage, spec)
        elif isinstance(spec, Cache):
            made = self._builder.made(spec.store)
            if made is None:
                self._record(stage, spec)
            else:
                self._replay(stage, spec, made)
        else:
            self._stream(stage)

    def source(self, stage: Stage, spec: Source) -> None:
        """Add a source, or another pipeline and a buffer behind it."""
        if stage.inputs and spec.plan is None:
            inner = self._builder.nodes(
                stage.inputs[0], f"{self._place}0/", self._passes, context=self._context
            )
            self._nodes.extend(inner)
            self._append(PumpNode(self._lane(stage), self._epoch, ConcatMover(deepen=False)))
            return
        lane = self._lane(stage)
        stands = self._stands(lane)
        opener = SourceOpener(lane.address, spec, self._context, self._passes, stands)
        if type(spec.items) is GivenItems and isinstance(spec.items.order, Feed):
            self._append(FedNode(lane, self._epoch, opener, spec.items.order))
            return
        remote = self._builder.once(stage, lambda: is_async_source(spec.items))
        self._append(ExpandNode(lane, self._epoch, opener, remote=remote, source=True))

    def _call(self, stage: Stage, spec: Call) -> None:
        lane = self._lane(stage)
        step = step_of(lane.address, spec, self._context, stage.executor)
        budget = self._budget(lane, stage)
        previous = self._nodes[-1]
        flat = isinstance(spec, FlatMap)
        if stage.executor == "inline" and not flat and _takes_fused(previous):
            previous.rest += (step,)
            previous.rest_lanes += (lane,)
            previous.rest_budgets += (budget,)
            previous.guarded = previous.guarded or spec.policy.max_failures is not None
            return
        if stage.executor == "inline":
            lane.cost_ns = 0.0  # run by whoever comes next
        remote = stage.executor == "coroutine"
        node: Node
        if flat:
            opener = CallOpener(step)
            known = self._children(lane)
            node = ExpandNode(
                lane, self._epoch, opener, ordered=spec.ordered, remote=remote, known=known
            )
        else:
            node = MapNode(lane, self._epoch, step, ordered=spec.ordered, remote=remote)
        if spec.policy.max_failures is not None:
            node.budget = budget
            node.guarded = True
        self._append(node)

    def _children(self, lane: Lane) -> dict[Path, Rest]:
        """Give for the paths of items of which only some children are wanted, those."""
        parts = self._stands(lane).get("children", ())
        return {path_in(path): Rest.read(rest) for path, rest in parts}

    def _budget(self, lane: Lane, stage: Stage) -> Budget:
        policy = getattr(stage.spec, "policy", None)
        budget = Budget(lane.address, policy.max_failures if policy else None)
        budget.failures, budget.seen = self._stands(lane).get("failed", (0, 0))
        return budget

    def _region(self, group: Sequence[Stage], regions: Regions) -> None:
        lanes = [self._lane(stage) for stage in group]
        for lane in lanes[:-1]:
            lane.prefetch = 0  # behind an inner stage nothing waits
        region = regions.region(group, [lane.address for lane in lanes], self._context)
        budgets = [self._budget(lane, lane.stage) for lane in lanes]
        self._batched = self._batched or any(isinstance(one.spec, Batch) for one in group)
        node = node_of(group, lanes[-1], self._epoch, region, self._children(lanes[0]))
        node.rest_lanes, node.rest_budgets = tuple(lanes[:-1]), tuple(budgets[:-1])
        if any(_max_failures(stage) is not None for stage in group):
            node.budget = budgets[-1]
            node.guarded = True
        self._append(node)

    def _batch(self, stage: Stage, spec: Batch) -> None:
        self._batched = True
        if spec.cost is not None:
            self._stream(stage)
            return
        lane = self._lane(stage)
        step = step_of(lane.address, spec, self._context, stage.executor)
        node = MapNode(lane, self._epoch, step, gather=int(spec.size), drop_last=spec.drop_last)
        self._append(node)

    def _stream(self, stage: Stage) -> None:
        lane = self._lane(stage)
        stands = self._stands(lane)
        self._operate(lane, operation_of(stage, self._context, self._passes, stands))
        self._drop(lane, stands)

    def _operate(self, lane: Lane, operation: StreamOperation) -> None:
        step = StreamStep(lane.address, operation, self._context)
        self._append(StreamNode(lane, self._epoch, step))

    def _drop(self, lane: Lane, stands: dict[str, Any]) -> None:
        """Leave out again what the loop has had, where the stage itself begins before that."""
        if "drop" in stands:
            self._operate(_unseen(lane), Dropping(Rest.read(stands["drop"])))

    def _record(self, stage: Stage, spec: Cache) -> None:
        """Add a cache that is not complete; what was replayed before is made again."""
        lane = self._lane(stage)
        stands = self._stands(lane)
        again = stands if stands.get("by") == "replay" else {}
        about = {} if again else stands
        made = self._context.epoch, self._passes
        self._operate(lane, Recording(spec.store, self._own_passes, made, about))
        left = rest_in(again).of_wanted(rest_in(stands, "drop"))
        self._drop(lane, {} if left.is_all else {"drop": left.data})

    def _replay(self, stage: Stage, spec: Cache, made: Made) -> None:
        self._nodes.clear()
        lane = self._lane(stage)
        stands = self._stands(lane)
        rest = rest_in(stands).of_wanted(rest_in(stands, "drop"))
        opener = ReplayOpener(
            lane.address, spec.store, made, self._context, passes=self._passes, rest=rest
        )
        self._append(ExpandNode(lane, self._epoch, opener, source=True))

    def _join(self, stage: Stage, spec: Zip | Concat | Mix | Interleave) -> None:
        inputs = [
            self._builder.nodes(
                chain, f"{self._place}{number}/", self._passes, context=self._context
            )
            for number, chain in enumerate(stage.inputs)
        ]
        lane = self._lane(stage)
        mover, at_first = self._mover(stage, spec, lane)
        opened = [n for n in range(len(inputs)) if n in at_first]
        for number, nodes in enumerate(inputs):
            if number not in at_first:
                self._epoch.keep_closed(nodes[-1], nodes[::-1])
        for number in reversed(opened):
            self._nodes.extend(inputs[number])
        pump = PumpNode(lane, self._epoch, mover)
        connect([nodes[-1] for nodes in inputs], pump)
        self._nodes.append(pump)

    def _mover(
        self, stage: Stage, spec: Zip | Concat | Mix | Interleave, lane: Lane
    ) -> tuple[Mover, Container[int]]:
        """Give what joins the inputs, and the numbers of those that are open at first."""
        address, stands = lane.address, self._stands(lane)
        every = range(len(stage.inputs))
        if isinstance(spec, Zip):
            return ZipMover(strict=spec.strict), every
        if isinstance(spec, Concat):
            first = stands.get("first", 0)
            check_below(address, "first", (first,), len(every))
            return ConcatMover(first=first), range(first, first + 2)
        if isinstance(spec, Interleave):
            turns = InterleaveMover(address, len(every), spec.cycle, stands)
            return turns, turns.at_first
        rng = order_generator(spec.seed, self._context.epoch, self._passes or 0)
        shortest = spec.stop == "shortest"
        return MixMover(address, spec.weights, rng, shortest=shortest, stands=stands), every

    def repeat(self, chain: Chain, place: int) -> None:
        """Add everything up to a repeat; it is built again for each pass."""
        stage = chain[place]
        assert isinstance(stage.spec, Repeat)
        above = chain[:place]
        builder, here, passes = self._builder, self._place, self._passes
        context = self._context

        def build(number: int) -> Sequence[Node]:
            return builder.nodes(above, here, (number, *passes), context=context)[::-1]

        lane = self._lane(stage)
        stands = self._stands(lane)
        number = stands.get("pass", 0)
        if stage.spec.times is not None:
            check_below(lane.address, "pass", (number,), stage.spec.times)
        self._nodes.extend(build(number)[::-1])
        self._batched = any(isinstance(s.spec, Batch) for s in above)
        mover = RepeatMover(stage.spec.times, build, builder.look_again, stands)
        self._append(PumpNode(self._lane(stage), self._epoch, mover))
        self._drop(lane, stands)

    def _route(self, stage: Stage, spec: Route) -> None:
        epoch, lane = self._epoch, self._lane(stage)
        numbers = self._builder.once(stage, lambda: numbers_of(spec))
        step = Step(lane.address, Chooser(lane.address, spec, numbers), self._context)
        self._append(MapNode(lane, epoch, step))
        outlets = [Outlet(_unseen(lane), epoch) for _ in spec.values]
        mover = SplitMover(outlets)
        split = PumpNode(_unseen(lane), epoch, mover)
        self._append(split)
        branches = []
        for outlet, chain in zip(outlets, stage.inputs, strict=True):
            outlet.upstream = (split,)
            branch = self._builder.nodes(chain, self._place, self._passes, outlet, self._context)
            branches.append(branch)
            self._nodes.extend(branch)
        merge = PumpNode(_unseen(lane), epoch, MergeMover(split, mover.order, branches))
        connect([branch[-1] for branch in branches], merge)
        self._nodes.append(merge)


def path_in(path: Any) -> Path:
    """Give a path that was written as JSON."""
    return tuple(path) if isinstance(path, list) else path


def _unseen(lane: Lane) -> Lane:
    """Give a lane that does not show in the stats."""
    return Lane(lane.address, lane.stage, prefetch=_AHEAD, now_ns=0)


def _max_failures(stage: Stage) -> int | float | None:
    return stage.spec.policy.max_failures if isinstance(stage.spec, Call) else None


def _takes_fused(node: Node) -> bool:
    if isinstance(node, RegionNode):
        return False
    return not node.remote and (
        isinstance(node, MapNode) or (isinstance(node, ExpandNode) and node.source)
    )


def connect(above: Sequence[Node], node: Node) -> None:
    """Let `node` take from the nodes above."""
    node.upstream = tuple(above)
    for one in above:
        one.downstream = node
    node.inbox = above[0].out
    if isinstance(node, MapNode):
        above[0].gathers = node.gather


# -- Build the nodes of an epoch from a chain of stages --------------------------------------------
SAMPLES, BATCHES = 8, 2  # prefetch of stages without a knob: before and after the first batch


class Builder:
    """Builds one epoch.

    Args:
        epoch: the epoch to fill.
        lane_of: gives the run's lane for an address, made at first use.
        regions: gives stages their workers outside the run's threads; None lets them run
            like those in threads.
        stands: where stages stand, by address, for an epoch that goes on in its middle.
    """

    def __init__(
        self,
        chain: Chain,
        epoch: Epoch,
        lane_of: Callable[[str, Stage, int], Lane],
        regions: Regions | None = None,
        stands: Stages | None = None,
    ) -> None:
        self._stands = dict(stands or {})
        self._found: dict[int, Any] = {}  # by the id of a stage
        self._caches: dict[int, tuple[Store, Made | None]] = {}  # by the id of a store
        self._chain = chain
        self._epoch = epoch
        self._lane_of = lane_of
        self._addresses = address_book(chain)
        self.regions = regions

    def build(self) -> None:
        """Make all nodes and install them in the epoch."""
        nodes = self.nodes(self._chain, "", ())
        self._epoch.begin(nodes[-1], nodes[::-1])

    def nodes(
        self,
        chain: Chain,
        place: str,
        passes: tuple[int, ...],
        above: Node | None = None,
        context: EpochContext | None = None,
    ) -> list[Node]:
        """Give the nodes of a chain, most upstream first."""
        nodes: list[Node] = [] if above is None else [above]
        part = Part(self, place, passes, nodes, context or self._epoch.context)
        cache = self._begun_elsewhere(chain, place)
        if cache is not None:
            part.make_as_of(*cache[1])
        last_repeat = max(
            (n for n, stage in enumerate(chain) if isinstance(stage.spec, Repeat)), default=-1
        )
        spec, used = absorbed(chain)
        if last_repeat >= used:
            part.repeat(chain, last_repeat)
            used = last_repeat + 1
        elif spec is not None:
            part.source(chain[0], spec)
        else:
            used = 0
        for group in regions_of(chain[used:]):
            part.add(group)
            if cache is not None and group[-1] is cache[0]:
                part.make_as_of(part.own.epoch, passes)
        let_read(nodes)
        return nodes

    def _begun_elsewhere(self, chain: Chain, place: str) -> tuple[Stage, Made] | None:
        """Give the last cache of a chain that has to make what another process has begun."""
        for stage in reversed(chain):
            if isinstance(stage.spec, Repeat):
                return None
            if isinstance(stage.spec, Cache) and self.made(stage.spec.store) is None:
                stands = self._stands.get(self._addresses[place + stage.name], {})
                epoch, passes = stands.get("made") or stage.spec.store.as_of or (None, ())
                return None if epoch is None else (stage, (epoch, tuple(passes)))
        return None

    def lane(self, place: str, stage: Stage, *, batched: bool) -> Lane:
        """Give the lane of a stage."""
        address = self._addresses[place + stage.name]
        return self._lane_of(address, stage, BATCHES if batched else SAMPLES)

    def once(self, stage: Stage, ask: Callable[[], Any]) -> Any:
        """Give what is asked of a stage's arguments in the first pass, in each pass.

        The others are built under the lock, where nothing of the user's may run.
        """
        if id(stage) not in self._found:
            self._found[id(stage)] = ask()
        return self._found[id(stage)]

    def made(self, store: Store) -> Made | None:
        """Give the epoch that made what a cache holds, or None where it is not complete.

        It is asked before the first pass and by `look_again`: it may be on a disk, and the
        other passes are built under the lock.
        """
        if id(store) not in self._caches:
            self._caches[id(store)] = store, _made(store)
        return self._caches[id(store)][1]

    def look_again(self) -> None:
        """Look which caches are complete by now; called without the lock."""
        for store, made in tuple(self._caches.values()):
            if made is None:
                self._caches[id(store)] = store, _made(store)

    def stands(self, address: str) -> dict[str, Any]:
        """Give where a stage stands; later passes of a repeat begin at their beginning."""
        return self._stands.pop(address, {})

    @property
    def epoch(self) -> Epoch:
        """The epoch being filled."""
        return self._epoch


def _made(store: Store) -> Made | None:
    return store.made if store.complete else None
