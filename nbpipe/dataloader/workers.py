"""The workers of a `DataLoader`: who they are, how their code asks for that, and their seeds."""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import dis
import functools
import heapq
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

from ..base.seeding import seed_for, seed_item
from ..base.worker import CALL, NUMBER, worker_info

# -- what `get_worker_info()` says -----------------------------------------------------------------
# torch's `get_worker_info()` knows one worker in each process. Here workers may be threads, so it
# is taught to look in the calling thread first; code that imported it long ago is taught too.
_UNKNOWN = object()  # this thread is no worker of ours


class WantsWorkersError(BaseException):
    """A dataset that is being read once asked which worker it is: it wants to be split.

    It passes the dataset's own handlers of exceptions.
    """


class _Thread(threading.local):
    """What `get_worker_info()` is to say in this thread."""

    info: Any = _UNKNOWN
    watched = False
    asked = False


THREAD = _Thread()


def teach(torch_worker: ModuleType) -> None:
    """Have `get_worker_info()` of this process look in the calling thread first.

    Its code is replaced, not the name: modules hold the function itself.

    Args:
        torch_worker: `torch.utils.data._utils.worker`.
    """
    known: Any = torch_worker
    if not hasattr(known, "_nbpipe_info"):
        known._nbpipe_info = lambda: _info(torch_worker)
        known.get_worker_info.__code__ = _taught.__code__


def _taught() -> Any:
    return _nbpipe_info()  # type: ignore[name-defined]  # noqa: F821  in torch's own module


def _info(torch_worker: Any) -> Any:
    if THREAD.watched:
        THREAD.asked = True
        raise WantsWorkersError
    return torch_worker._worker_info if THREAD.info is _UNKNOWN else THREAD.info


@contextmanager
def as_worker(info: Any) -> Iterator[None]:
    """Have `get_worker_info()` return this in the calling thread."""
    before, THREAD.info = THREAD.info, info
    try:
        yield
    finally:
        THREAD.info = before


# -- the workers -----------------------------------------------------------------------------------
@final
class LoaderWorkers:
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
        """Make this thread one worker, with this dataset, for one call."""
        number = self._take()
        try:
            with self.at(number, dataset):
                self.seed_call()
                yield
        finally:
            self._give_back(number)

    @contextmanager
    def at(self, number: int, dataset: object) -> Iterator[None]:
        """Make this thread the worker of this number."""
        info = self._infos.get(number)
        with as_worker(info or self._made(number, dataset)):
            if info is None:
                self._started(number)
            yield

    def dataset_of(self, number: int, dataset: Any) -> Any:
        """Return a worker's own dataset: it may be told to read a part of it."""
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
        info = THREAD.info
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
            self._seed_as_first(init, seeds)
            init(number)
        else:
            with seeds.watched():
                init(number)
        self._seeds = seeds

    def _seed_as_first(self, init: Callable[[int], object], seeds: Seeds) -> None:
        """Call the user's function as the first worker does: its seeds hold in all of them."""
        info = THREAD.info
        seed_item(self._seed)
        with as_worker(self._made(0, info.dataset)), seeds.watched():
            init(0)
        seed_item(info.seed)

    def seed_call(self) -> None:
        """Seed what the user's function seeded, for the call in progress."""
        if self._seeds is not None:
            self._seeds.apply()


