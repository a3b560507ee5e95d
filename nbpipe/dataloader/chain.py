"""The chain of a `DataLoader`: its workers, what gives indices or samples, what makes batches."""

from __future__ import annotations

import copy
import dis
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, repeat
from types import FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from ..base.checks import refuse_coroutine
from ..base.knobs import Knob
from ..base.seeding import CALL, NUMBER, seed_for, seed_item, worker_info
from ..executors.memory import Packer, unpack
from ..ops.stage import Chain, CodeLocation, addresses, changed
from ..pipeline import Pipeline, interleave, source
from .state import (
    END,
    Position,
    begun,
    checked_state,
    following,
    has_state,
    read_anew,
    state_of,
)


# -- what `get_worker_info()` says -----------------------------------------------------------------
class WantsWorkersError(BaseException):
    """A dataset that is being read once asked which worker it is: it wants to be split.

    It passes the dataset's own handlers of exceptions.
    """


_WANTS = (
    "the dataset calls get_worker_info(), so each worker reads a part of it, which the loader "
    "finds out in its first epoch: iterate the loader before its pipeline"
)


@contextmanager
def _asking_refused(torch_worker: ModuleType) -> Iterator[None]:
    """Have `get_worker_info()` of this worker process end what asks it.

    Its code is replaced for that time, not the name: modules hold the function itself.

    Args:
        torch_worker: `torch.utils.data._utils.worker`.

    Raises:
        WantsWorkersError: it was asked, also where that was caught.
    """
    known: Any = torch_worker
    asked: list[bool] = []

    def refuse() -> None:
        asked.append(True)
        raise WantsWorkersError(_WANTS)

    known._nbpipe_asked = refuse
    before, known.get_worker_info.__code__ = known.get_worker_info.__code__, _ask.__code__
    try:
        yield
    finally:
        known.get_worker_info.__code__ = before
    if asked:
        raise WantsWorkersError(_WANTS)


def _ask() -> Any:
    return _nbpipe_asked()  # type: ignore[name-defined]  # noqa: F821  in torch's own module


# -- the workers -----------------------------------------------------------------------------------
@final
class LoaderWorkers:
    """What the worker processes of one loader are told; each process has a copy.

    Args:
        torch_worker: `torch.utils.data._utils.worker`; with it, torch is loaded in workers.
        seed: of worker 0; the others' follow it.
        count: number of workers, as they are told.
        init: called with its number in each worker before its first item, or None.
        fixed: each of them has its part from the beginning, whoever is free.
    """

    def __init__(
        self,
        torch_worker: ModuleType,
        *,
        seed: int,
        count: int,
        init: Callable[[int], object] | None,
        fixed: bool,
    ) -> None:
        self._torch_worker: Any = torch_worker
        self._seed = seed
        self._count = count
        self._init = init
        self._fixed = fixed
        self._begun = False
        self._seeds: Seeds | None = None

    def begin(self, number: int, dataset: object) -> None:
        """Begin a call in this process, the worker of this number, with this dataset."""
        call = worker_info()
        if not self._begun:
            self._begun = True
            if self._init is not None:
                self._call(self._init, number, dataset)
            self._torch_worker._worker_info = self._info(number, dataset)
            if call is not None:
                seed_item(call.seed)  # no item is to depend on its worker
        if self._seeds is not None:
            self._seeds.apply()

    def _call(self, init: Callable[[int], object], number: int, dataset: object) -> None:
        """Call the user's function for a new worker; torch's seed of the worker holds in it.

        One that does no more than to seed is called as in worker 0: its seeds hold in all of them.
        """
        alike = self._fixed or is_alike(init)
        holds = alike or only_seeds(init)
        number = number if alike or not holds else 0
        self._torch_worker._worker_info = self._info(number, dataset)
        seed_item(self._seed + number)
        seeds = Seeds(sys.modules["torch"])  # loaded: the pickle of this names it
        with seeds.watched():
            refuse_coroutine("worker_init_fn", init(number))
        self._seeds = seeds if holds else None

    def _info(self, number: int, dataset: object) -> Any:
        seed = self._seed + number
        kind: Any = self._torch_worker.WorkerInfo
        return kind(id=number, num_workers=self._count, seed=seed, dataset=dataset)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Have `get_worker_info()` return None for a while."""
        known = self._torch_worker
        info, known._worker_info = known._worker_info, None
        try:
            yield
        finally:
            known._worker_info = info


# -- the seeds that a `worker_init_fn` sets --------------------------------------------------------
# In torch such a seed begins one stream for each worker. Here samples are drawn by the batch, so
# that they depend on no worker: the user's seed takes the place of torch's for them, where it is
# the same in all workers, or can be made so. Else it is left out: it would depend on who was free.
_ASKS = ("get_worker_info", "initial_seed")  # they tell workers apart
_WORD = 8  # bytes of the seed, at the beginning of the state of torch's generator
_MODULES = ("numpy", "random", "torch")
_SEEDING = frozenset(  # all names that a function uses which only seeds, but for those of numbers
    (
        *(*_ASKS, *_MODULES, "seed", "manual_seed", "manual_seed_all", "cuda", "mps"),
        *("utils", "data", "id", "num_workers", "abs", "hash", "int", "max", "min", "pow"),
    )
)


def is_alike(init: Callable[[int], object]) -> bool:
    """Tell whether a `worker_init_fn` does the same in each worker, as far as its code shows."""
    if not isinstance(init, FunctionType) or init.__code__.co_argcount != 1:
        return False
    name = init.__code__.co_varnames[0]
    if any(word in init.__code__.co_names for word in _ASKS):
        return False
    used = [step.argval for step in dis.get_instructions(init)]  # one step may use two names
    return not any(name == one or (isinstance(one, tuple) and name in one) for one in used)


def only_seeds(init: Callable[[int], object]) -> bool:
    """Tell whether a `worker_init_fn` seeds by its number, and does nothing else."""
    if not isinstance(init, FunctionType) or init.__code__.co_argcount != 1:
        return False
    code, cells = init.__code__, zip(init.__code__.co_freevars, init.__closure__ or (), strict=True)
    known = {**init.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    used = (known.get(name, name) for name in (*code.co_names, *code.co_freevars))
    return all(isinstance(one, int) or _word_of(one) in _SEEDING for one in used)


def _word_of(one: Any) -> str | None:
    """Return a name as it is, and that of what these modules hold."""
    owner = str(one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", ""))
    if isinstance(one, str) or owner.partition(".")[0] not in _MODULES:
        return one if isinstance(one, str) else None
    return str(one.__name__)


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
        before = self._fingerprints()
        yield
        after = self._fingerprints()
        self._own = {name: now for name, now in after.items() if now != before[name]}

    def _fingerprints(self) -> dict[str, int]:
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


# -- Fetching: what the workers of a `DataLoader` do: read samples, and make batches of them -------
class Packed(NamedTuple):
    """All that is sent to workers with a dataset, as `unpack` takes it: in the dataset's place."""

    head: bytes
    where: tuple[Any, ...] | None


