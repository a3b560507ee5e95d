"""Where a `DataLoader` stands in its epochs, as JSON-ready values, and which is to go on."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ..base.format import shortened
from ..errors import StateError
from ..ops.remaining import Remaining
from ..run.run import Run
from .chain import READER, SAMPLES, Batches, Resumed, following
from .order import Drawn, Draws, Noted, Samples, checked_state, has_state, state_of

# -- LoaderState: where a `DataLoader` stands in its epochs, as JSON-ready values ------------------
FORMAT = 1
_WAY_OUT = "give what loader.state_dict() returned"
_MOST = 2**62
_MOST_SEED = 2**63


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where the workers are that read a part of an iterable dataset each.

    Attributes:
        readers: number of workers.
        in_order: they take turns.
        stages: where the stages of their run go on.
    """

    readers: int
    in_order: bool
    stages: dict[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place in a loader's epochs.

    Attributes:
        begun: the epoch had begun; False: it is the next one.
        delivered: batches of it that the loop has had.
        rest: those that it has not.
        drawn: what its order is drawn from, as it was when the epoch began.
        seed: of the workers' items; None where none was drawn.
        drew: that seed was drawn for this epoch.
        stays: the seed is drawn once for all epochs.
        epoch: number of the epoch among those of this seed.
        sampler: the sampler's own state behind the batches below `rest.start`, or None.
        dataset: the iterable dataset's own state, or None.
        iterator: that of the dataset's iterator, where it has another one, or None.
        ended: those are states of an end: the dataset has given all.
        parts: where the workers are that read it in parts, or None.
        data: all of this as it was written.
    """

    begun: bool
    delivered: int
    rest: Remaining
    drawn: Drawn
    seed: int | None
    drew: bool
    stays: bool
    epoch: int
    sampler: Any = None
    dataset: Any = None
    iterator: Any = None
    ended: bool = False
    parts: Parts | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def written(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Write it down.

        Args:
            about: what must be the same where the epoch goes on.
        """
        parts = self.parts
        return {
            "nbpipe_loader": FORMAT,
            "begun": self.begun,
            "delivered": self.delivered,
            "rest": self.rest.data,
            "by": _way(self),
            "seed": self.seed,
            "drew": self.drew,
            "stays": self.stays,
            "epoch": self.epoch,
            **self.drawn.data,
            "sampler": self.sampler,
            "dataset": self.dataset,
            "iterator": self.iterator,
            "ended": self.ended,
            "parts": None if parts is None else [parts.readers, parts.in_order, parts.stages],
            "about": dict(about),
        }


def _way(mark: Mark) -> str:
    if mark.parts is not None:
        return "parts"
    if mark.dataset is not None or mark.iterator is not None:
        return "dataset"
    return "skipping" if mark.sampler is None else "sampler"


def read(data: Any, draws: Draws, about: Mapping[str, Any]) -> Mark:
    """Read what `Mark.written` wrote.

    Raises:
        StateError: it is something else, or of another loader.
    """
    if not isinstance(data, Mapping) or "nbpipe_loader" not in data:
        raise StateError(
            f"a state must be a dict from loader.state_dict(), got {shortened(repr(data))}"
        )
    if data["nbpipe_loader"] != FORMAT:
        raise StateError(
            f"a loader's state must be of format {FORMAT}, got {data['nbpipe_loader']!r}; it was "
            "written by another version of nbpipe: begin the epoch again"
        )
    try:
        _check_about(data["about"], about)
        return _read(data, draws)
    except (TypeError, ValueError, LookupError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state cannot be read ({error!r}); {_WAY_OUT}") from error


def _check_about(theirs: Any, ours: Mapping[str, Any]) -> None:
    for name, here in ours.items():
        there = theirs[name]
        if there != here:
            raise StateError(
                f"the state is of a loader whose {name} is {there!r}, here it is {here!r}; make "
                "the loader as it was, or begin the epoch again"
            )


def _read(data: Mapping[str, Any], draws: Draws) -> Mark:
    for name in ("begun", "drew", "stays"):
        if not isinstance(data[name], bool):
            raise _wrong(name, data[name])
    for name in ("delivered", "epoch"):
        if type(data[name]) is not int or not 0 <= data[name] < _MOST:
            raise _wrong(name, data[name])
    seed, rest = data["seed"], Remaining.read(data["rest"])
    is_seed = type(seed) is int and 0 <= seed < _MOST_SEED
    if not is_seed and (data["begun"] or seed is not None):
        raise _wrong("seed", seed)
    if data["parts"] is None and rest.left_out != data["delivered"]:
        raise _wrong("rest", data["rest"])
    if data["delivered"] and not data["begun"]:
        raise _wrong("begun", data["begun"])
    return Mark(
        begun=data["begun"],
        delivered=data["delivered"],
        rest=rest,
        drawn=draws.read(data),
        seed=seed,
        drew=data["drew"],
        stays=data["stays"],
        epoch=data["epoch"],
        sampler=data["sampler"],
        dataset=data["dataset"],
        iterator=data.get("iterator"),
        ended=data.get("ended") is True,
        parts=_parts(data["parts"]),
        data=data,
    )


def _parts(data: Any) -> Parts | None:
    if data is None:
        return None
    readers, in_order, stages = data
    if type(readers) is not int or not isinstance(stages, Mapping):
        raise _wrong("parts", data)
    return Parts(readers=readers, in_order=bool(in_order), stages=dict(stages))


def _wrong(name: str, value: Any) -> StateError:
    return StateError(
        f"{name!r} of a loader's state is not what was written, got {shortened(repr(value))}; "
        f"{_WAY_OUT}"
    )


def check_reading(mark: Mark, *, workers: int, splits: bool, in_order: bool) -> None:
    """Check that the workers here can go on with an iterable dataset.

    Args:
        mark: where it stands.
        workers: how many there are.
        splits: each of them reads a part.
        in_order: they take turns.

    Raises:
        StateError: other workers have read it.
    """
    parts = mark.parts
    if not mark.delivered or (parts is None and not (workers and splits)):
        return
    if parts is None:
        raise parted(mark)
    if (workers, in_order) != (parts.readers, parts.in_order):
        raise StateError(
            f"the state is of an epoch whose dataset {parts.readers} workers read in parts, with "
            f"in_order={parts.in_order}; here are {workers}, with in_order={in_order}: each has "
            "read as far as it came, so set both as they were, or begin the epoch again"
        )


def parted(mark: Mark) -> StateError:
    """Return the error for a dataset that was read whole, and is to be read in parts."""
    return StateError(
        f"the state is of an epoch whose dataset was read once, for {mark.delivered} batches; here "
        "each worker reads a part of it: set num_workers=0, or begin the epoch again"
    )


@final
class Progress:
    """How far one epoch of a loader came.

    Args:
        mark: where it began.
        in_order: batches come in the order of the samples.
        noted: knows the sampler's own states, or None.

    Attributes:
        mark: where it began.
        run: who makes its batches, or None.
        readers: workers that read a part each; 0: none does.
        asked: a batch was asked for.
        finished: it came to its end.
        delivered: batches of the epoch that the loop has had.
        reading: reads an iterable dataset in the calling thread, or None.
    """

    def __init__(self, mark: Mark, *, in_order: bool, noted: Noted | None = None) -> None:
        self.mark = mark
        self.run: Run | None = None
        self.readers = 0
        self.asked = False
        self.finished = False
        self.delivered = mark.delivered
        self.reading: Batches | None = None
        self._noted = noted
        self._in_order = in_order

    def deliver(self) -> int:
        """Called when the loop gets a batch; give the number of all that it has had."""
        self.delivered += 1
        if self._noted is not None and self._in_order and not self.mark.rest.gaps:
            self._noted.forget(self.delivered - 2)  # another thread may be taking a state
        return self.delivered

    @property
    def iterator(self) -> Any:
        """The state of the iterator that reads in the calling thread, if it has one; or None."""
        return None if self.reading is None else self.reading.state_of_iterator

    @property
    def ended(self) -> bool:
        """Whether a dataset that is read in the calling thread has given all."""
        return self.reading is not None and self.reading.ended

    @property
    def untouched(self) -> bool:
        """Whether nothing was asked for, and nothing is made ahead."""
        return not self.asked and self.run is None

    @property
    def parts(self) -> Parts | None:
        """Where the workers are that read parts, if they do."""
        if self.run is None or not self.readers:
            return None
        stages = self.run.state_dict()["stages"]
        return Parts(readers=self.readers, in_order=self._in_order, stages=stages)

    @property
    def rest(self) -> Remaining:
        """The batches that the loop has not had."""
        if self.run is None or self._in_order:
            return self.mark.rest.of_wanted(Remaining(self.delivered - self.mark.delivered))
        stages = self.run.state_dict()["stages"]
        if READER not in stages:
            return next(
                (Remaining.read(about["rest"]) for about in stages.values()), self.mark.rest
            )
        for _, rest in stages.get(SAMPLES, {}).get("children", ()):
            return Remaining.read(rest)
        over = stages[READER]["rest"][0]  # its one item: all that it gave was handed out
        return Remaining(self.delivered) if over else self.mark.rest

    def sampler_at(self, number: int) -> Any:
        """Return the sampler's own state behind so many batches, or None."""
        return None if self._noted is None else self._noted.at(number)


# -- LoaderPlaces: the epoch of a `DataLoader` that is the newest, and the one that is to go on ----
_ALL = Remaining()
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
        """Return the place where the next epoch begins, if one was loaded."""
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
        """Return the seed of the next epoch, its number, and whether the seed was drawn for it.

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
        """Return the next epoch's seed and number, where none is drawn for it."""
        return self._kept if stays or self._once else None

    def marked(
        self, mark: Mark | None, drawn: Drawn, seeded: tuple[int, int, bool], *, stays: bool
    ) -> Mark:
        """Return the place where an epoch begins.

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
        """Tell what must be the same where an epoch goes on."""
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
    """Tell where an iterable dataset goes on that is read once."""
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
