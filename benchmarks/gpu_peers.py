"""GPU peers: who brings batches from the host to a CUDA device, and how each is set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

DEVICE = "cuda"
DEPTH = 2

Batches = AbstractContextManager[Iterator[Any]]
Peer = Callable[[Sequence[Any], int], Batches]


class Held:
    """A map-style dataset of batches that are there already, given in turn.

    Args:
        batches: on the host.
        count: how many are given in all.
    """

    def __init__(self, batches: Sequence[Any], count: int) -> None:
        self._batches = batches
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Give a batch."""
        if index >= self._count:
            raise IndexError(index)
        return self._batches[index % len(self._batches)]


def open_bare(batches: Sequence[Any], count: int) -> Batches:
    """Copy in the loop's own thread, on the loop's own stream."""
    held = Held(batches, count)
    return nullcontext(held[n].to(DEVICE, non_blocking=True) for n in range(count))


def open_on_device(batches: Sequence[Any], count: int) -> Batches:
    """Give batches that lie on the device already."""
    there = [batch.to(DEVICE) for batch in batches]
    return nullcontext(iter(Held(there, count)))


@contextmanager
def open_nbpipe(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Copy in the run's thread, on the run's stream."""
    import nbpipe

    pipe = nbpipe.source(Held(batches, count)).to_device(DEVICE, depth=DEPTH)
    with pipe.start() as run:
        yield iter(run)


@contextmanager
def open_spdl(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Copy in a thread that SPDL's own transfer keeps for its stream."""
    from spdl.io import transfer_tensor_h2d
    from spdl.pipeline import PipelineBuilder

    held = Held(batches, count)
    with ThreadPoolExecutor(1) as thread:
        pipeline = (
            PipelineBuilder[Any, Any]()
            .add_source(held[n] for n in range(count))
            .pipe(transfer_tensor_h2d, executor=thread)
            .add_sink(DEPTH)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield iter(pipeline)


@contextmanager
def open_torch(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Let a DataLoader with two workers pin the batches; the loop copies them."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Held(batches, count),
        batch_size=None,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=DEPTH,
    )
    yield (batch.to(DEVICE, non_blocking=True) for batch in loader)


PEERS: dict[str, Peer] = {
    "nbpipe": open_nbpipe,
    "spdl": open_spdl,
    "torch": open_torch,
}
