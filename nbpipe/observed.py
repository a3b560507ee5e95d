"""Observed: what a run shows of itself: state, stats, history, pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from .checkpoint import written
from .engine.given import given_chain
from .engine.life import STOPPED, Life
from .engine.machine import Machine
from .engine.record import Record
from .errors import LengthUnknownError
from .executors.device import DeviceCaller
from .failure import Failure
from .knobs import KnobChange
from .lengths import length, units
from .live_stage import LiveStage
from .metrics import Row
from .stage import CONSUMER, Chain, Stage, addresses, stage_at
from .stats import RunStats
from .training import Training
from .watch import Status


class Observed:
    """A started pipeline, as far as one looks into it; nothing here changes anything.

    Args:
        chain: the stages.
        seed: seed of every random generator handed to a stage.
        memory_bytes: budget for what all buffers hold [bytes], or None.
        machine: where the stages run.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        seed: int,
        memory_bytes: int | None,
        machine: Callable[..., Machine],
    ) -> None:
        self._chain = chain
        self._stages = addresses(chain)
        self._units = units(chain)
        self._training: Training | None = None
        self._seed = seed
        self._record = Record()
        self._machine = machine(chain, self._record, seed=seed, memory_bytes=memory_bytes)
        self._scheduler = self._machine.scheduler
        self._life = Life(self._machine, self._record)

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, or of the last one; before the first, 0."""
        return self._life.number

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self._life.outcome == STOPPED

    @property
    def outcome(self) -> str:
        """How the last epoch ended: "finished", "stopped", "cancelled", "failed"; or "ready"."""
        return self._life.outcome

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        return self._scheduler.paused

    @property
    def title(self) -> str:
        """The addresses of the stages, in one line."""
        return " > ".join(self._stages)

    def status(self) -> Status:
        """Say where the run is: state, epoch, items delivered, time, why the last epoch failed."""
        training = self._training
        trains = training is not None and not training.ended
        ours = training is not None and (trains or self._life.owner is training.thread)
        status = self._life.status(
            trains=trains,
            epochs=(training.total, training.begun) if training is not None and ours else None,
            total=self._total(),
            units=self._units,
        )
        return replace(status, links=self._links())

    def _links(self) -> dict[str, str]:
        away = [address for address, stage in self._stages.items() if stage.placement is not None]
        callers = {address: self._machine.caller(address) for address in away}
        links = {address: caller.link for address, caller in callers.items() if caller is not None}
        return {address: link for address, link in links.items() if link}

    def _total(self) -> int | None:
        try:
            given = self._life.given
            return length(self._chain if given is None else given_chain(self._chain, given))
        except LengthUnknownError:
            return None

    @property
    def seed(self) -> int:
        """Seed of every random generator handed to a stage."""
        return self._seed

    def stats(self) -> RunStats:
        """Give frozen stats by stage address; the training loop's own row is "consumer".

        Between epochs, "the last seconds" are those of the last epoch.
        """
        now_ns = self._life.ended_ns or perf_counter_ns()
        rows = self._machine.stats(now_ns)
        with self._scheduler.lock:
            rows[CONSUMER] = self._record.consumer.stats(now_ns)
        return RunStats(rows)

    def history(self) -> list[Row]:
        """Give one row a second and stage, for a DataFrame; old times are thinned."""
        return self._machine.history()

    def state_dict(self) -> dict[str, Any]:
        """Say where the run stands, in numbers: behind the last item that the loop has had.

        What was read ahead, buffered or shuffled but not handed out is read again by whoever
        goes on; items that were skipped are not tried again. Nothing waits for this.

        Returns:
            JSON-ready values: keep them with `json`, `torch.save` or a checkpoint of Lightning.
            After an epoch came to its end, the beginning of the next one.

        Raises:
            StateError: the process of an isolated run died in the epoch.
        """
        return written(self._chain, self._seed, self._life.place())

    def failures(self) -> tuple[Failure, ...]:
        """Give the last 100 items that failed, oldest first."""
        return self._machine.failures()

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change of this run: when, who, from, to, why."""
        with self._scheduler.lock:
            kept = self._record.events.copy()  # at once: garbage found below us may turn a knob
        return tuple(kept)

    @property
    def devices(self) -> tuple[DeviceCaller, ...]:
        """The threads of the devices that this run uses; `nbpipe.debug` looks at them."""
        return tuple(self._scheduler.regions.devices)

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by address."""
        return dict(self._stages)

    @property
    def closed(self) -> bool:
        """Whether the run was closed."""
        return self._life.closed

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Give a stage; one with workers also tells how many, and their process ids.

        Raises:
            UnknownStageError: there is no such stage.
        """
        stage = stage_at(self._stages, address, "run")
        caller = self._machine.caller(address)
        return stage if caller is None else LiveStage(stage, caller)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._stages)

    def __len__(self) -> int:
        return length(self._chain)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if self._life.epoch is not None:
            state += f", epoch {self.epoch} in progress"
        return f"Run({self.title}; {state})"
