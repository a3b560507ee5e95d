"""The chain of a `DataLoader`: what gives indices or samples, and what makes batches of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from types import ModuleType
from typing import Any, final

from ..base.checks import whole
from ..base.knobs import Knob
from ..base.worker import worker_info
from ..errors import ArgumentError, StateError
from ..executors.memory import Packer, unpack
from ..ops.remaining import Remaining
from ..ops.stage import addresses, changed
from ..pipeline import Pipeline
from ..sources import interleave, source
from .workers import THREAD, LoaderWorkers, WantsWorkersError, as_worker, teach

# -- which samples make which batch, by the rules of torch's ---------------------------------------
_SAMPLERS = ("sampler", "batch_sampler")


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


# -- the own states of samplers and datasets -------------------------------------------------------
def has_state(one: Any) -> bool:
    """Tell whether a sampler or a dataset has a state of its own."""
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
    """Return the state of a sampler or a dataset; what it does later does not change it."""
    return copy.deepcopy(one.state_dict())


# -- Fetching: what the workers of a `DataLoader` do: read samples, and make batches of them -------
END = object()  # in the place of what would come next: there is nothing


class _Sent:
    """Something that is sent to workers."""

    _packer: Packer | None = None

    @property
    def mapped(self) -> bool:
        """Whether they are processes, and map the large arrays that it holds."""
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_packer"}
        if self.mapped:
            packer = self._packer = self._packer or Packer()
            try:
                return _unpacked, (type(self), *packer.pack(state))
            except Exception:  # noqa: BLE001  raised again for the part that is to blame
                packer.release()
        return _blank, (type(self),), state

    def release(self) -> None:
        """Called when there are no workers any more."""
        if self._packer is not None:
            self._packer.release()


def _blank(kind: type[Any]) -> Any:
    return object.__new__(kind)


def _unpacked(kind: type[Any], head: bytes, where: tuple[Any, ...] | None) -> Any:
    made = _blank(kind)
    made.__dict__.update(unpack(head, where))
    return made


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
        workers: who does it; None: the caller itself.
    """

    function: Callable[[Any], Any]
    plain: bool
    dataset: Any = None
    batched: bool = True
    workers: LoaderWorkers | None = None

    @property
    def mapped(self) -> bool:
        """Whether processes map the large arrays of the dataset."""
        return self.dataset is not None and self.workers is not None and self.workers.are_processes

    def __call__(self, given: Any) -> Any:
        """Make one batch."""
        if self.workers is None:
            return self.collate(self._samples(given))
        with self.workers.one(self.dataset):
            return self.collate(self._samples(given))

    def collate(self, samples: Any) -> Any:
        """Make one batch of samples, in a worker that is known already."""
        if not self.plain:
            return self.function(samples)
        with as_worker(None):
            return self.function(samples)

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
@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where an iterable dataset goes on.

    Attributes:
        epoch: number of the epoch that goes on.
        had: lists of samples that the loop has had of it.
        dataset: what the dataset is told, or None.
        iterator: what its iterator is told, or None.
        ended: it had given all: nothing is left of the epoch.
    """

    epoch: int
    had: int
    dataset: Any = None
    iterator: Any = None
    ended: bool = False

    @property
    def tells(self) -> bool:
        """Whether anybody is told a state; else all is read again, and dropped."""
        return self.dataset is not None or self.iterator is not None


@final
@dataclass(eq=False)
class Batches(_Sent):
    """The samples of an iterable dataset in lists; without a size one by one.

    Attributes:
        dataset: read anew by every iteration.
        size: samples in a list, or None.
        drop_last: leave out a last list that is not full.
        watch: `torch.utils.data._utils.worker`; end with `WantsWorkersError` where the dataset
            asks there which worker it is, before its first sample. None: let it ask.
        place: where it is read: "caller", in a "thread", which has a copy, or in a "process".
        resumed: where it goes on; None: it is read from its beginning.
        ended: the dataset has come to its end.
    """

    dataset: Iterable[Any]
    size: int | None
    drop_last: bool
    watch: ModuleType | None
    place: str = "caller"
    resumed: Resumed | None = None
    ended: bool = False
    _iterator: Any = None

    @property
    def mapped(self) -> bool:
        """Whether a process reads it, and maps the large arrays of the dataset."""
        return self.place == "process"

    def __iter__(self) -> Iterator[Any]:
        resumed, self.resumed = self.resumed, None
        return self._lists(resumed if resumed is not None and resumed.tells else None)

    @property
    def state_of_iterator(self) -> Any:
        """The state of the dataset's iterator, where it has one of its own; or None."""
        iterator = self._iterator
        if iterator is self.dataset or not has_state(iterator):
            return None
        return state_of(iterator)

    def __call__(self, _: object) -> Iterator[Any]:
        """Read in a worker; None stands for each list that the loop has had."""
        resumed, call = self.resumed, worker_info()
        if resumed is None or call is None or call.epoch != resumed.epoch:
            return self._lists(None)
        if resumed.tells:
            return self._lists(resumed)
        lists = enumerate(self._lists(None))
        return (None if number < resumed.had else one for number, one in lists)

    def _lists(self, resumed: Resumed | None) -> Iterator[Any]:
        """Return the lists; None for each that the loop has had, where a state stands for them.

        The dataset's `iter` is called at once: its state may be asked for before a sample is.
        """
        if resumed is not None and resumed.ended:
            if self.place == "caller":
                _tell_end(self.dataset, resumed)
            return repeat(None, resumed.had)
        dataset = self.dataset if self.place != "thread" else own_copy(self.dataset)
        samples = self._samples(dataset, resumed)
        lists = listed(samples, self.size, drop_last=self.drop_last, at_end=self._end)
        return lists if resumed is None else chain(repeat(None, resumed.had), lists)

    def _end(self) -> None:
        self.ended = True

    def _samples(self, dataset: Iterable[Any], resumed: Resumed | None) -> Iterator[Any]:
        if self.watch is not None:
            teach(self.watch)
            return _watched(dataset, resumed)
        samples = begun_at(dataset, resumed)
        self._iterator = samples
        return samples if resumed is None or resumed.had else _read_anew(dataset, samples)


