"""Where a `DataLoader` stands in its epochs, as JSON-ready values, and which is to go on."""

from __future__ import annotations

import base64
import copy
import itertools
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, final

from ..base.digest import check_seal, seal
from ..base.format import shortened
from ..base.threads import OwnThread
from ..engine.external import is_array, is_plain
from ..errors import StateError
from ..run.run import Run

END = object()  # in the place of what would come next: there is nothing


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


def read_anew(whole: Iterable[Any], items: Iterator[Any]) -> Iterator[Any]:
    """Return the items; where nothing comes the state was that of an end, and all is read."""
    first = next(items, END)
    yield from following(iter(whole)) if first is END else following(items, first)


@final
class ReadAnew:
    """A sampler that was told the state of an end: where nothing comes, all of it is read.

    Args:
        whole: the sampler.
    """

    def __init__(self, whole: Iterable[Any]) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[Any]:
        return read_anew(self._whole, iter(self._whole))


def following(items: Iterator[Any], *first: Any) -> Iterator[Any]:
    """Return some items, and what follows; `iter` is never called on it, it might begin anew."""
    yield from first
    while (item := next(items, END)) is not END:
        yield item


def begun(items: Iterator[Any]) -> Iterator[Any]:
    """Return some items, and draw the first one now."""
    first = next(items, END)
    return iter(()) if first is END else following(items, first)


# -- what the order is drawn from ------------------------------------------------------------------


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


def _packed(state: Any) -> str:
    """Write the state of a generator as text."""
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 1)).decode()


@final
class RandomSources:
    """The generators and samplers of a loader.

    Args:
        torch: the module.
        samples: which samples make which batch.
        generator: that of the loader, or None.
        reads: the dataset is iterable, so that there is no sampler.
    """

    def __init__(self, torch: Any, samples: Samples, generator: Any, *, reads: bool) -> None:
        self._torch = torch
        outer: Any = None if reads else samples.indices
        inner = getattr(outer, "sampler", None)
        self._samplers = [one for one in (outer, inner) if one is not None]
        self._generators = self._given(generator)
        self._from_torch = generator is None or not all(map(self._is_apart, self._samplers))
        self.stateful = self._stateful()

    def _given(self, generator: Any) -> list[Any]:
        torch = self._torch
        found = [generator, *(getattr(one, "generator", None) for one in self._samplers)]
        return [
            one
            for one in dict.fromkeys(each for each in found if isinstance(each, torch.Generator))
            if one is not torch.default_generator
        ]

    def _is_apart(self, sampler: Any) -> bool:
        """Tell whether a sampler leaves torch's own generator alone."""
        data = self._torch.utils.data
        generator = getattr(sampler, "generator", None)
        if generator is not None:
            return generator is not self._torch.default_generator
        quiet = (data.SequentialSampler, data.BatchSampler, data.distributed.DistributedSampler)
        return type(sampler) in quiet

    def _stateful(self) -> Any:
        """Find the sampler that has a state of its own, or None."""
        outer = next(iter(self._samplers), None)
        plain = type(outer) is self._torch.utils.data.BatchSampler  # takes what it hands on
        inside = self._samplers if plain else self._samplers[:1]
        return next((one for one in inside if has_state(one)), None)

    @property
    def drawn_from(self) -> Any:
        """The generator that was given to one of torch's samplers, or None."""
        data = self._torch.utils.data
        drawing = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
        inside = self._samplers[:1]
        if inside and type(inside[0]) is data.BatchSampler:
            inside = self._samplers[1:]
        found = next((one.generator for one in inside if type(one) in drawing), None)
        return next((one for one in self._generators if one is found), None)

    def read(self, indices: Iterable[Any], *, ahead: bool) -> Iterator[Any]:
        """Begin to read a sampler; one of the user's in a thread of its own, where others read on.

        Args:
            indices: the sampler, or what draws from it.
            ahead: a thread of the run reads what follows.
        """
        return OwnThread(indices) if ahead and self._runs_user_code else iter(indices)

    @property
    def _runs_user_code(self) -> bool:
        """Whether the samplers are others than torch's own, and plain lists."""
        one: Any = next(iter(self._samplers), None)
        while type(one) is self._torch.utils.data.BatchSampler:
            one = one.sampler
        return not (is_plain(one) or is_array(one) or _is_of_torch(one))

    @property
    def kinds(self) -> list[str]:
        """The classes of the samplers."""
        return [type(one).__qualname__ for one in self._samplers]

    @property
    def now(self) -> dict[str, Any]:
        """How everything is at this moment, as the fields of a `Position`."""
        return {
            "generators": [_packed(one.get_state()) for one in self._generators],
            "torch": self.torch_now,
            "sampler_epoch": self.sampler_epoch,
        }

    @property
    def sampler_epoch(self) -> int | None:
        """The epoch that `set_epoch` told the sampler, or None."""
        return next((one.epoch for one in self._samplers if _counts(one)), None)

    @property
    def torch_now(self) -> str | None:
        """The state of torch's own generator; None where nothing is drawn from it."""
        return _packed(self._torch.get_rng_state()) if self._from_torch else None

    def check(self, position: Position) -> None:
        """Check that a place is of generators and samplers like these.

        Raises:
            StateError: there are other generators.
        """
        count = len(position.generators)
        if count != len(self._generators):
            raise StateError(
                f"the state has {count} generators that were given, this loader has "
                f"{len(self._generators)}; give it as many, or begin the epoch again"
            )
        if (position.torch is None) is self._from_torch:
            raise StateError(
                "the state is of a loader that draws its order from another generator; give "
                "generator= and samplers as they were, or begin the epoch again"
            )

    def _unpacked(self, text: str) -> Any:
        """Read the state of a generator."""
        raw = bytearray(zlib.decompress(base64.b64decode(text)))
        return self._torch.frombuffer(raw, dtype=self._torch.uint8)

    def restore(self, position: Position) -> None:
        """Set generators and sampler, but for torch's own generator, as they were."""
        for one, state in zip(self._generators, position.generators, strict=True):
            one.set_state(self._unpacked(state))
        self.tell_epoch(position.sampler_epoch)

    def tell_epoch(self, epoch: int | None) -> None:
        """Set the sampler's epoch as it was, where it counts them."""
        for one in self._samplers:
            if epoch is not None and _counts(one):
                one.set_epoch(epoch)

    def set_torch(self, state: str | None) -> None:
        """Set torch's own generator, if the order is drawn from it."""
        if state is not None:
            self._torch.set_rng_state(self._unpacked(state))

    @contextmanager
    def with_torch(self, state: str | None) -> Iterator[None]:
        """Draw from torch's own generator as it was then; it is left as it is."""
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
        before = [one.get_state() for one in self._generators]
        with self.with_torch(self.torch_now):
            try:
                yield
            finally:
                for one, state in zip(self._generators, before, strict=True):
                    one.set_state(state)


