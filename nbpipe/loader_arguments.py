"""What a `DataLoader` is given, by the rules of torch's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import ArgumentError, ArgumentTypeError
from .operations import whole

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