def own_copy(dataset: Any) -> Any:
    """Return a dataset that is a thread's own, as far as it can be copied."""
    try:
        return copy.copy(dataset)
    except TypeError:  # what it holds cannot be
        return dataset


def begun_at(dataset: Any, resumed: Resumed | None) -> Iterator[Any]:
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


def _tell_end(dataset: Any, resumed: Resumed) -> None:
    """Tell a dataset the state of its end: the next time it is iterated, it gives all.

    There are those that go back behind their last sample, and those that do so in `iter`.
    """
    if resumed.dataset is not None and next(begun_at(dataset, resumed), END) is not END:
        dataset.load_state_dict(resumed.dataset)


def _read_anew(dataset: Any, samples: Iterator[Any]) -> Iterator[Any]:
    """Return the samples; where nothing comes the state was that of an end, and all is read."""
    first = next(samples, END)
    if first is END:
        yield from following(iter(dataset))
        return
    yield from following(samples, first)


def following(items: Iterator[Any], *first: Any) -> Iterator[Any]:
    """Return some items, and what follows; `iter` is never called on it, it might begin anew."""
    yield from first
    while (item := next(items, END)) is not END:
        yield item


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


def _watched(dataset: Iterable[Any], resumed: Resumed | None) -> Iterator[Any]:
    THREAD.watched, THREAD.asked = True, False
    try:
        samples = begun_at(dataset, resumed)
        if resumed is not None and not resumed.had:
            samples = _read_anew(dataset, samples)
        first = next(samples, END)
    finally:
        THREAD.watched = False
    if THREAD.asked:  # and took no notice of our exception
        raise WantsWorkersError
    return iter(()) if first is END else following(samples, first)


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

    @property
    def mapped(self) -> bool:
        """Whether processes map the large arrays of the dataset."""
        return self.workers.are_processes

    def __call__(self, number: int) -> Iterator[Any]:
        """Return the batches of the worker of this number."""
        dataset = self.workers.dataset_of(number, self.dataset)
        with self.workers.at(number, dataset):
            self.workers.seed_call()
            samples = iter(dataset)
        lists = listed(samples, self.size, drop_last=self.drop_last)
        while (batch := self._next(lists, number, dataset)) is not END:
            yield batch

    def _next(self, lists: Iterator[Any], number: int, dataset: Any) -> Any:
        with self.workers.at(number, dataset):
            batch = next(lists, END)
            return END if batch is END else self.make.collate(batch)


# -- The chain of a `DataLoader`: what gives indices or samples, and what makes batches of them ----
READ = "read"
READER = "reader"
SAMPLES = "samples"  # lists of them, of an iterable dataset that is read once
_AHEAD = 2  # lists of indices, or of samples that were read once, ready for the workers


@final
class EpochIndices:
    """The indices of each epoch, in lists where there are batches.

    Attributes:
        prepared: what the next iteration gives; None: what the sampler does.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self.prepared: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        prepared, self.prepared = self.prepared, None
        return following(iter(self._sampler)) if prepared is None else prepared

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
    if not how["ordered"]:
        return source(range(count), name="readers").flat_map(read, name=READ, **how)
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


def begun(indices: Iterator[Any] | None) -> Iterator[Any] | None:
    """Draw the first of the indices now: samplers draw what is random before it."""
    if indices is None:
        return None
    first = next(indices, END)
    return iter(()) if first is END else following(indices, first)


def local_batches(pipe: Pipeline, items: Iterator[Any], rest: Remaining) -> Iterator[Any]:
    """Make the batches of an epoch that are left, in the calling thread, each when it is wanted.

    Args:
        pipe: what makes them.
        items: take the place of those of its source.
        rest: the batches that are left.
    """
    functions = [stage.fn for stage in pipe.chain[1:]]
    for number, made in enumerate(items):
        if number in rest:
            batch = made
            for function in functions:
                batch = function(batch)
            yield batch