class _Sent:
    """Something that is sent to workers.

    Attributes:
        if_large: what to do where much is sent.
    """

    if_large: ClassVar[str] = "hold paths in the dataset, memory-map it, or use workers='thread'"

    dataset: Any
    workers: LoaderWorkers | None
    _packer: Packer | None = None

    @property
    def mapped(self) -> bool:
        """Whether they are processes, and map the large arrays of the dataset."""
        return self.dataset is not None and self.workers is not None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_packer"}
        if self.mapped:
            packer = self._packer = self._packer or Packer()
            try:
                return {"dataset": Packed(*packer.pack(state))}
            except Exception:  # noqa: BLE001  raised again for the part that is to blame
                packer.release()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["dataset"]
        self.__dict__.update(unpack(*packed) if isinstance(packed, Packed) else state)

    def release(self) -> None:
        """Called when there are no workers any more."""
        if self._packer is not None:
            self._packer.release()


@final
@dataclass(eq=False)
class MakeBatch(_Sent):
    """Makes a batch of samples, or of indices by which it reads the samples of a dataset.

    Attributes:
        function: of a list of samples, or of one sample.
        plain: it is torch's own, which in a worker would put the batch into shared memory by
            itself; batches travel through our own.
        dataset: with `__getitem__`; where it has `__getitems__`, that gets all indices at once.
            None: samples are given.
        batched: an item is a list of indices; else one index.
        workers: the processes that do it; None: threads, or the caller itself.
    """

    function: Callable[[Any], Any]
    plain: bool
    dataset: Any = None
    batched: bool = True
    workers: LoaderWorkers | None = None

    def __call__(self, given: Any) -> Any:
        """Make one batch."""
        if self.workers is not None:
            self.workers.begin(NUMBER[0], self.dataset)
        return self.collate(self._samples(given), self.workers)

    def collate(self, samples: Any, workers: LoaderWorkers | None) -> Any:
        """Make one batch of samples, in a worker that is known already."""
        if not self.plain or workers is None:
            return self._made_of(samples)
        with workers.hidden():
            return self._made_of(samples)

    def _made_of(self, samples: Any) -> Any:
        batch = self.function(samples)
        refuse_coroutine("collate_fn" if self.batched else "the dataset", batch)
        return batch

    def _samples(self, given: Any) -> Any:
        dataset = self.dataset
        if dataset is None:
            return given
        if not self.batched:
            return dataset[given]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(given)
        return [dataset[index] for index in given]


