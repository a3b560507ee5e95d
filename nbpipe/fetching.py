"""Fetching: what the workers of a `DataLoader` do: read samples, and make batches of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from types import ModuleType
from typing import Any, final

from .loader_draws import checked_state, has_state, state_of
from .loader_workers import HERE, WantsWorkersError, Workers, shown, teach
from .mapped import Packer, unpack
from .worker import worker_info

END = object()  # in the place of what would come next: there is nothing


class _Sent:
    """Something that is sent to workers.

    Attributes:
        mapped: they are processes, and map the large arrays that it holds into their memory.
    """

    mapped = False
    _packer: Packer | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_packer"}
        if self.mapped:
            self._packer = self._packer or Packer()
            try:
                return _unpacked, (type(self), *self._packer.pack(state))
            except Exception:  # noqa: BLE001  raised again for the part that is to blame
                self._packer.release()
        return _blank, (type(self),), state

    def release(self) -> None:
        """Hear that there are no workers any more."""
        if self._packer is not None:
            self._packer.release()


def _blank(kind: type[Any]) -> Any:
    return object.__new__(kind)


def _unpacked(kind: type[Any], head: bytes, where: tuple[Any, ...] | None) -> Any:
    made = _blank(kind)
    made.__dict__.update(unpack(head, where))
    return made


@final
class Collate:
    """Makes a batch of samples.

    Args:
        function: of a list of samples, or of one sample.
        plain: it is torch's own, which in a worker would put the batch into shared memory by
            itself; batches travel through our own.
        workers: who does it; None: the caller itself.
    """

    def __init__(
        self, function: Callable[[Any], Any], *, plain: bool, workers: Workers | None = None
    ) -> None:
        self._function = function
        self._plain = plain
        self._workers = workers

    def __call__(self, samples: Any) -> Any:
        """Make one batch."""
        if self._workers is None:
            return self.apply(samples)
        with self._workers.one(None):
            return self.apply(samples)

    def apply(self, samples: Any) -> Any:
        """Make one batch in a worker that is known already."""
        if not self._plain:
            return self._function(samples)
        with shown(None):
            return self._function(samples)


@final
class Fetch(_Sent):
    """Reads samples of a map-style dataset by index, and makes a batch of them.

    Args:
        dataset: with `__getitem__`; where it has `__getitems__`, that gets all indices at once.
        collate: makes the batch.
        batched: an item is a list of indices; else one index.
        workers: who does it; None: the caller itself.
    """

    def __init__(
        self, dataset: Any, collate: Collate, *, batched: bool, workers: Workers | None = None
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._workers = workers
        self.mapped = workers is not None and workers.are_processes

    def __call__(self, indices: Any) -> Any:
        """Fetch one batch."""
        if self._workers is None:
            return self._collate.apply(self._samples(indices))
        with self._workers.one(self._dataset):
            return self._collate.apply(self._samples(indices))

    def _samples(self, indices: Any) -> Any:
        dataset = self._dataset
        if not self._batched:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where an iterable dataset goes on.

    Attributes:
        epoch: number of the epoch that goes on.
        had: lists of samples that the loop has had of it.
        dataset: what the dataset is told, or None.
        iterator: what its iterator is told, or None.
        ended: it had given all: nothing is left of the epoch.
    """

    epoch: int
    had: int
    dataset: Any = None
    iterator: Any = None
    ended: bool = False

    @property
    def tells(self) -> bool:
        """Whether anybody is told a state; else all is read again, and dropped."""
        return self.dataset is not None or self.iterator is not None


@final
class Batches(_Sent):
    """The samples of an iterable dataset in lists; without a size one by one.

    Args:
        dataset: read anew by every iteration.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        watch: `torch.utils.data._utils.worker`; end with `WantsWorkersError` where the dataset
            asks there which worker it is, before its first sample. None: let it ask.
        place: where it is read: "here", in a "thread", which has a copy, or in a "process".
        resumed: where it goes on; None: it is read from its beginning.

    Attributes:
        ended: the dataset has come to its end.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        *,
        size: int | None,
        drop_last: bool,
        watch: ModuleType | None,
        place: str = "here",
        resumed: Resumed | None = None,
    ) -> None:
        self._dataset = dataset
        self._size = size
        self._drop_last = drop_last
        self._watch = watch
        self._place = place
        self._resumed = resumed
        self._iterator: Any = None
        self.ended = False
        self.mapped = place == "process"

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        return self._lists(resumed if resumed is not None and resumed.tells else None)

    @property
    def state_of_iterator(self) -> Any:
        """The state of the dataset's iterator, where it has one of its own; or None."""
        iterator = self._iterator
        if iterator is self._dataset or not has_state(iterator):
            return None
        return state_of(iterator)

    def __call__(self, _: object) -> Iterator[Any]:
        """Read in a worker; None stands for each list that the loop has had."""
        resumed, call = self._resumed, worker_info()
        if resumed is None or call is None or call.epoch != resumed.epoch:
            return self._lists(None)
        if resumed.tells:
            return self._lists(resumed)
        lists = enumerate(self._lists(None))
        return (None if number < resumed.had else one for number, one in lists)

    def _lists(self, resumed: Resumed | None) -> Iterator[Any]:
        """Give the lists; None for each that the loop has had, where a state stands for them.

        The dataset's `iter` is called at once: its state may be asked for before a sample is.
        """
        if resumed is not None and resumed.ended:
            if self._place == "here":
                _tell_end(self._dataset, resumed)
            return repeat(None, resumed.had)
        dataset = self._dataset if self._place != "thread" else own_copy(self._dataset)
        samples = self._samples(dataset, resumed)
        lists = listed(samples, self._size, drop_last=self._drop_last, at_end=self._end)
        return lists if resumed is None else chain(repeat(None, resumed.had), lists)

    def _end(self) -> None:
        self.ended = True

    def _samples(self, dataset: Iterable[Any], resumed: Resumed | None) -> Iterator[Any]:
        if self._watch is not None:
            teach(self._watch)
            return _watched(dataset, resumed)
        samples = begun_at(dataset, resumed)
        self._iterator = samples
        return samples if resumed is None or resumed.had else _read_anew(dataset, samples)