def _is_of_torch(sampler: Any) -> bool:
    return type(sampler).__module__.startswith("torch.utils.data.")


def _counts(sampler: Any) -> bool:
    """Tell whether a sampler has an epoch that can be set."""
    is_told = callable(getattr(sampler, "set_epoch", None))
    return is_told and type(getattr(sampler, "epoch", None)) is int


@final
class StatefulIndices(Iterator[Any]):
    """What a sampler yields; the sampler's own state behind each is kept.

    Args:
        read: begins to read indices, or lists of them.
        count: how many were given before these.

    Attributes:
        indices: what it has begun to read.
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


_AT_ONCE = 32  # numbers that a RandomSampler draws at once where it may give one again


def _draws_of(indices: Any) -> Callable[[int], bool]:
    """Return what tells whether a sampler of torch's draws for the index or list of that number."""
    size, sampler = getattr(indices, "batch_size", 1), getattr(indices, "sampler", indices)
    if type(sampler).__name__ != "RandomSampler":
        return lambda number: number == 0
    every = _AT_ONCE if sampler.replacement else max(1, len(sampler.data_source))
    return lambda number: -(-number * size // every) * every < (number + 1) * size


@final
class DrawnIndices(Iterator[Any]):
    """What a sampler draws from a generator that was given, for workers.

    They read ahead, as far as they come. An epoch that is left leaves the generator all the same
    where torch's loader does: as many times behind those that the loop has had as that reads ahead.

    Args:
        generator: the sampler draws from it.
        indices: gives indices, or lists of them.
        ahead: how many torch's loader reads ahead.
    """

    def __init__(self, generator: Any, indices: Iterable[Any], ahead: int) -> None:
        self._generator = generator
        self._indices = iter(indices)
        self._draws = _draws_of(indices)
        self._ahead = ahead
        self._wanted = ahead
        self._count = 0  # of draws, that of the end too
        self._states: deque[tuple[int, Any]] = deque()  # behind which draw the generator was how
        self._shared = False  # others draw from the generator, too
        self._drawing = self._ended = self._left = False
        self._lock = threading.RLock()

    def __next__(self) -> Any:
        with self._lock:
            item = END if self._left else self._drawn()
        if item is END:
            raise StopIteration
        return item

    def _drawn(self) -> Any:
        """Draw the next ones, or `END`, and keep how the generator is then."""
        before = self._generator.get_state()
        self._shared |= bool(self._states) and not before.equal(self._states[-1][1])
        self._drawing = True
        try:
            item = next(self._indices, END)
        finally:
            self._drawing = False
        self._ended = item is END
        draws = self._ended or self._draws(self._count)
        self._count += 1
        after = self._generator.get_state()
        if not self._states or (draws and not after.equal(before)):
            self._states.append((self._count, after))
        self._shared |= not draws and not after.equal(before)  # the loop has drawn meanwhile
        while len(self._states) > 1 and self._states[1][0] <= self._wanted:
            self._states.popleft()
        return item

    def had(self, count: int) -> None:
        """Called when the loop has had so many."""
        self._wanted = count + self._ahead

    def leave(self) -> None:
        """Called when nobody wants more: leave the generator where torch's loader does."""
        with self._lock:
            if self._left or self._drawing:  # garbage that this thread found while it draws
                return
            self._left = True
            while not self._ended and self._count < self._wanted:
                self._drawn()
            states = self._states
            if not self._shared and states and states[-1][1].equal(self._generator.get_state()):
                self._generator.set_state(
                    next(state for at, state in reversed(states) if at <= self._wanted)
                )


# -- a place in the epochs -------------------------------------------------------------------------
_FORMAT = 1
_WAY_OUT = "give what loader.state_dict() returned"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in the epochs of a loader, in the words and values in which it is written down.

    Attributes:
        begun: the epoch had begun; False: it is the next one.
        generators: states of the generators that were given, when the epoch began.
        torch: that of torch's own then, or None where nothing is drawn from it.
        sampler_epoch: that which `set_epoch` told the sampler, or None.
        seed: of the workers' items; None where none was drawn.
        epoch: number of the epoch among those of this seed, which was drawn for the first.
        delivered: batches of the epoch that the loop has had.
        sampler: the sampler's own state behind the batches that the loop has had, or None.
        dataset: the iterable dataset's own state, or None.
        iterator: that of the dataset's iterator, where it has another one, or None.
        ended: those are states of an end: the dataset has given all.
        parts: where the workers are that read a part of it each: how many there are, and where
            the stages of their run go on; or None.
        torch_now: of torch's own generator when the state was taken, in mid-epoch, or None.
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

    def written(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Write it down.

        Args:
            about: what must be the same where the epoch goes on.
        """
        values = {name: getattr(self, name) for name in _NAMES}
        state = {"nbpipe_loader": _FORMAT, **values, "by": self._way, "about": dict(about)}
        return state | {"seal": seal(_plain(state))}

    @property
    def _way(self) -> str:
        """How its order goes on, for whoever reads the state."""
        if self.parts is not None:
            return "parts"
        if self.tells:
            return "dataset"
        return "skipping" if self.sampler is None else "sampler"

    def check_readers(self, workers: int, *, splits: bool) -> None:
        """Check that the worker processes here can go on with an iterable dataset.

        Args:
            workers: how many there are.
            splits: each of them reads a part.

        Raises:
            StateError: other workers have read it.
        """
        parts = self.parts
        if not self.delivered or (parts is None and not (workers and splits)):
            return
        if parts is None:
            raise self.read_whole()
        readers, *_ = parts
        if workers != readers:
            raise StateError(
                f"the state is of an epoch whose dataset {readers} worker processes read in parts; "
                f"here are {workers}: each has read as far as it came, so set num_workers and "
                "workers as they were, or begin the epoch again"
            )

    def read_whole(self) -> StateError:
        """Return the error for a dataset that was read whole, and is to be read in parts."""
        return StateError(
            f"the state is of an epoch whose dataset was read once, for {self.delivered} batches; "
            "here each worker reads a part of it: set num_workers=0, or begin the epoch again"
        )

    # -- to go on ---------------------------------------------------------------------------
    @property
    def tells(self) -> bool:
        """Whether a dataset is told a state; else all is read again, and dropped."""
        return self.dataset is not None or self.iterator is not None

    def left_of(self, indices: Iterator[Any] | None) -> Iterator[Any] | None:
        """Pass over the indices of batches that the loop has had: None stands for them.

        Args:
            indices: from the first on; those of a sampler with a state of its own, from where it
                is; None where there are none.
        """
        if indices is None:
            return None
        if not isinstance(indices, StatefulIndices):
            deque(itertools.islice(indices, self.delivered), 0)
        return itertools.chain(itertools.repeat(None, self.delivered), indices)


_NAMES = tuple(one.name for one in fields(Position))


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without what is the user's: what can be digested."""
    theirs = ("sampler", "dataset", "iterator")
    return {name: value for name, value in state.items() if name not in theirs}


def read_position(data: Any, sources: RandomSources, about: Mapping[str, Any]) -> Position:
    """Read what `Position.written` wrote.

    Raises:
        StateError: it is something else, or of another loader.
    """
    if not isinstance(data, Mapping) or "nbpipe_loader" not in data:
        raise StateError(
            f"a state must be a dict from loader.state_dict(), got {shortened(repr(data))}"
        )
    if data["nbpipe_loader"] != _FORMAT:
        raise StateError(
            f"a loader's state must be of format {_FORMAT}, got {data['nbpipe_loader']!r}; it was "
            "written by another version of nbpipe: begin the epoch again"
        )
    try:
        check_seal(_plain(data), _WAY_OUT)
        _check_about(data["about"], about)
        position = Position(**{name: data[name] for name in _NAMES if name in data})
        sources.check(position)
    except (TypeError, ValueError, LookupError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state cannot be read ({error!r}); {_WAY_OUT}") from error
    return position


def _check_about(theirs: Any, ours: Mapping[str, Any]) -> None:
    for name, here in ours.items():
        there = theirs[name]
        if there != here:
            raise StateError(
                f"the state is of a loader whose {name} is {there!r}, here it is {here!r}; make "
                "the loader as it was, or begin the epoch again"
            )


@final
class EpochProgress:
    """How far one epoch of a loader came.

    Args:
        indices: those of its batches; None where the dataset is iterable.

    Attributes:
        position: where it began.
        run: who makes its batches, or None.
        readers: workers that read a part each; 0: none does.
        asked: a batch was asked for.
        finished: it came to its end.
        left: nobody iterates it any more.
        delivered: batches of the epoch that the loop has had.
        reading: returns `iterator` and `ended` of an iterable dataset that the calling thread
            reads, or None.
    """

    def __init__(self, position: Position, indices: Iterator[Any] | None) -> None:
        self.position = position
        self.run: Run | None = None
        self.readers = 0
        self.asked = False
        self.finished = self.left = False
        self.delivered = position.delivered
        self.reading: Callable[[], tuple[Any, bool]] | None = None
        self._states = indices.states if isinstance(indices, StatefulIndices) else None
        self._drawn = indices if isinstance(indices, DrawnIndices) else None
        read = indices.indices if isinstance(indices, StatefulIndices) else indices
        self._apart = read if isinstance(read, OwnThread) else None

    def deliver(self) -> int:
        """Called when the loop gets a batch; return the number of all that it has had."""
        self.delivered += 1
        if self._states is not None:  # another thread may be taking one
            self._states.pop(self.delivered - 2, None)
        if self._drawn is not None:
            self._drawn.had(self.delivered)
        return self.delivered

    def leave(self) -> None:
        """Called when nobody iterates it any more."""
        self.left = True
        if self._drawn is not None:
            self._drawn.leave()
        if self._apart is not None:
            self._apart.leave()

    def close_sampler(self) -> None:
        """Close a sampler that has a thread of its own; wait for that."""
        if self._apart is not None:
            self._apart.close()

    def is_past(self, sampler_epoch: int | None) -> bool:
        """Tell whether the next epoch counts: this one has ended, or was left for another one."""
        return self.finished or (self.left and sampler_epoch != self.position.sampler_epoch)

    def place(self, state_of_dataset: Callable[..., Any]) -> Position:
        """Tell where it is now.

        Args:
            state_of_dataset: returns the dataset's own state; told whether the calling thread
                reads it, and how many batches of it the loop has had.

        Raises:
            StateError: the workers died, and nobody can say how far they had come.
        """
        run = self.run
        iterator, ended = (None, False) if self.reading is None else self.reading()
        if run is None and not self.asked:  # its sampler has drawn nothing, and its seed is its own
            return replace(
                self.position,
                begun=False,
                seed=None,
                epoch=0,
                sampler=self._sampler_at(0),
                dataset=state_of_dataset(by_loop=True),
                iterator=iterator,
            )
        parts = None
        if run is not None and self.readers:
            parts = [self.readers, run.state_dict()["stages"]]
        return replace(
            self.position,
            delivered=self.delivered,
            sampler=self._sampler_at(self.delivered),
            dataset=state_of_dataset(by_loop=run is None, had=self.delivered),
            iterator=iterator,
            ended=ended,
            parts=parts,
        )

    def _sampler_at(self, number: int) -> Any:
        """Return the sampler's own state behind so many batches, or None."""
        return None if self._states is None else self._states[number]


# -- the newest epoch, and the one that is to go on ------------------------------------------------
@final
class LoaderState:
    """Where a loader stands: the newest of its epochs, and the one that is to go on.

    Args:
        dataset: of the loader.
        samples: which of its samples make which batch.
        reads: the dataset is iterable.

    Attributes:
        pending: the place that was loaded, until a batch of its epoch is asked for; or None.
        progress: of the newest epoch, or None.
        begins: where the epoch begins that is not the newest yet, before anything of it was drawn;
            its samplers and datasets with a state tell their own; or None.
        sampled: the indices of that epoch, or None.
    """

    def __init__(self, dataset: Any, samples: Samples, *, reads: bool) -> None:
        self.begins: Position | None = None
        self.sampled: Iterator[Any] | None = None
        self.pending: Position | None = None
        self.progress: EpochProgress | None = None
        self._dataset = dataset
        self._samples = samples
        self._reads = reads
        self._kept: tuple[int, int] | None = None  # a seed for all epochs; the next one's number

    # -- the next epoch -------------------------------------------------------------------
    def loaded(self) -> Position | None:
        """Return the place where the next epoch begins, if one was loaded."""
        if self.progress is not None and self.progress.asked:
            self.pending = None
        return self.pending

    def begin(
        self,
        sources: RandomSources,
        loaded: Position | None,
        draw: Callable[[], int],
        *,
        stays: bool,
        ahead: int,
    ) -> tuple[EpochProgress, Iterator[Any] | None]:
        """Begin the next epoch; it is the newest once it is kept in `progress`.

        Args:
            sources: what the order is drawn from.
            loaded: where it begins, or None.
            draw: draws a seed.
            stays: its workers stay for the next one.
            ahead: batches that torch's loader reads ahead; 0 without workers.

        Returns:
            How far it is, and the indices of its batches: None for each that the loop has had;
            and no indices where the dataset is iterable.
        """
        now = sources.now if loaded is None or not loaded.begun else {}
        if loaded is None:
            self.sampled, self.begins = None, self._beginning(now, stays=stays)
        self.sampled = indices = self._indices(sources, loaded, ahead)
        seed, number = self._seed_of(draw, loaded, stays=stays)
        if stays:
            self._kept = seed, number + 1
        position = loaded
        if position is None or not position.begun:
            position = Position(
                **now,
                begun=True,
                seed=seed,
                epoch=number,
                dataset=None if loaded is None else loaded.dataset,
                iterator=None if loaded is None else loaded.iterator,
            )
        return EpochProgress(position, indices), position.left_of(indices)

    def _indices(
        self, sources: RandomSources, position: Position | None, ahead: int
    ) -> Iterator[Any] | None:
        """Begin to iterate the sampler; load its own state. A dataset loads its own later."""
        if position is not None and position.dataset is not None:
            checked_state(self._dataset)
        if self._reads:
            return None
        sampler, start = sources.stateful, 0 if position is None else position.delivered
        if sampler is None:
            indices, generator = self._samples.indices, sources.drawn_from
            if ahead and generator is not None:
                return DrawnIndices(generator, indices, ahead)
            read = sources.read(indices, ahead=ahead > 0)
            return read if isinstance(read, OwnThread) else following(read)
        goes_on = position is not None and position.sampler is not None
        if goes_on:
            checked_state(sampler)
            sampler.load_state_dict(position.sampler)  # type: ignore[union-attr]
        indices = self._samples.indices
        again = ReadAnew(indices) if goes_on and not start else indices
        return StatefulIndices(sampler, lambda: sources.read(again, ahead=ahead > 0), start)

    def _seed_of(
        self, draw: Callable[[], int], position: Position | None, *, stays: bool
    ) -> tuple[int, int]:
        """Return `seed` and `epoch` of the epoch that begins at a place."""
        if position is not None and position.begun and position.seed is not None:
            if not position.epoch:
                draw()  # as it was drawn then
            return position.seed, position.epoch
        return self._kept if stays and self._kept is not None else (draw(), 0)

    # -- states ---------------------------------------------------------------------------
    def about(self, sources: RandomSources) -> dict[str, Any]:
        """Tell what must be the same where an epoch goes on."""
        samples = self._samples
        size, drop_last = samples.batch_size, samples.drop_last
        if samples.chosen_by_user:
            size = getattr(samples.indices, "batch_size", None)
            drop_last = getattr(samples.indices, "drop_last", False)
        return {
            "length": None if self._reads else _length(self._dataset),
            "batch_size": size if type(size) is int else None,
            "drop_last": bool(drop_last),
            "sampler": "IterableDataset" if self._reads else " of ".join(sources.kinds),
        }

    def state_dict(self, sources: RandomSources, *, workers: int, stays: bool) -> dict[str, Any]:
        """Write down where the newest epoch is, or the next one.

        Args:
            sources: what the order is drawn from.
            workers: how many the next epoch has.
            stays: they are to stay.
        """
        progress, position = self.progress, self.loaded()
        if position is None:
            if (begins := self.begins) is not None:
                position = self._with_states(begins, sources, by_loop=not workers)
            elif progress is None or progress.is_past(sources.sampler_epoch):
                begins = self._beginning(sources.now, stays=stays)
                position = self._with_states(begins, sources, by_loop=not workers)
            else:
                position = progress.place(self._state_of_dataset)
            now = sources.torch_now if position.begun else None
            position = replace(position, torch_now=now)
        return position.written(self.about(sources))

    def _beginning(self, now: Mapping[str, Any], *, stays: bool) -> Position:
        """Return where the next epoch begins, without what samplers and datasets tell."""
        seed, number = self._kept if stays and self._kept is not None else (None, 0)
        return Position(**now, begun=False, seed=seed, epoch=number)

    def _with_states(self, place: Position, sources: RandomSources, *, by_loop: bool) -> Position:
        """Return a beginning with what samplers and datasets tell."""
        sampler, sampled = sources.stateful, self.sampled
        if self.begins is not None and isinstance(sampled, StatefulIndices):
            state = sampled.states[0]
        else:
            state = None if sampler is None else state_of(sampler)
        dataset = self._state_of_dataset(by_loop=by_loop)
        return replace(place, sampler=state, dataset=dataset)

    def _state_of_dataset(self, *, by_loop: bool, had: int = 0) -> Any:
        """Return the dataset's own state; None where it has none, or none before a sample."""
        if not by_loop or not self._reads or not has_state(self._dataset):
            return None
        try:
            return state_of(self._dataset)
        except AttributeError:
            if not had:  # it gets what it tells of when it is read
                return None
            raise

    def load(self, sources: RandomSources, position: Position) -> None:
        """Have the next epoch begin at a place."""
        if position.begun:
            sources.tell_epoch(position.sampler_epoch)
        else:
            sources.restore(position)
        sources.set_torch(position.torch_now or position.torch)
        self.pending, self.progress, self._kept = position, None, None
        if not position.begun and position.seed is not None:
            self._kept = position.seed, position.epoch


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001  a length that is not known, whatever is raised
        return None
