"""A run whose workers make the batches of a loader, for one epoch or for all."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

from ..errors import StageTimeoutError
from ..run.run import Run
from .chain import READER, SAMPLES, EpochIndices
from .local import LocalRun
from .position import Position
from .samplers import started
from .state import EpochProgress

GRACE_S = 0.5  # for calls in progress when an epoch is left; then their workers are killed
_MOST_OF_LIMIT = 0.25  # of a timeout: one round of a wait counts at most so much


@final
class BatchTimeout:
    """Limits how long the training loop waits for one batch; pauses do not count.

    Time in which the process was stopped (`kill -STOP`, a laptop that sleeps) does not count
    either: it looks like one long round of the wait, and only a part of a round counts.

    Args:
        limit_s: the limit [s].
        run: makes the batches.
    """

    def __init__(self, limit_s: float, run: Run) -> None:
        self._limit_s = limit_s
        self._others = run._core.between_waits
        self._run = weakref.ref(run)  # the run holds this
        self._waited_s = self._since_s = 0.0

    def begin(self) -> None:
        """Begin a wait."""
        self._waited_s, self._since_s = 0.0, self._now_s()

    def _now_s(self) -> float:
        run = self._run()
        return self._since_s if run is None else run._core.active_s

    def __call__(self) -> None:
        """Check the time; called at the beginning of a wait, and after each round of it.

        Raises:
            StageTimeoutError: the wait has taken too long.
        """
        if self._others is not None:
            self._others()
        now_s = self._now_s()
        self._waited_s += min(now_s - self._since_s, self._limit_s * _MOST_OF_LIMIT)
        self._since_s = now_s
        if self._waited_s > self._limit_s:
            raise StageTimeoutError(
                f"no batch came within timeout={self._limit_s:g} s; raise timeout, or see what "
                "limits it: loader.run.diagnose()"
            )


class WorkerRun(NamedTuple):
    """A run whose workers make batches.

    Attributes:
        run: the run.
        indices: give it the indices of each epoch; None for an iterable dataset.
        seed: of its items.
        readers: workers that read a part of an iterable dataset each, or 0.
        stays: it stays for the next epoch.
        timeout: limits the wait for a batch, or None.
    """

    run: Run
    indices: EpochIndices | None
    seed: int
    readers: int
    stays: bool
    timeout: BatchTimeout | None

    def begin(self, indices: Iterator[Any] | None, progress: EpochProgress) -> Iterator[Any]:
        """Begin an epoch with these indices; the first one is drawn immediately."""
        if self.indices is not None and indices is not None:
            self.indices.prepared = started(indices)
        self.run.set_epoch(progress.position.epoch)  # other runs may have made those before it
        try:
            items = iter(self.run)
        except BaseException:  # for example, the dataset cannot be sent to a process
            close_run(self.run, GRACE_S)
            raise
        progress.run, progress.readers = self.run, self.readers
        return items


def close_run(run: Run | LocalRun, timeout_s: float) -> None:
    """Close a run, and release the memory that its workers mapped."""
    run.close(timeout_s)
    for stage in run.stages.values():
        release = getattr(stage.fn, "release", None)
        if release is not None:
            release()


def load_into(run: Run, position: Position) -> None:
    """Have a run begin at a position of a loader."""
    if not position.epoch and not position.delivered:
        return
    stages: Mapping[str, Any] = {}
    rest = [position.delivered, []]
    if position.delivered and position.parts is not None:
        *_, stages = position.parts
    elif position.delivered and READER in run.stages:
        stages = {SAMPLES: {"children": [[0, rest]]}}
    elif position.delivered:
        stages = {next(iter(run.stages)): {"rest": rest, "by": "skipping"}}
    place = {"epoch": position.epoch, "delivered": position.delivered, "stages": dict(stages)}
    run.load_state_dict(run.state_dict() | place | {"seal": None})
