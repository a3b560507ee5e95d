"""DataLoader: the constructor of `torch.utils.data.DataLoader` over a `Pipeline`."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from ..base.checks import seconds
from ..base.knobs import Knob
from ..base.names import methods_name_arguments, own
from ..errors import ArgumentError, ExportError, LengthUnknownError
from ..pipeline import Pipeline
from .arguments import (
    Arguments,
    batches_ahead,
    check_name,
    checked_value,
    chosen_by_torch,
    load_torch,
    prefetch_of,
    worker_count,
)
from .chain import FETCH, READ, build, placed_at
from .epochs import Epochs, LoaderEpoch
from .run import LoaderRun
from .samplers import Samples

if TYPE_CHECKING:
    from ..export.store import Exported

_NOT_COPIED = ("_torch", "_epochs", "_made_at")
_NO_PINNING = (
    "pin_memory=True takes no effect: there is no accelerator that memory could be pinned for"
)
_NO_TIMEOUT = "loader.pipeline has no timeout: .map(..., timeout_s=) limits a single call"
_READ_IN_PARTS = (
    "each worker of this DataLoader reads its part of the dataset, which asks get_worker_info(); "
    "write a pipeline for each part, and join them: nbpipe.interleave([...])"
)


@own("loader")
@methods_name_arguments
class DataLoader:
    """Load batches as `torch.utils.data.DataLoader` does, on workers that you watch and tune.

    Each `for` loop over it is an epoch. Without workers, the loop itself makes the batches. Set
    `loader.num_workers` and `loader.prefetch_factor` at any moment. `loader.run` has the panel,
    `stats()` and `diagnose()`; `loader.pipeline` is the pipeline that runs. Differences from torch:
    docs/dataloader.md.

    Args:
        dataset: has `__getitem__`, and may have `__getitems__`; or an `IterableDataset`, which is
            read once. If it calls `get_worker_info()` before its first sample, or if you give a
            `worker_init_fn`, each worker process reads its part.
        batch_size: samples in a batch; None gives single samples.
        shuffle: draw another order in each epoch, with torch's `RandomSampler`.
        sampler: gives indices.
        batch_sampler: gives lists of indices.
        num_workers: batches made at once [calls]; 0 makes them in the loop.
        collate_fn: makes a batch from a list of samples; by default torch's `default_collate`.
        pin_memory: copy batches to pinned memory, in a thread.
        drop_last: leave out a last batch that is not full.
        timeout: longest wait for a batch [s]; 0 has no limit.
        worker_init_fn: called with its number in each worker process, before its first batch.
        multiprocessing_context: None, "forkserver" or "spawn".
        generator: a `torch.Generator` for the order and the seed; by default torch's own.
        prefetch_factor: batches held ready for each worker; by default 2.
        persistent_workers: keep the workers from epoch to epoch.
        pin_memory_device: has no effect, as in torch: the current accelerator counts.
        in_order: has no effect: batches always come in order.
        workers: "process", "thread", or an executor as for `Pipeline.map`.

    Raises:
        ArgumentError: a value is out of range, or arguments exclude one another.
        ArgumentTypeError: a function cannot be called, or the dataset is a pipeline.
        MissingExtraError: torch is not installed.

    Examples:
        >>> import nbpipe
        >>> loader = nbpipe.DataLoader(range(5), batch_size=2, num_workers=2, workers="thread")
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
        >>> loader.num_workers = 4  # at any moment
    """

    __class_getitem__: Any = classmethod(GenericAlias)

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
        self._torch: Any = load_torch()
        given = locals()
        self.timeout = seconds("timeout", timeout, zero=True)
        self._count = worker_count(num_workers)
        self._factor = batches_ahead(prefetch_factor)
        data = self._torch.utils.data
        self._samples, self.collate_fn = chosen_by_torch(data, given, workers=self._count)
        self.dataset = dataset
        self.generator = generator
        self.pin_memory = bool(pin_memory)
        self.pin_memory_device = pin_memory_device
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.persistent_workers = bool(persistent_workers)
        self.in_order = bool(in_order)
        self.workers = workers
        self._prepare()

    def _prepare(self) -> None:
        """Show the samplers that torch chose, and make a run that has not begun."""
        self.batch_size, self.drop_last = self._samples.batch_size, self._samples.drop_last
        self.sampler, self.batch_sampler = self._samples.sampler, self._samples.batch_sampler
        run = LoaderRun(self, "batches" if self._samples.batched else "items")
        self._epochs = Epochs(run, self._arguments(asks=False))
        first, *_ = run.stages.values()
        self._made_at = first.made_at  # from here on attributes are checked

    def _arguments(self, *, asks: bool) -> Arguments:
        """Return the arguments as they are now."""
        return Arguments(
            torch=self._torch,
            samples=self._samples,
            iterable=isinstance(self.dataset, self._torch.utils.data.IterableDataset),
            asks=asks,
            factor=self._factor,
            dataset=self.dataset,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            generator=self.generator,
            persistent_workers=self.persistent_workers,
            workers=self.workers,
        )

    @property
    def _now(self) -> Arguments:
        """The arguments now; samplers that a subclass set past `__setattr__` are taken over."""
        known, given = self._samples, self.batch_sampler
        chosen = given is known.batch_sampler and (
            given is not None or self.sampler is known.sampler
        )
        if not chosen:
            self._samples = Samples(None, known.drop_last and given is None, self.sampler, given)
            self._epochs.restart(self._arguments(asks=self._epochs.asks))
        return self._arguments(asks=self._epochs.asks)

    # -- attributes and copies ------------------------------------------------------------
    def __setattr__(self, name: str, value: object) -> None:
        if "_made_at" in self.__dict__:
            check_name(self, DataLoader.__init__, name, value)
            value = checked_value(self, self._torch.utils.data, name, value)
        object.__setattr__(self, name, value)

    def _copied(self) -> dict[str, Any]:
        """Return the attributes that a copy has, too."""
        kept = {name: one for name, one in vars(self).items() if name not in _NOT_COPIED}
        return kept | {"_count": self.num_workers}

    def __copy__(self) -> Self:
        """Return a loader with the same arguments, whose run has not begun."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self._copied())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments, for `pickle` and `copy.deepcopy`.

        Raises:
            TypeError: `workers` is a live executor.
        """
        if not isinstance(self.workers, str):
            raise TypeError(
                "cannot pickle or deepcopy a DataLoader whose workers are a live "
                f"{type(self.workers).__name__}; use workers='process' or workers='thread'"
            )
        return self._copied()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over arguments; the run has not begun."""
        self._torch = load_torch()
        samplers = {name: state[name] for name in ("sampler", "batch_sampler")}
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self._prepare()
        for name, value in samplers.items():
            object.__setattr__(self, name, value)

    # -- knobs ----------------------------------------------------------------------------
    @property
    def num_workers(self) -> int:
        """Batches that are made at once [calls]; set it at any moment.

        A change from or to 0 takes effect in the next epoch, and so does every change where each
        worker reads a part of the dataset.

        Raises:
            ArgumentError: on setting: not an int of at least 0.
            KnobError: on setting: more than there may be.
        """
        knobs = self._knobs
        return knobs["concurrency"].value if self._count and knobs else self._count

    @num_workers.setter
    def num_workers(self, count: SupportsIndex) -> None:
        number = worker_count(count)
        if number and self._knobs:
            self._knobs["concurrency"].set(number)
        self._count = number
        self._set_prefetch()

    @property
    def prefetch_factor(self) -> int | None:
        """Batches held ready for each worker; set it at any moment. None without workers."""
        return self._factor if self._count else None

    @prefetch_factor.setter
    def prefetch_factor(self, factor: int) -> None:
        self._factor = batches_ahead(factor)
        self._set_prefetch()

    def _set_prefetch(self) -> None:
        if self._knobs and self._count:
            self._knobs["prefetch"].set(prefetch_of(self._factor, self.num_workers))
        for stage in self.run.stages.values():
            if stage.name == READ:
                stage.prefetch = self._factor

    @property
    def _knobs(self) -> Mapping[str, Knob]:
        """The knobs of the stage that makes batches; none before there were workers."""
        epochs = self.__dict__.get("_epochs")
        return {} if epochs is None else epochs.run.knobs.get(FETCH, {})

    # -- epochs ---------------------------------------------------------------------------
    @property
    def run(self) -> LoaderRun:
        """The run of this loader: one for all epochs, from the start."""
        return self._epochs.run

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that this loader runs, from the beginning of an epoch, with its knobs."""
        return placed_at(build(self._now, self.run.knobs), self._made_at)

    def __iter__(self) -> LoaderEpoch:
        """Start the next epoch, or the rest of the epoch of a loaded state.

        Torch's generators are drawn from as torch's loader draws from them.

        Raises:
            ArgumentError: `timeout` is set, and there are no workers.
            StateError: other workers read an iterable dataset in parts.
        """
        arguments = self._now
        if self.pin_memory and not arguments.pins:
            warnings.warn(_NO_PINNING, stacklevel=2)
        if self.timeout and not arguments.num_workers:
            raise ArgumentError(
                f"timeout needs workers that can be waited for, got timeout={self.timeout:g} with "
                "num_workers=0; set num_workers above 0, or leave timeout out"
            )
        return self._epochs.begin(self, arguments)

    def _get_iterator(self) -> LoaderEpoch:
        """Begin the next epoch: subclasses of torch's loader call it by this name."""
        return DataLoader.__iter__(self)

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            LengthUnknownError: the sampler or the iterable dataset has no length.
        """
        arguments = self._now
        if not arguments.iterable:
            return _length_of("sampler", arguments.samples.indices)
        count, size = _length_of("dataset", self.dataset), self.batch_size
        self._epochs.length = count
        if size is None:
            return count
        return count // size if self.drop_last else -(-count // size)

    def close(self) -> None:
        """End epochs in progress and persistent workers; the next epoch starts new ones.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(5), num_workers=1, workers="thread",
            ...     persistent_workers=True)
            >>> len(list(loader))
            5
            >>> loader.close()
        """
        self._epochs.close()

    # -- states ---------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the newest iterator gave.

        Before the first epoch and after a complete one, that is the beginning of the next epoch.
        The workers do not stop or wait.

        Returns:
            Numbers and text, for `json` or `torch.save`, and the states of samplers and datasets
            that have `state_dict`, unchanged.

        Raises:
            StateError: the workers died, so the position is lost.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), batch_size=2)
            >>> batches = iter(loader)
            >>> next(batches).tolist(), loader.state_dict()["delivered"]
            ([0, 1], 1)
        """
        arguments = self._arguments(asks=self._epochs.asks)
        count, stays = arguments.num_workers, arguments.stays
        return self._epochs.state.state_dict(arguments.sources, workers=count, stays=stays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next iterator gives the rest of its epoch.

        Workers, prefetch and executor may differ. If torch's own generator draws the order, it is
        set to what it was when the state was taken. Persistent workers end.

        Args:
            state: the result of `state_dict()`.

        Raises:
            StateError: it belongs to another dataset, batch size or sampler, or cannot be read.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), batch_size=2)
            >>> batches = iter(loader)
            >>> first = next(batches)
            >>> other = nbpipe.DataLoader(range(6), batch_size=2)
            >>> other.load_state_dict(loader.state_dict())
            >>> [batch.tolist() for batch in other]
            [[2, 3], [4, 5]]
        """
        self._epochs.load(self._arguments(asks=self._epochs.asks), state)

    # -- exports and displays -------------------------------------------------------------
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        check_items: int = 4,
        assets: Literal["npz"] | None = None,
    ) -> Exported:
        """Write a Python module that contains the call of this loader.

        Its `build_pipeline()` returns `loader.pipeline`, with the knobs' present values.

        Args:
            path: the file, for example "loader.py", in a folder that exists.
            overwrite: replace a file that you edited, or that `export` did not write.
            check_items: first batches to compare [batches]; 0 compares none.
            assets: "npz" saves arrays of more than 64 elements beside the module.

        Returns:
            What was written: `.path`, `.compared` and `.notes`.

        Raises:
            ArgumentError: no module can be imported from this path.
            ExportError: something cannot be written; the message names it, its use and the fix.

        Examples:
            In a notebook or a script::

                import nbpipe

                loader = nbpipe.DataLoader(range(6), batch_size=2, num_workers=2)
                loader.export("loader.py")
                assert nbpipe.load("loader.py")["fetch"].concurrency == 2
        """
        from ..export.exporting import export_chain

        if self._epochs.asks:
            raise ExportError(_READ_IN_PARTS)
        pipe = self.pipeline
        with self._now.sources.unchanged():  # the first batches are drawn to compare them
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

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.run._repr_mimebundle_()

    def _display_(self) -> Any:
        """Return what marimo shows; only marimo calls this."""
        return self.run._display_()

    def __repr__(self) -> str:
        workers = f", workers={self.workers!r}" if self.num_workers else ""
        return (
            f"DataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}{workers})"
        )


def _length_of(what: str, given: Any) -> int:
    """Return a length; whatever `__len__` raises, the length is not known."""
    try:
        return len(given)
    except Exception as error:
        raise LengthUnknownError(
            f"the length of the loader is not known: len() of its {what} "
            f"({type(given).__name__}) raised {type(error).__name__}"
        ) from error
