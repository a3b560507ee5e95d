"""LoaderPlaces: the epoch of a `DataLoader` that is the newest, and the one that is to go on."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from .fetching import Resumed, following
from .loader_arguments import Samples
from .loader_chain import READER, SAMPLES
from .loader_draws import Drawn, Draws, Noted, checked_state, has_state, state_of
from .loader_state import Mark, Progress, read
from .rest import Rest
from .run import Run

_ALL = Rest()
Seeded = tuple[int, int]  # a seed, and the number of an epoch of those that have it


@final
class Places:
    """Where a loader's epochs are.

    Args:
        dataset: of the loader.
        samples: which of its samples make which batch.
        reads: the dataset is iterable.
        in_order: batches come in the order of the samples.

    Attributes:
        pending: the place that was loaded, until a batch of its epoch is asked for; or None.
        progress: of the newest epoch, or None.
    """

    def __init__(self, dataset: Any, samples: Samples, *, reads: bool, in_order: bool) -> None:
        self.pending: Mark | None = None
        self.progress: Progress | None = None
        self._dataset = dataset
        self._samples = samples
        self._reads = reads
        self._in_order = in_order
        self._once: bool | None = None  # the seed is drawn once, where a state says whether
        self._kept: Seeded | None = None  # the next epoch's seed, where it is drawn once for all

    # -- the next epoch -------------------------------------------------------------------
    def begin(self) -> Mark | None:
        """Give the place where the next epoch begins, if one was loaded."""
        if self.progress is not None and self.progress.asked:
            self.pending = None
        return self.pending

    def indices(self, draws: Draws, mark: Mark | None) -> Iterator[Any] | None:
        """Begin to iterate the sampler; load its own state. A dataset is told its own later."""
        if mark is not None and mark.dataset is not None:
            checked_state(self._dataset)
        if self._reads:
            return None
        sampler, start = draws.stateful, 0 if mark is None else mark.rest.start
        if sampler is None:
            return following(iter(self._samples.indices))
        loaded = mark is not None and mark.sampler is not None
        if loaded:
            checked_state(sampler)
            sampler.load_state_dict(mark.sampler)  # type: ignore[union-attr]
        return Noted(sampler, self._samples.indices, start, retry=loaded and not start)

    def seeded(
        self, draw: Callable[[], int], mark: Mark | None, *, stays: bool
    ) -> tuple[int, int, bool]:
        """Give the seed of the next epoch, its number, and whether the seed was drawn for it.

        Args:
            draw: draws one.
            mark: where it begins, or None.
            stays: its workers stay for the next one.
        """
        if mark is not None and mark.begun and mark.seed is not None:
            if mark.drew:
                draw()
            return mark.seed, mark.epoch, mark.drew
        kept = self._next_seeded(stays=stays)
        if kept is None:
            return draw(), 0, True
        if self._once is False:
            draw()  # the loader whose state was loaded does so for each epoch
        return *kept, self._once is False

    def _next_seeded(self, *, stays: bool) -> Seeded | None:
        """Give the next epoch's seed and number, where none is drawn for it."""
        return self._kept if stays or self._once else None

    def marked(
        self, mark: Mark | None, drawn: Drawn, seeded: tuple[int, int, bool], *, stays: bool
    ) -> Mark:
        """Give the place where an epoch begins.

        Args:
            mark: the one that was loaded, or None.
            drawn: how everything was before.
            seeded: its seed, its number, and whether the seed was drawn for it.
            stays: its workers stay for the next one.
        """
        seed, epoch, drew = seeded
        once = stays if self._once is None else self._once
        if stays or self._once:
            self._kept = seed, epoch + 1
        if mark is not None and mark.begun:
            return mark
        return Mark(
            begun=True,
            delivered=0,
            rest=_ALL,
            drawn=drawn,
            seed=seed,
            drew=drew,
            stays=once,
            epoch=epoch,
            dataset=None if mark is None else mark.dataset,
            iterator=None if mark is None else mark.iterator,
        )

    def started(self, mark: Mark, indices: Iterator[Any] | None, *, here: bool) -> Progress:
        """Note that an epoch is to begin; it is the newest once it does."""
        noted = indices if isinstance(indices, Noted) else None
        return Progress(mark, in_order=self._in_order or here, noted=noted)

    # -- states ---------------------------------------------------------------------------
    def about(self, draws: Draws) -> dict[str, Any]:
        """Say what must be the same where an epoch goes on."""
        samples = self._samples
        size, drop_last = samples.batch_size, samples.drop_last
        if samples.chosen_by_user:
            size = getattr(samples.indices, "batch_size", None)
            drop_last = getattr(samples.indices, "drop_last", False)
        return {
            "length": None if self._reads else _length(self._dataset),
            "batch_size": size if type(size) is int else None,
            "drop_last": bool(drop_last),
            "sampler": "IterableDataset" if self._reads else " of ".join(draws.kinds),
        }

    def state_dict(self, draws: Draws, *, workers: int, stays: bool) -> dict[str, Any]:
        """Write down where the newest epoch is, or the next one.

        Args:
            draws: what the order is drawn from.
            workers: how many the next epoch has.
            stays: they are to stay.
        """
        progress, pending = self.progress, self.pending
        if pending is not None and (progress is None or not progress.asked):
            return dict(pending.data)
        if progress is None or progress.finished:
            mark = self._next(draws, here=not workers, stays=stays)
        elif progress.untouched:  # its sampler has drawn nothing
            mark = dataclasses.replace(
                progress.mark,
                begun=False,
                sampler=progress.sampler_at(0),
                dataset=self._state_of_dataset(here=True),
                iterator=progress.iterator,
            )
        else:
            mark = self._inside(progress)
        state = mark.written(self.about(draws))
        state["torch_now"] = draws.now.data["torch"] if mark.begun else None
        return state

    def _next(self, draws: Draws, *, here: bool, stays: bool) -> Mark:
        seed, epoch = self._next_seeded(stays=stays) or (None, 0)
        sampler = draws.stateful
        return Mark(
            begun=False,
            delivered=0,
            rest=_ALL,
            drawn=draws.now,
            seed=seed,
            drew=False,
            stays=stays if self._once is None else self._once,
            epoch=epoch,
            sampler=None if sampler is None else state_of(sampler),
            dataset=self._state_of_dataset(here=here),
        )

    def _inside(self, progress: Progress) -> Mark:
        parts = progress.parts
        rest = _ALL if parts is not None else progress.rest
        return dataclasses.replace(
            progress.mark,
            delivered=progress.delivered,
            rest=rest,
            sampler=progress.sampler_at(rest.start),
            dataset=self._state_of_dataset(here=progress.run is None, had=progress.delivered),
            iterator=progress.iterator,
            ended=progress.ended,
            parts=parts,
        )

    def _state_of_dataset(self, *, here: bool, had: int = 0) -> Any:
        """Return the dataset's own state; None where it has none, or none before a sample."""
        if not here or not self._reads or not has_state(self._dataset):
            return None
        try:
            return state_of(self._dataset)
        except AttributeError:
            if not had:  # it gets what it tells of when it is read
                return None
            raise

    def read(self, draws: Draws, state: Any) -> tuple[Mark, Any]:
        """Read a state; give its place, and what torch's own generator is to be, or None.

        Raises:
            StateError: it belongs to another loader, or cannot be read.
        """
        mark = read(state, draws, self.about(draws))
        after = state.get("torch_now")
        return mark, mark.drawn.torch if after is None else draws.unpacked(after)

    def load(self, draws: Draws, mark: Mark, now: Any) -> None:
        """Have the next epoch begin at a place.

        Args:
            draws: what the order is drawn from.
            mark: the place.
            now: state of torch's own generator, or None.
        """
        if mark.begun:
            draws.tell_epoch(mark.drawn)
        else:
            draws.restore(mark.drawn)
        draws.set_torch(now)
        self.pending, self.progress, self._once = mark, None, mark.stays
        self._kept = None
        if mark.stays and not mark.begun and not mark.drew and mark.seed is not None:
            self._kept = mark.seed, mark.epoch


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def prepared(indices: Iterator[Any] | None, mark: Mark) -> Iterator[Any] | None:
    """Pass over the indices of batches that the loop has had: something else stands for them.

    Args:
        indices: from the first on; those of a sampler with a state of its own, from where it is.
        mark: says which are left.
    """
    if indices is None:
        return None
    start = mark.rest.start
    if not isinstance(indices, Noted):
        deque(itertools.islice(indices, start), 0)
    return itertools.chain(itertools.repeat(None, start), indices)


def resumed(mark: Mark) -> Resumed:
    """Say where an iterable dataset goes on that is read once."""
    return Resumed(
        epoch=mark.epoch,
        had=mark.rest.start,
        dataset=mark.dataset,
        iterator=mark.iterator,
        ended=mark.ended,
    )


def placed(run: Run, mark: Mark) -> None:
    """Have a run begin where a loader's epoch goes on."""
    if not mark.epoch and not mark.delivered:
        return
    stages: Mapping[str, Any] = {}
    if mark.delivered and mark.parts is not None:
        stages = mark.parts.stages
    elif mark.delivered and READER in run.stages:
        stages = {SAMPLES: {"children": [[0, mark.rest.data]]}}
    elif mark.delivered:
        stages = {next(iter(run.stages)): {"rest": mark.rest.data, "by": "skipping"}}
    place = {"epoch": mark.epoch, "delivered": mark.delivered, "stages": dict(stages)}
    run.load_state_dict(run.state_dict() | place)
