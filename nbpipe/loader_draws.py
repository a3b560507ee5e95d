"""LoaderDraws: the generators and samplers that the order of a `DataLoader` is drawn from."""

from __future__ import annotations

import base64
import binascii
import copy
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from .errors import StateError
from .loader_arguments import Samples
from .text import shortened

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
        """Say whether a sampler leaves torch's own generator alone."""
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
    """Say whether a sampler or a dataset has a state of its own."""
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
    """Give the state of a sampler or a dataset; what it does later does not change it."""
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
        """Give the sampler's state behind so many."""
        return self._states[count]

    def forget(self, count: int) -> None:
        """Hear that the state behind so many is no longer wanted."""
        self._states.pop(count, None)
