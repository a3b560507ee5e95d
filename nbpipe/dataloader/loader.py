"""DataLoader: the constructor of `torch.utils.data.DataLoader` over a `Pipeline`."""

from __future__ import annotations

import difflib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, final

from ..base.checks import integer, plain_function, refuse_table, seconds
from ..base.knobs import Knob
from ..base.names import methods_name_arguments, parameters_of, shown, word_for
from ..base.threads import in_new_thread
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    ExportError,
    LengthUnknownError,
    MissingExtraError,
    StageError,
    UnknownKnobError,
    add_note,
)
from ..ops.stage import MAX_PREFETCH, placed
from ..pipeline import Pipeline
from ..run.shown import ShownRun
from .chain import (
    READ,
    Batches,
    EpochIndices,
    LoaderWorkers,
    MakeBatch,
    ReadPart,
    WantsWorkersError,
    chain_of,
    drawn_seed,
    placed_at,
    split_chain,
    with_knobs,
)
from .run import GRACE_S, BatchTimeout, LoaderRun, LocalRun, WorkerRun, close_run, load_into
from .state import (
    EpochProgress,
    LoaderState,
    Position,
    RandomSources,
    Samples,
    begun,
    read_position,
)

if TYPE_CHECKING:
    from ..export.store import Exported

_NO_PINNING = (
    "pin_memory=True takes no effect: there is no accelerator that memory could be pinned for"
)
_NO_TIMEOUT = "loader.pipeline has no timeout: .map(..., timeout_s=) bounds a single call"
_FIXED = (
    *("batch_size", "batch_sampler", "sampler", "shuffle", "drop_last", "dataset"),
    "persistent_workers",
)
_OWN = ("_torch", "_kept", "_state", "_live", "_pipeline", "_made_at", "_asks", "_reported")
_MISSPELT = 0.9  # so alike is a name to an argument's; other attributes are the user's own


# -- arguments, by the rules of torch's ------------------------------------------------------------
_CHECKED_BY_TORCH = (
    "dataset batch_size shuffle sampler batch_sampler collate_fn drop_last timeout generator "
    "multiprocessing_context prefetch_factor persistent_workers"
)
_FACTOR = 2  # batches held ready for each worker, where not given


def chosen_by_torch(
    data: Any, given: Mapping[str, Any], *, workers: int
) -> tuple[Samples, Callable[[Any], Any]]:
    """Check arguments, those of torch by its own loader, and have that choose the samplers.

    Args:
        data: `torch.utils.data`.
        given: the arguments of this loader.
        workers: how many there are.

    Returns:
        Which samples make which batch, and what makes it.

    Raises:
        ArgumentError: a value out of range, or arguments that exclude one another.
        ArgumentTypeError: a pipeline for a dataset, or a context of multiprocessing that is none.
    """
    if isinstance(given["dataset"], Pipeline | ShownRun):
        raise ArgumentTypeError(
            f"dataset must be a dataset or a sequence, got a {type(given['dataset']).__name__}; a "
            "pipeline needs no loader: for batch in pipe.batch(64)"
        )
    for name in ("dataset", "sampler", "batch_sampler"):
        refuse_table(f"{name} must be", given[name])
    size = given["batch_size"]
    if size is not None:
        size = integer("batch_size", size, minimum=1, unit="samples")
    for name in ("collate_fn", "worker_init_fn"):
        if given[name] is not None:
            plain_function(name, given[name])
    _check_workers(given["workers"], given["worker_init_fn"])
    if isinstance(given["dataset"], data.IterableDataset) and given["shuffle"]:  # datapipes, too
        raise ArgumentError(
            "shuffle must be left out beside an IterableDataset, which gives its samples in its "
            f"own order, got shuffle={given['shuffle']!r}"
        )
    options = {name: given[name] for name in _CHECKED_BY_TORCH.split()} | {"batch_size": size}
    found = _torchs(data, options, workers)
    reads = isinstance(given["dataset"], data.IterableDataset)
    samplers = (None, None) if reads else (found.sampler, found.batch_sampler)
    return Samples(found.batch_size, bool(found.drop_last), *samplers), found.collate_fn