@final
@dataclass(eq=False)
class Batches(_Sent):
    """The samples of an iterable dataset in lists; without a size one by one.

    Attributes:
        dataset: read anew by every iteration.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        watch: `torch.utils.data._utils.worker`, in a process: end with `WantsWorkersError` where
            the dataset asks there which worker it is, before its first sample. None: let it ask.
        place: where it is read: "caller", in a "thread", which has a copy, or in a "process".
        resumed: where it goes on; None: it is read from its beginning.
        ended: the dataset has come to its end.
    """

    dataset: Iterable[Any]
    size: int | None
    drop_last: bool
    watch: ModuleType | None
    place: str = "caller"
    resumed: Position | None = field(default=None, compare=False)
    ended: bool = field(default=False, compare=False)
    _iterator: Any = field(default=None, compare=False)

    @property
    def mapped(self) -> bool:
        """Whether a process reads it, and maps the large arrays of the dataset."""
        return self.place == "process"

    def __iter__(self) -> Iterator[Any]:
        resumed, self.resumed = self.resumed, None
        return self._lists(resumed if resumed is not None and resumed.tells else None)

    def now(self) -> tuple[Any, bool]:
        """Return the state of the dataset's iterator, where it has one of its own; and `ended`."""
        iterator = self._iterator
        known = iterator is not self.dataset and has_state(iterator)
        return state_of(iterator) if known else None, self.ended

    def __call__(self, _: object) -> Iterator[Any]:
        """Read in a worker; None stands for each list that the loop has had."""
        resumed, call = self.resumed, worker_info()
        if resumed is None or call is None or call.epoch != resumed.epoch:
            return self._lists(None)
        if resumed.tells:
            return self._lists(resumed)
        lists = enumerate(self._lists(None))
        return (None if number < resumed.delivered else one for number, one in lists)

    def _lists(self, resumed: Position | None) -> Iterator[Any]:
        """Return the lists; None for each that the loop has had, where a state stands for them.

        The dataset's `iter` is called at once: its state may be asked for before a sample is.
        """
        if resumed is not None and resumed.ended:
            if self.place == "caller":
                _tell_end(self.dataset, resumed)
            return repeat(None, resumed.delivered)
        dataset = self.dataset if self.place != "thread" else own_copy(self.dataset)
        samples = self._samples(dataset, resumed)
        lists = listed(samples, self.size, drop_last=self.drop_last, at_end=self._end)
        return lists if resumed is None else chain(repeat(None, resumed.delivered), lists)

    def _end(self) -> None:
        self.ended = True

    def _samples(self, dataset: Iterable[Any], resumed: Position | None) -> Iterator[Any]:
        if self.watch is None:
            return self._begun(dataset, resumed)
        with _asking_refused(self.watch):
            return begun(self._begun(dataset, resumed))

    def _begun(self, dataset: Iterable[Any], resumed: Position | None) -> Iterator[Any]:
        samples = self._iterator = begun_at(dataset, resumed)
        return (
            read_anew(dataset, samples)
            if resumed is not None and not resumed.delivered
            else samples
        )


def own_copy(dataset: Any) -> Any:
    """Return a dataset that is a thread's own, as far as it can be copied."""
    try:
        return copy.copy(dataset)
    except TypeError:  # what it holds cannot be
        return dataset


def begun_at(dataset: Any, resumed: Position | None) -> Iterator[Any]:
    """Begin to iterate a dataset, where a state says.

    A dataset that is its own iterator may go back to its beginning when it is iterated: it is
    told its state again.

    Raises:
        StateError: the state is of an iterator that had one.
    """
    state = None if resumed is None else resumed.dataset
    if state is not None:
        dataset.load_state_dict(state)
    samples: Any = iter(dataset)
    if state is not None and samples is dataset:
        dataset.load_state_dict(state)
    if resumed is not None and resumed.iterator is not None:
        checked_state(samples)
        samples.load_state_dict(resumed.iterator)
    return samples  # type: ignore[no-any-return]


def _tell_end(dataset: Any, resumed: Position) -> None:
    """Tell a dataset the state of its end: the next time it is iterated, it gives all.

    There are those that go back behind their last sample, and those that do so in `iter`.
    """
    if resumed.dataset is not None and next(begun_at(dataset, resumed), END) is not END:
        dataset.load_state_dict(resumed.dataset)


def listed(
    samples: Iterator[Any],
    size: int | None,
    *,
    drop_last: bool,
    at_end: Callable[[], object] = lambda: None,
) -> Iterator[Any]:
    """Gather samples in lists, or without a size yield them. After the end none is asked for.

    Args:
        samples: from the first on.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        at_end: called where a list is not full, before it is given.
    """
    if size is None:
        yield from following(samples)
        return
    full = True
    while full:
        batch: list[Any] = []
        while full and len(batch) < size:
            sample = next(samples, END)
            full = sample is not END
            if full:
                batch.append(sample)
            else:
                at_end()
        if batch and (full or not drop_last):
            yield batch


