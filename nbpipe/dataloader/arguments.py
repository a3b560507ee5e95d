"""The arguments of a loader: checked by torch's rules, and as they are when an epoch begins."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from ..base.checks import integer, plain_function, refuse_table, seconds
from ..base.names import parameters_of, word_for
from ..errors import ArgumentError, ArgumentTypeError, MissingExtraError, UnknownKnobError
from ..ops.stage import MAX_PREFETCH, placed
from ..pipeline import Pipeline
from ..run.shown import ShownRun
from .generators import RandomSources, drawn_seed
from .samplers import Samplers, Samples

_FACTOR = 2  # batches held ready for each worker, by default
_CHECKED_BY_TORCH = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last"),
    *("timeout", "generator", "multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


# -- the arguments of the constructor --------------------------------------------------------------
def load_torch() -> ModuleType:
    """Import torch.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import torch
        import torch.utils.data
    except ImportError:
        raise MissingExtraError.of("torch", "torch", "DataLoader") from None
    return torch  # type: ignore[no-any-return]


def worker_count(count: object) -> int:
    """Check `num_workers`."""
    return _number("num_workers", count, minimum=0, unit="calls")


def batches_ahead(factor: object) -> int:
    """Check `prefetch_factor`, which may be left out."""
    factor = _FACTOR if factor is None else factor
    return _number("prefetch_factor", factor, minimum=1, unit="batches")


def _number(what: str, count: object, *, minimum: int, unit: str) -> int:
    """Check an integer; True counts as 1, as in torch."""
    number = int(count) if isinstance(count, bool) else count
    return integer(what, number, minimum=minimum, unit=unit)


def chosen_by_torch(
    data: Any, given: Mapping[str, Any], *, workers: int
) -> tuple[Samples, Callable[[Any], Any]]:
    """Check arguments, and let torch's own loader check the rest and choose the samplers.

    Args:
        data: `torch.utils.data`.
        given: the arguments of the constructor.
        workers: how many there are.

    Returns:
        Which samples make which batch, and the function that makes a batch.

    Raises:
        ArgumentError: a value out of range, or arguments that exclude one another.
        ArgumentTypeError: a pipeline as the dataset, or no context of multiprocessing.
    """
    dataset, size = given["dataset"], given["batch_size"]
    if isinstance(dataset, Pipeline | ShownRun):
        raise ArgumentTypeError(
            f"dataset must be a dataset or a sequence, got a {type(dataset).__name__}; a pipeline "
            "needs no loader: for batch in pipe.batch(64)"
        )
    for name in ("dataset", "sampler", "batch_sampler"):
        refuse_table(f"{name} must be", given[name])
    if size is not None:
        size = integer("batch_size", size, minimum=1, unit="samples")
    for name in ("collate_fn", "worker_init_fn"):
        if given[name] is not None:
            plain_function(name, given[name])
    check_workers(given["workers"], given["worker_init_fn"])
    iterable = isinstance(dataset, data.IterableDataset)
    if iterable and given["shuffle"]:  # torch would let a datapipe pass
        raise ArgumentError(
            "shuffle must be left out beside an IterableDataset, which gives its samples in its "
            f"own order, got shuffle={given['shuffle']!r}"
        )
    options = {name: given[name] for name in _CHECKED_BY_TORCH} | {"batch_size": size}
    found = _torch_loader(data, options, workers)
    samplers = (None, None) if iterable else (found.sampler, found.batch_sampler)
    return Samples(found.batch_size, bool(found.drop_last), *samplers), found.collate_fn


def _torch_loader(data: Any, options: Mapping[str, Any], workers: int) -> Any:
    """Return torch's own loader, which checks its arguments."""
    try:
        found = data.DataLoader(**options, num_workers=min(workers, 1))  # torch warns of many
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    except TypeError as error:
        raise ArgumentTypeError(str(error)) from None
    context = found.multiprocessing_context
    if context is not None and context.get_start_method() == "fork":
        raise ArgumentError(
            "multiprocessing_context must be None, 'forkserver' or 'spawn', got 'fork'; a worker "
            "is a fresh process, never a copy of a process with threads, which hangs; datasets "
            "and functions of a notebook still reach it"
        )
    return found


def check_workers(workers: object, worker_init_fn: object) -> None:
    """Check what makes the batches, and that it calls a `worker_init_fn`.

    Raises:
        ArgumentError: another word, or no processes beside a `worker_init_fn`.
    """
    if workers != "thread" and placed("workers", workers) is None:
        raise ArgumentError(
            "workers must be 'process', 'thread', 'dask', a Dask client or another executor, for "
            f"example of concurrent.futures, got {workers!r}"
        )
    if worker_init_fn is not None and workers != "process":
        raise ArgumentError(
            "worker_init_fn must be left out where workers are not processes, got "
            f"workers={workers!r}; prepare the dataset before, or use workers='process'"
        )


