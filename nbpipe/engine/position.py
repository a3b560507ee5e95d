"""RunPosition: which epoch a run is in, how far, and where the next one begins."""

from __future__ import annotations

from dataclasses import replace

from ..errors import StateError
from ..ops.checkpoint import EpochPlace
from ..ops.ranges import IndexRanges
from .engine import Engine
from .epoch import LOG, Epoch
from .nodes.external import ExternalOrder
from .nodes.provenance import StageStates


class RunPosition:
    """Where a run is: what `state_dict()` saves and `load_state_dict()` sets.

    The methods that change it are called under the scheduler's lock; the others take it.

    Args:
        engine: the stages.

    Attributes:
        epoch: the epoch in progress, or None.
        external: the order of that epoch, or of the last one, if it came from outside.
        number: number of the epoch in progress, or of the last one.
        delivered_before: items of the epoch that the loop took before this run resumed it.
        next_epoch: number of the epoch that starts next.
        resume_at: where that epoch begins, if in the middle.
        left: where the last epoch was left; None if it finished.
    """

    def __init__(self, engine: Engine) -> None:
        self.epoch: Epoch | None = None
        self.external: ExternalOrder | None = None
        self.number = self.next_epoch = self.delivered_before = 0
        self.resume_at: EpochPlace | None = None
        self.left: EpochPlace | None = None
        self._engine = engine
        self._scheduler = engine.scheduler
        self._delivered = self._skipped = 0  # in the last epoch
        self._starting: EpochPlace | None = None  # of the epoch that is being built
        self._resumed_at: EpochPlace | None = None  # where the epoch in progress resumed
        self._before: EpochPlace | None = None  # `resume_at` before it started

    # -- changes, in the order in which they happen -----------------------------------------
    def set_next(self, number: int) -> None:
        """Set the number of the next epoch; give up resuming any other."""
        self.next_epoch = number
        if self.epoch is None:
            self.left = None
        if self._resumed_at is not None and self._resumed_at.epoch != number:
            self._resumed_at = None

    def resume(self, place: EpochPlace) -> None:
        """Have the next epoch begin at a place."""
        self.resume_at, self.next_epoch = place, place.epoch
        self.left = self._resumed_at = None

    def start(self, external: ExternalOrder | None) -> EpochPlace:
        """Start the next epoch: its number is visible; it is built after that.

        Raises:
            StateError: the loaded state belongs to another order.
        """
        place = self._place_to_start(external)
        self.number, self.external, self.left = place.epoch, external, None
        self._delivered = self._skipped = 0
        self.delivered_before = place.delivered
        self._resumed_at = place if place is self.resume_at else None
        self._before = self.resume_at
        self._starting = replace(place, external=external is not None)
        self.resume_at, self.next_epoch = None, place.epoch + 1
        return place

    @property
    def is_starting(self) -> bool:
        """Whether an epoch is being built."""
        return self._starting is not None

    def started(self, epoch: Epoch) -> None:
        """Set the epoch in progress: it was built."""
        self.epoch, self._starting = epoch, None

    def take_back(self) -> bool:
        """Undo `start`: the epoch could not be built. What other threads set since then stays.

        Returns:
            Whether an epoch was starting.
        """
        place, self._starting = self._starting, None
        if place is None:
            return False
        if self.resume_at is None and self.next_epoch == place.epoch + 1:
            self.resume_at, self.next_epoch = self._before, place.epoch
        return True

    def end(self, epoch: Epoch, left: EpochPlace | None) -> None:
        """End the epoch in progress.

        Args:
            epoch: the epoch.
            left: where the loop left it; None if it finished or was stopped.
        """
        resumed = self._resumed_at
        if left is not None and resumed is not None and left.delivered == resumed.delivered:
            self.resume_at, self.next_epoch = resumed, resumed.epoch  # the loop took nothing
        self._skipped, self._delivered = epoch.skipped, epoch.delivered
        self.epoch, self.left = None, left

    # -- what it is ---------------------------------------------------------------------------
    @property
    def delivered(self) -> int:
        """Items of the epoch in progress, or of the last one, that the loop took in this run."""
        epoch = self.epoch
        return self._delivered if epoch is None else epoch.delivered

    @property
    def skipped(self) -> int:
        """Items of that epoch that failed in this process and were left out."""
        epoch = self.epoch
        return self._skipped if epoch is None else epoch.skipped

    def _next_place(self) -> EpochPlace:
        place = self.resume_at
        if place is not None and place.epoch == self.next_epoch:
            return place
        return EpochPlace(self.next_epoch)

    def _place_to_start(self, external: ExternalOrder | None) -> EpochPlace:
        place = self._next_place()
        if place.external and external is None:
            raise StateError(
                "the state is of an epoch in an order from outside, so that order is needed to "
                "continue: run.iterate(indices), with the same indices"
            )
        if place.is_inside and external is not None and not place.external:
            raise StateError(
                "the state is of an epoch in the pipeline's own order, so it cannot continue in "
                "another one; iterate the run itself, or give an order to the epoch after it"
            )
        return place

    def place(self) -> EpochPlace:
        """Return the place after the last item that the loop took.

        Raises:
            StateError: the place is not known.
        """
        epoch = self.epoch
        found = self._place_between() if epoch is None else self._place_in(epoch)
        if found is None:  # another thread has just started or ended an epoch
            return self.place()
        if found.node_state is None:
            raise StateError(
                "the process of the stages does not tell where they stand: it died in the epoch, "
                "or is too busy; continue from an earlier state, or ask again"
            )
        return found

    def place_left(self, epoch: Epoch) -> EpochPlace | None:
        """Return where an epoch is left; an error must not keep the epoch from ending."""
        try:
            return self._place_in(epoch)
        except Exception:
            LOG.warning("it cannot be told where the epoch was left", exc_info=True)
            return EpochPlace(self.number)

    def _place_between(self) -> EpochPlace | None:
        """Return where the last epoch was left, or the next one begins; None during an epoch."""
        with self._scheduler.lock:
            if self.epoch is not None or self.left is not None:
                return self.left
            place = self._starting or self._next_place()
        if place.node_state is None:
            place = replace(place, node_state=self._engine.caches())
        return place

    def _place_in(self, epoch: Epoch) -> EpochPlace | None:
        """Return the place in an epoch; None if another thread has ended it."""
        with self._scheduler.lock:
            number, before, delivered = self.number, self.delivered_before, self.delivered
            from_outside = self.external is not None
            if self.epoch is not epoch:
                return None
        node_state = self._engine.node_state(epoch, delivered)
        if self.epoch is not epoch:
            return None
        return EpochPlace(number, before + delivered, node_state, from_outside)

    def node_state(self, number: int, rest: IndexRanges) -> StageStates | None:
        """Return the states of the stages in the epoch in progress; None if it is another one."""
        epoch = self.epoch
        if epoch is None or epoch.context.epoch != number:
            return None
        with self._scheduler.lock:
            return epoch.node_state(rest)
