"""What the workers of a loader do: read samples, and make batches of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, final

from ..base.checks import refuse_coroutine
from ..base.seeding import NUMBER, worker_info
from ..executors.workers.memory import Packer, unpack
from .position import Position
from .samplers import END, following, has_state, or_from_start, require_state, started, state_of
from .worker import LoaderWorkers, asking_refused


# -- sent to worker processes ----------------------------------------------------------------------
class Packed(NamedTuple):
    """Everything that is sent to workers with a dataset: the arguments of `unpack`."""

    head: bytes
    where: tuple[Any, ...] | None


class _Sent:
    """Something that is sent to worker processes, with a dataset whose large arrays they map.

    Attributes:
        if_large: advice for an error that much is sent.
    """

    if_large: ClassVar[str] = "hold paths in the dataset, memory-map it, or use workers='thread'"

    dataset: Any
    workers: LoaderWorkers | None
    _packer: Packer | None = None

    @property
    def mapped(self) -> bool:
        """Whether it is sent to processes, which map the large arrays of the dataset."""
        return self.dataset is not None and self.workers is not None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_packer"}
        if self.mapped:
            packer = self._packer = self._packer or Packer()
            try:
                return {"dataset": Packed(*packer.pack(state))}
            except Exception:  # noqa: BLE001  pickling the parts raises it again, and names one
                packer.release()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["dataset"]
        self.__dict__.update(unpack(*packed) if isinstance(packed, Packed) else state)

    def release(self) -> None:
        """Release the memory that workers mapped, after they ended."""
        if self._packer is not None:
            self._packer.release()


# -- batches of a dataset that is read by index ----------------------------------------------------
@final
@dataclass(eq=False)
class MakeBatch(_Sent):
    """Makes a batch of samples, or of the indices of samples.

    Attributes:
        function: makes a batch of a list of samples, or of one sample.
        plain: it is torch's own function, which in a worker would put the batch into shared memory
            itself; nbpipe moves batches in its own way.
        dataset: with `__getitem__`, or `__getitems__`, which gets all indices at once. None:
            samples are given.
        batched: an item is a list of indices; otherwise one index.
        workers: the processes that do it; None: threads, or the training loop itself.
    """

    function: Callable[[Any], Any]
    plain: bool
    dataset: Any = None
    batched: bool = True
    workers: LoaderWorkers | None = None

    def __call__(self, given: Any) -> Any:
        """Make one batch."""
        if self.workers is not None:
            self.workers.begin(NUMBER[0], self.dataset)
        return self.collate(self._samples(given), self.workers)

    def collate(self, samples: Any, workers: LoaderWorkers | None) -> Any:
        """Make one batch of samples, in a worker that has begun its call."""
        if not self.plain or workers is None:
            return self._made_of(samples)
        with workers.hidden():
            return self._made_of(samples)

    def _made_of(self, samples: Any) -> Any:
        batch = self.function(samples)
        refuse_coroutine("collate_fn" if self.batched else "the dataset", batch)
        return batch

    def _samples(self, given: Any) -> Any:
        dataset = self.dataset
        if dataset is None:
            return given
        if not self.batched:
            return dataset[given]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(given)
        return [dataset[index] for index in given]


# -- samples of an iterable dataset ----------------------------------------------------------------
@final
@dataclass(eq=False)
class Batches(_Sent):
    """The samples of an iterable dataset in lists; without a size one by one.

    Attributes:
        dataset: every iteration reads it from the start.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        watch: `torch.utils.data._utils.worker`, in a process: raise `WantsWorkersError` if the
            dataset asks before its first sample which worker reads it. None: it may ask.
        place: where it is read: the training loop ("caller"), a "thread", which gets a copy, or a
            "process".
        resumed: the position where it continues; None: it is read from the start.
        ended: the dataset has given everything.
    """

    dataset: Iterable[Any]
    size: int | None
    drop_last: bool
    watch: ModuleType | None
    place: str = "caller"
    resumed: Position | None = field(default=None, compare=False)
    ended: bool = field(default=False, compare=False)
    _iterator: Any = field(default=None, compare=False)

    @property
    def mapped(self) -> bool:
        """Whether a process reads it, and maps the large arrays of the dataset."""
        return self.place == "process"

    def __iter__(self) -> Iterator[Any]:
        resumed, self.resumed = self.resumed, None
        return self._lists(resumed if resumed is not None and resumed.has_dataset_state else None)

    def now(self) -> tuple[Any, bool]:
        """Return the own state of the dataset's iterator, or None, and `ended`."""
        iterator = self._iterator
        known = iterator is not self.dataset and has_state(iterator)
        return state_of(iterator) if known else None, self.ended

    def __call__(self, _: object) -> Iterator[Any]:
        """Read the dataset in a worker; None takes the place of each list that the loop has had."""
        resumed, call = self.resumed, worker_info()
        if resumed is None or call is None or call.epoch != resumed.epoch:
            return self._lists(None)
        if resumed.has_dataset_state:
            return self._lists(resumed)
        lists = enumerate(self._lists(None))
        return (None if number < resumed.delivered else one for number, one in lists)

    def _lists(self, resumed: Position | None) -> Iterator[Any]:
        """Return the lists; with a loaded state, None for each that the loop has had.

        `iter` of the dataset is called immediately: its state may be asked for before a sample is.
        """
        if resumed is not None and resumed.ended:
            if self.place == "caller":
                _load_end(self.dataset, resumed)
            return repeat(None, resumed.delivered)
        dataset = _own_copy(self.dataset) if self.place == "thread" else self.dataset
        samples = self._samples(dataset, resumed)
        lists = listed(samples, self.size, drop_last=self.drop_last, at_end=self._end)
        return lists if resumed is None else chain(repeat(None, resumed.delivered), lists)

    def _end(self) -> None:
        self.ended = True

    def _samples(self, dataset: Iterable[Any], resumed: Position | None) -> Iterator[Any]:
        if self.watch is None:
            return self._resumed(dataset, resumed)
        with asking_refused(self.watch):
            return started(self._resumed(dataset, resumed))

    def _resumed(self, dataset: Iterable[Any], resumed: Position | None) -> Iterator[Any]:
        samples = self._iterator = _iterator_at(dataset, resumed)
        at_start = resumed is not None and not resumed.delivered
        return or_from_start(dataset, samples) if at_start else samples


