"""LoaderSeeds: the seeds that a `worker_init_fn` sets, where they hold for any worker alike.

In torch such a seed begins one stream for each worker. Here samples are drawn by the batch, so
that they depend on no worker: the user's seed takes the place of torch's for them. One that
depends on the worker is left out where any worker may get any batch: the batch would depend on
who was free.
"""

from __future__ import annotations

import dis
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from types import FunctionType
from typing import Any, final

import numpy as np

from .seeding import seed_for
from .worker import CALL

_ASKS = ("get_worker_info", "initial_seed")  # they tell workers apart
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
        before = self._marks()
        yield
        after = self._marks()
        self._own = {name: mark for name, mark in after.items() if mark != before[name]}

    def _marks(self) -> dict[str, int]:
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
