"""Build the nodes of an epoch from a chain of stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ..base.seeding import Path, order_generator
from ..executors.device.device import Device
from ..ops.batch import BatchByCost, Collate, split_batch
from ..ops.cache import CacheStore, Kept, Made, Recording
from ..ops.call import Map
from ..ops.chain import absorbed, held_in_order, unit_behind
from ..ops.device import Devices, device_of
from ..ops.join import ConcatJoin, GoesOn
from ..ops.ranges import Dropping, IndexRanges, StatefulOp
from ..ops.stage import Chain, Operation, Stage, address_book, regions_of
from .epoch import Epoch
from .measures.counters import StageRuntime
from .nodes.budgets import Budget
from .nodes.expand import ExpandNode, FedNode, SourceNode
from .nodes.external import Feed, GivenItems
from .nodes.factories import (
    ChildFactory,
    ReplayFactory,
    SourceFactory,
    is_async_source,
    remaining_in,
)
from .nodes.fused import FusedNode, FusedStages, node_of
from .nodes.map import CallRunner, GroupNode, MapNode
from .nodes.node import Node
from .nodes.provenance import BatchLog, DropLog, StageStates
from .nodes.pumps import Branch, Demux, JoinNode, Mux, RouteOutput, Selector, numbers_of
from .nodes.repeat import RepeatNode
from .nodes.step import EpochContext, Step, step_of
from .nodes.stream import StatefulStep, StreamNode

# -- Part: the nodes of one chain, while they are made and put together ----------------------------
_PREFETCH = 8  # of nodes that do not show in the stats


class Part:
    """Nodes of one chain, while it is being built.

    Args:
        builder: builds the epoch.
        place: where the chain is among the inputs of others; it begins its addresses.
        passes: numbers of the passes of `repeat` stages further down.
        nodes: the beginning of a branch of a route, else none.
        context: of the epoch.

    Attributes:
        own: that context; `context` and `passes` may be of another epoch, as `make_as_of` says.
        in_branch: the chain is a branch of a route.
        batched: the last stage hands on batches.
    """

    def __init__(
        self,
        builder: Builder,
        place: str,
        passes: tuple[int, ...],
        nodes: list[Node],
        context: EpochContext,
    ) -> None:
        self.builder = builder
        self.epoch = builder.epoch
        self.own = self.context = context
        self.place = place
        self.own_passes = self.passes = passes
        self.nodes = nodes
        self.in_branch = bool(nodes)
        self.batched = False
        self._known: dict[str, dict[str, Any]] = {}

    def node_state(self, runtime: StageRuntime) -> dict[str, Any]:
        """Return the state of a stage; the builder gives it away once, so it is kept here."""
        if runtime.address not in self._known:
            self._known[runtime.address] = self.builder.node_state(runtime.address)
        return self._known[runtime.address]

    def make_as_of(self, epoch: int, passes: tuple[int, ...]) -> None:
        """Let the following stages make the items of another epoch and its passes."""
        self.context = self.own if epoch == self.own.epoch else self.own.as_of(epoch)
        self.passes = passes

    def runtime(self, stage: Stage) -> StageRuntime:
        """Return the runtime of a stage."""
        return self.builder.runtime(self.place, stage, batched=self.batched)

    def input_nodes(self, number: int, chain: Chain) -> list[Node]:
        """Return the nodes of an input of a stage."""
        place = f"{self.place}{number}/"
        return self.builder.nodes(chain, place, self.passes, context=self.context)

    def append(self, node: Node) -> None:
        """Append a node, and connect it to the last one."""
        if self.nodes:
            connect((self.nodes[-1],), node)
        self.nodes.append(node)

    def add(self, group: Sequence[Stage]) -> None:
        """Add the nodes of one stage, or of stages that share their workers."""
        if group[0].executor == "device":
            _add_on_device(self, group)
            return
        if group[0].executor_spec is not None and self.builder.fused_stages is not None:
            _add_fused(self, group, self.builder.fused_stages)
            return
        for stage in group:
            _ADD[stage.spec.runs](self, stage, stage.spec)

    def budget(self, runtime: StageRuntime, stage: Stage) -> Budget:
        """Return the failure budget of a stage, which continues those of earlier passes."""
        budgets, address = self.builder.budgets, runtime.address
        past, before = budgets.get(address), self.node_state(runtime).get("failed", (0, 0))
        earlier = (0, 0) if past is None else (past.failures, past.seen)
        budgets[address] = budget = Budget(address, stage.spec.max_failures, before, earlier)
        return budget

    def append_group(
        self, node: Node, runtimes: Sequence[StageRuntime], budgets: Sequence[Budget]
    ) -> None:
        """Append the node of several stages, which counts for each of them."""
        node.rest_runtimes = tuple(runtimes[:-1])
        node.shares_workers = len(runtimes) > 1
        for budget in budgets:
            node.failures.watch(budget)
        self.append(node)


# -- How each kind of stage is added ---------------------------------------------------------------
def _add_source(part: Part, stage: Stage, spec: Any) -> None:
    """Add a source, or another pipeline and a buffer after it."""
    if stage.inputs and spec.plan is None:
        part.nodes.extend(part.input_nodes(0, stage.inputs[0]))
        join = ConcatJoin(deepen=False)
        part.append(JoinNode(part.runtime(stage), part.epoch, join, inputs=1))
        return
    runtime = part.runtime(stage)
    node_state = part.node_state(runtime)
    factory = SourceFactory(runtime.address, spec, part.context, part.passes, node_state)
    if type(spec.items) is GivenItems and isinstance(spec.items.order, Feed):
        part.append(FedNode(runtime, part.epoch, factory, spec.items.order))
        return
    remote = part.builder.once(stage, lambda: is_async_source(spec.items))
    part.append(SourceNode(runtime, part.epoch, factory, remote=remote))


def _add_call(part: Part, stage: Stage, spec: Any) -> None:
    """Add calls of a function."""
    runtime = part.runtime(stage)
    step = step_of(runtime.address, spec, part.context, stage.executor)
    budget = part.budget(runtime, stage)
    previous = part.nodes[-1]
    flat = spec.expands
    fuses = part.builder.fused_stages is not None and stage.executor == "inline" and not flat
    if fuses and _takes_fused(previous):
        previous.runner.rest += (step,)
        previous.rest_runtimes += (runtime,)
        previous.failures.watch(budget)
        return
    if stage.executor == "inline":
        runtime.cost_ns = 0.0  # the next thread that is free runs it
    remote = stage.executor == "coroutine"
    ordered = spec.ordered or runtime.address in part.builder.held_in_order
    node: Node
    if flat:
        factory = ChildFactory(step, own=not remote)
        known = _children(part, runtime)
        node = ExpandNode(runtime, part.epoch, factory, ordered=ordered, remote=remote, known=known)
    else:
        node = _map(part, runtime, step, ordered=ordered, remote=remote)
    node.failures.watch(budget)
    part.append(node)


def _map(part: Part, runtime: StageRuntime, step: Step, **options: Any) -> MapNode:
    return MapNode(runtime, part.epoch, CallRunner(part.epoch, step), **options)


def _children(part: Part, runtime: StageRuntime) -> dict[Path, IndexRanges]:
    """Return the children that are wanted, by the path of their item, where not all are."""
    parts = part.node_state(runtime).get("children", ())
    return {path_in(path): IndexRanges.read(rest) for path, rest in parts}


def _add_fused(part: Part, group: Sequence[Stage], fused_stages: FusedStages) -> None:
    runtimes = [part.runtime(stage) for stage in group]
    for runtime in runtimes[:-1]:
        runtime.prefetch = 0  # no results wait after an inner stage
    fused_stage = fused_stages.fused_stage(
        group, [runtime.address for runtime in runtimes], part.context
    )
    budgets = [part.budget(runtime, runtime.stage) for runtime in runtimes]
    part.batched = part.batched or any(one.spec.unit == "batches" for one in group)
    held = any(runtime.address in part.builder.held_in_order for runtime in runtimes)
    known = _children(part, runtimes[0])
    node = node_of(group, runtimes[-1], part.epoch, fused_stage, known, held_in_order=held)
    part.append_group(node, runtimes, budgets)


def _add_on_device(part: Part, group: Sequence[Stage]) -> None:
    """Add stages that share a device; in a peek each runs alone and waits for the device."""
    devices = part.builder.devices
    if devices is None:
        for stage in group:
            device = device_of(stage)
            call = _call_on(device, stage.spec, first=True, last=True)
            _add_calls(part, (stage,), [dataclasses.replace(call, fn=partial(device.run, call.fn))])
        return
    runtime = part.runtime(group[0])
    device = devices.of(runtime.address, group[0])
    collate = _collate_of(part.nodes[-1])
    if collate is not None:
        collate.memory = device.batch_memory
    ends = group[0], group[-1]
    calls = [
        _call_on(device, stage.spec, first=stage is ends[0], last=stage is ends[1])
        for stage in group
    ]
    _add_calls(part, group, calls)


def _add_calls(part: Part, group: Sequence[Stage], calls: Sequence[Map]) -> None:
    """Add the calls of neighbours that run one after the other, for one item at a time."""
    runtimes = [part.runtime(stage) for stage in group]
    budgets = [part.budget(runtime, runtime.stage) for runtime in runtimes]
    steps = [
        step_of(runtime.address, call, part.context, runtime.stage.executor)
        for runtime, call in zip(runtimes, calls, strict=True)
    ]
    *rest, last = runtimes
    for runtime in rest:
        runtime.prefetch = 0  # no results wait after an inner stage
    node = GroupNode(last, part.epoch, steps) if rest else _map(part, last, steps[0])
    part.append_group(node, runtimes, budgets)


def _add_unbatch(part: Part, stage: Stage, _: Any) -> None:
    """Add the node that splits batches."""
    part.batched = False
    runtime = part.runtime(stage)
    step = Step(runtime.address, split_batch, part.context)
    known = _children(part, runtime)
    part.append(ExpandNode(runtime, part.epoch, ChildFactory(step), known=known))


def _add_batch(part: Part, stage: Stage, spec: Any) -> None:
    """Add the node that makes batches."""
    part.batched = True
    if spec.cost is not None:
        _add_stateful(part, stage, spec)
        return
    runtime = part.runtime(stage)
    step = step_of(runtime.address, spec, part.context, stage.executor)
    part.append(_map(part, runtime, step, gather=int(spec.size), drop_last=spec.drop_last))


def _add_stateful(part: Part, stage: Stage, spec: Operation) -> None:
    """Add a stateful operation, which sees the items in order."""
    runtime = part.runtime(stage)
    node_state = part.node_state(runtime)
    _add_operation(part, runtime, spec.stateful(part.context.epoch, part.passes, node_state))
    _add_drop(part, runtime, node_state)


def _add_operation(part: Part, runtime: StageRuntime, operation: StatefulOp) -> None:
    step = StatefulStep(runtime.address, operation, part.context)
    drops = DropLog() if part.in_branch else None
    part.append(StreamNode(runtime, part.epoch, step, drops))


def _add_drop(part: Part, runtime: StageRuntime, node_state: dict[str, Any]) -> None:
    """Drop items that the loop has had, where the stage has to begin before them."""
    if "drop" in node_state:
        _add_operation(part, _unseen(runtime), Dropping(IndexRanges.read(node_state["drop"])))


def _add_cache(part: Part, stage: Stage, spec: Any) -> None:
    """Add a cache, which records its items, or replays them."""
    kept = part.builder.kept(spec.store)
    if kept is None:
        _add_recording(part, stage, spec)
    else:
        _add_replay(part, stage, kept)


def _add_recording(part: Part, stage: Stage, spec: Any) -> None:
    """Add a cache that is not complete; items that were replayed before are made again."""
    runtime = part.runtime(stage)
    node_state = part.node_state(runtime)
    again = node_state if node_state.get("by") == "replay" else {}
    before = node_state.get("made")
    if before and (again or before[0] < part.own.epoch):  # however this epoch ends
        spec.store.as_of = before[0], tuple(before[1])
    about = {} if again else node_state
    made = part.context.epoch, part.passes
    _add_operation(part, runtime, Recording(spec.store, part.own_passes, made, about))
    left = remaining_in(again).of_wanted(remaining_in(node_state, "drop"))
    _add_drop(part, runtime, {} if left.is_all else {"drop": left.data})


def _add_replay(part: Part, stage: Stage, kept: Kept) -> None:
    part.nodes.clear()
    runtime = part.runtime(stage)
    node_state = part.node_state(runtime)
    rest = remaining_in(node_state).of_wanted(remaining_in(node_state, "drop"))
    factory = ReplayFactory(runtime.address, kept, part.context, passes=part.passes, rest=rest)
    part.append(SourceNode(runtime, part.epoch, factory))


def _add_join(part: Part, stage: Stage, spec: Any) -> None:
    """Add a join, and the nodes of the pipelines that it joins."""
    inputs = [part.input_nodes(number, chain) for number, chain in enumerate(stage.inputs)]
    runtime = part.runtime(stage)
    join, at_first = spec.join(
        GoesOn(
            runtime.address,
            len(inputs),
            part.node_state(runtime),
            lambda seed: order_generator(seed, part.context.epoch, part.passes or 0),
        )
    )
    opened = [n for n in range(len(inputs)) if n in at_first]
    for number, nodes in enumerate(inputs):
        if number not in at_first:
            part.epoch.keep_closed(nodes[-1], nodes[::-1])
    for number in reversed(opened):
        part.nodes.extend(inputs[number])
    pump = JoinNode(runtime, part.epoch, join, len(inputs))
    connect([nodes[-1] for nodes in inputs], pump)
    part.nodes.append(pump)


def _add_repeat(part: Part, chain: Chain, place: int) -> None:
    """Add everything up to a repeat, which is built again for each pass."""
    stage = chain[place]
    spec: Any = stage.spec
    above = chain[:place]
    builder, here, passes = part.builder, part.place, part.passes
    context = part.context

    runtime = part.runtime(stage)
    node_state = part.node_state(runtime)
    number = node_state.get("pass", 0)
    later = dict(enumerate(node_state.get("later", ()), number + 1))

    def build(number: int) -> Sequence[Node]:
        builder.resume_from(later.get(number, {}))
        return builder.nodes(above, here, (number, *passes), context=context)[::-1]

    part.nodes.extend(build(number)[::-1])
    part.batched = any(s.spec.unit == "batches" for s in above)
    node = RepeatNode(
        runtime,
        part.epoch,
        times=spec.times,
        build=build,
        check_caches=builder.check_caches,
        node_state=node_state,
        later=later,
    )
    part.append(node)
    _add_drop(part, runtime, node_state)  # of a state of the first format


def _add_route(part: Part, stage: Stage, spec: Any) -> None:
    """Add the nodes that choose branches, the branches, and the node that merges them."""
    epoch, runtime = part.epoch, part.runtime(stage)
    numbers = part.builder.once(stage, lambda: numbers_of(spec))
    step = Step(runtime.address, Selector(runtime.address, spec, numbers), part.context)
    part.append(_map(part, runtime, step))
    outputs = [RouteOutput(_unseen(runtime), epoch) for _ in spec.values]
    demux = Demux(_unseen(runtime), epoch, outputs)
    part.append(demux)
    branches = []
    for output, chain in zip(outputs, stage.inputs, strict=True):
        output.upstream = (demux,)
        nodes = part.builder.nodes(chain, part.place, part.passes, output, part.context)
        branches.append(Branch(output, nodes[-1]))
        part.nodes.extend(nodes)
    mux = Mux(_unseen(runtime), epoch, demux, branches)
    connect([branch.last for branch in branches], mux)
    part.nodes.append(mux)
    part.batched = unit_behind(stage, "batches" if part.batched else "items") == "batches"


def _call_on(device: Device, spec: Operation, *, first: bool, last: bool) -> Map:
    """Return a stage on a device as a map.

    Args:
        device: where.
        spec: the operation.
        first: its batches come from elsewhere.
        last: its batches go elsewhere.
    """
    call = Map(fn=device.copy) if spec.runs == "device" else cast("Map", spec)
    return dataclasses.replace(call, fn=partial(device.call, call.fn, first, last))


def _collate_of(node: Node) -> Collate | None:
    """Return the `Collate` of a node that stacks batches in this process as its last step."""
    if isinstance(node, StreamNode):
        operation = node.operation
        return operation.collate if isinstance(operation, BatchByCost) else None
    runner = node.runner
    if not isinstance(runner, CallRunner) or isinstance(node, FusedNode) or runner.rest:
        return None
    return runner.first.fn if isinstance(runner.first.fn, Collate) else None


def path_in(path: Any) -> Path:
    """Return a path that was written as JSON."""
    return tuple(path) if isinstance(path, list) else path


def _unseen(runtime: StageRuntime) -> StageRuntime:
    """Return a runtime that does not show in the stats."""
    return StageRuntime(runtime.address, runtime.stage, prefetch=_PREFETCH, now_ns=0)


_ADD: Mapping[str, Callable[[Part, Stage, Any], None]] = {  # by `Operation.runs`
    "source": _add_source,
    "call": _add_call,
    "batch": _add_batch,
    "unbatch": _add_unbatch,
    "join": _add_join,
    "route": _add_route,
    "cache": _add_cache,
    "stateful": _add_stateful,
}


def _takes_fused(node: Node) -> bool:
    if isinstance(node, FusedNode):
        return False
    return not node.remote and (
        isinstance(node, MapNode) or (isinstance(node, SourceNode) and node.fuses)
    )


def connect(above: Sequence[Node], node: Node) -> None:
    """Let `node` take from the nodes above."""
    node.upstream = tuple(above)
    for one in above:
        one.downstream = node
    node.inbox = above[0].out
    if isinstance(node, MapNode):
        above[0].gathers = node.gather
    if isinstance(node.provenance, BatchLog):
        node.provenance.inbox = node.inbox


# -- Build the nodes of an epoch from a chain of stages --------------------------------------------
SAMPLES, BATCHES = 8, 2  # prefetch of stages without a knob: before and after the first batch


class Builder:
    """Builds one epoch.

    Args:
        epoch: the epoch to fill.
        runtime_of: returns the run's runtime of a stage by address, made at first use.
        fused_stages: returns the workers of stages outside the run's threads; with None, as in a
            peek, each stage runs alone, like those in threads.
        node_state: states of the stages, by address, for an epoch that is resumed.
        devices: the run's; with None, as in a peek, each call waits for its device.

    Attributes:
        budgets: of failures, by address; they continue in the next pass of a repeat.
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
        """Whether every cache of the chain was complete when it was checked."""
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
            _add_repeat(part, chain, last_repeat)
            used = last_repeat + 1
        elif spec is not None:
            _add_source(part, chain[0], spec)
        else:
            used = 0
        for group in regions_of(chain[used:]):
            part.add(group)
            if cache is not None and group[-1] is cache[0]:
                part.make_as_of(part.own.epoch, passes)
        return nodes

    def _begun_elsewhere(self, chain: Chain, place: str) -> tuple[Stage, Made] | None:
        """Return the last cache of a chain that continues what another process has begun."""
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
        """Return a value that depends on a stage's arguments, found in the first pass.

        Later passes are built under the lock, where no user code may run.
        """
        if id(stage) not in self._found:
            self._found[id(stage)] = ask()
        return self._found[id(stage)]

    def kept(self, store: CacheStore) -> Kept | None:
        """Return what a cache holds, or None where it is not complete.

        It is read before the first pass and in `check_caches`: a cache may be on a disk, and the
        other passes are built under the lock.
        """
        if id(store) not in self._caches:
            self._caches[id(store)] = store, store.kept
        return self._caches[id(store)][1]

    def check_caches(self) -> None:
        """Check which caches are complete; called without the lock."""
        for store, kept in tuple(self._caches.values()):
            if kept is None:
                self._caches[id(store)] = store, store.kept

    def resume_from(self, stages: StageStates) -> None:
        """Let the nodes that are built next, of a later pass, begin with these states."""
        self._node_state.update(stages)

    def node_state(self, address: str) -> dict[str, Any]:
        """Return the state of a stage; later passes of a repeat have none."""
        return self._node_state.pop(address, {})