def _torchs(data: Any, options: Mapping[str, Any], workers: int) -> Any:
    """Return torch's own loader with these arguments, which it checks."""
    try:
        found = data.DataLoader(**options, num_workers=min(workers, 1))  # of more it would warn
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    except TypeError as error:
        raise ArgumentTypeError(str(error)) from None
    context = found.multiprocessing_context
    if context is not None and context.get_start_method() == "fork":
        raise ArgumentError(
            "multiprocessing_context must be None, 'forkserver' or 'spawn', got 'fork'; a "
            "worker is a fresh process, never a copy of a process with threads, which hangs; "
            "datasets and functions of a notebook are sent to it all the same"
        )
    return found


def _check_workers(workers: object, worker_init_fn: object) -> None:
    """Refuse what makes no batches, and a `worker_init_fn` that no worker would call."""
    if workers != "thread" and placed("workers", workers) is None:
        raise ArgumentError(
            "workers must be 'process', 'thread', 'dask', a Dask client or another executor, as of "
            f"concurrent.futures, got {workers!r}"
        )
    if worker_init_fn is not None and workers != "process":
        raise ArgumentError(
            "worker_init_fn must be left out where workers are no processes, got "
            f"workers={workers!r}; prepare the dataset before, or use workers='process'"
        )


def _counted(what: str, count: object, *, minimum: int, unit: str) -> int:
    """Check a number of things; True is one, as in torch.

    Raises:
        ArgumentError: not an int of at least `minimum`.
    """
    number = int(count) if isinstance(count, bool) else count
    return integer(what, number, minimum=minimum, unit=unit)


# -- one epoch, and the run that makes it ----------------------------------------------------------
_CLOSE_S = 5.0  # for calls in progress when somebody says close
_OURS = (StageError, StopIteration, StopAsyncIteration)  # the latter would end the loop in silence


