"""The seeds that a user's `worker_init_fn` sets, and how they hold for every batch.

In torch such a seed starts one stream of random numbers for each worker. Here every batch has a
seed of its own, so that samples do not depend on the worker that makes them. The user's seed
replaces torch's where it is the same in all workers, or can be made so. Otherwise it is left out:
the samples would depend on which worker was free.
"""

from __future__ import annotations

import dis
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

from ..base.seeding import CALL, seed_for

_ASKS = ("get_worker_info", "initial_seed")  # they return a value of this worker
_MODULES = ("numpy", "random", "torch")
_SEEDING = frozenset(  # a function that uses no other names, apart from numbers, only seeds
    (
        *(*_ASKS, *_MODULES, "seed", "manual_seed", "manual_seed_all", "cuda", "mps"),
        *("utils", "data", "id", "num_workers", "abs", "hash", "int", "max", "min", "pow"),
    )
)
_SEED_BYTES = 8  # the seed, at the start of the state of torch's generator


def is_alike(init: Callable[[int], object]) -> bool:
    """Return whether a `worker_init_fn` does the same in every worker, as far as its code shows."""
    if not isinstance(init, FunctionType) or init.__code__.co_argcount != 1:
        return False
    name = init.__code__.co_varnames[0]
    if any(word in init.__code__.co_names for word in _ASKS):
        return False
    used = [step.argval for step in dis.get_instructions(init)]  # one step may use two names
    return not any(name == one or (isinstance(one, tuple) and name in one) for one in used)


def only_seeds(init: Callable[[int], object]) -> bool:
    """Return whether a `worker_init_fn` seeds by its number, and does nothing else."""
    if not isinstance(init, FunctionType) or init.__code__.co_argcount != 1:
        return False
    code, cells = init.__code__, zip(init.__code__.co_freevars, init.__closure__ or (), strict=True)
    known = {**init.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    used = (known.get(name, name) for name in (*code.co_names, *code.co_freevars))
    return all(isinstance(one, int) or _name_of(one) in _SEEDING for one in used)


def _name_of(one: Any) -> str | None:
    """Return a name unchanged, and the name of anything that these modules define."""
    if isinstance(one, str):
        return one
    owner = str(one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", ""))
    return str(one.__name__) if owner.partition(".")[0] in _MODULES else None


@final
class Seeds:
    """The seeds that a user's function set in this process.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which global generators are seeded in the `with` block; drawing does not count."""
        before = self._fingerprints()
        yield
        after = self._fingerprints()
        self._found = {name: now for name, now in after.items() if now != before[name]}

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
        for name, found in self._found.items():
            seed = seed_for(found, CALL.epoch, CALL.stage, CALL.path)
            if name == "random":
                random.seed(seed)
            elif name == "numpy":
                np.random.seed(seed >> 32)  # noqa: NPY002
            else:
                self._seed_torch(seed, found)

    def _seed_torch(self, seed: int, found: int) -> None:
        """Seed torch; its `initial_seed()` returns the seed that the user set."""
        torch, generator = self._torch, self._torch.default_generator
        generator.manual_seed(seed >> 1)
        state = generator.get_state()
        state[:_SEED_BYTES] = torch.tensor([found - (found >> 63 << 64)]).view(torch.uint8)
        generator.set_state(state)


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