def _has_fields(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


# -- the seeds that a `worker_init_fn` sets --------------------------------------------------------
# In torch such a seed begins one stream for each worker. Here samples are drawn by the batch, so
# that they depend on no worker: the user's seed takes the place of torch's for them. Where it
# depends on the worker, that of the first one counts in all of them: each worker calls the function
# as the first one, too, if all that it does is to seed. Where it does more, and any worker may get
# any batch, its seeds are left out: the batch would depend on who was free.
_ASKS = ("get_worker_info", "initial_seed")  # they tell workers apart
_MODULES = ("random", "numpy", "torch")
_WORDS = (  # that seeding looks up in modules and in `get_worker_info()`
    *("random", "seed", "manual_seed", "manual_seed_all", "initial_seed", "cuda", "mps"),
    *("utils", "data", "get_worker_info", "id", "num_workers"),
)
_COUNTS = (abs, hash, int, max, min, pow, round, sum)
_PLAIN = (bool, bytes, float, int, str, type(None))
_WORD = 8  # bytes of the seed, at the beginning of the state of torch's generator


def is_alike(init: Callable[[int], object]) -> bool:
    """Tell whether a `worker_init_fn` does the same in each worker, as far as its code shows."""
    if not isinstance(init, FunctionType) or init.__code__.co_argcount != 1:
        return False
    name = init.__code__.co_varnames[0]
    if any(word in init.__code__.co_names for word in _ASKS):
        return False
    return not any(name in _names(one.argval) for one in dis.get_instructions(init))


def _names(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def only_seeds(init: object) -> bool:
    """Tell whether all that a `worker_init_fn` does is to seed, as far as its code shows.

    Then it may be called twice.
    """
    return _only_seeds(init, set())


def _only_seeds(value: object, seen: set[int]) -> bool:
    if isinstance(value, functools.partial):
        given = (*value.args, *value.keywords.values())
        return isinstance(value.func, FunctionType) and all(
            _only_seeds(one, seen) for one in (value.func, *given)
        )
    if not isinstance(value, FunctionType):
        return _is_harmless(value)
    if id(value) in seen:
        return True
    seen.add(id(value))
    if str(value.__module__).partition(".")[0] in _MODULES:
        return value.__name__ in _WORDS
    return all(_is_seeding(one, value, seen) for one in dis.get_instructions(value))


def _is_harmless(value: object) -> bool:
    """Tell whether a value that is no function of Python may be used by what seeds."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _MODULES
    if isinstance(value, _PLAIN):
        return True
    seeding: tuple[object, ...] = (random.seed, np.random.seed)
    return any(value is one for one in (*seeding, *_COUNTS))


def _is_seeding(step: dis.Instruction, function: FunctionType, seen: set[int]) -> bool:
    """Tell whether a step of a function looks up only what seeding needs, and stores nothing."""
    name, kind = step.argval, step.opname
    if kind.startswith(("STORE_", "DELETE_")):
        return kind.startswith(("STORE_FAST", "DELETE_FAST"))
    if kind in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
        return name in _WORDS
    if kind == "IMPORT_NAME":
        return str(name).partition(".")[0] in _MODULES
    if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
        known = function.__globals__
        return _only_seeds(known.get(name, getattr(builtins, str(name), known)), seen)
    if kind in ("LOAD_DEREF", "LOAD_CLOSURE"):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = [cell for own, cell in cells if own == name]
        with contextlib.suppress(ValueError):  # it holds nothing yet
            return bool(held) and _only_seeds(held[0].cell_contents, seen)
        return False
    return not kind.startswith(("MAKE_", "YIELD_", "LOAD_SUPER", "LOAD_BUILD"))


@final
class Seeds:
    """The seeds of this process that the user set himself.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._own: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which of the global generators are seeded meanwhile; drawing is no seeding."""
        before = self._fingerprints()
        yield
        after = self._fingerprints()
        self._own = {name: now for name, now in after.items() if now != before[name]}

    def _fingerprints(self) -> dict[str, int]:
        state: Any = np.random.get_state(legacy=False)  # noqa: NPY002  users seed it
        inner = state["state"]
        key = inner["key"].tobytes() if "key" in inner else repr(inner).encode()
        return {
            "random": _number(repr(random.getstate()[1][:-1]).encode()),
            "numpy": _number(key),
            "torch": int(self._torch.initial_seed()),
        }

    def apply(self) -> None:
        """Seed those generators for the call in progress."""
        for name, own in self._own.items():
            seed = seed_for(own, CALL.epoch, CALL.stage, CALL.path)
            if name == "random":
                random.seed(seed)
            elif name == "numpy":
                np.random.seed(seed >> 32)  # noqa: NPY002
            else:
                self._seed_torch(seed, own)

    def _seed_torch(self, seed: int, own: int) -> None:
        """Seed torch; its `initial_seed()` says what the user set."""
        torch, generator = self._torch, self._torch.default_generator
        generator.manual_seed(seed >> 1)
        state = generator.get_state()
        state[:_WORD] = torch.tensor([own - (own >> 63 << 64)]).view(torch.uint8)
        generator.set_state(state)


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
