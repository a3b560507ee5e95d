"""Position: a place in the epochs of a loader, as the JSON-ready values of its state."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, final

from ..base.digest import check_seal, seal
from ..base.format import shortened
from ..errors import StateError
from .samplers import StatefulIndices

_FORMAT = 1
_WAY_OUT = "give what loader.state_dict() returned"
_OF_THE_USER = ("sampler", "dataset", "iterator")  # any values: the seal leaves them out


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in the epochs of a loader.

    Attributes:
        begun: the epoch had begun; False: it is the next one.
        generators: states of the user's generators when the epoch began.
        torch: state of torch's own generator then; None if nothing is drawn from it.
        sampler_epoch: the epoch that `set_epoch` gave the sampler, or None.
        seed: of the workers' items; None if none was drawn.
        epoch: number of the epoch among those with this seed, which was drawn for the first one.
        delivered: batches of the epoch that the loop has had.
        sampler: the sampler's own state after these batches, or None.
        dataset: the iterable dataset's own state, or None.
        iterator: the own state of the dataset's iterator, or None.
        ended: these are states of an end: the dataset has given everything.
        parts: for workers that each read a part of the dataset: how many there are, and the
            states of the stages that read; or None.
        torch_now: state of torch's own generator when the state was taken in mid-epoch, or None.
    """

    begun: bool
    generators: list[str]
    torch: str | None
    sampler_epoch: int | None
    seed: int | None
    epoch: int
    delivered: int = 0
    sampler: Any = None
    dataset: Any = None
    iterator: Any = None
    ended: bool = False
    parts: list[Any] | None = None
    torch_now: str | None = None

    def as_state(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state that `loader.state_dict()` gives.

        Args:
            about: values that must be the same where the epoch continues.
        """
        values = {name: getattr(self, name) for name in _NAMES}
        state = {"nbpipe_loader": _FORMAT, **values, "by": self._way, "about": dict(about)}
        return state | {"seal": seal(_sealed(state))}

    @property
    def _way(self) -> str:
        """How its order continues, for people who read the state."""
        if self.parts is not None:
            return "parts"
        if self.has_dataset_state:
            return "dataset"
        return "skipping" if self.sampler is None else "sampler"

    @property
    def has_dataset_state(self) -> bool:
        """Whether the dataset loads a state; otherwise it is read again from the start."""
        return self.dataset is not None or self.iterator is not None

    def check_readers(self, workers: int, *, splits: bool) -> None:
        """Check that the worker processes here can continue an iterable dataset.

        Args:
            workers: how many there are.
            splits: each of them reads a part.

        Raises:
            StateError: the dataset was read by other workers.
        """
        parts = self.parts
        if not self.delivered or (parts is None and not (workers and splits)):
            return
        if parts is None:
            raise self.read_whole()
        readers, *_ = parts
        if workers != readers:
            raise StateError(
                f"the state is of an epoch whose dataset {readers} worker processes read in parts, "
                f"here are {workers}; set num_workers and workers as they were, or begin the epoch "
                "again"
            )

    def read_whole(self) -> StateError:
        """Return the error for a dataset that was read whole, and has to be read in parts here."""
        return StateError(
            f"the state is of an epoch whose dataset was read once, for {self.delivered} batches, "
            "here each worker reads a part of it; set num_workers=0, or begin the epoch again"
        )

    def rest_of(self, indices: Iterator[Any] | None) -> Iterator[Any] | None:
        """Skip the indices of batches that the loop has had; None takes the place of each.

        Args:
            indices: from the first one on; those of a sampler with a state of its own continue
                where that is; None for an iterable dataset.
        """
        if indices is None:
            return None
        if not isinstance(indices, StatefulIndices):
            deque(itertools.islice(indices, self.delivered), 0)
        return itertools.chain(itertools.repeat(None, self.delivered), indices)


_NAMES = tuple(one.name for one in fields(Position))


def _sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in _OF_THE_USER}


def read_state(
    state: Any, about: Mapping[str, Any], check: Callable[[Position], object]
) -> Position:
    """Read the position that a state holds.

    Args:
        state: what `Position.as_state` returned.
        about: the values that must be those of this loader.
        check: checks the generators of a position; raises StateError.

    Raises:
        StateError: it is something else, or a state of another loader.
    """
    if not isinstance(state, Mapping) or "nbpipe_loader" not in state:
        raise StateError(
            f"a state must be a dict from loader.state_dict(), got {shortened(repr(state))}"
        )
    if state["nbpipe_loader"] != _FORMAT:
        raise StateError(
            f"a loader's state must be of format {_FORMAT}, got {state['nbpipe_loader']!r}; "
            "another version of nbpipe wrote it: begin the epoch again"
        )
    try:
        check_seal(_sealed(state), _WAY_OUT)
        _check_about(state["about"], about)
        position = Position(**{name: state[name] for name in _NAMES if name in state})
        check(position)
    except (TypeError, ValueError, LookupError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state cannot be read ({error!r}); {_WAY_OUT}") from error
    return position


def _check_about(there: Any, here: Mapping[str, Any]) -> None:
    for name, value in here.items():
        if there[name] != value:
            raise StateError(
                f"the state is of a loader whose {name} is {there[name]!r}, here it is {value!r}; "
                "make the loader as it was, or begin the epoch again"
            )
