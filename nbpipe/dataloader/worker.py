"""Worker processes of a loader: their numbers and seeds, and what `get_worker_info()` returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, final

from ..base.checks import refuse_coroutine
from ..base.seeding import seed_item, worker_info
from .seeds import Seeds, is_alike, only_seeds


@final
class LoaderWorkers:
    """The worker processes of one loader; each process has a copy.

    Args:
        torch_worker: `torch.utils.data._utils.worker`; with it, torch is loaded in the workers.
        seed: of worker 0; worker 1 has the next number, and so on.
        count: number of workers, as `get_worker_info()` gives it.
        init: called with its number in each worker before its first item, or None.
        fixed: each worker has its part of the dataset; otherwise any worker makes any batch.
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
        """Begin a call in this process, the worker of this number, with its copy of the dataset."""
        call = worker_info()
        if not self._begun:
            self._begun = True
            if self._init is not None:
                self._call(self._init, number, dataset)
            self._torch_worker._worker_info = self._info(number, dataset)
            if call is not None:
                seed_item(call.seed)  # no item may depend on its worker
        if self._seeds is not None:
            self._seeds.apply()

    def _call(self, init: Callable[[int], object], number: int, dataset: object) -> None:
        """Call the user's `worker_init_fn`, with torch's seed of the worker in force.

        A function that only seeds is called as in worker 0, so that its seeds hold in all workers.
        """
        alike = self._fixed or is_alike(init)
        holds = alike or only_seeds(init)
        number = number if alike or not holds else 0
        self._torch_worker._worker_info = self._info(number, dataset)
        seed_item(self._seed + number)
        seeds = Seeds(sys.modules["torch"])  # loaded: the pickle of this object names it
        with seeds.watched():
            refuse_coroutine("worker_init_fn", init(number))
        self._seeds = seeds if holds else None

    def _info(self, number: int, dataset: object) -> Any:
        seed = self._seed + number
        kind: Any = self._torch_worker.WorkerInfo
        return kind(id=number, num_workers=self._count, seed=seed, dataset=dataset)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Have `get_worker_info()` return None in the `with` block."""
        known = self._torch_worker
        info, known._worker_info = known._worker_info, None
        try:
            yield
        finally:
            known._worker_info = info


# -- a dataset that asks which worker reads it -----------------------------------------------------
_WANTS = (
    "the dataset calls get_worker_info(), so each worker reads a part of it, which the loader "
    "finds out in its first epoch: iterate the loader before its pipeline"
)


class WantsWorkersError(BaseException):
    """A dataset that one process reads asked which worker it is: it is to be read in parts.

    Not an `Exception`, so that handlers of the dataset's own do not catch it.
    """


@contextmanager
def asking_refused(torch_worker: ModuleType) -> Iterator[None]:
    """Have `get_worker_info()` of this worker process raise in the `with` block.

    The function's code is replaced, not its name: modules hold the function itself.

    Args:
        torch_worker: `torch.utils.data._utils.worker`.

    Raises:
        WantsWorkersError: it was called, even if the dataset caught the error.
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
