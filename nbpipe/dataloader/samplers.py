"""The samplers of a loader: which samples make which batch, and the states that samplers keep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

from ..base.threads import OwnThread
from ..engine.nodes.external import is_array, is_plain
from ..errors import StateError

END = object()  # stands for the next item where there is none


# -- iterators that were started -------------------------------------------------------------------
def following(items: Iterator[Any], *first: Any) -> Iterator[Any]:
    """Yield some items, then the rest of an iterator, without calling `iter` on it again."""
    yield from first
    while (item := next(items, END)) is not END:
        yield item


def started(items: Iterator[Any]) -> Iterator[Any]:
    """Draw the first item immediately, and return an iterator over all of them."""
    first = next(items, END)
    return iter(()) if first is END else following(items, first)


# -- states that samplers and datasets keep --------------------------------------------------------
def has_state(one: Any) -> bool:
    """Return whether a sampler or a dataset has `state_dict` and `load_state_dict`."""
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(one, name, None)) for name in names)


def require_state(one: Any) -> None:
    """Check that a sampler, a dataset or its iterator can load a state.

    Raises:
        StateError: it cannot.
    """
    if not has_state(one):
        raise StateError(
            f"the state includes that of a {type(one).__name__}, which has no load_state_dict "
            "here; begin the epoch again"
        )


def state_of(one: Any) -> Any:
    """Return a copy of the state of a sampler or a dataset, which later items do not change."""
    return copy.deepcopy(one.state_dict())


def or_from_start(whole: Iterable[Any], items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items; if there are none, the loaded state was that of an end: yield all."""
    first = next(items, END)
    yield from following(iter(whole)) if first is END else following(items, first)


@final
class OrFromStart:
    """A sampler that loaded the state of an end: if it gives nothing, it is read from the start.

    Args:
        whole: the sampler.
    """

    def __init__(self, whole: Iterable[Any]) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[Any]:
        return or_from_start(self._whole, iter(self._whole))


@final
class StatefulIndices(Iterator[Any]):
    """The indices of a sampler with a state; keeps the sampler's state after each of them.

    Args:
        sampler: has the state.
        read: starts to read indices, or lists of them.
        count: how many the loop had before these.

    Attributes:
        states: the sampler's state by the number of indices given.
        indices: the iterator that `read` returned.
    """

    def __init__(self, sampler: Any, read: Callable[[], Iterator[Any]], count: int) -> None:
        self._sampler = sampler
        self._count = count
        self.states = {count: state_of(sampler)}
        self.indices = read()

    def __next__(self) -> Any:
        item = next(self.indices)
        self.states[self._count + 1] = state_of(self._sampler)
        self._count += 1
        return item


# -- which samples make which batch ----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Samples:
    """Which samples make which batch.

    Attributes:
        batch_size: samples in a batch; None if a batch sampler decides, or there are no batches.
        drop_last: leave out a last batch that is not full.
        sampler: gives indices; None for an iterable dataset.
        batch_sampler: gives lists of indices, or None.
    """

    batch_size: int | None
    drop_last: bool
    sampler: Any
    batch_sampler: Any

    @property
    def batched(self) -> bool:
        """Whether samples are collected in batches."""
        return self.batch_sampler is not None or self.batch_size is not None

    @property
    def chosen_by_user(self) -> bool:
        """Whether the user gave a batch sampler."""
        return self.batch_sampler is not None and self.batch_size is None

    @property
    def indices(self) -> Iterable[Any]:
        """The sampler that gives the indices of each batch."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler  # type: ignore[no-any-return]


@final
class Samplers:
    """The sampler that gives the indices of each batch, and the one inside it.

    Args:
        data: `torch.utils.data`.
        indices: gives the indices of each batch; None for an iterable dataset.

    Attributes:
        both: those that there are, the outer one first.
    """

    def __init__(self, data: Any, indices: Any) -> None:
        self._data = data
        inner = getattr(indices, "sampler", None)
        self.both = tuple(one for one in (indices, inner) if one is not None)

    @property
    def _is_plain_batches(self) -> bool:
        """Whether the outer one only groups the indices of the inner one."""
        return type(next(iter(self.both), None)) is self._data.BatchSampler

    @property
    def kinds(self) -> list[str]:
        """The names of their classes."""
        return [type(one).__qualname__ for one in self.both]

    @property
    def stateful(self) -> Any:
        """The one that has a state of its own, or None."""
        candidates = self.both if self._is_plain_batches else self.both[:1]
        return next((one for one in candidates if has_state(one)), None)

    @property
    def drawing(self) -> Any:
        """The random sampler of torch's that draws the order, or None."""
        kinds = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
        candidates = self.both[1:] if self._is_plain_batches else self.both[:1]
        classes = [getattr(self._data, kind) for kind in kinds]
        return next((one for one in candidates if type(one) in classes), None)

    def leaves_torch_alone(self, default: Any) -> bool:
        """Return whether none of them draws from torch's own generator, `default`."""
        data = self._data
        quiet = (data.SequentialSampler, data.BatchSampler, data.distributed.DistributedSampler)
        generators = [(one, getattr(one, "generator", None)) for one in self.both]
        return all(
            type(one) in quiet if generator is None else generator is not default
            for one, generator in generators
        )

    @property
    def epoch(self) -> int | None:
        """The epoch that `set_epoch` set, or None where none of them counts epochs."""
        return next((one.epoch for one in self.both if _counts_epochs(one)), None)

    def set_epoch(self, epoch: int | None) -> None:
        """Set the epoch of those that count epochs; None changes nothing."""
        for one in self.both:
            if epoch is not None and _counts_epochs(one):
                one.set_epoch(epoch)

    def read(self, indices: Iterable[Any], *, ahead: bool) -> Iterator[Any]:
        """Start to read indices.

        Args:
            indices: the outer sampler, or an iterable around it.
            ahead: a thread of the run reads ahead; then a sampler of the user's is read in a
                thread of its own, as it may hold what belongs to one thread.
        """
        return OwnThread(indices) if ahead and self._runs_user_code else iter(indices)

    @property
    def _runs_user_code(self) -> bool:
        """Whether they are anything but torch's own samplers, plain lists and arrays."""
        one: Any = next(iter(self.both), None)
        while type(one) is self._data.BatchSampler:
            one = one.sampler
        is_of_torch = type(one).__module__.startswith("torch.utils.data.")
        return not (is_plain(one) or is_array(one) or is_of_torch)


def _counts_epochs(sampler: Any) -> bool:
    can_be_set = callable(getattr(sampler, "set_epoch", None))
    return can_be_set and type(getattr(sampler, "epoch", None)) is int
