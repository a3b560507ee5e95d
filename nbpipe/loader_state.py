"""LoaderState: where a `DataLoader` stands in its epochs, as JSON-ready values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from .errors import StateError
from .fetching import Batches
from .loader_chain import READER, SAMPLES
from .loader_draws import Drawn, Draws, Noted
from .rest import Rest
from .run import Run
from .text import shortened

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
    rest: Rest
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
    seed, rest = data["seed"], Rest.read(data["rest"])
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
    """Give the error for a dataset that was read whole, and is to be read in parts."""
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
        """Hear that the loop gets a batch; give the number of all that it has had."""
        self.delivered += 1
        if self._noted is not None and self._in_order and not self.mark.rest.holes:
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
    def rest(self) -> Rest:
        """The batches that the loop has not had."""
        if self.run is None or self._in_order:
            return self.mark.rest.of_wanted(Rest(self.delivered - self.mark.delivered))
        stages = self.run.state_dict()["stages"]
        if READER not in stages:
            return next((Rest.read(about["rest"]) for about in stages.values()), self.mark.rest)
        for _, rest in stages.get(SAMPLES, {}).get("children", ()):
            return Rest.read(rest)
        over = stages[READER]["rest"][0]  # its one item: all that it gave was handed out
        return Rest(self.delivered) if over else self.mark.rest

    def sampler_at(self, number: int) -> Any:
        """Give the sampler's own state behind so many batches, or None."""
        return None if self._noted is None else self._noted.at(number)
