"""ChainPickle: a chain of stages as plain values that can be pickled, and built again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...base.format import format_bytes
from ...base.knobs import Knob
from ...errors import ArgumentError
from ...executors.pickling import pickled_bytes
from ...executors.shipping import LARGE_BYTES, Shipped, ship, warn_if_large
from ...ops.stage import Chain, Operation, Placement, Stage, address_book, addresses

LOG = logging.getLogger("nbpipe")

Values = dict[tuple[str, str], int]  # of knobs, by the stage's address and the knob's name


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a Dask cluster is, and how a stage uses it."""

    address: str
    security: Any
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlainKnob:
    """A knob without its lock and watchers."""

    name: str
    value: int
    minimum: int
    maximum: int
    unit: str

    def build(self) -> Knob:
        """Make the knob again."""
        return Knob(
            self.name, self.value, minimum=self.minimum, maximum=self.maximum, unit=self.unit
        )


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A stage as it is sent; `stage` is its address, for errors."""

    stage: str
    name: str
    named: bool
    executor: str
    spec: Operation
    placement: Placement | None
    knobs: dict[str, PlainKnob]
    inputs: tuple[tuple[PlainStage, ...], ...]


@dataclass(frozen=True, slots=True)
class ChainPickle:
    """A chain as it is sent."""

    stages: tuple[PlainStage, ...]


# -- in the process that starts the run ---------------------------------------------------
def split(chain: Chain) -> tuple[Chain, Chain]:
    """Return the stages that go to the other process, and those that stay with the loop.

    A batch does not leave the process in which it was copied to a device.
    """
    count = sum(stage.executor != "device" for stage in chain)
    return chain[:count], chain[count:]


def pickled(chain: Chain) -> Shipped:
    """Make a chain ready to be sent; knobs go with the values that they were made with.

    Raises:
        ArgumentError: a stage has an executor that lives in this process.
        UnpicklableError: part of a stage cannot be pickled; the message names it.
    """
    packer = _Packer(chain)
    return ship(ChainPickle(packer.chain(chain, "")), stage=next(iter(addresses(chain))))


def warn_of_size(chain: Chain, shipped: Shipped) -> None:
    """Warn once of what makes a chain large, where it is above 1 MiB."""
    if shipped.size_bytes <= LARGE_BYTES:
        return
    for address, stage in addresses(chain).items():
        spec: Any = stage.spec
        if spec.runs == "call" and stage.placement is None:
            warn_if_large(spec.fn, address)
        elif spec.runs == "source" and not callable(spec.items) and spec.items is not None:
            _warn_of_source(address, spec.items)


def _warn_of_source(address: str, items: Any) -> None:
    size_bytes = pickled_bytes(items)
    if size_bytes > LARGE_BYTES:
        LOG.warning(
            "source %r is sent to the process of the run, once: a %s of %s; give a function that "
            "makes it there, or memory-map it, if that is too much",
            address,
            type(items).__name__,
            format_bytes(size_bytes),
        )


class _Packer:
    """Takes stages apart; a knob that several stages share stays one."""

    def __init__(self, chain: Chain) -> None:
        self._book = address_book(chain)
        self._knobs: dict[int, PlainKnob] = {}
        self._clusters: dict[int, Cluster] = {}

    def chain(self, chain: Chain, place: str) -> tuple[PlainStage, ...]:
        return tuple(self._stage(stage, place) for stage in chain)

    def _stage(self, stage: Stage, place: str) -> PlainStage:
        address = self._book[place + stage.name]
        branches = stage.op == "route"
        return PlainStage(
            stage=address,
            name=stage.name,
            named=stage.named,
            executor=stage.executor,
            spec=stage.spec,
            placement=self._placement(stage.placement, address),
            knobs={name: self._knob(knob) for name, knob in stage.knobs.items()},
            inputs=tuple(
                self.chain(inner, place if branches else f"{place}{number}/")
                for number, inner in enumerate(stage.inputs)
            ),
        )

    def _knob(self, knob: Knob) -> PlainKnob:
        plain = PlainKnob(knob.name, knob.default, knob.minimum, knob.maximum, knob.unit)
        return self._knobs.setdefault(id(knob), plain)

    def _placement(self, placement: Placement | None, address: str) -> Placement | None:
        if placement is None or placement.executor == "process":
            return placement
        if placement.executor != "dask":
            kind = type(placement.given).__name__
            raise ArgumentError(
                f"stage {address!r} has an executor object ({kind}), which lives in this process "
                "and cannot be used with isolate=True; give executor='process' or 'thread', or "
                "start the run without isolate"
            )
        cluster = self._clusters.get(id(placement.given))
        if cluster is None:
            cluster = _cluster(placement.given or "dask", address)
            self._clusters[id(placement.given)] = cluster
        return dataclasses.replace(placement, given=cluster)


def _cluster(given: object, address: str) -> Cluster:
    from ...executors.dask import dask_executor_of

    executor = dask_executor_of(given)
    assert executor is not None
    client: Any = executor.client
    where = str(client.scheduler.address)
    if where.startswith("inproc:"):
        raise ArgumentError(
            f"stage {address!r} uses a Dask cluster inside this process ({where}), which another "
            "process cannot reach: with isolate=True, make the client with processes=True"
        )
    options = {
        "scatter": executor.scatter,
        "resources": executor.resources,
        "priority": executor.priority,
    }
    return Cluster(where, client.security, options)


# -- in the process that does the work ----------------------------------------------------
class Unpacked:
    """A chain built again, with what it needs here.

    Attributes:
        chain: the stages.
    """

    def __init__(self, pickle: ChainPickle) -> None:
        self._knobs: dict[int, Knob] = {}
        self._clients: dict[str, Any] = {}
        self._executors: dict[int, Any] = {}
        self.chain: Chain = self._built(pickle.stages)

    def _built(self, stages: tuple[PlainStage, ...]) -> Chain:
        return tuple(map(self._stage, stages))

    def _stage(self, plain: PlainStage) -> Stage:
        return Stage(
            plain.spec,
            name=plain.name,
            named=plain.named,
            executor=plain.executor,
            inputs=tuple(map(self._built, plain.inputs)),
            placement=self._placement(plain.placement),
            shared={name: self._knob(knob) for name, knob in plain.knobs.items()},
        )

    def _knob(self, plain: PlainKnob) -> Knob:
        knob = self._knobs.get(id(plain))
        if knob is None:
            knob = self._knobs[id(plain)] = plain.build()
        return knob

    def _placement(self, placement: Placement | None) -> Placement | None:
        if placement is None or not isinstance(placement.given, Cluster):
            return placement
        cluster = placement.given
        if id(cluster) not in self._executors:
            from ...executors.dask import DaskExecutor

            executor = DaskExecutor(self._client(cluster), **cluster.options)
            self._executors[id(cluster)] = executor
        return dataclasses.replace(placement, given=self._executors[id(cluster)])

    def _client(self, cluster: Cluster) -> Any:
        client = self._clients.get(cluster.address)
        if client is None:
            from distributed import Client

            client = Client(cluster.address, security=cluster.security, set_as_default=False)
            self._clients[cluster.address] = client
        return client

    def close(self) -> None:
        """Disconnect from clusters."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def knobs_of(chain: Chain) -> Iterator[tuple[tuple[str, str], Knob]]:
    """Return all knobs with their places."""
    for address, stage in addresses(chain).items():
        for name, knob in stage.knobs.items():
            yield (address, name), knob


def set_values(chain: Chain, values: Values) -> None:
    """Turn knobs to what they are elsewhere."""
    stages = addresses(chain)
    for (address, name), value in values.items():
        stages[address].knob(name).set(value)
