"""The chain of a `DataLoader`: what gives indices or samples, and what makes batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from .fetching import END, Batches, Collate, Fetch, Read, Resumed, following
from .joins import interleave
from .knobs import Knob
from .loader_arguments import Samples
from .loader_workers import Workers
from .pipeline import Pipeline
from .rest import Rest
from .source import source
from .stage import Stage, addresses

READ = "read"
READER = "reader"
SAMPLES = "samples"  # lists of them, of an iterable dataset that is read once
_AHEAD = 2  # lists of indices, or of samples that were read once, ready for the workers


@final
class Order:
    """Gives the indices of an epoch, in lists where there are batches.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the chain of one run is made of.

    Attributes:
        dataset: by index, or iterable.
        samples: which samples make which batch.
        order: gives the indices; None where the dataset is iterable.
        collate_fn: makes a batch.
        plain: that is torch's own.
        pin: copies a batch to pinned memory, or None.
        torch_worker: `torch.utils.data._utils.worker`.
        seed: of worker 0.
        init: called with its number in each worker, or None.
        executor: where batches are made.
        in_order: in the order of the samples.
        count: workers [calls]; 0: the calling thread.
        prefetch: batches held ready.
        factor: those for each worker.
        knobs: those of the last chain, or None.
        resumed: where an iterable dataset goes on, or None.
    """

    dataset: Any
    samples: Samples
    order: Order | None
    collate_fn: Callable[[Any], Any]
    plain: bool
    pin: Callable[[Any], Any] | None
    torch_worker: ModuleType
    seed: int
    init: Callable[[int], object] | None
    executor: object
    in_order: bool
    count: int
    prefetch: int
    factor: int
    knobs: Mapping[str, Knob] | None
    resumed: Resumed | None = None

    @property
    def workers(self) -> Workers | None:
        """Who makes the batches; None: the calling thread."""
        return self.team(fixed=False)

    def team(self, *, fixed: bool) -> Workers | None:
        """Return who makes the batches; `fixed`: each has a part of its own."""
        if not self.count:
            return None
        kind = self.executor if self.executor in ("process", "thread") else "other"
        return Workers(
            self.torch_worker,
            seed=self.seed,
            count=self.count,
            init=self.init,
            executor=str(kind),
            fixed=fixed,
        )

    def collate(self, workers: Workers | None = None) -> Collate:
        """Make what makes a batch of samples."""
        return Collate(self.collate_fn, plain=self.plain, workers=workers)

    @property
    def splittable(self) -> bool:
        """Whether workers here could read parts of an iterable dataset."""
        return self.count > 0 and self.executor in ("process", "thread")

    @property
    def reads_in(self) -> str:
        """Where an iterable dataset is read once: "here", in a "thread" or in a "process"."""
        if not self.count:
            return "here"
        threads = self.executor == "thread" or isinstance(self.executor, ThreadPoolExecutor)
        return "thread" if threads else "process"

    def batches(self) -> Batches:
        """Make what reads an iterable dataset once."""
        return Batches(
            self.dataset,
            size=self.samples.batch_size,
            drop_last=self.samples.drop_last,
            watch=self.torch_worker if self.splittable else None,
            place=self.reads_in,
            resumed=self.resumed,
        )

    def fetch(self) -> Fetch:
        """Make what reads samples by index."""
        batched, workers = self.samples.batched, self.workers
        return Fetch(self.dataset, self.collate(), batched=batched, workers=workers)


def chain_of(recipe: Recipe) -> Pipeline:
    """Build the chain of a dataset that is read by index, or once; its stage is "fetch"."""
    if recipe.order is not None:
        given = source(recipe.order, name="indices", prefetch=_AHEAD)
        return _pinned(recipe, _mapped(recipe, given, recipe.fetch()))
    return _pinned(recipe, _mapped(recipe, _read_once(recipe), recipe.collate(recipe.workers)))


def _read_once(recipe: Recipe) -> Pipeline:
    """Begin the chain of an iterable dataset that is read once.

    Outside threads a process reads it: what it draws from global generators is its own then.
    """
    if recipe.reads_in != "process":
        return source(recipe.batches(), name=SAMPLES, prefetch=_AHEAD)
    reader = source([0], name=READER, prefetch=1)
    pipe = reader.flat_map(
        recipe.batches(), name=SAMPLES, executor="process", concurrency=1, prefetch=_AHEAD
    )
    alone = Knob("concurrency", 1, minimum=1, maximum=1, unit="calls")  # there is one to read
    return with_knobs(pipe, {SAMPLES: {"concurrency": alone}})


def _mapped(recipe: Recipe, given: Pipeline, fn: Callable[[Any], Any]) -> Pipeline:
    """Add the stage that makes batches, with the knobs that the last one had."""
    if not recipe.count:
        return given.map(fn, name="fetch", executor="inline")
    pipe = given.map(
        fn,
        name="fetch",
        executor=recipe.executor,
        concurrency=recipe.count,
        prefetch=recipe.prefetch,
        ordered=recipe.in_order,
    )
    if recipe.knobs is None:
        return pipe
    *above, last = pipe.chain
    again = Stage(
        last.spec,
        name=last.name,
        named=True,
        executor=last.executor,
        placement=last.placement,
        shared=recipe.knobs,
        given=last.given,
    )
    return Pipeline((*above, again))


def split_chain(recipe: Recipe) -> Pipeline:
    """Build the chain of an iterable dataset that each worker reads a part of, in turn."""
    readers = range(recipe.count)
    if not recipe.in_order:
        numbers = source(readers, name="readers")
        return _pinned(recipe, _read(recipe, numbers, len(readers), ordered=False))
    pipes = [
        _read(recipe, source([number], name=READER, prefetch=1), 1, ordered=True)
        for number in readers
    ]
    joined = interleave(pipes, cycle=len(pipes), prefetch=1)
    return _pinned(recipe, joined)


def _read(recipe: Recipe, numbers: Pipeline, count: int, *, ordered: bool) -> Pipeline:
    workers, samples = recipe.team(fixed=True), recipe.samples
    assert workers is not None
    read = Read(
        recipe.dataset,
        recipe.collate(),
        size=samples.batch_size,
        drop_last=samples.drop_last,
        workers=workers,
    )
    return numbers.flat_map(
        read,
        name=READ,
        executor=recipe.executor,
        concurrency=count,
        prefetch=recipe.factor,
        ordered=ordered,
    )


def _pinned(recipe: Recipe, pipe: Pipeline) -> Pipeline:
    if recipe.pin is None:
        return pipe
    return pipe.map(recipe.pin, name="pin", prefetch=1)


def with_knobs(pipe: Pipeline, known: Mapping[str, Mapping[str, Knob]]) -> Pipeline:
    """Give the stages of a chain the knobs that those of the same address had before."""
    book = {id(stage): address for address, stage in addresses(pipe.chain).items()}
    return Pipeline(
        tuple(_with_knobs(stage, known.get(book[id(stage)], {})) for stage in pipe.chain)
    )


def _with_knobs(stage: Stage, known: Mapping[str, Knob]) -> Stage:
    shared = {name: known[name] for name in stage.knobs if name in known}
    if all(stage.knobs[name] is knob for name, knob in shared.items()):
        return stage
    return Stage(
        stage.spec,
        name=stage.name,
        named=stage.named,
        executor=stage.executor,
        inputs=stage.inputs,
        placement=stage.placement,
        shared={**stage.knobs, **shared},
        given=stage.given,
        made_at=stage.made_at,
    )


def begun(indices: Iterator[Any] | None) -> Iterator[Any] | None:
    """Draw the first of the indices now: samplers draw what is random before it."""
    if indices is None:
        return None
    first = next(indices, END)
    return iter(()) if first is END else following(indices, first)


def batches_here(
    recipe: Recipe, given: Iterator[Any] | Batches | None, rest: Rest
) -> Iterator[Any]:
    """Make the batches of an epoch that are left, in the calling thread, each when it is wanted."""
    if isinstance(given, Batches):
        return _made(recipe, recipe.collate(), iter(given), rest)
    return _made(recipe, recipe.fetch(), given or iter(()), rest)


def _made(
    recipe: Recipe, make: Callable[[Any], Any], given: Iterator[Any], rest: Rest
) -> Iterator[Any]:
    for number, each in enumerate(given):
        if number in rest:
            batch = make(each)
            yield batch if recipe.pin is None else recipe.pin(batch)
