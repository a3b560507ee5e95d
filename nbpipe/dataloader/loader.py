"""DataLoader: the constructor of `torch.utils.data.DataLoader` over a `Pipeline`."""

from __future__ import annotations

import functools
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import GenericAlias, ModuleType
from typing import Any, SupportsIndex, final

from ..base.checks import function, seconds
from ..base.knobs import Knob
from ..errors import ArgumentError, MissingExtraError
from ..ops.stage import MAX_PREFETCH
from ..pipeline import Pipeline
from ..run.run import Run
from .chain import READ, Order, Recipe, batches_here, begun, chain_of, split_chain, with_knobs
from .epoch import CLOSE_S, LoaderEpoch, Patience, Team, close_run
from .order import (
    Drawn,
    Draws,
    Samples,
    check_context,
    checked_factor,
    checked_stay,
    chosen_samples,
    counted,
)
from .run import LoaderRun
from .state import Mark, Places, Progress, check_reading, parted, placed, prepared, resumed


# -- LoaderStanding: what a `DataLoader` tells of its place in its epochs, and takes ---------------
class Standing(ABC):
    """Where a loader stands; `DataLoader` adds what makes batches."""

    generator: Any
    in_order: bool
    persistent_workers: bool
    _torch: Any
    _samples: Samples
    _places: Places
    _reads: bool
    _splits: bool
    _team: Team | None

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Batches made at once [calls]."""

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
        return self._places.state_dict(self._draws, workers=self.num_workers, stays=self._stays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iterator gives the rest of its epoch.

        Workers, prefetch and executor may be others than before. Torch's own generator is set as
        it was when the state was taken, if the order is drawn from it. Workers that stayed end.

        Args:
            state: what `state_dict()` gave.

        Raises:
            StateError: it is of another dataset, batch size or sampler, or cannot be read.
        """
        draws = self._draws
        mark, now = self._places.read(draws, state)
        self._check_reading(mark)
        self._places.load(draws, mark, now)
        if self._team is not None:
            close_run(self._team.run, CLOSE_S)

    def _check_reading(self, mark: Mark) -> None:
        splits = self._splits or (mark.parts is not None and self.num_workers > 0)
        check_reading(mark, workers=self.num_workers, splits=splits, in_order=self.in_order)
        self._splits = splits

    @property
    def _draws(self) -> Draws:
        return Draws(self._torch, self._samples, self.generator, reads=self._reads)

    @property
    def _stays(self) -> bool:
        return self.persistent_workers and self.num_workers > 0

    def _free_team(self, seed: int) -> Team | None:
        """Return the workers that stayed, if the next epoch, with this seed, may have them."""
        team = self._team
        if team is None or not self.num_workers or team.seed != seed:
            return None
        return team if team.is_free(self.num_workers) else None

    def _drawn_seed(self) -> int:
        torch = self._torch
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return int(drawn.item())


# -- DataLoader: the constructor of `torch.utils.data.DataLoader` over a `Pipeline` ----------------
_NO_PINNING = (
    "pin_memory=True takes no effect: there is no accelerator that memory could be pinned for"
)
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


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


