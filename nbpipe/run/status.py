"""StatusReader: where a run is, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, final

from ..engine.lifecycle import RunLifecycle
from ..engine.measures.stats import Status
from ..engine.nodes.external import ExternalOrder, external_chain
from ..engine.nodes.failures import one_line
from ..ops.chain import known_length
from ..ops.stage import Chain, addresses
from .training import BackgroundLoop


@final
class StatusReader:
    """Reads the status of a run.

    Args:
        chain: the stages.
        units: what each stage hands on, by address.
        life: lifecycle of the run.
        background: the background loop.
    """

    def __init__(
        self,
        chain: Chain,
        units: Mapping[str, str],
        life: RunLifecycle,
        background: BackgroundLoop,
    ) -> None:
        self._chain = chain
        self._units = units
        self._life = life
        self._background = background
        self._served = [
            address for address, one in addresses(chain).items() if one.executor_spec is not None
        ]
        self._counted: tuple[int, int | None] = (0, None)  # start of an epoch [ns], its length

    def read(self) -> Status:
        """Return the status now."""
        life, engine, position = self._life, self._life.engine, self._life.position
        trains, trained = self._background.is_active, self._background.epochs
        with life.scheduler.lock:  # one moment, though epochs may start and end
            moment = self._moment(trains=trains)
            begun, error = bool(life.begun_ns), life.error
            external, skipped = position.external, position.skipped
            begun_ns = life.begun_ns if position.epoch is not None else 0
        numbers = engine.numbers()
        return Status(
            **moment,
            epochs=trained.total,
            epochs_begun=trained.begun,
            total=self._total(external, begun_ns),
            units=self._units,
            links=self._links(),
            cpu_cores=numbers.cpu_cores,
            idle_cores=numbers.idle_cores,
            error="" if error is None else one_line(error).removeprefix("nbpipe.errors."),
            held_bytes=numbers.held_bytes,
            limit_bytes=engine.limit_bytes,
            skipped=skipped + (numbers.skipped if begun else 0),
            ahead=engine.reads_ahead_of(moment["epoch"]),
            isolated=engine.isolated_stages,
            process_bytes=numbers.process_bytes,
            **life.record.step_findings,
        )

    def _moment(self, *, trains: bool) -> dict[str, Any]:
        life, position, consumer = self._life, self._life.position, self._life.record.consumer
        elapsed_ns = life.elapsed_ns
        if life.is_in_progress:
            elapsed_ns = consumer.active_ns(perf_counter_ns()) - life.begun_ns
        now_ns = life.begun_ns + elapsed_ns
        since_ns = consumer.waits_since_ns or now_ns
        waited_ns = consumer.waited_ns + max(0, now_ns - since_ns) - life.waited_before_ns
        return {
            "state": self._state(trains=trains),
            "outcome": life.outcome,
            "epoch": position.number,
            "delivered": position.delivered_before + position.delivered,
            "resumed": position.delivered_before,
            "elapsed_s": elapsed_ns / 1e9,
            "waited_s": waited_ns / 1e9,
            "since_pause_s": consumer.since_pause_s(life.begun_ns, now_ns),
        }

    def _state(self, *, trains: bool) -> str:
        life = self._life
        if life.closed:
            return "closed"
        if life.scheduler.paused:
            return "paused"
        return "running" if trains or life.is_in_progress else life.outcome

    def _total(self, external: ExternalOrder | None, begun_ns: int) -> int | None:
        """Return the number of items of an epoch; during the epoch it is counted once.

        Args:
            external: the order of the epoch, if it came from outside.
            begun_ns: start of the epoch in progress; 0 if it has ended.
        """
        counted = self._counted
        if not begun_ns or counted[0] != begun_ns:
            chain = self._chain if external is None else external_chain(self._chain, external)
            self._counted = counted = begun_ns, known_length(chain)
        return counted[1]

    def _links(self) -> dict[str, str]:
        told = {address: self._life.engine.workers(address) for address in self._served}
        links = {address: tell().link for address, tell in told.items() if tell is not None}
        return {address: link for address, link in links.items() if link}