@final
class LoaderEpoch(Iterator[Any]):
    """The batches of one epoch; what a dataset raised is raised here as it was.

    Args:
        loader: whose epoch it is.
        progress: how far it came.
        items: gives the batches, where they are made in the calling thread.
        closes: the run that makes them ends with the epoch.

    Attributes:
        over: no more batches will come.
    """

    def __init__(
        self,
        loader: DataLoader,
        progress: EpochProgress,
        items: Iterator[Any] | None = None,
        *,
        closes: bool = False,
    ) -> None:
        self.over = False
        self._loader = loader
        self._items = iter(()) if items is None else items
        self._closes = closes
        self._progress = progress

    def begin(self, made: WorkerRun, indices: Iterator[Any] | None) -> None:
        """Have a run begin the epoch, with these indices; where it cannot, there is none."""
        try:
            self._items = made.begin(indices, self._progress)
        except BaseException:
            self.over = True
            self._progress.close_sampler()
            self._loader.run.not_begun(self)
            raise

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            Exception: what the dataset, `collate_fn`, the sampler or `worker_init_fn` raised.
            StageTimeoutError: it took longer than the loader's `timeout`.
            WorkerDiedError: each worker process that was given this batch died.
        """
        if self.over:
            if isinstance(self._items, LocalRun):  # another thread may have closed it
                self._items.close()
            raise StopIteration
        progress = self._progress
        progress.asked = True
        timeout = None if progress.run is None else progress.run._core.between_waits
        if isinstance(timeout, BatchTimeout):
            timeout.begin()
        try:
            batch = next(self._items)
        except StopIteration:
            progress.finished = True
            self.close()
            raise
        except BaseException as error:
            if progress.run is None:
                self.close()
            if progress.run is None or not isinstance(error, StageError):
                raise
            failure = error
        else:
            self._loader._yielded(progress.deliver())
            return batch
        return self._failed(failure)  # not in the handler: it would stand in the error's context

    def _failed(self, failure: StageError) -> Any:
        """Begin again where a dataset wants to be split; else raise what was raised there."""
        self.close()
        cause = failure.__cause__
        if isinstance(cause, WantsWorkersError):
            failure.__traceback__ = None  # nobody sees it: its frames would hold this epoch
            self._items, self._closes = self._loader._split(self._progress)
            self.over = self._progress.left = False
            return next(self)
        if not isinstance(cause, Exception) or isinstance(cause, _OURS):
            raise failure
        for note in getattr(failure, "__notes__", ()):
            add_note(cause, note)
        raise cause

    def close(self) -> None:
        """Leave the epoch; workers that end with it end at once. Again does nothing."""
        if not self.over:
            self.over = True
            self._progress.leave()
            self._leave()

    def _leave(self) -> None:
        if self._progress.run is not None and self._closes:
            close_run(self._progress.run, GRACE_S)
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
        self._progress.close_sampler()
        self._loader.run.ended()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> LoaderEpoch:
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # runs were closed; modules may be empty by now, arguments are not
            return
        items = getattr(self, "_items", None)
        if isinstance(items, LocalRun):
            items.forget()
        if getattr(self, "over", True):
            return
        self.over = True
        self._progress.leave()
        if self._closes:
            in_new_thread(self._leave)  # garbage may be found where a lock is held


def _length_of(what: str, given: Any) -> int:
    """Return a length; whatever `__len__` raises, it is not known."""
    try:
        return len(given)
    except Exception as error:
        raise LengthUnknownError(
            f"the length of the loader is not known: len() of its {what} "
            f"({type(given).__name__}) raised {type(error).__name__}"
        ) from error


# -- the loader ------------------------------------------------------------------------------------
def _torch() -> ModuleType:
    try:
        import torch
        import torch.utils.data
    except ImportError:
        raise MissingExtraError.of("torch", "torch", "DataLoader") from None
    return torch  # type: ignore[no-any-return]


class _Pin:
    """Copies batches to pinned memory, for the device that is current where it was made."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._index = torch.accelerator.current_device_index()
        self._pin = torch.utils.data._utils.pin_memory.pin_memory

    def __call__(self, batch: Any) -> Any:
        self._torch.accelerator.set_device_index(self._index)  # a thread has its own
        return self._pin(batch)