@final
class DataLoader(Standing):
    """Load batches as `torch.utils.data.DataLoader` does, on workers that can be watched and tuned.

    Each `for` loop over it is an epoch. Without workers everything happens in the calling
    thread. With workers `loader.pipeline` is the chain, `loader.run` the run that is iterated:
    its panel, `stats()` and `diagnose()`; `loader.num_workers` and `loader.prefetch_factor` may
    be set while an epoch goes on. `state_dict()` and `load_state_dict()` resume in its middle.
    What differs from torch on purpose: docs/dataloader.md.

    Args:
        dataset: with `__getitem__` (and `__getitems__`, where it has one), or an
            `IterableDataset`: read once, unless it asks `get_worker_info()` before its first
            sample, or a `worker_init_fn` is given: then each worker reads its part.
        batch_size: samples in a batch; None gives samples as they are.
        shuffle: another order in each epoch, that of torch's `RandomSampler`.
        sampler: gives indices.
        batch_sampler: gives lists of indices.
        num_workers: batches made at once [calls]; 0 makes them in the calling thread.
        collate_fn: makes a batch of a list of samples; torch's `default_collate` if not given.
        pin_memory: copy batches to pinned memory, in a thread.
        drop_last: leave out a last batch that is not full.
        timeout: longest wait for a batch [s]; 0 for as long as it takes.
        worker_init_fn: called with its number in each worker, before its first batch.
        multiprocessing_context: None, "forkserver" or "spawn".
        generator: `torch.Generator` for the order and the seed; torch's own where not given.
        prefetch_factor: batches held ready for each worker; 2 where not given.
        persistent_workers: keep the workers from epoch to epoch.
        pin_memory_device: takes no effect, as in torch: the current accelerator counts.
        in_order: False gives batches as they are done.
        workers: "process", "thread", or an executor as for `Pipeline.map`.

    Raises:
        ArgumentError: a value out of range, or arguments that exclude one another.
        ArgumentTypeError: something that cannot be called.
        MissingExtraError: torch is not installed.
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
        self._torch: Any = _torch()
        self.dataset = dataset
        self._samples = chosen_samples(self._torch.utils.data, dataset, locals())
        self._count = self._counted(num_workers)
        self._factor = checked_factor(self._count, prefetch_factor)
        self.generator = generator
        self.collate_fn = self._collate_of(collate_fn)
        self.pin_memory = bool(pin_memory)
        self.pin_memory_device = pin_memory_device
        self.timeout = seconds("timeout", timeout, zero=True)
        self.worker_init_fn = worker_init_fn and function("worker_init_fn", worker_init_fn)
        check_context(multiprocessing_context, self._count)
        self.multiprocessing_context = multiprocessing_context
        self.persistent_workers = checked_stay(self._count, persistent_workers)
        self.in_order = bool(in_order)
        self.workers = workers
        self._begin()

    @staticmethod
    def _counted(count: object) -> int:
        """Check `num_workers`."""
        return counted("num_workers", count, minimum=0, unit="calls")

    def _collate_of(self, given: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        if given is not None:
            return function("collate_fn", given)
        data = self._torch.utils.data
        return data.default_collate if self._samples.batched else data.default_convert  # type: ignore[no-any-return]

    def _begin(self) -> None:
        """Show the samplers that were chosen, and note that nothing was iterated yet."""
        self.batch_size, self.drop_last = self._samples.batch_size, self._samples.drop_last
        self.sampler, self.batch_sampler = self._samples.sampler, self._samples.batch_sampler
        self._reads = isinstance(self.dataset, self._torch.utils.data.IterableDataset)
        self._splits = self._reads and self.worker_init_fn is not None  # or once it is seen to ask
        self._reported: int | None = None  # length of an iterable dataset that was asked for it
        self._knobs: Mapping[str, Knob] | None = None
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._team: Team | None = None  # the workers that stay
        self._places = Places(
            self.dataset, self._samples, reads=self._reads, in_order=self.in_order
        )
        self._live = LoaderRun(self, in_batches=self._samples.batched)
        self._pipeline = self._build(0, None if self._reads else Order(self._samples.indices))
        self._live.follow(self._pipeline)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED and name in self.__dict__:
            raise ArgumentError(
                f"{name} of a DataLoader is fixed, got {value!r}; make another loader: only "
                "num_workers and prefetch_factor change what is under way"
            )
        object.__setattr__(self, name, value)

    # -- knobs ----------------------------------------------------------------------------
    @property
    def num_workers(self) -> int:
        """Batches made at once [calls]; may be set at any moment.

        From 0, to 0, and where each worker reads a part, a new value holds from the next epoch.

        Raises:
            ArgumentError: on setting: not an int of at least 0.
            KnobError: on setting: more than there may be.
        """
        if not self._count or self._knobs is None:
            return self._count
        return self._knobs["concurrency"].value

    @num_workers.setter
    def num_workers(self, count: SupportsIndex) -> None:
        number = self._counted(count)
        if number and self._knobs is not None:
            self._knobs["concurrency"].set(number)
        self._count = number
        self._set_prefetch()

    @property
    def prefetch_factor(self) -> int | None:
        """Batches held ready for each worker; may be set at any moment. None without workers."""
        return self._factor if self._count else None

    @prefetch_factor.setter
    def prefetch_factor(self, factor: int) -> None:
        self._factor = counted("prefetch_factor", factor, minimum=1, unit="batches")
        self._set_prefetch()

    def _set_prefetch(self) -> None:
        if self._knobs is not None and self._count:
            self._knobs["prefetch"].set(self._prefetch)
        for run in tuple(self._runs):
            for stage in run.stages.values():
                if stage.name == READ:
                    stage.prefetch = self._factor

    @property
    def _prefetch(self) -> int:
        return min(MAX_PREFETCH, self._factor * max(1, self.num_workers))

    # -- the chain and its runs -----------------------------------------------------------
    @property
    def pipeline(self) -> Pipeline:
        """The chain of the last epoch; before the first, that of the first."""
        return self._pipeline

    @property
    def run(self) -> LoaderRun:
        """The run of this loader, from the start: one for all of its epochs."""
        return self._live

    def _recipe(self, seed: int, order: Order | None, mark: Mark | None) -> Recipe:
        data = self._torch.utils.data
        return Recipe(
            dataset=self.dataset,
            samples=self._samples,
            order=order,
            collate_fn=self.collate_fn,
            plain=self.collate_fn in (data.default_collate, data.default_convert),
            pin=_Pin(self._torch) if self._pins() else None,
            torch_worker=data._utils.worker,
            seed=seed,
            init=self.worker_init_fn,
            executor=self.workers,
            in_order=self.in_order,
            count=self.num_workers,
            prefetch=self._prefetch,
            factor=self._factor,
            knobs=self._knobs,
            resumed=None if mark is None or not self._reads else resumed(mark),
        )

    def _build(self, seed: int, order: Order | None, mark: Mark | None = None) -> Pipeline:
        """Build the chain; its knobs are those of the one before."""
        recipe = self._recipe(seed, order, mark)
        if recipe.count and self._splits:
            return split_chain(recipe)
        pipe = with_knobs(chain_of(recipe), self._live.knobs)
        if recipe.count and self._knobs is None:
            self._knobs = pipe["fetch"].knobs
        return pipe

    def _pins(self) -> bool:
        accelerator: Any = getattr(self._torch, "accelerator", None)
        if not self.pin_memory or accelerator is None or not accelerator.is_available():
            return False
        return bool(accelerator.current_accelerator().type != "mps")  # it cannot pin

    # -- epochs ---------------------------------------------------------------------------
    def __iter__(self) -> LoaderEpoch:
        """Begin the next epoch; torch's generators are drawn from as torch's loader does.

        After `load_state_dict` it is the rest of that state's epoch.

        Raises:
            ArgumentError: `timeout` is set, and there are no workers.
            StateError: other workers have read an iterable dataset in parts.
        """
        if self.pin_memory and not self._pins():
            warnings.warn(_NO_PINNING, stacklevel=2)
        self._check_timeout()
        mark, draws = self._places.begin(), self._draws
        if mark is None or not mark.begun:
            return self._begun(mark, draws, draws.now)
        self._check_reading(mark)
        draws.restore(mark.drawn)
        with draws.with_torch(mark.drawn.torch):
            return self._begun(mark, draws, mark.drawn)

    def _begun(self, loaded: Mark | None, draws: Draws, drawn: Drawn) -> LoaderEpoch:
        """Begin an epoch; of a loaded one, its rest."""
        places, goes_on = self._places, loaded is not None and loaded.begun
        indices = places.indices(draws, loaded)
        seeded = places.seeded(self._drawn_seed, loaded, stays=self._stays)
        team = None if goes_on else self._free_team(seeded[0])
        mark = places.marked(loaded, drawn, seeded, stays=self._stays)
        progress = places.started(mark, indices, here=not self.num_workers)
        given = prepared(indices, mark)
        if not self.num_workers:
            self._show_here()
            given = begun(given) if goes_on else given  # while torch's generator is as it was
            recipe = self._recipe(seeded[0], None, mark)
            if given is None:
                progress.reading = recipe.batches()
            batches = batches_here(recipe, given or progress.reading, mark.rest)
            epoch = LoaderEpoch(self, batches, progress)
        else:
            epoch = (team or self._open(mark)).epoch(self, begun(given), progress)
        epoch.here = self._live.began(epoch, progress.run, progress.delivered)
        places.progress = progress
        return epoch

    def _show_here(self) -> None:
        """Let the chain be that of an epoch in the calling thread."""
        if any(
            stage.name == "fetch" and stage.executor == "inline" for stage in self._pipeline.stages
        ):
            return
        self._pipeline = self._build(0, None if self._reads else Order(self._samples.indices))
        self._live.follow(self._pipeline)

    def _check_timeout(self) -> None:
        if self.timeout and not self.num_workers:
            raise ArgumentError(
                f"timeout needs workers that can be waited for, got timeout={self.timeout:g} with "
                "num_workers=0; set num_workers above 0, or leave timeout out"
            )

    def _open(self, mark: Mark) -> Team:
        """Start a run; it is kept where workers are to stay, and no others do."""
        if self._team is not None and self._team.is_idle:  # it has another number of readers
            close_run(self._team.run, CLOSE_S)
        order = None if self._reads else Order(self._samples.indices)
        seed = mark.seed or 0
        self._pipeline = self._build(seed, order, mark)
        self._live.follow(self._pipeline)
        run = self._pipeline.start(seed=seed)
        self._runs.add(run)
        placed(run, mark)
        if self.timeout:
            run.between_waits = Patience(self.timeout, run.between_waits)
        stays = self.persistent_workers and (self._team is None or self._team.run.closed)
        readers = self.num_workers if self._splits else 0
        team = Team(run, order, seed, readers=readers, stays=stays)
        self._team = team if stays else self._team
        return team

    def split(self, run: Run, progress: Progress) -> LoaderEpoch:
        """Begin an epoch again, with a reader in each worker: its dataset asked who it is."""
        close_run(run, CLOSE_S)
        if progress.delivered:
            raise parted(progress.mark)
        self._splits = True
        team = self._open(progress.mark)
        epoch = team.epoch(self, None, progress)
        self._live.moved(run, team.run)
        return epoch

    def ended(self) -> None:
        """Called when an epoch is over."""
        self._live.ended()

    def yielded(self, count: int) -> None:
        """Hear how many batches of an epoch came; warn where the dataset said otherwise."""
        if self._reported is not None and count > self._reported:
            warnings.warn(
                f"the IterableDataset said that its length is {self._reported}, and this is batch "
                f"{count}; where workers read parts, each must leave out what the others read",
                stacklevel=3,
            )

    def close(self) -> None:
        """End the workers that stay, and epochs under way; the next epoch starts others."""
        for run in tuple(self._runs):
            close_run(run, CLOSE_S)

    def __len__(self) -> int:
        """Return the number of batches of an epoch; of an iterable dataset as far as it says.

        Raises:
            TypeError: the sampler or the iterable dataset has no length.
        """
        if not self._reads:
            return len(self._samples.indices)  # type: ignore[arg-type]
        self._reported = count = len(self.dataset)
        size = self.batch_size
        if size is None:
            return count
        return count // size if self.drop_last else -(-count // size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the loader as it was made; its workers stay here."""
        order: dict[str, Any] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self._samples.chosen_by_user:
            order = {"batch_sampler": self.batch_sampler}
        if not self._reads and "batch_sampler" not in order:
            order["sampler"] = self.sampler
        names = (
            "num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context "
            "generator prefetch_factor persistent_workers pin_memory_device in_order workers"
        )
        others = {name: getattr(self, name) for name in names.split()}
        return functools.partial(type(self), self.dataset, **order, **others), ()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self._live._repr_mimebundle_()

    def __repr__(self) -> str:
        workers = f", workers={self.workers!r}" if self.num_workers else ""
        return (
            f"DataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}{workers})"
        )
