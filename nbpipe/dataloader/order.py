"""The order of a `DataLoader`: its arguments by torch's rules, its seeds, what it draws from."""

from __future__ import annotations

import base64
import binascii
import builtins
import contextlib
import copy
import dis
import functools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

from ..base.checks import whole
from ..base.format import shortened
from ..base.seeding import seed_for
from ..base.worker import CALL
from ..errors import ArgumentError, ArgumentTypeError, StateError

# -- What a `DataLoader` is given, by the rules of torch's -----------------------------------------
FACTOR = 2  # batches held ready for each worker, where not given
_SAMPLERS = ("sampler", "batch_sampler")
_METHODS = ("forkserver", "spawn")


@dataclass(frozen=True, slots=True)
class Samples:
    """Which samples make which batch.

    Attributes:
        batch_size: samples in a batch; None where a batch sampler says, or there are no batches.
        drop_last: a last batch that is not full is left out.
        sampler: gives indices; None where samples come by themselves.
        batch_sampler: gives lists of indices, or None.
    """

    batch_size: int | None
    drop_last: bool
    sampler: Any
    batch_sampler: Any

    @property
    def batched(self) -> bool:
        """Whether samples are gathered."""
        return self.batch_sampler is not None or self.batch_size is not None

    @property
    def chosen_by_user(self) -> bool:
        """Whether a batch sampler was given."""
        return self.batch_sampler is not None and self.batch_size is None

    @property
    def indices(self) -> Iterable[Any]:
        """What gives the indices of each batch."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler  # type: ignore[no-any-return]


def chosen_samples(data: Any, dataset: Any, given: dict[str, Any]) -> Samples:
    """Choose the samplers that were not given.

    Args:
        data: `torch.utils.data`.
        dataset: what they are to give indices of.
        given: the arguments of these names.

    Raises:
        ArgumentError: arguments that exclude one another, or a batch size below 1.
    """
    size, drop_last = given["batch_size"], bool(given["drop_last"])
    sampler, batch_sampler = given["sampler"], given["batch_sampler"]
    reads = isinstance(dataset, data.IterableDataset)
    if size is not None:
        size = whole("batch_size", size, minimum=1, unit="samples")
    _refuse_together(given, size, reads=reads)
    if reads:
        return Samples(size, drop_last, None, None)
    if batch_sampler is not None:
        return Samples(None, drop_last, sampler or data.SequentialSampler(dataset), batch_sampler)
    if sampler is None:
        sampler = (
            data.RandomSampler(dataset, generator=given["generator"])
            if given["shuffle"]
            else data.SequentialSampler(dataset)
        )
    if size is not None:
        batch_sampler = data.BatchSampler(sampler, size, drop_last)
    return Samples(size, drop_last, sampler, batch_sampler)


def _refuse_together(given: dict[str, Any], size: int | None, *, reads: bool) -> None:
    flags = {name: given[name] or None for name in ("shuffle", "drop_last")}  # 0 says no, too
    words = {"shuffle": flags["shuffle"], **{one: given[one] for one in _SAMPLERS}}
    if reads:
        _refuse("an IterableDataset, which gives its samples in its own order", words)
    if given["sampler"] is not None:
        _refuse("sampler", {"shuffle": flags["shuffle"]})
    if given["batch_sampler"] is not None:
        del words["batch_sampler"]
        other = None if size == 1 else size or "None"
        _refuse("batch_sampler", words | {"batch_size": other, "drop_last": flags["drop_last"]})
    elif size is None:
        _refuse("batch_size=None, without batches", {"drop_last": flags["drop_last"]})


def _refuse(what: str, others: dict[str, Any]) -> None:
    """Refuse arguments that say something else than `what` that was given."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise ArgumentError(
                f"{name} must be left out beside {what}, got {name}={value!r}; give one of them"
            )


def checked_factor(workers: int, factor: object) -> int:
    """Check `prefetch_factor`.

    Raises:
        ArgumentError: not an int of at least 1, or there are no workers.
    """
    if factor is None:
        return FACTOR
    if not workers:
        raise ArgumentError(
            f"prefetch_factor must be left out without workers, got {factor!r}; "
            "set num_workers above 0, or leave it out"
        )
    return counted("prefetch_factor", factor, minimum=1, unit="batches")


def counted(what: str, count: object, *, minimum: int, unit: str) -> int:
    """Check a number of things; True is one, as in torch.

    Raises:
        ArgumentError: not an int of at least `minimum`.
    """
    number = int(count) if isinstance(count, bool) else count
    return whole(what, number, minimum=minimum, unit=unit)


