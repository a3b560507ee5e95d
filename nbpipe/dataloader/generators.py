"""The random generators that the order of a loader is drawn from, and how they are restored."""

from __future__ import annotations

import base64
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

from ..errors import StateError
from .position import Position
from .samplers import END, Samplers


def drawn_seed(torch: Any, generator: Any) -> int:
    """Draw the seed of an epoch's workers, as torch's loader does."""
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    return int(seed.item())


def _as_text(state: Any) -> str:
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 1)).decode()


@final
class RandomSources:
    """The generators that the order of a loader is drawn from.

    Args:
        torch: the module.
        samplers: of the loader.
        generator: the loader's argument, or None.

    Attributes:
        samplers: of the loader.
    """

    def __init__(self, torch: Any, samplers: Samplers, generator: Any) -> None:
        self._torch = torch
        self.samplers = samplers
        default = torch.default_generator
        given = [generator, *(getattr(one, "generator", None) for one in samplers.both)]
        known = dict.fromkeys(one for one in given if isinstance(one, torch.Generator))
        self._given = [one for one in known if one is not default]
        self._uses_torch = generator is None or not samplers.leaves_torch_alone(default)

    @property
    def drawn_from(self) -> Any:
        """The generator that the user gave to a random sampler of torch's, or None."""
        used = getattr(self.samplers.drawing, "generator", None)
        return next((one for one in self._given if one is used), None)

    # -- taking states --------------------------------------------------------------------
    def now(self) -> dict[str, Any]:
        """Return the present states, as fields of a `Position`."""
        return {
            "generators": [_as_text(one.get_state()) for one in self._given],
            "torch": self.torch_now(),
            "sampler_epoch": self.samplers.epoch,
        }

    def torch_now(self) -> str | None:
        """Return the state of torch's own generator; None if nothing is drawn from it."""
        return _as_text(self._torch.get_rng_state()) if self._uses_torch else None

    # -- restoring them -------------------------------------------------------------------
    def check(self, position: Position) -> None:
        """Check that a position was taken with as many generators, used alike.

        Raises:
            StateError: it was not.
        """
        there, here = len(position.generators), len(self._given)
        if there != here:
            raise StateError(
                f"the state is of a loader with {there} generators, this loader has {here}; give "
                "it as many, or begin the epoch again"
            )
        if (position.torch is None) is self._uses_torch:
            raise StateError(
                "the state is of a loader that draws its order from another generator; give "
                "generator= and samplers as they were, or begin the epoch again"
            )

    def restore(self, position: Position) -> None:
        """Set the samplers' epoch and all generators but torch's own to a position."""
        for one, state in zip(self._given, position.generators, strict=True):
            one.set_state(self._as_state(state))
        self.samplers.set_epoch(position.sampler_epoch)

    def _as_state(self, text: str) -> Any:
        raw = bytearray(zlib.decompress(base64.b64decode(text)))
        return self._torch.frombuffer(raw, dtype=self._torch.uint8)

    def set_torch(self, state: str | None) -> None:
        """Set torch's own generator; None leaves it alone."""
        if state is not None:
            self._torch.set_rng_state(self._as_state(state))

    @contextmanager
    def with_torch(self, state: str | None) -> Iterator[None]:
        """Set torch's own generator for the `with` block; None leaves it alone."""
        before = self._torch.get_rng_state()
        self.set_torch(state)
        try:
            yield
        finally:
            if state is not None:
                self._torch.set_rng_state(before)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore all generators after the `with` block."""
        before = [one.get_state() for one in self._given]
        with self.with_torch(self.torch_now()):
            try:
                yield
            finally:
                for one, state in zip(self._given, before, strict=True):
                    one.set_state(state)


# -- workers read ahead, and leave a generator where torch's loader would --------------------------
_AT_ONCE = 32  # numbers that a RandomSampler with replacement draws at once


def _draws_at(sampler: Any) -> Callable[[int], bool]:
    """Return a function: does a sampler of torch's draw numbers for its n-th index or list?"""
    size, inner = getattr(sampler, "batch_size", 1), getattr(sampler, "sampler", sampler)
    if type(inner).__name__ != "RandomSampler":
        return lambda number: number == 0
    every = _AT_ONCE if inner.replacement else max(1, len(inner.data_source))
    return lambda number: -(-number * size // every) * every < (number + 1) * size


@final
class DrawnIndices(Iterator[Any]):
    """The indices that a sampler draws from a generator of the user's, for workers.

    Workers read them ahead. An epoch that ends early still leaves the generator where torch's
    loader leaves it: torch reads a fixed number of batches ahead of the loop.

    Args:
        generator: the sampler draws from it.
        sampler: gives indices, or lists of them.
        ahead: how many torch's loader reads ahead.
    """

    def __init__(self, generator: Any, sampler: Iterable[Any], ahead: int) -> None:
        self._generator = generator
        self._indices = iter(sampler)
        self._draws_at = _draws_at(sampler)
        self._ahead = ahead
        self._wanted = ahead  # how many torch's loader would have drawn by now
        self._count = 0  # drawn here, the end included
        self._states: deque[tuple[int, Any]] = deque()  # of the generator, after so many
        self._shared = False  # the user's code draws from the generator, too
        self._drawing = self._ended = self._left = False
        self._lock = threading.RLock()

    def __next__(self) -> Any:
        with self._lock:
            item = END if self._left else self._draw()
        if item is END:
            raise StopIteration
        return item

    def _draw(self) -> Any:
        """Draw the next index or list, or `END`, and keep the generator's state after it."""
        before = self._generator.get_state()
        self._shared |= bool(self._states) and not before.equal(self._states[-1][1])
        self._drawing = True
        try:
            item = next(self._indices, END)
        finally:
            self._drawing = False
        self._ended = item is END
        draws = self._ended or self._draws_at(self._count)
        self._count += 1
        after = self._generator.get_state()
        if not self._states or (draws and not after.equal(before)):
            self._states.append((self._count, after))
        self._shared |= not draws and not after.equal(before)  # the loop drew meanwhile
        while len(self._states) > 1 and self._states[1][0] <= self._wanted:
            self._states.popleft()
        return item

    def had(self, count: int) -> None:
        """Note how many batches the loop has had."""
        self._wanted = count + self._ahead

    def leave(self) -> None:
        """End the epoch: leave the generator where torch's loader leaves it."""
        with self._lock:
            if self._left or self._drawing:  # this thread collects garbage while it draws
                return
            self._left = True
            while not self._ended and self._count < self._wanted:
                self._draw()
            states = self._states
            if not self._shared and states and states[-1][1].equal(self._generator.get_state()):
                self._generator.set_state(
                    next(state for at, state in reversed(states) if at <= self._wanted)
                )