@methods_name_arguments
class DataLoader:
    """Load batches as `torch.utils.data.DataLoader` does, on workers that can be watched and tuned.

    Each `for` loop over it is an epoch. Without workers everything happens in the calling
    thread. `loader.pipeline` is the pipeline that it runs: iterate it on its own, or look at its
    stages. `loader.run` is the run that is iterated: its panel, `stats()` and `diagnose()`.
    `loader.num_workers` and `loader.prefetch_factor` may be set during an epoch. `state_dict()`
    and `load_state_dict()` resume in the middle of one.
    `export(path)` writes the chain that it stands for as a module, without the loader.
    What differs from torch on purpose: docs/dataloader-details.md.

    Args:
        dataset: with `__getitem__` (and `__getitems__`, where it has one), or an
            `IterableDataset`: read once, unless it asks `get_worker_info()` before its first
            sample, or a `worker_init_fn` is given: then each worker process reads its part.
        batch_size: samples in a batch; None gives samples as they are.
        shuffle: another order in each epoch, that of torch's `RandomSampler`.
        sampler: gives indices.
        batch_sampler: gives lists of indices.
        num_workers: batches made at once [calls]; 0 makes them in the calling thread.
        collate_fn: makes a batch of a list of samples; torch's `default_collate` if not given.
        pin_memory: copy batches to pinned memory, in a thread.
        drop_last: leave out a last batch that is not full.
        timeout: longest wait for a batch [s]; 0 for as long as it takes.
        worker_init_fn: called with its number in each worker process, before its first batch.
        multiprocessing_context: None, "forkserver" or "spawn".
        generator: `torch.Generator` for the order and the seed; torch's own where not given.
        prefetch_factor: batches held ready for each worker; 2 where not given.
        persistent_workers: keep the workers from epoch to epoch.
        pin_memory_device: takes no effect, as in torch: the current accelerator counts.
        in_order: takes no effect: batches come in order.
        workers: "process", "thread", or an executor as for `Pipeline.map`.

    Raises:
        ArgumentError: a value out of range, or arguments that exclude one another.
        ArgumentTypeError: something that cannot be called, or a pipeline for a dataset.
        MissingExtraError: torch is not installed.
    """

    __class_getitem__: Any = classmethod(GenericAlias)
    _nbpipe_kind_ = "loader"

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any

    def __init__(  # noqa: PLR0917  torch's order of arguments
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,  # noqa: FBT001, FBT002
        drop_last: bool = False,  # noqa: FBT001, FBT002
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: object = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: object = "process",
    ) -> None:
        self._torch: Any = _torch()
        given = locals()
        self.timeout = seconds("timeout", timeout, zero=True)
        self._count = self._checked_count(num_workers)
        self._factor = self._checked_factor(prefetch_factor)
        data = self._torch.utils.data
        self._samples, self.collate_fn = chosen_by_torch(data, given, workers=self._count)
        self._reads = isinstance(dataset, data.IterableDataset)
        self.dataset = dataset
        self.generator = generator
        self.pin_memory = bool(pin_memory)
        self.pin_memory_device = pin_memory_device
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.persistent_workers = bool(persistent_workers)
        self.in_order = bool(in_order)
        self.workers = workers
        self._begin()

    def _begin(self) -> None:
        """Show the samplers that were chosen, and note that nothing was iterated yet."""
        self.batch_size, self.drop_last = self._samples.batch_size, self._samples.drop_last
        self.sampler, self.batch_sampler = self._samples.sampler, self._samples.batch_sampler
        self._asks = False  # an iterable dataset was seen to ask who reads it
        self._reported: int | None = None  # length of an iterable dataset that was asked for it
        self._kept: WorkerRun | None = None  # the run that stays
        self._state = LoaderState(self.dataset, self._samples, reads=self._reads)
        self._live = LoaderRun(self, in_batches=self._samples.batched)
        self._build(0, self._indices)
        self._made_at = self._pipeline.chain[0].made_at

    @staticmethod
    def _checked_count(count: object) -> int:
        """Check `num_workers`."""
        return _counted("num_workers", count, minimum=0, unit="calls")

    @staticmethod
    def _checked_factor(factor: object) -> int:
        """Check `prefetch_factor`, which has a default."""
        factor = _FACTOR if factor is None else factor
        return _counted("prefetch_factor", factor, minimum=1, unit="batches")

    # -- copies ---------------------------------------------------------------------------
    def _arguments(self) -> dict[str, Any]:
        """Return the attributes that a copy has, too; its run and its place are its own."""
        kept = {name: one for name, one in vars(self).items() if name not in _OWN}
        return kept | {"_count": self.num_workers}

    def __copy__(self) -> Self:
        """Return a loader of the same arguments, which has not begun."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self._arguments())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what `pickle` and `copy.deepcopy` take: the arguments, as torch's loader gives."""
        if not isinstance(self.workers, str):
            raise TypeError(
                "cannot pickle or deepcopy a DataLoader whose workers are a live "
                f"{type(self.workers).__name__}; use workers='process' or workers='thread'"
            )
        return self._arguments()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a new loader."""
        self._torch = _torch()
        shown = {name: state[name] for name in ("sampler", "batch_sampler")}
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self._begin()
        for name, value in shown.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if "_made_at" in self.__dict__:
            self._check_name(name, value)
            value = self._checked(name, value)
        object.__setattr__(self, name, value)

    def _check_name(self, name: str, value: object) -> None:
        """Refuse what is fixed, and a name that is an argument's by another name, or misspelt."""
        if name in _FIXED:
            raise ArgumentError(
                f"{name} of a DataLoader is fixed, got {value!r}; make another loader: only "
                "num_workers and prefetch_factor change what is under way"
            )
        if name[0] == "_" or name in dir(self):
            return
        known = tuple(parameters_of(DataLoader.__init__))
        close = difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT)
        meant = word_for(name, known) or next(iter(close), None)
        if meant is not None:
            fixed = meant in _FIXED
            way = f"did you mean {meant!r}?" if fixed else f"write loader.{meant} = {value!r}"
            raise UnknownKnobError(f"a DataLoader has no {name!r}; {way}", name=name, obj=self)

    def _checked(self, name: str, value: object) -> object:
        """Check what is assigned to a loader that is there, as its constructor does."""
        if name == "collate_fn" or (name == "worker_init_fn" and value is not None):
            plain_function(name, value)
        if name == "worker_init_fn":
            _check_workers(self.workers, value)
        elif name == "workers":
            _check_workers(value, self.worker_init_fn)
        elif name == "multiprocessing_context":
            _torchs(self._torch.utils.data, {"dataset": (), name: value}, self.num_workers)
        return seconds(name, value, zero=True) if name == "timeout" else value

    # -- knobs ----------------------------------------------------------------------------
    @property
    def num_workers(self) -> int:
        """Batches made at once [calls]; may be set at any moment.

        From 0, to 0, and where each worker reads a part, a new value holds from the next epoch.

        Raises:
            ArgumentError: on setting: not an int of at least 0.
            KnobError: on setting: more than there may be.
        """
        return self._knobs["concurrency"].value if self._count and self._knobs else self._count

    @num_workers.setter
    def num_workers(self, count: SupportsIndex) -> None:
        number = self._checked_count(count)
        if number and self._knobs:
            self._knobs["concurrency"].set(number)
        self._count = number
        self._set_prefetch()

    @property
    def prefetch_factor(self) -> int | None:
        """Batches held ready for each worker; may be set at any moment. None without workers."""
        return self._factor if self._count else None

    @prefetch_factor.setter
    def prefetch_factor(self, factor: int) -> None:
        self._factor = self._checked_factor(factor)
        self._set_prefetch()

    def _set_prefetch(self) -> None:
        if self._knobs and self._count:
            self._knobs["prefetch"].set(self._prefetch)
        for stage in self._live.stages.values():
            if stage.name == READ:
                stage.prefetch = self._factor

    @property
    def _knobs(self) -> Mapping[str, Knob]:
        """Those of the stage that makes batches; none before there were workers for it."""
        return self._live.knobs.get("fetch", {})

    @property
    def _prefetch(self) -> int:
        return min(MAX_PREFETCH, self._factor * max(1, self.num_workers))

    # -- the chain and its runs -----------------------------------------------------------
    @property
    def _splits(self) -> bool:
        """Whether each worker process reads its part of an iterable dataset."""
        return self._reads and (self._asks or self.worker_init_fn is not None)

    @property
    def _readers(self) -> int:
        """How many workers read a part each."""
        return self.num_workers if self._splits else 0

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that this loader runs; it begins with the first batch of an epoch.

        Iterating it gives the batches of the loader, by the same samplers and functions. Its knobs
        are those of the loader.
        """
        self._follow_samplers()
        return Pipeline(placed_at(self._chain(0, self._indices).chain, self._made_at))

    @property
    def run(self) -> LoaderRun:
        """The run of this loader, there from the start, one for all of its epochs."""
        return self._live

    def _build(
        self, seed: int, indices: EpochIndices | None, position: Position | None = None
    ) -> None:
        """Build the chain that is run."""
        self._pipeline = self._chain(seed, indices, position)
        self._live.follow(self._pipeline)

    def _chain(
        self, seed: int, indices: EpochIndices | None, position: Position | None = None
    ) -> Pipeline:
        """Return a chain; its knobs are those of the one before."""
        count, data = self.num_workers, self._torch.utils.data
        size, drop_last = self._samples.batch_size, self._samples.drop_last
        splits = self._splits and count > 0
        workers = self._workers(seed, fixed=splits) if self._place == "process" else None
        make = MakeBatch(
            self.collate_fn,
            plain=self.collate_fn in (data.default_collate, data.default_convert),
            dataset=None if self._reads else self.dataset,
            batched=self._samples.batched,
            workers=None if splits else workers,
        )
        how = {"executor": self.workers, "concurrency": count}
        if splits and workers is not None:
            read = ReadPart(self.dataset, make, size=size, drop_last=drop_last, workers=workers)
            pipe = split_chain(read, how | {"prefetch": self._factor})
        else:
            items = self._batches(position) if indices is None else indices
            pipe = chain_of(items, make, how | {"prefetch": self._prefetch} if count else None)
        if self._pins():
            pipe = pipe.map(_Pin(self._torch), name="pin", prefetch=1)
        return pipe if splits else with_knobs(pipe, self._live.knobs)

    @property
    def _place(self) -> str:
        """Where an iterable dataset is read: by the "caller", in a "process" or a "thread"."""
        if not self.num_workers:
            return "caller"
        return "process" if self.workers == "process" else "thread"

    def _workers(self, seed: int, *, fixed: bool) -> LoaderWorkers:
        return LoaderWorkers(
            self._torch.utils.data._utils.worker,
            seed=seed,
            count=self.num_workers,
            init=self.worker_init_fn,
            fixed=fixed,
        )

    def _batches(self, position: Position | None) -> Batches:
        """Return what reads an iterable dataset once, from a place on."""
        place = self._place
        return Batches(
            self.dataset,
            size=self._samples.batch_size,
            drop_last=self._samples.drop_last,
            watch=self._torch.utils.data._utils.worker if place == "process" else None,
            place=place,
            resumed=position,
        )

    @property
    def _indices(self) -> EpochIndices | None:
        """What gives the indices of an epoch; None where the dataset is iterable."""
        if self._reads:
            return None
        draw_seed = functools.partial(drawn_seed, self._torch, self.generator)
        return EpochIndices(self._samples.indices, draw_seed)

    def _pins(self) -> bool:
        accelerator: Any = getattr(self._torch, "accelerator", None)
        if not self.pin_memory or accelerator is None or not accelerator.is_available():
            return False
        return bool(accelerator.current_accelerator().type != "mps")  # it cannot pin

    def _follow_samplers(self) -> None:
        """Take samplers that a subclass set past `__setattr__`, as torch's loader does."""
        known, given = self._samples, self.batch_sampler
        if given is known.batch_sampler and (given is not None or self.sampler is known.sampler):
            return
        self._samples = Samples(None, known.drop_last and given is None, self.sampler, given)
        self._state = LoaderState(self.dataset, self._samples, reads=self._reads)
        self._build(0, self._indices)

    # -- epochs ---------------------------------------------------------------------------
    def _get_iterator(self) -> LoaderEpoch:
        """Begin the next epoch: subclasses of torch's loader call it by this name."""
        return DataLoader.__iter__(self)

    def __iter__(self) -> LoaderEpoch:
        """Begin the next epoch; torch's generators are drawn from as torch's loader does.

        After `load_state_dict` it is the rest of that state's epoch.

        Raises:
            ArgumentError: `timeout` is set, and there are no workers.
            StateError: other workers have read an iterable dataset in parts.
        """
        self._follow_samplers()
        if self.pin_memory and not self._pins():
            warnings.warn(_NO_PINNING, stacklevel=2)
        self._check_timeout()
        position, sources = self._state.loaded(), self._sources
        if position is None or not position.begun:
            return self._begun(position, sources)
        self._check_readers(position)
        sources.restore(position)
        with sources.with_torch(position.torch):
            return self._begun(position, sources)

    def _begun(self, loaded: Position | None, sources: RandomSources) -> LoaderEpoch:
        """Begin an epoch; of a loaded one, its rest."""
        goes_on, workers = loaded is not None and loaded.begun, self.num_workers
        try:
            draw = functools.partial(drawn_seed, self._torch, self.generator)
            stays = self._stays
            ahead = workers * self._factor
            progress, left = self._state.begin(sources, loaded, draw, stays=stays, ahead=ahead)
            if workers:
                free = None if goes_on else self._free_run(progress.position.seed)
                made = free or self._open(progress.position)
                epoch = LoaderEpoch(self, progress, closes=not made.stays)
                self._live.begins(epoch, made.run, progress.position.epoch)
                epoch.begin(made, left)
            else:  # what goes on draws its first index while torch's generator is as it was
                left = begun(left) if goes_on and left is not None else left
                epoch = self._local_epoch(left, progress)
            self._state.progress = progress
        finally:
            self._state.begins = self._state.sampled = None
        return epoch

    def _local_epoch(self, indices: Iterator[Any] | None, progress: EpochProgress) -> LoaderEpoch:
        """Begin an epoch in the calling thread; its chain is what is shown from now on."""
        self._build(0, self._indices, progress.position)
        if indices is None:
            head: Any = self._pipeline.chain[0]
            progress.reading = head.spec.items.now
            indices = iter(head.spec.items)
        local = self._live.local_run(indices, before=progress.delivered)
        epoch = LoaderEpoch(self, progress, local)
        self._live.begins(epoch, local)
        return epoch

    @property
    def _sources(self) -> RandomSources:
        return RandomSources(self._torch, self._samples, self.generator, reads=self._reads)

    @property
    def _stays(self) -> bool:
        return self.persistent_workers and self.num_workers > 0

    def _free_run(self, seed: int | None) -> WorkerRun | None:
        """Return the run that stayed, if the next epoch, with this seed, may have it."""
        kept = self._kept
        if kept is None or kept.run.closed or kept.seed != seed or self._live.is_busy(kept.run):
            return None
        return kept if kept.readers == self._readers else None

    def _check_timeout(self) -> None:
        if self.timeout and not self.num_workers:
            raise ArgumentError(
                f"timeout needs workers that can be waited for, got timeout={self.timeout:g} with "
                "num_workers=0; set num_workers above 0, or leave timeout out"
            )

    def _open(self, position: Position) -> WorkerRun:
        """Start a run; it is kept where workers are to stay, and no others do."""
        kept = self._kept
        if kept is not None and not self._live.is_busy(kept.run):  # it has other readers
            close_run(kept.run, _CLOSE_S)
        indices, seed = self._indices, position.seed or 0
        self._build(seed, indices, position)
        run = self._pipeline.start(seed=seed)
        load_into(run, position)
        if self.timeout:
            run._core.between_waits = BatchTimeout(self.timeout, run)
        stays = self.persistent_workers and (kept is None or kept.run.closed)
        made = WorkerRun(run, indices, seed, self._readers, stays)
        self._kept = made if stays else kept
        return made

    def _split(self, progress: EpochProgress) -> tuple[Iterator[Any], bool]:
        """Begin an epoch again, with a reader in each worker: its dataset asked who it is.

        Returns:
            Its batches, and whether the run ends with it.
        """
        before = progress.run
        assert before is not None
        close_run(before, _CLOSE_S)
        if progress.delivered:
            raise progress.position.read_whole()
        self._asks = True
        made = self._open(progress.position)
        items = made.begin(None, progress)
        self._live.moved(before, made.run)
        return items, not made.stays

    def _yielded(self, count: int) -> None:
        """Called with the number of a batch; warn where the dataset said that there are fewer."""
        if self._reported is not None and count > self._reported:
            warnings.warn(
                f"the IterableDataset said that its length is {self._reported}, and this is batch "
                f"{count}; where workers read parts, each must leave out what the others read",
                stacklevel=3,
            )

    def close(self) -> None:
        """End the workers that stay, and epochs under way; the next epoch starts others."""
        self._live.close(_CLOSE_S)

    def __dir__(self) -> list[str]:
        return shown(self, ("chain_code",))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        check_items: int = 4,
        assets: Literal["npz"] | None = None,
    ) -> Exported:
        """Write a module with the call that made this loader: `Pipeline.export`.

        Its `build_pipeline()` returns `loader.pipeline`, with the knobs' present values.

        Args:
            path: the file, as "loader.py"; its folder exists.
            overwrite: replace a file that was edited since, or that export did not write.
            check_items: first batches that are compared [items]; 0 compares none.
            assets: "npz" saves arrays of more than 64 elements beside the module.

        Raises:
            ArgumentError: a path that no module can be imported from.
            ExportError: something cannot be written; it names the culprit, its use and the fix.
        """
        from ..export.exporting import export_chain

        if self._asks:  # which a loader finds out in its first epoch
            raise ExportError(
                "each worker of this DataLoader reads its part of the dataset, which asks "
                "get_worker_info(); write a pipeline for each part, and join them: "
                "nbpipe.interleave([...])"
            )
        pipe = self.pipeline
        with self._sources.unchanged():  # the first batches are drawn to compare them
            done = export_chain(
                self,
                pipe.chain,
                path,
                items=functools.partial(iter, pipe),
                overwrite=overwrite,
                check_items=check_items,
                assets=assets,
            )
        return replace(done, notes=(_NO_TIMEOUT, *done.notes)) if self.timeout else done

    def _export_goal_(self) -> str:
        """Return what an export appends to this object's expression to get its pipeline."""
        return ".pipeline"

    def chain_code(self) -> str:
        """Return the statement that makes this loader, with its workers as they are, for a cell."""
        from ..export.exporting import chain_code

        arguments = {"num_workers": self.num_workers}
        if self.prefetch_factor is not None:
            arguments["prefetch_factor"] = self.prefetch_factor
        return chain_code(self, self.pipeline.chain, arguments=arguments)

    # -- its place in its epochs ----------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Tell where the loader stands, for `load_state_dict` of a loader of the same data.

        Behind the last batch that was handed out by the newest iterator; once that has come to
        its end, or before the first, at the beginning of the next epoch. Nothing stops or waits.

        Returns:
            Numbers and text, ready for `json` or `torch.save`; the own states of samplers and
            datasets that have `state_dict` are in it as they are.

        Raises:
            StateError: the workers died, and nobody can say how far they had come.
        """
        return self._state.state_dict(self._sources, workers=self.num_workers, stays=self._stays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iterator gives the rest of its epoch.

        Workers, prefetch and executor may be others than before. Torch's own generator is set as
        it was when the state was taken, if the order is drawn from it. Workers that stayed end.

        Args:
            state: what `state_dict()` gave.

        Raises:
            StateError: it is of another dataset, batch size or sampler, or cannot be read.
        """
        sources = self._sources
        position = read_position(state, sources, self._state.about(sources))
        self._check_readers(position)
        self._state.load(sources, position)
        if self._kept is not None:
            close_run(self._kept.run, _CLOSE_S)

    def _check_readers(self, position: Position) -> None:
        in_processes = self._place == "process"
        asks = self._asks or (position.parts is not None and in_processes)
        readers, splits = self.num_workers if in_processes else 0, asks or self._splits
        position.check_readers(readers, splits=splits)
        self._asks = asks

    def __len__(self) -> int:
        """Return the number of batches of an epoch; of an iterable dataset as far as it says.

        Raises:
            LengthUnknownError: the sampler or the iterable dataset has no length.
        """
        if not self._reads:
            self._follow_samplers()
            return _length_of("sampler", self._samples.indices)
        self._reported = count = _length_of("dataset", self.dataset)
        size = self.batch_size
        if size is None:
            return count
        return count // size if self.drop_last else -(-count // size)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self._live._repr_mimebundle_()

    def _display_(self) -> Any:
        """Return what marimo shows, which alone asks for it."""
        return self._live._display_()

    def __repr__(self) -> str:
        workers = f", workers={self.workers!r}" if self.num_workers else ""
        return (
            f"DataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}{workers})"
        )
