"""Who the workers of a `DataLoader` are, and how their code asks.

torch's `get_worker_info()` knows one worker in each process. Here workers may be threads, so it
is taught to look in the calling thread first; code that imported it long ago is taught too.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, final

from .executors.surroundings import seed_item
from .loader_seeds import Seeds, is_alike, only_seeds
from .worker import NUMBER, worker_info

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
def shown(info: Any) -> Iterator[None]:
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
        fixed: each of them has its part from the beginning, whoever is free.
    """

    def __init__(
        self,
        torch_worker: ModuleType,
        *,
        seed: int,
        count: int,
        init: Callable[[int], object] | None,
        executor: str,
        fixed: bool = False,
    ) -> None:
        self._torch_worker = torch_worker
        self._seed = seed
        self._count = count
        self._init = init
        self._executor = executor
        alike = init is not None and (fixed or is_alike(init))
        self._as_first = init is not None and not alike and only_seeds(init)
        self._holds = alike or self._as_first
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._numbers = 0
        self._infos: dict[int, Any] = {}
        self._seeds: Seeds | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        own = ("_lock", "_free", "_numbers", "_infos", "_seeds")
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
                self.seed_call()
                yield
        finally:
            self._give_back(number)

    @contextmanager
    def at(self, number: int, dataset: object) -> Iterator[None]:
        """Be the worker of this number."""
        info = self._infos.get(number)
        with shown(info or self._made(number, dataset)):
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
            self._call(self._init, number, alone=alone)
        self._infos[number] = info
        call = worker_info()
        if alone and call is not None:
            seed_item(call.seed)  # no item is to depend on its worker

    def _call(self, init: Callable[[int], object], number: int, *, alone: bool) -> None:
        if not alone or not self._holds:
            init(number)
            return
        seeds = Seeds(sys.modules["torch"])  # loaded: the pickle of this names it
        if number and self._as_first:
            self._rehearse(init, seeds)
            init(number)
        else:
            with seeds.watched():
                init(number)
        self._seeds = seeds

    def _rehearse(self, init: Callable[[int], object], seeds: Seeds) -> None:
        """Call the user's function as the first worker does: its seeds hold in all of them."""
        info = HERE.info
        seed_item(self._seed)
        with shown(self._made(0, info.dataset)), seeds.watched():
            init(0)
        seed_item(info.seed)

    def seed_call(self) -> None:
        """Seed what the user's function seeded, for the call in progress."""
        if self._seeds is not None:
            self._seeds.apply()


def _has_fields(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)