# -- attributes that are set later -----------------------------------------------------------------
_FIXED = (
    *("batch_size", "batch_sampler", "sampler", "shuffle", "drop_last", "dataset"),
    "persistent_workers",
)
_MISSPELT = 0.9  # a name so similar to an argument's is a typo; other names are the user's own


def check_name(loader: object, constructor: Callable[..., Any], name: str, value: object) -> None:
    """Check that an attribute may be set.

    Raises:
        ArgumentError: it is fixed.
        UnknownKnobError: an argument is meant that has another name, or was misspelt.
    """
    if name in _FIXED:
        raise ArgumentError(
            f"{name} of a DataLoader is fixed, got {value!r}; make another loader: only "
            "num_workers and prefetch_factor can change during an epoch"
        )
    if name[0] == "_" or name in dir(loader):
        return
    known = tuple(parameters_of(constructor))
    close = difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT)
    meant = word_for(name, known) or next(iter(close), None)
    if meant is not None:
        fixed = meant in _FIXED
        way = f"did you mean {meant!r}?" if fixed else f"write loader.{meant} = {value!r}"
        raise UnknownKnobError(f"a DataLoader has no {name!r}; {way}", name=name, obj=loader)


def checked_value(loader: Any, data: Any, name: str, value: object) -> object:
    """Check a value that is assigned to an attribute, as the constructor checks it.

    Args:
        loader: has the other attributes.
        data: `torch.utils.data`.
        name: of the attribute.
        value: is assigned.
    """
    if name == "collate_fn" or (name == "worker_init_fn" and value is not None):
        plain_function(name, value)
    if name == "worker_init_fn":
        check_workers(loader.workers, value)
    elif name == "workers":
        check_workers(value, loader.worker_init_fn)
    elif name == "multiprocessing_context":
        _torch_loader(data, {"dataset": (), name: value}, loader.num_workers)
    return seconds(name, value, zero=True) if name == "timeout" else value


# -- the arguments at one moment -------------------------------------------------------------------
def prefetch_of(factor: int, workers: int) -> int:
    """Return how many batches all workers together hold ready."""
    return min(MAX_PREFETCH, factor * max(1, workers))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a loader as they are when an epoch begins.

    Attributes:
        torch: the module.
        samples: which samples make which batch.
        iterable: the dataset is iterable.
        asks: this dataset calls `get_worker_info()`, to read a part of itself in each worker.
        factor: batches held ready for each worker.
    """

    torch: Any
    samples: Samples
    iterable: bool
    asks: bool
    factor: int
    dataset: Any
    num_workers: int
    collate_fn: Callable[[Any], Any]
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], object] | None
    generator: Any
    persistent_workers: bool
    workers: Any

    @property
    def place(self) -> str:
        """Where an iterable dataset is read: by the "caller", in a "process" or a "thread"."""
        if not self.num_workers:
            return "caller"
        return "process" if self.workers == "process" else "thread"

    @property
    def readers(self) -> int:
        """Worker processes that read a part of an iterable dataset each, or 0."""
        splits = self.iterable and (self.asks or self.worker_init_fn is not None)
        return self.num_workers if splits and self.place == "process" else 0

    @property
    def stays(self) -> bool:
        """Whether the workers stay for the next epoch."""
        return self.persistent_workers and self.num_workers > 0

    @property
    def ahead(self) -> int:
        """Batches that torch's loader reads ahead of the loop."""
        return self.num_workers * self.factor

    @property
    def pins(self) -> bool:
        """Whether batches are copied to pinned memory."""
        accelerator: Any = getattr(self.torch, "accelerator", None)
        if not self.pin_memory or accelerator is None or not accelerator.is_available():
            return False
        return bool(accelerator.current_accelerator().type != "mps")  # it cannot pin

    @property
    def sources(self) -> RandomSources:
        """The generators and samplers that the order is drawn from."""
        indices: Iterable[Any] | None = None if self.iterable else self.samples.indices
        return RandomSources(self.torch, Samplers(self.torch.utils.data, indices), self.generator)

    @property
    def draw_seed(self) -> Callable[[], int]:
        """The function that draws the seed of an epoch's workers."""
        return functools.partial(drawn_seed, self.torch, self.generator)
