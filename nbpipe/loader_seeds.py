"""LoaderSeeds: the seeds that a `worker_init_fn` sets, as far as they hold for any worker alike.

In torch such a seed begins one stream for each worker. Here samples are drawn by the batch, so
that they depend on no worker: the user's seed takes the place of torch's for them. Where it
depends on the worker, that of the first one counts in all of them: each worker calls the function
as the first one, too, if all that it does is to seed. Where it does more, and any worker may get
any batch, its seeds are left out: the batch would depend on who was free.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

from .seeding import seed_for
from .worker import CALL

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