@final
@dataclass(eq=False)
class ReadPart(_Sent):
    """Reads one worker's part of an iterable dataset, and makes batches of it.

    Attributes:
        dataset: asks `get_worker_info()` which part is meant.
        make: makes the batch.
        size: samples in a batch; None: a batch is one sample.
        drop_last: leave out a last batch that is not full.
        workers: who does it.
    """

    dataset: Any
    make: MakeBatch
    size: int | None
    drop_last: bool
    workers: LoaderWorkers

    def __call__(self, number: int) -> Iterator[Any]:
        """Return the batches of the worker of this number."""
        self.workers.begin(number, self.dataset)
        lists = listed(iter(self.dataset), self.size, drop_last=self.drop_last)
        while (batch := next(lists, END)) is not END:
            yield self.make.collate(batch, self.workers)


# -- The chain of a `DataLoader`: what gives indices or samples, and what makes batches of them ----
READ = "read"
READER = "reader"
SAMPLES = "samples"  # lists of them, of an iterable dataset that is read once
_AHEAD = 2  # lists of indices, or of samples that were read once, ready for the workers


def drawn_seed(torch: Any, generator: Any) -> int:
    """Draw the seed of an epoch's workers."""
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    return int(seed.item())


@final
class EpochIndices:
    """The indices of each epoch, in lists where there are batches.

    Args:
        sampler: gives them.
        draw_seed: draws the seed of an epoch's workers, as torch's loader does before it draws
            the order from the same generator.

    Attributes:
        prepared: what the next iteration gives; None: what the sampler does.
    """

    def __init__(self, sampler: Iterable[Any], draw_seed: Callable[[], object]) -> None:
        self._sampler = sampler
        self._draw_seed = draw_seed
        self.prepared: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            return prepared
        self._draw_seed()
        return following(iter(self._sampler))

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # TypeError says that it has none


def chain_of(
    items: EpochIndices | Batches, make: MakeBatch, how: Mapping[str, Any] | None
) -> Pipeline:
    """Build the chain of a dataset that is read by index, or once; its stage is "fetch".

    Where a process reads a dataset, what it draws from global generators is its own.

    Args:
        items: lists of indices, or of samples.
        make: makes the batches of them.
        how: options of the stage that does so; None: the calling thread does.
    """
    if isinstance(items, EpochIndices):
        pipe = source(items, name="indices", prefetch=_AHEAD)
    elif not items.mapped:
        pipe = source(items, name=SAMPLES, prefetch=_AHEAD)
    else:
        alone = Knob("concurrency", 1, minimum=1, maximum=1, unit="calls")  # there is one to read
        pipe = source([0], name=READER, prefetch=1).flat_map(
            items, name=SAMPLES, executor="process", concurrency=1, prefetch=_AHEAD
        )
        pipe = with_knobs(pipe, {SAMPLES: {"concurrency": alone}})
    return pipe.map(make, name="fetch", **(how or {"executor": "inline"}))


def is_local(pipe: Pipeline) -> bool:
    """Tell whether the loop makes the batches of a chain itself."""
    made = addresses(pipe.chain).get("fetch")
    return made is not None and made.executor == "inline"


def split_chain(read: ReadPart, how: Mapping[str, Any]) -> Pipeline:
    """Build the chain of an iterable dataset that each worker reads a part of, in turn.

    Args:
        read: reads a part.
        how: options of the stage that does so, for all workers together.
    """
    count = how["concurrency"]
    alone = {**how, "concurrency": 1}
    pipes = [
        source([number], name=READER, prefetch=1).flat_map(read, name=READ, **alone)
        for number in range(count)
    ]
    return interleave(pipes, cycle=count, prefetch=1)


def with_knobs(pipe: Pipeline, known: Mapping[str, Mapping[str, Knob]]) -> Pipeline:
    """Return a chain whose stages have the knobs that those of the same name had before."""
    found = []
    for stage in pipe.chain:
        before = known.get(stage.name, {})
        knobs = {name: before.get(name, knob) for name, knob in stage.knobs.items()}
        found.append(changed(stage, shared=knobs))
    return Pipeline(tuple(found))


def placed_at(chain: Chain, place: CodeLocation | None) -> Chain:
    """Return a chain all of whose stages were made at one place of the user's code.

    Only of the last one, which makes the batches, the user has given the knobs.
    """
    *others, last = chain
    nothing = frozenset[str]()
    return (
        *(
            changed(
                stage,
                made_at=place,
                given=nothing,
                inputs=tuple(placed_at(one, place) for one in stage.inputs),
            )
            for stage in others
        ),
        changed(last, made_at=place, inputs=tuple(placed_at(one, place) for one in last.inputs)),
    )
