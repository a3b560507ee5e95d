"""Fetching: what the workers of a `DataLoader` do: read samples, and make batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from types import ModuleType
from typing import Any, final

from .loader_workers import HERE, WantsWorkersError, Workers, shown, teach
from .mapped import Packer, unpack

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
class Batches:
    """The samples of an iterable dataset in lists; without a size one by one.

    Args:
        dataset: read anew by every iteration.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        watch: `torch.utils.data._utils.worker`; end with `WantsWorkersError` where the dataset
            asks there which worker it is, before its first sample. None: let it ask.
    """

    def __init__(
        self, dataset: Iterable[Any], *, size: int | None, drop_last: bool, watch: ModuleType | None
    ) -> None:
        self._dataset = dataset
        self._size = size
        self._drop_last = drop_last
        self._watch = watch
        self._had = 0
        self._loaded = False

    def go_on(self, had: int) -> None:
        """Hear that the dataset was told its state, behind so many lists."""
        self._had, self._loaded = had, True

    def __iter__(self) -> Iterator[Any]:
        had, self._had = self._had, 0
        loaded, self._loaded = self._loaded, False
        yield from repeat(None, had)  # what stands for them is passed over
        samples = self._samples()
        if loaded and not had:
            samples = self._again(samples)
        while (batch := next_batch(samples, self._size, drop_last=self._drop_last)) is not END:
            yield batch

    def _samples(self) -> Iterator[Any]:
        if self._watch is None:
            return iter(self._dataset)
        teach(self._watch)
        return _watched(self._dataset)

    def _again(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Read anew where nothing came: the state was that of an end."""
        first = next(samples, END)
        return self._samples() if first is END else chain((first,), samples)


def next_batch(samples: Iterator[Any], size: int | None, *, drop_last: bool) -> Any:
    """Give the next list of samples, or sample, or `END`."""
    if size is None:
        return next(samples, END)
    batch = list(islice(samples, size))
    return END if not batch or (drop_last and len(batch) < size) else batch


def _watched(dataset: Iterable[Any]) -> Iterator[Any]:
    HERE.watched, HERE.asked = True, False
    try:
        samples = iter(dataset)
        first = next(samples, END)
    finally:
        HERE.watched = False
    if HERE.asked:  # and took no notice of our exception
        raise WantsWorkersError
    return iter(()) if first is END else chain((first,), samples)


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
            samples = iter(dataset)
        while (batch := self._next(samples, number, dataset)) is not END:
            yield batch

    def _next(self, samples: Iterator[Any], number: int, dataset: Any) -> Any:
        with self._workers.at(number, dataset):
            batch = next_batch(samples, self._size, drop_last=self._drop_last)
            return END if batch is END else self._collate.apply(batch)
