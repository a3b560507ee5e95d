"""Where a loader is in its epochs: the progress of an epoch, and the state of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

from ..base.threads import OwnThread
from ..run.run import Run
from .generators import DrawnIndices, RandomSources
from .position import Position
from .samplers import (
    OrFromStart,
    Samples,
    StatefulIndices,
    following,
    has_state,
    require_state,
    state_of,
)


# -- one epoch -------------------------------------------------------------------------------------
@final
class EpochProgress:
    """How far one epoch of a loader is.

    Args:
        position: where the epoch begins.
        indices: those of its batches; None for an iterable dataset.

    Attributes:
        position: where the epoch begins.
        run: the run whose workers make its batches; None without workers.
        readers: workers that read a part of the dataset each, or 0.
        asked: a batch was asked for.
        finished: it gave all its batches.
        left: its iterator was closed or dropped.
        delivered: batches of the epoch that the loop has had.
        reading: returns the state of the dataset's iterator, and whether the dataset has ended;
            None unless the loop itself reads an iterable dataset.
    """

    def __init__(self, position: Position, indices: Iterator[Any] | None) -> None:
        self.position = position
        self.run: Run | None = None
        self.readers = 0
        self.asked = self.finished = self.left = False
        self.delivered = position.delivered
        self.reading: Callable[[], tuple[Any, bool]] | None = None
        self._drawn = indices if isinstance(indices, DrawnIndices) else None
        self._sampler_states: dict[int, Any] | None = None
        if isinstance(indices, StatefulIndices):
            self._sampler_states, indices = indices.states, indices.indices
        self._own_thread = indices if isinstance(indices, OwnThread) else None

    def deliver(self) -> int:
        """Count a batch that the loop gets; return how many it has had."""
        self.delivered += 1
        if self._sampler_states is not None:  # another thread may take the one before right now
            self._sampler_states.pop(self.delivered - 2, None)
        if self._drawn is not None:
            self._drawn.had(self.delivered)
        return self.delivered

    def leave(self) -> None:
        """End the use of the sampler: the iterator was closed or dropped."""
        self.left = True
        if self._drawn is not None:
            self._drawn.leave()
        if self._own_thread is not None:
            self._own_thread.leave()

    def close_sampler(self) -> None:
        """Wait until a sampler that has a thread of its own is closed there."""
        if self._own_thread is not None:
            self._own_thread.close()

    def is_over(self, sampler_epoch: int | None) -> bool:
        """Return whether the next epoch counts: this one ended, or was left for another one."""
        return self.finished or (self.left and sampler_epoch != self.position.sampler_epoch)

    def place(self, state_of_dataset: Callable[..., Any]) -> Position:
        """Return where the epoch is.

        Args:
            state_of_dataset: returns the dataset's own state; gets `by_loop`, whether the loop
                reads the dataset, and `had`, how many batches it has had.

        Raises:
            StateError: the workers died, so that the position is lost.
        """
        run = self.run
        iterator, ended = (None, False) if self.reading is None else self.reading()
        if run is None and not self.asked:  # nothing of the order was drawn yet
            return replace(
                self.position,
                begun=False,
                seed=None,
                epoch=0,
                sampler=self._sampler_state(0),
                dataset=state_of_dataset(by_loop=True),
                iterator=iterator,
            )
        parts = None
        if run is not None and self.readers:
            parts = [self.readers, run.state_dict()["stages"]]
        return replace(
            self.position,
            delivered=self.delivered,
            sampler=self._sampler_state(self.delivered),
            dataset=state_of_dataset(by_loop=run is None, had=self.delivered),
            iterator=iterator,
            ended=ended,
            parts=parts,
        )

    def _sampler_state(self, number: int) -> Any:
        return None if self._sampler_states is None else self._sampler_states[number]


# -- all epochs ------------------------------------------------------------------------------------
@final
class LoaderState:
    """Where a loader is: in its newest epoch, or at the position that was loaded.

    Args:
        dataset: of the loader.
        samples: which of its samples make which batch.
        iterable: the dataset is iterable.

    Attributes:
        progress: of the newest epoch, or None.
    """

    def __init__(self, dataset: Any, samples: Samples, *, iterable: bool) -> None:
        self.progress: EpochProgress | None = None
        self._loaded: Position | None = None  # until a batch of its epoch is asked for
        # While an epoch begins, a state is that of its beginning, before anything was drawn.
        self._beginning: Position | None = None
        self._indices: Iterator[Any] | None = None
        self._dataset = dataset
        self._samples = samples
        self._iterable = iterable
        self._kept: tuple[int, int] | None = None  # seed of workers that stay, next epoch's number

    # -- the next epoch -------------------------------------------------------------------
    def loaded(self) -> Position | None:
        """Return the loaded position where the next epoch begins, or None."""
        if self.progress is not None and self.progress.asked:
            self._loaded = None
        return self._loaded

    def begin(
        self,
        sources: RandomSources,
        loaded: Position | None,
        draw_seed: Callable[[], int],
        *,
        stays: bool,
        ahead: int,
    ) -> tuple[EpochProgress, Iterator[Any] | None]:
        """Begin the next epoch; `begun` has to follow.

        Args:
            sources: the generators that the order is drawn from.
            loaded: where the epoch begins, or None.
            draw_seed: draws the seed of the workers.
            stays: the workers stay for the epoch after it.
            ahead: batches that torch's loader reads ahead; 0 without workers.

        Returns:
            The progress, and the indices of the batches: None for each batch that the loop has
            had. There are no indices for an iterable dataset.
        """
        now = sources.now() if loaded is None or not loaded.begun else {}
        if loaded is None:
            self._indices, self._beginning = None, self._next_position(now, stays=stays)
        self._indices = indices = self._start_indices(sources, loaded, ahead)
        seed, number = self._seed_of(draw_seed, loaded, stays=stays)
        if stays:
            self._kept = seed, number + 1
        position = loaded
        if position is None or not position.begun:
            position = Position(
                **now,
                begun=True,
                seed=seed,
                epoch=number,
                dataset=None if loaded is None else loaded.dataset,
                iterator=None if loaded is None else loaded.iterator,
            )
        return EpochProgress(position, indices), position.rest_of(indices)

    def begun(self, progress: EpochProgress | None) -> None:
        """Note that the epoch has begun and is the newest; None: it could not begin."""
        if progress is not None:
            self.progress = progress
        self._beginning = self._indices = None

    def _start_indices(
        self, sources: RandomSources, position: Position | None, ahead: int
    ) -> Iterator[Any] | None:
        """Start the sampler, which loads its own state; a dataset loads its own when it is read."""
        if position is not None and position.dataset is not None:
            require_state(self._dataset)
        if self._iterable:
            return None
        samplers, indices = sources.samplers, self._samples.indices
        sampler, start = samplers.stateful, 0 if position is None else position.delivered
        if sampler is None:
            generator = sources.drawn_from
            if ahead and generator is not None:
                return DrawnIndices(generator, indices, ahead)
            read = samplers.read(indices, ahead=ahead > 0)
            return read if isinstance(read, OwnThread) else following(read)
        resumes = position is not None and position.sampler is not None
        if resumes:
            require_state(sampler)
            sampler.load_state_dict(position.sampler)  # type: ignore[union-attr]
        rest = OrFromStart(indices) if resumes and not start else indices
        return StatefulIndices(sampler, lambda: samplers.read(rest, ahead=ahead > 0), start)

    def _seed_of(
        self, draw_seed: Callable[[], int], position: Position | None, *, stays: bool
    ) -> tuple[int, int]:
        """Return the seed of the epoch, and its number among those with this seed."""
        if position is not None and position.begun and position.seed is not None:
            if not position.epoch:
                draw_seed()  # as the uninterrupted epoch did
            return position.seed, position.epoch
        return self._kept if stays and self._kept is not None else (draw_seed(), 0)

    # -- states ---------------------------------------------------------------------------
    def about(self, sources: RandomSources) -> dict[str, Any]:
        """Return the values that must be the same where the epoch continues."""
        samples = self._samples
        size, drop_last = samples.batch_size, samples.drop_last
        if samples.chosen_by_user:
            size = getattr(samples.indices, "batch_size", None)
            drop_last = getattr(samples.indices, "drop_last", False)
        kinds = " of ".join(sources.samplers.kinds)
        return {
            "length": None if self._iterable else _length(self._dataset),
            "batch_size": size if type(size) is int else None,
            "drop_last": bool(drop_last),
            "sampler": "IterableDataset" if self._iterable else kinds,
        }

    def state_dict(self, sources: RandomSources, *, workers: int, stays: bool) -> dict[str, Any]:
        """Return the state: where the newest epoch is, or the next one begins.

        Args:
            sources: the generators that the order is drawn from.
            workers: how many the next epoch has.
            stays: they stay for the epoch after it.
        """
        progress, position = self.progress, self.loaded()
        if position is None:
            if (beginning := self._beginning) is not None:
                position = self._with_states(beginning, sources, by_loop=not workers)
            elif progress is None or progress.is_over(sources.samplers.epoch):
                beginning = self._next_position(sources.now(), stays=stays)
                position = self._with_states(beginning, sources, by_loop=not workers)
            else:
                position = progress.place(self._state_of_dataset)
            now = sources.torch_now() if position.begun else None
            position = replace(position, torch_now=now)
        return position.as_state(self.about(sources))

    def load(self, sources: RandomSources, position: Position) -> None:
        """Have the next epoch begin at a position."""
        if position.begun:
            sources.samplers.set_epoch(position.sampler_epoch)
        else:
            sources.restore(position)
        sources.set_torch(position.torch_now or position.torch)
        self._loaded, self.progress, self._kept = position, None, None
        if not position.begun and position.seed is not None:
            self._kept = position.seed, position.epoch

    def _next_position(self, now: Mapping[str, Any], *, stays: bool) -> Position:
        """Return where the next epoch begins, without the states of samplers and datasets."""
        seed, number = self._kept if stays and self._kept is not None else (None, 0)
        return Position(**now, begun=False, seed=seed, epoch=number)

    def _with_states(self, place: Position, sources: RandomSources, *, by_loop: bool) -> Position:
        """Return a beginning with the states of samplers and datasets."""
        sampler, indices = sources.samplers.stateful, self._indices
        if self._beginning is not None and isinstance(indices, StatefulIndices):
            state = indices.states[0]
        else:
            state = None if sampler is None else state_of(sampler)
        return replace(place, sampler=state, dataset=self._state_of_dataset(by_loop=by_loop))

    def _state_of_dataset(self, *, by_loop: bool, had: int = 0) -> Any:
        """Return the dataset's own state; None where it has none, or none before a sample."""
        if not by_loop or not self._iterable or not has_state(self._dataset):
            return None
        try:
            return state_of(self._dataset)
        except AttributeError:
            if not had:  # some datasets make their attributes when they are iterated
                return None
            raise


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001  whatever `__len__` raises, the length is not known
        return None
