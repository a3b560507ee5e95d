"""Fetching: what the workers of a `DataLoader` do, and how they know who they are.

torch's `get_worker_info()` knows one worker in each process. Here workers may be threads, so it
is taught to look in the calling thread first; code that imported it long ago is taught too.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from types import ModuleType
from typing import Any, final

from .executors.surroundings import seed_item
from .mapped import Packer, unpack
from .worker import NUMBER, worker_info

END = object()  # in the place of what would come next: there is nothing
_UNKNOWN = object()  # this thread is no worker of ours


class WantsWorkersError(BaseException):
    """A dataset that is being read once asked which worker it is: it wants to be split.

    It passes the dataset's own handlers of exceptions.
    """


class _Here(threading.local):
    """What `get_worker_info()` is to say in this thread."""

    info: Any = _UNKNOWN
    watched = False
    asked = False


HERE = _Here()


def teach(torch_worker: ModuleType) -> None:
    """Have `get_worker_info()` of this process look in the calling thread first.

    Its code is replaced, not the name: modules hold the function itself.

    Args:
        torch_worker: `torch.utils.data._utils.worker`.
    """
    known: Any = torch_worker
    if not hasattr(known, "_nbpipe_info"):
        known._nbpipe_info = lambda: _info_here(torch_worker)
        known.get_worker_info.__code__ = _taught.__code__


def _taught() -> Any:
    return _nbpipe_info()  # type: ignore[name-defined]  # noqa: F821  in torch's own module


def _info_here(torch_worker: Any) -> Any:
    if HERE.watched:
        HERE.asked = True
        raise WantsWorkersError
    return torch_worker._worker_info if HERE.info is _UNKNOWN else HERE.info


@contextmanager
def _shown(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` say this in the calling thread."""
    before, HERE.info = HERE.info, info
    try:
        yield
    finally:
        HERE.info = before


@final
class Workers:
    """The workers of one loader, as far as they are in this process.

    Where each worker is a process, its number is that of the process; in threads a call takes
    the lowest number that is free.

    Args:
        torch_worker: `torch.utils.data._utils.worker`; with it, torch is loaded in workers.
        seed: of worker 0; the others' follow it.
        count: number of workers, as they are told.
        init: called with its number in each worker before its first item, or None.
        executor: where the workers are: "process", "thread" or "other".
    """

    def __init__(
        self,
        torch_worker: ModuleType,
        *,
        seed: int,
        count: int,
        init: Callable[[int], object] | None,
        executor: str,
    ) -> None:
        self._torch_worker = torch_worker
        self._seed = seed
        self._count = count
        self._init = init
        self._executor = executor
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._numbers = 0
        self._infos: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        own = ("_lock", "_free", "_numbers", "_infos")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def are_processes(self) -> bool:
        """Whether each of them is a process of this machine."""
        return self._executor == "process"

    @contextmanager
    def one(self, dataset: object) -> Iterator[None]:
        """Be one worker, with this dataset, for one call."""
        number = self._take()
        try:
            with self.at(number, dataset):
                yield
        finally:
            self._give_back(number)

    @contextmanager
    def at(self, number: int, dataset: object) -> Iterator[None]:
        """Be the worker of this number."""
        info = self._infos.get(number)
        with _shown(info or self._made(number, dataset)):
            if info is None:
                self._started(number)
            yield

    def dataset_of(self, number: int, dataset: Any) -> Any:
        """Give a worker's own dataset: it may be told to read a part of it."""
        info = self._infos.get(number)
        if info is not None:
            return info.dataset
        return dataset if self._executor == "process" else copy.copy(dataset)

    def _take(self) -> int:
        if self._executor == "process":
            return NUMBER[0]
        with self._lock:
            if self._free:
                return heapq.heappop(self._free)
            self._numbers += 1
            return self._numbers - 1

    def _give_back(self, number: int) -> None:
        if self._executor != "process":
            with self._lock:
                heapq.heappush(self._free, number)

    def _made(self, number: int, dataset: object) -> Any:
        teach(self._torch_worker)
        kind: Any = self._torch_worker.WorkerInfo
        known = {field.name for field in dataclasses.fields(kind)} if _has_fields(kind) else ()
        method = {"worker_method": "thread"} if self._executor == "thread" else {}
        about = {name: value for name, value in method.items() if name in known}
        seed = self._seed + number
        return kind(id=number, num_workers=self._count, seed=seed, dataset=dataset, **about)

    def _started(self, number: int) -> None:
        """Call the user's function for a new worker; torch's seed of the worker holds in it."""
        info = HERE.info
        alone = self._executor == "process"
        if alone:
            known: Any = self._torch_worker
            known._worker_info = info  # for threads that the dataset starts
            seed_item(info.seed)
        if self._init is not None:
            self._init(number)
        self._infos[number] = info
        call = worker_info()
        if alone and call is not None:
            seed_item(call.seed)  # no item is to depend on its worker


def _has_fields(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


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
        with _shown(None):
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

    def __iter__(self) -> Iterator[Any]:
        if self._watch is None:
            samples = iter(self._dataset)
        else:
            teach(self._watch)
            samples = _watched(self._dataset)
        while (batch := next_batch(samples, self._size, drop_last=self._drop_last)) is not END:
            yield batch


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