def checked_stay(workers: int, stay: object) -> bool:
    """Check `persistent_workers`.

    Raises:
        ArgumentError: there are no workers.
    """
    if stay and not workers:
        raise ArgumentError(
            "persistent_workers needs num_workers of at least 1, got 0; set it, or leave "
            "persistent_workers out"
        )
    return bool(stay)


def check_context(context: Any, workers: int) -> None:
    """Check `multiprocessing_context`: workers are never copies of the calling process.

    Raises:
        ArgumentError: "fork", another word, or there are no workers.
        ArgumentTypeError: neither a word nor a context.
    """
    if context is None:
        return
    if not workers:
        raise ArgumentError(
            f"multiprocessing_context must be left out without workers, got {context!r}"
        )
    if not isinstance(context, str) and not hasattr(context, "get_start_method"):
        raise ArgumentTypeError(
            "multiprocessing_context must be None, 'forkserver', 'spawn' or a context of "
            f"multiprocessing, got {context!r}"
        )
    method = context if isinstance(context, str) else context.get_start_method()
    if method not in _METHODS:
        raise ArgumentError(
            f"multiprocessing_context must be None, 'forkserver' or 'spawn', got {method!r}; a "
            "worker is a fresh process, never a copy of a process with threads, which hangs; "
            "datasets and functions of a notebook are sent to it all the same"
        )


# -- LoaderSeeds -----------------------------------------------------------------------------------
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


# -- LoaderDraws: the generators and samplers that the order of a `DataLoader` is drawn from -------
_MOST_BYTES = 1 << 20  # the state of a generator has some thousand


@final
@dataclass(frozen=True, slots=True)
class Drawn:
    """How the generators and the sampler were at some moment.

    Attributes:
        generators: the states of the generators that were given.
        torch: that of torch's own, or None where nothing is drawn from it.
        epoch: that which `set_epoch` told the sampler, or None.
    """

    generators: tuple[Any, ...]
    torch: Any | None
    epoch: int | None

    @property
    def data(self) -> dict[str, Any]:
        """The states as JSON-ready values."""
        return {
            "generators": [packed(state) for state in self.generators],
            "torch": None if self.torch is None else packed(self.torch),
            "sampler_epoch": self.epoch,
        }


def packed(state: Any) -> str:
    """Write the state of a generator as text."""
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 1)).decode()


