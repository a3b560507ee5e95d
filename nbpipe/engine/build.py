"""Build the nodes of an epoch from a chain of stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..cache import Made, Store
from ..operations import (
    Cache,
    Repeat,
)
from ..order import absorbed
from ..region import regions_of
from ..stage import Chain, Stage, address_book
from .context import EpochContext
from .device import let_read
from .lane import Lane
from .node import Node
from .noting import Stages
from .part import Part
from .regions import Regions

if TYPE_CHECKING:
    from .epoch import Epoch

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
