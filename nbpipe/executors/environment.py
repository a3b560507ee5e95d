"""Surroundings: what a worker process takes over from its parent, and what holds for each item.

The folder, the import path, the environment and the command line are the parent's at the moment
the worker starts. A worker's libraries get one thread each: the workers are the parallelism.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAPPED_FROM_BYTES = 1 << 25  # the most that it takes
_KEPT_BYTES = 1 << 26
_MOST_SEED = (1 << 63) - 1

_held: set[str] = set()  # libraries told already, in this process


def capture() -> bytes:
    """Note this process's folder, import path, environment and command line, for `apply`."""
    noted = {
        "folder": _folder(),
        "path": _texts(sys.path),
        "environment": dict(os.environ),
        "arguments": _texts(sys.argv),
    }
    return json.dumps(noted).encode("ascii")


def apply(data: bytes) -> None:
    """Take over what `capture` noted in the parent; a folder that is gone is left out."""
    noted = json.loads(data)
    if noted["folder"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(noted["folder"])
    sys.path[:] = noted["path"]
    importlib.invalidate_caches()  # modules may have been written since this process looked
    sys.argv[:] = noted["arguments"]
    keep_freed_memory()
    _set_environment(noted["environment"] | dict.fromkeys(THREAD_VARIABLES, "1"))


def keep_freed_memory() -> None:
    """Have the C library keep what an item frees for the next one.

    By default it gives large arrays back to the system, and fresh pages cost more than filling
    them: for 4 MB about twice as much.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  as text, for JSON
    except OSError:  # it was deleted
        return None


def _texts(values: Iterable[object]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _set_environment(wanted: dict[str, str]) -> None:
    """Change what differs: setting a variable is a call into the C library."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def hold_threads() -> None:
    """Hold the libraries that are loaded by now to one thread; each is told once."""
    for name, hold in _HOLDS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _held:
            _held.add(name)
            with contextlib.suppress(Exception):  # another version: it keeps its threads
                hold(module)


def _hold_torch(torch: ModuleType) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)  # refused once they run


def _hold_cv2(cv2: ModuleType) -> None:
    cv2.setNumThreads(0)  # OpenCV's word for "in the calling thread"


def _hold_numba(numba: ModuleType) -> None:
    if numba.config.NUMBA_NUM_THREADS > 1:  # loaded before the variable was set
        numba.set_num_threads(1)


_HOLDS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _hold_torch,
    "cv2": _hold_cv2,
    "numba": _hold_numba,
}


def seed_item(seed: int) -> None:
    """Seed the global generators of `random`, `numpy.random` and torch, where it is loaded.

    What they give afterwards depends on `seed` alone. It takes about 7 us, 4 of them `random`'s.

    Args:
        seed: in [0, 2**64). numpy gets the upper half and torch the lower: both fill the same
            generator (MT19937) from 32 bits, and from the same ones they would draw alike.
    """
    random.seed(seed)
    try:
        np.random.seed(seed >> 32)  # noqa: NPY002  users draw from it
    except TypeError:  # the user chose another generator than MT19937
        legacy: Any = np.random  # numpy's annotations leave the two functions out
        legacy.set_bit_generator(type(legacy.get_bit_generator())(seed))
    torch = sys.modules.get("torch")
    if torch is not None:
        _seed_torch(torch, seed)
    else:
        _late.seed = seed
        if _late not in sys.meta_path:
            sys.meta_path.insert(0, _late)


def _seed_torch(torch: ModuleType, seed: int) -> None:
    """Seed the CPU's generator, and the GPUs' where user code woke them up.

    Of the seed torch gets 63 bits: `torch.initial_seed()` is to fit into one of its numbers.
    """
    seed &= _MOST_SEED
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes 100 us
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class _LateTorch(MetaPathFinder):
    """Seeds torch as soon as a stage's own function imports it, and holds its threads."""

    def __init__(self) -> None:
        self.seed = 0

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torch as it would be found without this; leave all else to others."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                hold_threads()
                _seed_torch(module, self.seed)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_late = _LateTorch()