def _own_copy(dataset: Any) -> Any:
    """Return a copy of a dataset for a thread; the dataset itself if it cannot be copied."""
    try:
        return copy.copy(dataset)
    except TypeError:
        return dataset


def _iterator_at(dataset: Any, resumed: Position | None) -> Iterator[Any]:
    """Start to iterate a dataset at a position.

    A dataset that is its own iterator may return to its start in `iter`: it loads its state again.

    Raises:
        StateError: the state holds one for an iterator, which cannot load it.
    """
    state = None if resumed is None else resumed.dataset
    if state is not None:
        dataset.load_state_dict(state)
    samples: Any = iter(dataset)
    if state is not None and samples is dataset:
        dataset.load_state_dict(state)
    if resumed is not None and resumed.iterator is not None:
        require_state(samples)
        samples.load_state_dict(resumed.iterator)
    return samples  # type: ignore[no-any-return]


def _load_end(dataset: Any, resumed: Position) -> None:
    """Load the state of an end into a dataset, so that its next iteration gives everything.

    Some datasets return to their start after the last sample, others in `iter`.
    """
    if resumed.dataset is not None and next(_iterator_at(dataset, resumed), END) is not END:
        dataset.load_state_dict(resumed.dataset)


def listed(
    samples: Iterator[Any],
    size: int | None,
    *,
    drop_last: bool,
    at_end: Callable[[], object] = lambda: None,
) -> Iterator[Any]:
    """Collect samples in lists; without a size yield them. Never ask for one after the end.

    Args:
        samples: from the first one on.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        at_end: called at the end of the samples, before the last list that is not full.
    """
    if size is None:
        yield from following(samples)
        return
    full = True
    while full:
        batch: list[Any] = []
        while full and len(batch) < size:
            sample = next(samples, END)
            full = sample is not END
            if full:
                batch.append(sample)
            else:
                at_end()
        if batch and (full or not drop_last):
            yield batch


@final
@dataclass(eq=False)
class ReadPart(_Sent):
    """Reads one worker's part of an iterable dataset, and makes batches of it.

    Attributes:
        dataset: asks `get_worker_info()` for its part.
        make: makes the batches.
        size: samples in a batch; None: a batch is one sample.
        drop_last: leave out a last batch that is not full.
        workers: the processes that do it.
    """

    dataset: Any
    make: MakeBatch
    size: int | None
    drop_last: bool
    workers: LoaderWorkers

    def __call__(self, number: int) -> Iterator[Any]:
        """Return the batches of the worker of this number."""
        self.workers.begin(number, self.dataset)
        lists = listed(iter(self.dataset), self.size, drop_last=self.drop_last)
        while (batch := next(lists, END)) is not END:
            yield self.make.collate(batch, self.workers)
