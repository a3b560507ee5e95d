"""Build the nodes of an epoch from a chain of stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ..base.seeding import Path, order_generator
from ..executors.transfer import Device
from ..ops.batch import BatchByCost, Collate, split_batch
from ..ops.cache import CacheStore, Kept, Made, Recording
from ..ops.call import Map
from ..ops.chain import absorbed, held_in_order, unit_behind
from ..ops.device import Devices, device_of
from ..ops.join import ConcatJoin, GoesOn
from ..ops.ranges import Dropping, IndexRanges, StatefulOp
from ..ops.stage import Chain, Operation, Stage, address_book, regions_of
from .epoch import Epoch
from .expand import (
    CallOpener,
    ExpandNode,
    FedNode,
    ReplayOpener,
    SourceOpener,
    is_async_source,
    remaining_in,
)
from .external import Feed, GivenItems
from .failures import Budget
from .fused import FusedNode, FusedStages, node_of
from .map import FoldStep, GroupNode, MapNode, StreamNode
from .node import Node, StageStates
from .provenance import DropLog
from .pumps import (
    Branch,
    Demux,
    JoinNode,
    Mux,
    RepeatNode,
    RouteOutput,
    Selector,
    numbers_of,
)
from .stats import StageRuntime
from .step import EpochContext, Step, step_of

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
        self._branch = bool(nodes)  # it is one of a route
        self._batched = False
        self._known: dict[str, dict[str, Any]] = {}

    def _node_state(self, runtime: StageRuntime) -> dict[str, Any]:
        """Return where a stage stands; asking again gives the same."""
        if runtime.address not in self._known:
            self._known[runtime.address] = self._builder.node_state(runtime.address)
        return self._known[runtime.address]

    def make_as_of(self, epoch: int, passes: tuple[int, ...]) -> None:
        """Let the stages that follow make the items of this epoch and these passes."""
        self._context = self.own if epoch == self.own.epoch else self.own.as_of(epoch)
        self._passes = passes

    def _runtime(self, stage: Stage) -> StageRuntime:
        return self._builder.runtime(self._place, stage, batched=self._batched)

    def _input(self, number: int, chain: Chain) -> list[Node]:
        place = f"{self._place}{number}/"
        return self._builder.nodes(chain, place, self._passes, context=self._context)

    def _append(self, node: Node) -> None:
        if self._nodes:
            connect((self._nodes[-1],), node)
        self._nodes.append(node)

    def add(self, group: Sequence[Stage]) -> None:
        """Add the nodes of one stage, or of stages that share their workers."""
        if group[0].executor == "device":
            self._on_device(group)
            return
        if group[0].executor_spec is not None and self._builder.fused_stages is not None:
            self._fused_stage(group, self._builder.fused_stages)
            return
        for stage in group:
            self._add(stage)

    def _add(self, stage: Stage) -> None:
        _HOSTS[stage.spec.runs](self, stage, stage.spec)

    def source(self, stage: Stage, spec: Any) -> None:
        """Add a source, or another pipeline and a buffer behind it."""
        if stage.inputs and spec.plan is None:
            self._nodes.extend(self._input(0, stage.inputs[0]))
            join = ConcatJoin(deepen=False)
            self._append(JoinNode(self._runtime(stage), self._epoch, join))
            return
        runtime = self._runtime(stage)
        node_state = self._node_state(runtime)
        factory = SourceOpener(runtime.address, spec, self._context, self._passes, node_state)
        if type(spec.items) is GivenItems and isinstance(spec.items.order, Feed):
            self._append(FedNode(runtime, self._epoch, factory, spec.items.order))
            return
        remote = self._builder.once(stage, lambda: is_async_source(spec.items))
        self._append(ExpandNode(runtime, self._epoch, factory, remote=remote, source=True))

    def call(self, stage: Stage, spec: Any) -> None:
        """Add calls of a function."""
        runtime = self._runtime(stage)
        step = step_of(runtime.address, spec, self._context, stage.executor)
        budget = self._budget(runtime, stage)
        previous = self._nodes[-1]
        flat = spec.expands
        fuses = self._builder.fused_stages is not None and stage.executor == "inline" and not flat
        if fuses and _takes_fused(previous):
            previous.rest += (step,)
            previous.rest_runtimes += (runtime,)
            previous.rest_budgets += (budget,)
            previous.watch(budget, len(previous.rest_budgets))
            return
        if stage.executor == "inline":
            runtime.cost_ns = 0.0  # run by whoever comes next
        remote = stage.executor == "coroutine"
        ordered = spec.ordered or runtime.address in self._builder.held_in_order
        node: Node
        if flat:
            factory = CallOpener(step, own=not remote)
            known = self._children(runtime)
            node = ExpandNode(
                runtime, self._epoch, factory, ordered=ordered, remote=remote, known=known
            )
        else:
            node = MapNode(runtime, self._epoch, step, ordered=ordered, remote=remote)
        if spec.max_failures is not None:
            node.budget = budget
            node.watch(budget, 0)
        self._append(node)

    def _children(self, runtime: StageRuntime) -> dict[Path, IndexRanges]:
        """Return for the paths of items of which only some children are wanted, those."""
        parts = self._node_state(runtime).get("children", ())
        return {path_in(path): IndexRanges.read(rest) for path, rest in parts}

    def _budget(self, runtime: StageRuntime, stage: Stage) -> Budget:
        budgets, address = self._builder.budgets, runtime.address
        past, before = budgets.get(address), self._node_state(runtime).get("failed", (0, 0))
        earlier = (0, 0) if past is None else (past.failures, past.seen)
        budgets[address] = budget = Budget(address, stage.spec.max_failures, before, earlier)
        return budget

    def _fused_stage(self, group: Sequence[Stage], fused_stages: FusedStages) -> None:
        runtimes = [self._runtime(stage) for stage in group]
        for runtime in runtimes[:-1]:
            runtime.prefetch = 0  # behind an inner stage nothing waits
        fused_stage = fused_stages.fused_stage(
            group, [runtime.address for runtime in runtimes], self._context
        )
        budgets = [self._budget(runtime, runtime.stage) for runtime in runtimes]
        self._batched = self._batched or any(one.spec.unit == "batches" for one in group)
        held = any(runtime.address in self._builder.held_in_order for runtime in runtimes)
        known = self._children(runtimes[0])
        node = node_of(group, runtimes[-1], self._epoch, fused_stage, known, held_in_order=held)
        if any(stage.spec.max_failures is not None for stage in group):
            node.budget = budgets[-1]
        self._append_group(node, runtimes, budgets)

    def _append_group(
        self, node: Node, runtimes: Sequence[StageRuntime], budgets: Sequence[Budget]
    ) -> None:
        """Append the node of several stages, which counts for each of them."""
        node.rest_runtimes, node.rest_budgets = tuple(runtimes[:-1]), tuple(budgets[:-1])
        for place, budget in enumerate(budgets):
            node.watch(budget, place)
        self._append(node)

    def _on_device(self, group: Sequence[Stage]) -> None:
        """Add stages that share a device; in a peek each alone, and it leaves nothing in flight."""
        devices = self._builder.devices
        if devices is None:
            for stage in group:
                device = device_of(stage)
                call = _call_on(device, stage.spec, first=True, last=True)
                self._calls((stage,), [dataclasses.replace(call, fn=partial(device.run, call.fn))])
            return
        runtime = self._runtime(group[0])
        device = devices.of(runtime.address, group[0])
        collate = _collate_of(self._nodes[-1])
        if collate is not None:
            collate.memory = device.batch_memory
        ends = group[0], group[-1]
        calls = [
            _call_on(device, stage.spec, first=stage is ends[0], last=stage is ends[1])
            for stage in group
        ]
        self._calls(group, calls)

    def _calls(self, group: Sequence[Stage], calls: Sequence[Map]) -> None:
        """Add the calls of neighbours that run one after the other, for one item at a time."""
        runtimes = [self._runtime(stage) for stage in group]
        budgets = [self._budget(runtime, runtime.stage) for runtime in runtimes]
        steps = [
            step_of(runtime.address, call, self._context, runtime.stage.executor)
            for runtime, call in zip(runtimes, calls, strict=True)
        ]
        *rest, last = runtimes
        for runtime in rest:
            runtime.prefetch = 0  # behind an inner stage nothing waits
        node = GroupNode(last, self._epoch, steps) if rest else MapNode(last, self._epoch, steps[0])
        node.budget = budgets[-1]
        self._append_group(node, runtimes, budgets)

    def unbatch(self, stage: Stage, spec: Any) -> None:
        """Add what takes batches apart again."""
        self._batched = False
        runtime = self._runtime(stage)
        step = Step(runtime.address, split_batch, self._context)
        known = self._children(runtime)
        self._append(ExpandNode(runtime, self._epoch, CallOpener(step), known=known))

    def batch(self, stage: Stage, spec: Any) -> None:
        """Add what makes batches."""
        self._batched = True
        if spec.cost is not None:
            self.fold(stage, spec)
            return
        runtime = self._runtime(stage)
        step = step_of(runtime.address, spec, self._context, stage.executor)
        node = MapNode(runtime, self._epoch, step, gather=int(spec.size), drop_last=spec.drop_last)
        self._append(node)

    def fold(self, stage: Stage, spec: Operation) -> None:
        """Add what sees the items in order."""
        runtime = self._runtime(stage)
        node_state = self._node_state(runtime)
        self._operate(runtime, spec.fold(self._context.epoch, self._passes, node_state))
        self._drop(runtime, node_state)

    def _operate(self, runtime: StageRuntime, operation: StatefulOp) -> None:
        step = FoldStep(runtime.address, operation, self._context)
        drops = DropLog() if self._branch else None
        self._append(StreamNode(runtime, self._epoch, step, drops))

    def _drop(self, runtime: StageRuntime, node_state: dict[str, Any]) -> None:
        """Leave out again what the loop has had, where the stage itself begins before that."""
        if "drop" in node_state:
            self._operate(_unseen(runtime), Dropping(IndexRanges.read(node_state["drop"])))

    def cache(self, stage: Stage, spec: Any) -> None:
        """Add a cache: what makes its items, or gives them again."""
        kept = self._builder.kept(spec.store)
        if kept is None:
            self._record(stage, spec)
        else:
            self._replay(stage, kept)

    def _record(self, stage: Stage, spec: Any) -> None:
        """Add a cache that is not complete; what was replayed before is made again."""
        runtime = self._runtime(stage)
        node_state = self._node_state(runtime)
        again = node_state if node_state.get("by") == "replay" else {}
        before = node_state.get("made")
        if before and (again or before[0] < self.own.epoch):  # however this epoch ends
            spec.store.as_of = before[0], tuple(before[1])
        about = {} if again else node_state
        made = self._context.epoch, self._passes
        self._operate(runtime, Recording(spec.store, self._own_passes, made, about))
        left = remaining_in(again).of_wanted(remaining_in(node_state, "drop"))
        self._drop(runtime, {} if left.is_all else {"drop": left.data})

    def _replay(self, stage: Stage, kept: Kept) -> None:
        self._nodes.clear()
        runtime = self._runtime(stage)
        node_state = self._node_state(runtime)
        rest = remaining_in(node_state).of_wanted(remaining_in(node_state, "drop"))
        factory = ReplayOpener(runtime.address, kept, self._context, passes=self._passes, rest=rest)
        self._append(ExpandNode(runtime, self._epoch, factory, source=True))

    def join(self, stage: Stage, spec: Any) -> None:
        """Add what several pipelines are joined by, and their nodes."""
        inputs = [self._input(number, chain) for number, chain in enumerate(stage.inputs)]
        runtime = self._runtime(stage)
        join, at_first = spec.join(
            GoesOn(
                runtime.address,
                len(inputs),
                self._node_state(runtime),
                lambda seed: order_generator(seed, self._context.epoch, self._passes or 0),
            )
        )
        opened = [n for n in range(len(inputs)) if n in at_first]
        for number, nodes in enumerate(inputs):
            if number not in at_first:
                self._epoch.keep_closed(nodes[-1], nodes[::-1])
        for number in reversed(opened):
            self._nodes.extend(inputs[number])
        pump = JoinNode(runtime, self._epoch, join)
        connect([nodes[-1] for nodes in inputs], pump)
        self._nodes.append(pump)

    def repeat(self, chain: Chain, place: int) -> None:
        """Add everything up to a repeat; it is built again for each pass."""
        stage = chain[place]
        spec: Any = stage.spec
        above = chain[:place]
        builder, here, passes = self._builder, self._place, self._passes
        context = self._context

        runtime = self._runtime(stage)
        node_state = self._node_state(runtime)
        number = node_state.get("pass", 0)
        later = dict(enumerate(node_state.get("later", ()), number + 1))

        def build(number: int) -> Sequence[Node]:
            builder.go_on_from(later.get(number, {}))
            return builder.nodes(above, here, (number, *passes), context=context)[::-1]

        self._nodes.extend(build(number)[::-1])
        self._batched = any(s.spec.unit == "batches" for s in above)
        node = RepeatNode(
            runtime,
            self._epoch,
            times=spec.times,
            build=build,
            look=builder.look_again,
            node_state=node_state,
            later=later,
        )
        self._append(node)
        self._drop(runtime, node_state)  # of a state of the first format

    def route(self, stage: Stage, spec: Any) -> None:
        """Add what chooses branches, the branches, and what puts their items in order again."""
        epoch, runtime = self._epoch, self._runtime(stage)
        numbers = self._builder.once(stage, lambda: numbers_of(spec))
        step = Step(runtime.address, Selector(runtime.address, spec, numbers), self._context)
        self._append(MapNode(runtime, epoch, step))
        outlets = [RouteOutput(_unseen(runtime), epoch) for _ in spec.values]
        split = Demux(_unseen(runtime), epoch, outlets)
        self._append(split)
        branches = []
        for outlet, chain in zip(outlets, stage.inputs, strict=True):
            outlet.upstream = (split,)
            nodes = self._builder.nodes(chain, self._place, self._passes, outlet, self._context)
            branches.append(Branch(outlet, nodes[-1]))
            self._nodes.extend(nodes)
        merge = Mux(_unseen(runtime), epoch, split, branches)
        connect([branch.last for branch in branches], merge)
        self._nodes.append(merge)
        self._batched = unit_behind(stage, "batches" if self._batched else "items") == "batches"


def _call_on(device: Device, spec: Operation, *, first: bool, last: bool) -> Map:
    """Return what a stage on a device does as a map.

    Args:
        device: where.
        spec: the operation.
        first: its batches come from elsewhere.
        last: its batches go elsewhere.
    """
    call = Map(fn=device.copy) if spec.runs == "device" else cast("Map", spec)
    return dataclasses.replace(call, fn=partial(device.call, call.fn, first, last))


def _collate_of(node: Node) -> Collate | None:
    """Return what stacks batches in this process, where that is the last thing a node does."""
    if isinstance(node, StreamNode):
        operation = node.step.operation
        return operation.collate if isinstance(operation, BatchByCost) else None
    if not isinstance(node, MapNode) or isinstance(node, FusedNode) or node.rest:
        return None
    return node.first.fn if isinstance(node.first.fn, Collate) else None


def path_in(path: Any) -> Path:
    """Return a path that was written as JSON."""
    return tuple(path) if isinstance(path, list) else path


def _unseen(runtime: StageRuntime) -> StageRuntime:
    """Return a runtime that does not show in the stats."""
    return StageRuntime(runtime.address, runtime.stage, prefetch=_AHEAD, now_ns=0)


_HOSTS: Mapping[str, Callable[[Part, Stage, Any], None]] = {  # by `Operation.runs`
    "source": Part.source,
    "call": Part.call,
    "batch": Part.batch,
    "unbatch": Part.unbatch,
    "join": Part.join,
    "route": Part.route,
    "cache": Part.cache,
    "fold": Part.fold,
}


def _takes_fused(node: Node) -> bool:
    if isinstance(node, FusedNode):
        return False
    return not node.remote and (
        isinstance(node, MapNode)
        or (isinstance(node, ExpandNode) and node.source and not node.factory.own)
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
        runtime_of: gives the run's runtime of a stage for an address, made at first use.
        fused_stages: gives stages their workers outside the run's threads; None, as in a peek, lets
            each run by itself, like those in threads.
        node_state: where stages stand, by address, for an epoch that goes on in its middle.
        devices: the run's; None, as in a peek, lets go of a device after each call.

    Attributes:
        budgets: of failures, by address: the next pass of a repeat counts on.
        held_in_order: addresses of the stages that keep input order despite `ordered=False`.
    """

    def __init__(
        self,
        chain: Chain,
        epoch: Epoch,
        runtime_of: Callable[[str, Stage, int], StageRuntime],
        fused_stages: FusedStages | None = None,
        node_state: StageStates | None = None,
        *,
        devices: Devices | None = None,
    ) -> None:
        self._node_state = dict(node_state or {})
        self._found: dict[int, Any] = {}  # by the id of a stage
        self.budgets: dict[str, Budget] = {}
        self._caches: dict[int, tuple[CacheStore, Kept | None]] = {}  # by the id of a store
        self._chain = chain
        self.epoch = epoch
        self._runtime_of = runtime_of
        self._addresses = address_book(chain)
        self.held_in_order = held_in_order(chain)
        self.fused_stages = fused_stages
        self.devices = devices

    @property
    def replays(self) -> bool:
        """Whether every cache of the chain, if there is one, was complete when it was asked."""
        return all(kept is not None for _, kept in self._caches.values())

    def build(self) -> None:
        """Make all nodes and install them in the epoch."""
        nodes = self.nodes(self._chain, "", ())
        self.epoch.begin(nodes[-1], nodes[::-1])

    def nodes(
        self,
        chain: Chain,
        place: str,
        passes: tuple[int, ...],
        above: Node | None = None,
        context: EpochContext | None = None,
    ) -> list[Node]:
        """Return the nodes of a chain, most upstream first."""
        nodes: list[Node] = [] if above is None else [above]
        part = Part(self, place, passes, nodes, context or self.epoch.context)
        cache = self._begun_elsewhere(chain, place)
        if cache is not None:
            part.make_as_of(*cache[1])
        last_repeat = max(
            (n for n, stage in enumerate(chain) if stage.spec.runs == "repeat"), default=-1
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
        return nodes

    def _begun_elsewhere(self, chain: Chain, place: str) -> tuple[Stage, Made] | None:
        """Return the last cache of a chain that has to make what another process has begun."""
        for stage in reversed(chain):
            store = stage.spec.kept_in
            if stage.spec.runs == "repeat":
                return None
            if store is not None and self.kept(store) is None:
                node_state = self._node_state.get(self._addresses[place + stage.name], {})
                epoch, passes = node_state.get("made") or store.as_of or (None, ())
                return None if epoch is None else (stage, (epoch, tuple(passes)))
        return None

    def runtime(self, place: str, stage: Stage, *, batched: bool) -> StageRuntime:
        """Return the runtime of a stage."""
        address = self._addresses[place + stage.name]
        return self._runtime_of(address, stage, BATCHES if batched else SAMPLES)

    def once(self, stage: Stage, ask: Callable[[], Any]) -> Any:
        """Return what is asked of a stage's arguments in the first pass, in each pass.

        The others are built under the lock, where nothing of the user's may run.
        """
        if id(stage) not in self._found:
            self._found[id(stage)] = ask()
        return self._found[id(stage)]

    def kept(self, store: CacheStore) -> Kept | None:
        """Return what a cache holds, or None where it is not complete.

        It is asked before the first pass and by `look_again`: it may be on a disk, and the
        other passes are built under the lock.
        """
        if id(store) not in self._caches:
            self._caches[id(store)] = store, store.kept
        return self._caches[id(store)][1]

    def look_again(self) -> None:
        """Look which caches are complete by now; called without the lock."""
        for store, kept in tuple(self._caches.values()):
            if kept is None:
                self._caches[id(store)] = store, store.kept

    def go_on_from(self, stages: StageStates) -> None:
        """Have the nodes that are built next, of a later pass, begin where these stages stand."""
        self._node_state.update(stages)

    def node_state(self, address: str) -> dict[str, Any]:
        """Return where a stage stands; later passes of a repeat begin at their beginning."""
        return self._node_state.pop(address, {})
