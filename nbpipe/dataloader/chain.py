"""The chain of a loader: a source of indices or samples, and the stage that makes batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from ..base.knobs import Knob
from ..ops.stage import Chain, CodeLocation, addresses, changed
from ..pipeline import Pipeline, interleave, source
from .arguments import Arguments, prefetch_of
from .fetch import Batches, MakeBatch, ReadPart
from .position import Position
from .samplers import following
from .worker import LoaderWorkers

INDICES = "indices"
FETCH = "fetch"  # makes the batches
READER = "reader"
SAMPLES = "samples"  # of an iterable dataset that is read once, in lists
READ = "read"  # of a part of an iterable dataset
_AHEAD = 2  # lists of indices or samples that are ready for the workers


@final
class EpochIndices:
    """The indices of each epoch, in lists if there are batches.

    Args:
        sampler: gives them.
        draw_seed: draws the seed of an epoch's workers: torch's loader does so before it draws
            the order from the same generator.

    Attributes:
        prepared: given by the next iteration instead, or None.
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


@final
class _Pin:
    """Copies batches to pinned memory, for the device that is current where this is made."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._index = torch.accelerator.current_device_index()
        self._pin = torch.utils.data._utils.pin_memory.pin_memory

    def __call__(self, batch: Any) -> Any:
        self._torch.accelerator.set_device_index(self._index)  # each thread has its own
        return self._pin(batch)


# -- the chain of one epoch ------------------------------------------------------------------------
def build(
    arguments: Arguments,
    knobs: Mapping[str, Mapping[str, Knob]],
    *,
    seed: int = 0,
    position: Position | None = None,
) -> Pipeline:
    """Build the chain of a loader.

    Args:
        arguments: of the loader.
        knobs: those of the chains before, by stage: they replace new ones.
        seed: of the workers.
        position: where it continues to read an iterable dataset, or None.
    """
    splits = arguments.readers > 0
    data, dataset = arguments.torch.utils.data, arguments.dataset
    workers = _workers(arguments, seed) if arguments.place == "process" else None
    make = MakeBatch(
        arguments.collate_fn,
        plain=arguments.collate_fn in (data.default_collate, data.default_convert),
        dataset=None if arguments.iterable else dataset,
        batched=arguments.samples.batched,
        workers=None if splits else workers,
    )
    if splits and workers is not None:
        pipe = _in_parts(arguments, make, workers)
    else:
        pipe = _with_source(arguments, position).map(make, name=FETCH, **_options(arguments))
    if arguments.pins:
        pipe = pipe.map(_Pin(arguments.torch), name="pin", prefetch=1)
    return pipe if splits else _with_knobs(pipe, knobs)


def _workers(arguments: Arguments, seed: int) -> LoaderWorkers:
    return LoaderWorkers(
        arguments.torch.utils.data._utils.worker,
        seed=seed,
        count=arguments.num_workers,
        init=arguments.worker_init_fn,
        fixed=arguments.readers > 0,
    )


def _options(arguments: Arguments) -> dict[str, Any]:
    """Return the options of the stage that makes batches; without workers the loop does."""
    count = arguments.num_workers
    if not count:
        return {"executor": "inline"}
    prefetch = prefetch_of(arguments.factor, count)
    return {"executor": arguments.workers, "concurrency": count, "prefetch": prefetch}


def _with_source(arguments: Arguments, position: Position | None) -> Pipeline:
    """Return the chain up to the indices or samples of each batch."""
    samples = arguments.samples
    if not arguments.iterable:
        indices = EpochIndices(samples.indices, arguments.draw_seed)
        return source(indices, name=INDICES, prefetch=_AHEAD)
    place = arguments.place
    lists = Batches(
        arguments.dataset,
        size=samples.batch_size,
        drop_last=samples.drop_last,
        watch=arguments.torch.utils.data._utils.worker if place == "process" else None,
        place=place,
        resumed=position,
    )
    if not lists.mapped:
        return source(lists, name=SAMPLES, prefetch=_AHEAD)
    # In a process of its own the dataset draws nothing from the loop's global generators.
    alone = Knob("concurrency", 1, minimum=1, maximum=1, unit="calls")
    pipe = source([0], name=READER, prefetch=1).flat_map(
        lists, name=SAMPLES, executor="process", concurrency=1, prefetch=_AHEAD
    )
    return _with_knobs(pipe, {SAMPLES: {"concurrency": alone}})


def _in_parts(arguments: Arguments, make: MakeBatch, workers: LoaderWorkers) -> Pipeline:
    """Return the chain of a dataset that each worker reads a part of, in turn."""
    samples, count = arguments.samples, arguments.num_workers
    size, drop_last = samples.batch_size, samples.drop_last
    read = ReadPart(arguments.dataset, make, size=size, drop_last=drop_last, workers=workers)
    pipes = [
        source([number], name=READER, prefetch=1).flat_map(
            read, name=READ, executor="process", concurrency=1, prefetch=arguments.factor
        )
        for number in range(count)
    ]
    return interleave(pipes, cycle=count, prefetch=1)


# -- chains and their stages -----------------------------------------------------------------------
def head_of(pipe: Pipeline) -> Any:
    """Return what the source of a chain reads: `EpochIndices`, `Batches` or something else."""
    return getattr(pipe.chain[0].spec, "items", None)


def is_local(pipe: Pipeline) -> bool:
    """Return whether the training loop makes the batches of a chain itself."""
    made = addresses(pipe.chain).get(FETCH)
    return made is not None and made.executor == "inline"


def _with_knobs(pipe: Pipeline, known: Mapping[str, Mapping[str, Knob]]) -> Pipeline:
    """Return a chain whose stages have the known knobs of the same name."""
    found = []
    for stage in pipe.chain:
        before = known.get(stage.name, {})
        knobs = {name: before.get(name, knob) for name, knob in stage.knobs.items()}
        found.append(changed(stage, shared=knobs))
    return Pipeline(tuple(found))


def placed_at(pipe: Pipeline, place: CodeLocation | None) -> Pipeline:
    """Return a chain whose stages were all made at one place in the user's code.

    The user gave the knobs of the last stage only, which makes the batches.
    """
    return Pipeline(_placed(pipe.chain, place))


def _placed(chain: Chain, place: CodeLocation | None) -> Chain:
    *others, last = chain
    nothing = frozenset[str]()
    return (
        *(
            changed(
                stage,
                made_at=place,
                given=nothing,
                inputs=tuple(_placed(one, place) for one in stage.inputs),
            )
            for stage in others
        ),
        changed(last, made_at=place, inputs=tuple(_placed(one, place) for one in last.inputs)),
    )