def own_copy(dataset: Any) -> Any:
    """Give a thread a dataset of its own, as far as it can be copied."""
    try:
        return copy.copy(dataset)
    except TypeError:  # what it holds cannot be
        return dataset


def begun_at(dataset: Any, resumed: Resumed | None) -> Iterator[Any]:
    """Begin to iterate a dataset, where a state says.

    A dataset that is its own iterator may go back to its beginning when it is iterated: it is
    told its state again.

    Raises:
        StateError: the state is of an iterator that had one.
    """
    state = None if resumed is None else resumed.dataset
    if state is not None:
        dataset.load_state_dict(state)
    samples: Any = iter(dataset)
    if state is not None and samples is dataset:
        dataset.load_state_dict(state)
    if resumed is not None and resumed.iterator is not None:
        checked_state(samples)
        samples.load_state_dict(resumed.iterator)
    return samples  # type: ignore[no-any-return]


def _tell_end(dataset: Any, resumed: Resumed) -> None:
    """Tell a dataset the state of its end: the next time it is iterated, it gives all.

    There are those that go back behind their last sample, and those that do so in `iter`.
    """
    if resumed.dataset is not None and next(begun_at(dataset, resumed), END) is not END:
        dataset.load_state_dict(resumed.dataset)


def _read_anew(dataset: Any, samples: Iterator[Any]) -> Iterator[Any]:
    """Give the samples; where nothing comes the state was that of an end, and all is read."""
    first = next(samples, END)
    if first is END:
        yield from following(iter(dataset))
        return
    yield from following(samples, first)


def following(items: Iterator[Any], *first: Any) -> Iterator[Any]:
    """Give some items, and what follows; `iter` is never called on it, it might begin anew."""
    yield from first
    while (item := next(items, END)) is not END:
        yield item


def listed(
    samples: Iterator[Any],
    size: int | None,
    *,
    drop_last: bool,
    at_end: Callable[[], object] = lambda: None,
) -> Iterator[Any]:
    """Gather samples in lists; without a size, give them. After its end none is asked for.

    Args:
        samples: from the first on.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        at_end: called where a list is not full, before it is given.
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


def _watched(dataset: Iterable[Any], resumed: Resumed | None) -> Iterator[Any]:
    HERE.watched, HERE.asked = True, False
    try:
        samples = begun_at(dataset, resumed)
        if resumed is not None and not resumed.had:
            samples = _read_anew(dataset, samples)
        first = next(samples, END)
    finally:
        HERE.watched = False
    if HERE.asked:  # and took no notice of our exception
        raise WantsWorkersError
    return iter(()) if first is END else following(samples, first)


@final
class Read(_Sent):
    """Reads one worker's part of an iterable dataset, and makes batches of it.

    Args:
        dataset: asks `get_worker_info()` which part is meant.
        collate: makes the batch.
        size: samples in a batch; None: a batch is one sample.
        drop_last: leave out a last batch that is not full.
        workers: who does it.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        *,
        size: int | None,
        drop_last: bool,
        workers: Workers,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._size = size
        self._drop_last = drop_last
        self._workers = workers
        self.mapped = workers.are_processes

    def __call__(self, number: int) -> Iterator[Any]:
        """Give the batches of the worker of this number."""
        dataset = self._workers.dataset_of(number, self._dataset)
        with self._workers.at(number, dataset):
            self._workers.seed_call()
            samples = iter(dataset)
        lists = listed(samples, self._size, drop_last=self._drop_last)
        while (batch := self._next(lists, number, dataset)) is not END:
            yield batch

    def _next(self, lists: Iterator[Any], number: int, dataset: Any) -> Any:
        with self._workers.at(number, dataset):
            batch = next(lists, END)
            return END if batch is END else self._collate.apply(batch)
