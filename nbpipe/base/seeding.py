"""Random numbers that depend on the item alone: on no worker, process, rank or order of work.

Each key (seed, epoch, stage, path) is hashed to the key of a counter-based generator, so any
item's generator is made directly, without drawing those before it.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011
(Philox); BLAKE2b: RFC 7693.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, Philox, SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from .threads import hold_library_threads

Path: TypeAlias = int | tuple[int, ...]
Entry = tuple[Any, ...]  # (path, value), and the size where a byte budget is in force

_ITEM = b"nbpipe.item"  # what a key is for: equal keys of two purposes share no numbers
_SEED = b"nbpipe.seed"
_ORDER = b"nbpipe.order"
_MOST_TORCH_SEED = (1 << 63) - 1
_KEY_WORDS = 2  # of 64 bits
_ROUNDS = 8
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio, odd


def generator_for(seed: int, epoch: int, stage: str, path: Path) -> Generator:
    """Make the random generator of one item in one stage.

    Args:
        seed: the run's seed, any int.
        epoch: number of the epoch.
        stage: address of the stage.
        path: path of the item; (5,) is the same as 5.

    Returns:
        A generator over Philox 4x64; its bits depend on the arguments alone, whatever the
        process, the platform and the Python version.

    Source: Salmon et al. 2011 (see the module).
    """
    return _generator(_digest(_ITEM, seed, epoch, stage, path))


def seed_for(seed: int, epoch: int, stage: str, path: Path) -> int:
    """Make a seed in [0, 2**64) for `random`, torch and others that want an int.

    Args:
        seed: the run's seed, any int.
        epoch: number of the epoch.
        stage: address of the stage.
        path: path of the item, or number of the worker.
    """
    return int.from_bytes(_digest(_SEED, seed, epoch, stage, path)[:8], "little")


def order_generator(seed: int, epoch: int, repeat_pass: Path = 0) -> Generator:
    """Make the generator for the order of one epoch.

    Args:
        seed: seed of the `shuffle`.
        epoch: number of the epoch.
        repeat_pass: number of the pass, for each `repeat` around it.
    """
    return _generator(_digest(_ORDER, seed, epoch, "", repeat_pass))


class Permutation:
    """A bijection of [0, length), computed row by row in constant memory.

    A Feistel network over the smallest power of two that holds `length`; values that fall
    outside are sent through it again until they fall inside ("cycle walking").

    Args:
        length: number of rows, 1 to 2**62.
        generator: gives the keys of the rounds.

    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002; the
    mixing function is the finaliser of Steele, Lea, Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014.
    """

    __slots__ = ("_high_bits", "_keys", "_low_bits", "length")

    def __init__(self, length: int, generator: Generator) -> None:
        bits = max(2, (length - 1).bit_length())
        self.length = length
        self._low_bits = bits // 2
        self._high_bits = bits - bits // 2
        self._keys = [
            np.uint64(key) for key in generator.integers(0, 2**64, _ROUNDS, dtype=np.uint64)
        ]

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the images of `rows`, an array of shape (n,) int64 in [0, length)."""
        found = self._walk(rows.astype(np.uint64))
        outside = np.flatnonzero(found >= self.length)
        while outside.size:
            again = self._walk(found[outside])
            found[outside] = again
            outside = outside[again >= self.length]
        return found.astype(np.int64)

    def _walk(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Send values through the network once; the halves swap widths at each round."""
        low_bits, high_bits = self._low_bits, self._high_bits
        high, low = values >> np.uint64(low_bits), values & _mask(low_bits)
        for key in self._keys:
            high, low = low, high ^ (_mixed(low + key) & _mask(high_bits))
            low_bits, high_bits = high_bits, low_bits
        return (high << np.uint64(low_bits)) | low


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits; `values` is overwritten."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def uniforms(key: np.uint64, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one number in [0, 1) for each of `rows`, an array of shape (n,), in random access.

    Source: SplitMix64 (Steele, Lea, Flood 2014), of which `key` is the state: row i is its
    i-th number.
    """
    mixed = _mixed((rows.astype(np.uint64) + np.uint64(1)) * _GAMMA + key)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


class _KeySequence:
    """Hand a ready key to Philox: half the cost of letting numpy stretch a seed."""

    __slots__ = ("_digest",)

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the words that a bit generator asks for (Philox: two of 64 bits)."""
        if n_words == _KEY_WORDS and dtype is np.uint64:
            key = np.frombuffer(self._digest, np.uint64)
            return key if sys.byteorder == "little" else key.byteswap()
        return self._stretched().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> Sequence[SeedSequence]:
        """Make seeds of generators that `Generator.spawn` asks for."""
        return self._stretched().spawn(n_children)

    def _stretched(self) -> SeedSequence:
        return SeedSequence(int.from_bytes(self._digest, "little"))


ISpawnableSeedSequence.register(_KeySequence)


def _generator(digest: bytes) -> Generator:
    key: Any = _KeySequence(digest)  # numpy's annotations leave other seed sequences out
    return Generator(Philox(key))


def _digest(purpose: bytes, seed: int, epoch: int, stage: str, path: Path) -> bytes:
    """Hash a key to 16 bytes; the stage stands last, so its text cannot imitate the rest."""
    place = ",".join(map(str, path)) if isinstance(path, tuple) else path
    key = f"{seed}|{epoch}|{place}|{stage}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16, person=purpose).digest()


# -- The global generators of `random`, `numpy.random` and torch -----------------------------------
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
    seed &= _MOST_TORCH_SEED
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
        """Find torch as it would be found without this; leave other modules alone."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                hold_library_threads()
                _seed_torch(module, self.seed)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_late = _LateTorch()


# -- The call in progress: what its seed depends on, and what its function may ask -----------------
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The call in progress, as a stage's function sees it; `worker_info()` returns it.

    Attributes:
        stage: name of the stage.
        worker: number of the worker process, from 0; on Dask and other executors, 0.
        epoch: number of the epoch.
        seed: 64-bit seed of this item in this stage. It depends only on the run's seed, the
            epoch, the stage and the item.

    Examples:
        >>> import nbpipe
        >>> nbpipe.WorkerInfo(stage="decode", worker=1, epoch=0, seed=7).worker
        1
    """

    stage: str
    worker: int
    epoch: int
    seed: int


class CurrentCall(threading.local):
    """The call that a thread is in; the engine writes it, `worker_info` reads it."""

    stage = ""
    epoch = 0
    run_seed = 0
    path: Path = 0


CALL = CurrentCall()
NUMBER = [0]  # of this process among the workers of its region


def worker_info() -> WorkerInfo | None:
    """Return which stage, worker and epoch the calling code runs in.

    Functions in worker processes and on Dask get it. Stages in threads, and inline and async
    stages, share one process and get None: use a parameter named `rng` for random numbers there.

    Returns:
        A `WorkerInfo`, or None outside a worker.

    Examples:
        >>> import nbpipe
        >>> print(nbpipe.worker_info())
        None
        >>> def stage_of(n):
        ...     return nbpipe.worker_info().stage
        >>> list(nbpipe.source([1]).map(stage_of, executor="process"))
        ['stage_of']
    """
    if not CALL.stage:
        return None
    seed = seed_for(CALL.run_seed, CALL.epoch, CALL.stage, CALL.path)
    return WorkerInfo(CALL.stage, NUMBER[0], CALL.epoch, seed)
