"""The chain that one would write by hand in the place of a loader: what its export writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

from ..base.knobs import Knob
from ..errors import ExportError
from ..ops.stage import CodeLocation, changed
from ..pipeline import Pipeline
from ..sources import source
from .chain import SAMPLES, only_seeds, with_knobs
from .state import Samples

_INDICES = "indices"


# -- What an export writes as functions of the module: no more than their text is read -------------
def _reading(dataset: Any, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fetch(indices: list[int]) -> object:
        """Read the samples of a batch, and collate them."""
        return collate([dataset[index] for index in indices])

    return fetch


def _reading_at_once(dataset: Any, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fetch(indices: list[int]) -> object:
        """Read the samples of a batch at once, and collate them."""
        return collate(dataset.__getitems__(indices))

    return fetch


def _reading_one(dataset: Any, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fetch(index: int) -> object:
        """Read a sample."""
        return convert(dataset[index])

    return fetch


def _of_user(function: Any, namespace: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function as if it stood in the user's namespace, whose names it captures."""
    return FunctionType(function.__code__, namespace, "fetch", None, function.__closure__)


# -- The chain -------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlainChain:
    """A loader as one would write it without it.

    Attributes:
        pipeline: of public operations alone; its batches are those of the loader.
        counted: by the name of a source of numbers: what has as many items.
        notes: what differs, each in one sentence.
    """

    pipeline: Pipeline
    counted: Mapping[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        torch: Any,
        dataset: Any,
        samples: Samples,
        collate: Callable[[Any], Any],
        *,
        reads: bool,
        how: Mapping[str, Any],
        knobs: Mapping[str, Knob],
        made_at: CodeLocation | None,
        notes: tuple[str, ...],
    ) -> PlainChain:
        """Write the chain of a loader.

        Args:
            torch: the module.
            dataset: what it reads.
            samples: which of it make which batch.
            collate: makes a batch of samples.
            reads: the dataset is iterable, and read once.
            how: options of the stage that makes batches.
            knobs: those of the loader, which it shares.
            made_at: where the loader was made; its names stand for the dataset and the functions.
            notes: what is said besides.

        Raises:
            ExportError: a sampler that belongs to one rank.
        """
        if reads:
            items = source(dataset, name=SAMPLES)
            pipe = items if samples.batch_size is None else _batched(items, samples)
            counted: dict[str, Any] = {}
            made = collate
        else:
            pipe, counted, seed = _indices(torch.utils.data, dataset, samples)
            namespace = vars(sys.modules["__main__"]) if made_at is None else made_at.namespace
            made = _fetching(dataset, samples, collate, namespace)
            notes = notes if seed is None else (_SHUFFLED.format(seed=seed), *notes)
        pipe = with_knobs(pipe.map(made, name="fetch", **how), {"fetch": knobs})
        chain = tuple(changed(stage, made_at=made_at) for stage in pipe.chain)
        return cls(pipeline=Pipeline(chain), counted=counted, notes=notes)


_SHUFFLED = (
    "shuffle=True became .shuffle(seed={seed}): the order depends on that seed and the epoch, no "
    "longer on torch.manual_seed"
)


def _indices(
    data: Any, dataset: Any, samples: Samples
) -> tuple[Pipeline, dict[str, Any], int | None]:
    """Return what gives the indices, what they are the numbers of, and the seed of a shuffle."""
    sampler, seed = samples.sampler, None
    if isinstance(sampler, data.distributed.DistributedSampler):
        raise ExportError(
            "a DistributedSampler belongs to one rank, which no module is for; write the chain "
            "with a share for each rank: nbpipe.source(range(len(dataset))).shuffle(seed=0).shard()"
        )
    if samples.chosen_by_user:
        return source(samples.batch_sampler, name=_INDICES), {}, None
    counted = {_INDICES: dataset}
    if type(sampler) is data.SequentialSampler:
        pipe = source(range(len(dataset)), name=_INDICES)
    elif _permutes(data, sampler, dataset):
        generator = sampler.generator
        seed = 0 if generator is None else generator.initial_seed()
        pipe = source(range(len(dataset)), name=_INDICES).shuffle(seed=seed)
    else:
        pipe, counted = source(sampler, name=_INDICES), {}
    return (_batched(pipe, samples) if samples.batched else pipe), counted, seed


def _permutes(data: Any, sampler: Any, dataset: Any) -> bool:
    """Tell whether a sampler gives each index once, in a random order."""
    if type(sampler) is not data.RandomSampler or sampler.replacement:
        return False
    return bool(sampler.num_samples == len(dataset))


def _batched(pipe: Pipeline, samples: Samples) -> Pipeline:
    assert samples.batch_size is not None
    return pipe.batch(samples.batch_size, drop_last=samples.drop_last, collate=list)


def _fetching(
    dataset: Any, samples: Samples, collate: Callable[[Any], Any], namespace: dict[str, Any]
) -> Callable[[Any], Any]:
    if not samples.batched:
        return _of_user(_reading_one(dataset, collate), namespace)
    at_once = getattr(dataset, "__getitems__", None) is not None
    reading = _reading_at_once if at_once else _reading
    return _of_user(reading(dataset, collate), namespace)


def seeding_note(init: Callable[[int], object]) -> str:
    """Tell what becomes of a `worker_init_fn` that only seeds.

    Raises:
        ExportError: it does more.
    """
    if only_seeds(init):
        return (
            "worker_init_fn was left out, as it only seeds: calls in worker processes are seeded "
            "by the run's seed, the epoch and the item"
        )
    raise ExportError(
        "worker_init_fn is called with the number of a worker, which a chain does not have; leave "
        "it out, and prepare a worker with map(..., worker_init=), which takes no argument"
    )