@final
class Draws:
    """The generators and samplers of a loader.

    Args:
        torch: the module.
        samples: which samples make which batch.
        generator: that of the loader, or None.
        reads: the dataset is iterable, so that there is no sampler.
    """

    def __init__(self, torch: Any, samples: Samples, generator: Any, *, reads: bool) -> None:
        self._torch = torch
        outer: Any = None if reads else samples.indices
        inner = getattr(outer, "sampler", None)
        self._samplers = [one for one in (outer, inner) if one is not None]
        self._generators = self._given(generator)
        self._from_torch = generator is None or not all(map(self._is_apart, self._samplers))
        self.stateful = self._stateful()

    def _given(self, generator: Any) -> list[Any]:
        torch = self._torch
        found = [generator, *(getattr(one, "generator", None) for one in self._samplers)]
        return [
            one
            for one in dict.fromkeys(each for each in found if isinstance(each, torch.Generator))
            if one is not torch.default_generator
        ]

    def _is_apart(self, sampler: Any) -> bool:
        """Tell whether a sampler leaves torch's own generator alone."""
        data = self._torch.utils.data
        drawn = getattr(sampler, "generator", None)
        if drawn is not None:
            return drawn is not self._torch.default_generator
        quiet = (data.SequentialSampler, data.BatchSampler, data.distributed.DistributedSampler)
        return type(sampler) in quiet

    def _stateful(self) -> Any:
        """Find the sampler that has a state of its own, or None."""
        outer = next(iter(self._samplers), None)
        plain = type(outer) is self._torch.utils.data.BatchSampler  # takes what it hands on
        inside = self._samplers if plain else self._samplers[:1]
        return next((one for one in inside if has_state(one)), None)

    @property
    def kinds(self) -> list[str]:
        """The classes of the samplers."""
        return [type(one).__qualname__ for one in self._samplers]

    @property
    def now(self) -> Drawn:
        """How everything is at this moment."""
        return Drawn(
            tuple(one.get_state() for one in self._generators),
            self._torch.get_rng_state() if self._from_torch else None,
            next((one.epoch for one in self._samplers if _counts_epochs(one)), None),
        )

    def read(self, data: Any) -> Drawn:
        """Read what `Drawn.data` wrote.

        Raises:
            StateError: something else stands there, or there are other generators.
        """
        texts, text, epoch = data["generators"], data["torch"], data["sampler_epoch"]
        if len(texts) != len(self._generators):
            raise StateError(
                f"the state has {len(texts)} generators that were given, this loader has "
                f"{len(self._generators)}; give it as many, or begin the epoch again"
            )
        if (text is None) is self._from_torch:
            raise StateError(
                "the state is of a loader that draws its order from another generator; give "
                "generator= and samplers as they were, or begin the epoch again"
            )
        if epoch is not None and type(epoch) is not int:
            raise StateError(f"the epoch of a sampler must be an int, got {shortened(repr(epoch))}")
        found = tuple(map(self.unpacked, texts, self._generators))
        return Drawn(found, None if text is None else self.unpacked(text), epoch)

    def unpacked(self, text: Any, generator: Any = None) -> Any:
        """Read the state of a generator, torch's own if not given.

        Raises:
            StateError: the text is no such state.
        """
        torch = self._torch
        try:
            raw = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_BYTES)
            state = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            torch.Generator("cpu" if generator is None else generator.device).set_state(state)
        except (TypeError, ValueError, RuntimeError, zlib.error, binascii.Error) as error:
            raise StateError(
                f"a state must hold the text of a generator's state, got {shortened(repr(text))}; "
                "give what loader.state_dict() returned"
            ) from error
        return state

    def restore(self, drawn: Drawn) -> None:
        """Set generators and sampler, but for torch's own generator, as they were."""
        for one, state in zip(self._generators, drawn.generators, strict=True):
            one.set_state(state)
        self.tell_epoch(drawn)

    def tell_epoch(self, drawn: Drawn) -> None:
        """Set the sampler's epoch as it was."""
        for one in self._samplers:
            if drawn.epoch is not None and _counts_epochs(one):
                one.set_epoch(drawn.epoch)

    def set_torch(self, state: Any) -> None:
        """Set torch's own generator, if the order is drawn from it."""
        if state is not None:
            self._torch.set_rng_state(state)

    @contextmanager
    def with_torch(self, state: Any) -> Iterator[None]:
        """Draw from torch's own generator as it was then; it is left as it is."""
        if state is None:
            yield
            return
        before = self._torch.get_rng_state()
        self._torch.set_rng_state(state)
        try:
            yield
        finally:
            self._torch.set_rng_state(before)


def _counts_epochs(sampler: Any) -> bool:
    return callable(getattr(sampler, "set_epoch", None)) and type(_epoch(sampler)) is int


def _epoch(sampler: Any) -> Any:
    return getattr(sampler, "epoch", None)


def has_state(one: Any) -> bool:
    """Tell whether a sampler or a dataset has a state of its own."""
    words = ("state_dict", "load_state_dict")
    return all(callable(getattr(one, word, None)) for word in words)


def checked_state(one: Any) -> None:
    """Check that a sampler, a dataset or its iterator can be told a state.

    Raises:
        StateError: it cannot.
    """
    if not has_state(one):
        raise StateError(
            f"the state is of a {type(one).__name__} with a state of its own, but it has no "
            "load_state_dict here; begin the epoch again"
        )


def state_of(one: Any) -> Any:
    """Return the state of a sampler or a dataset; what it does later does not change it."""
    return copy.deepcopy(one.state_dict())


@final
class Noted(Iterator[Any]):
    """Gives what a sampler gives, and notes the sampler's own state behind each.

    Args:
        sampler: has the state.
        indices: gives indices, or lists of them.
        drawn: how many were given before these.
        retry: begin again where there are none at all: the state was that of an end.
    """

    def __init__(self, sampler: Any, indices: Iterable[Any], drawn: int, *, retry: bool) -> None:
        self._sampler = sampler
        self._count = drawn
        self._states = {drawn: state_of(sampler)}
        self._indices = iter(indices)
        self._again = indices if retry else None

    def __next__(self) -> Any:
        again, self._again = self._again, None
        item = next(self._indices, self) if again is not None else next(self._indices)
        if item is self and again is not None:
            self._indices = iter(again)
            item = next(self._indices)
        self._states[self._count + 1] = state_of(self._sampler)
        self._count += 1
        return item

    def at(self, count: int) -> Any:
        """Return the sampler's state behind so many."""
        return self._states[count]

    def forget(self, count: int) -> None:
        """Called when the state behind so many is no longer wanted."""
        self._states.pop(count, None)
