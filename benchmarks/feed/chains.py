"""Chains: the ways in which items become the loop's batches, each as its users write it.

All knobs stand at their defaults but the number of workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import nbpipe

from ..catalogue import installed_version
from . import work
from .job import Job

Batches = AbstractContextManager[Iterator[Any]]
Opener = Callable[[Job], Batches]


# -- nbpipe ----------------------------------------------------------------------------------------
def _mapped(job: Job, **options: Any) -> nbpipe.Pipeline:
    inputs = work.inputs(job.work, job.batches * job.size, job.photos)
    item = work.ITEMS[job.work]
    return nbpipe.source(inputs).map(item, concurrency=job.workers, **options)


def _as_written(job: Job) -> nbpipe.Pipeline:
    return _mapped(job, executor="process").batch(job.size)


def _joined(job: Job) -> nbpipe.Pipeline:
    return _mapped(job, executor="process").batch(job.size, executor="process")


def _apart(job: Job) -> nbpipe.Pipeline:
    return _mapped(job, executor="process").batch(job.size, executor="thread")


def _lists(job: Job) -> nbpipe.Pipeline:
    inputs = work.inputs(job.work, job.batches * job.size, job.photos)
    lists = [inputs[at : at + job.size] for at in range(0, len(inputs), job.size)]
    call = work.AllOf(work.ITEMS[job.work])
    return nbpipe.source(lists).map(call, executor="process", concurrency=job.workers)


def _threads(job: Job) -> nbpipe.Pipeline:
    return _mapped(job).batch(job.size)


def _ours(build: Callable[[Job], nbpipe.Pipeline], *, isolate: bool = False) -> Opener:
    @contextmanager
    def opened(job: Job) -> Iterator[Iterator[Any]]:
        pipe = build(job)
        if job.device:
            pipe = pipe.to_device(job.device)
        with pipe.start(isolate=isolate) as run:
            yield iter(run)

    return opened


# -- Loaders ---------------------------------------------------------------------------------------
def _loader(make: Callable[..., Any]) -> Opener:
    @contextmanager
    def opened(job: Job) -> Iterator[Iterator[Any]]:
        inputs = work.inputs(job.work, job.batches * job.size, job.photos)
        loader = make(
            work.Samples(work.ITEMS[job.work], inputs),
            batch_size=job.size,
            num_workers=job.workers,
            pin_memory=job.device == "cuda",
        )
        if job.device:
            yield (one.to(job.device, non_blocking=True) for one in loader)
        else:
            yield iter(loader)
        if hasattr(loader, "close"):
            loader.close()

    return opened


def _torch_loader(*args: Any, **options: Any) -> Any:
    return import_module("torch.utils.data").DataLoader(*args, **options)


# -- Peers in modules of their own -----------------------------------------------------------------
def _elsewhere(module: str, way: str) -> Opener:
    def opened(job: Job) -> Batches:
        batches: Batches = getattr(import_module(f"{__package__}.{module}"), way)(job)
        return batches

    return opened


@dataclass(frozen=True, slots=True)
class Chain:
    """One way to feed a loop.

    Attributes:
        key: name in tables.
        text: the way in code, or in words.
        opened: opens it for a job: gives an iterator of batches while it is entered.
        packages: distributions that it needs.
        workers: how many it has at most, whatever the job says; 0 for no limit.
    """

    key: str
    text: str
    opened: Opener
    packages: tuple[str, ...] = ()
    workers: int = 0

    def missing(self) -> str:
        """Return what to install, or an empty text; torch and nbpipe are always there."""
        wanted = [name for name in self.packages if installed_version(name) is None]
        return f"pip install {' '.join(wanted)}" if wanted else ""


def _slots(chunk: int) -> Chain:
    text = f"bare processes write rows into a slab, {chunk} in a message"
    return Chain(f"slots {chunk}", text, _elsewhere("slots", f"opened_{chunk}"))


_PROCESS = 'map(f, executor="process")'
CHAINS = {
    chain.key: chain
    for chain in (
        Chain("torch", "`torch.utils.data.DataLoader`", _loader(_torch_loader)),
        Chain("DataLoader", "`nbpipe.DataLoader`", _loader(nbpipe.DataLoader)),
        Chain("as written", f"`{_PROCESS}.batch(n)`", _ours(_as_written)),
        Chain("joined", f'`{_PROCESS}.batch(n, executor="process")`', _ours(_joined)),
        Chain("apart", f'`{_PROCESS}.batch(n, executor="thread")`', _ours(_apart)),
        Chain("lists", "lists of n items, one batch in each call", _ours(_lists)),
        Chain("isolated", "as written, `isolate=True`", _ours(_as_written, isolate=True)),
        Chain("threads", "`map(f).batch(n)`", _ours(_threads)),
        Chain("4 threads", "the same, 4 threads", _ours(_threads), workers=4),
        _slots(1),
        _slots(8),
        Chain("spdl threads", "SPDL in threads", _elsewhere("spdl", "threads"), ("spdl",)),
        Chain(
            "spdl process",
            "SPDL in threads of a process of its own",
            _elsewhere("spdl", "subprocess"),
            ("spdl",),
        ),
        Chain(
            "spdl pool", "SPDL, batches in a process pool", _elsewhere("spdl", "pool"), ("spdl",)
        ),
        Chain("bare", "bare processes that drop the items", _elsewhere("bare", "opened")),
    )
}


def opened(job: Job) -> Batches:
    """Open the chain of a job."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"needs Linux, got {sys.platform}")
    return CHAINS[job.chain].opened(job)
