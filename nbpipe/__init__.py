"""nbpipe: data loading pipelines that you build, watch and tune in a notebook.

pipe = nbpipe.source(paths).shuffle().map(decode, concurrency=8).batch(64)
with pipe.start() as run:
    for batch in run:
        train(batch)
"""

import sys
from typing import TYPE_CHECKING

from . import debug, metrics, ranks
from .base.knobs import Knob, KnobChange
from .base.seeding import WorkerInfo, worker_info
from .engine.measures.stats import StageStats
from .engine.nodes.failures import Failure
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    CacheError,
    ConcurrentIterationError,
    DuplicateNameError,
    EpochClosedError,
    ExecutorBrokenError,
    ExportError,
    FailureBudgetError,
    FrontEndMissingError,
    KnobError,
    LengthUnknownError,
    MissingExtraError,
    ModuleEditedError,
    NbpipeError,
    ReentrantRunError,
    RemoteError,
    RunClosedError,
    RunError,
    StageError,
    StageTimeoutError,
    StateError,
    UnknownKnobError,
    UnknownStageError,
    UnpicklableError,
    WorkerDiedError,
    WorkerStartError,
)
from .loading import load
from .metrics.log import log_every
from .ops.call import Retry
from .ops.stage import Stage
from .pipeline import Pipeline, concat, interleave, mix, source, zip  # noqa: A004 - the field's own word
from .profiling.profiler import profile
from .progress import progress
from .run.run import Run, close_all, runs
from .version import __version__

if TYPE_CHECKING:
    from .dataloader.loader import DataLoader
    from .executors.dask import DaskExecutor

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CacheError",
    "ConcurrentIterationError",
    "DaskExecutor",
    "DataLoader",
    "DuplicateNameError",
    "EpochClosedError",
    "ExecutorBrokenError",
    "ExportError",
    "Failure",
    "FailureBudgetError",
    "FrontEndMissingError",
    "Knob",
    "KnobChange",
    "KnobError",
    "LengthUnknownError",
    "MissingExtraError",
    "ModuleEditedError",
    "NbpipeError",
    "Pipeline",
    "ReentrantRunError",
    "RemoteError",
    "Retry",
    "Run",
    "RunClosedError",
    "RunError",
    "Stage",
    "StageError",
    "StageStats",
    "StageTimeoutError",
    "StateError",
    "UnknownKnobError",
    "UnknownStageError",
    "UnpicklableError",
    "WorkerDiedError",
    "WorkerInfo",
    "WorkerStartError",
    "__version__",
    "close_all",
    "concat",
    "debug",
    "interleave",
    "load",
    "log_every",
    "metrics",
    "mix",
    "profile",
    "progress",
    "ranks",
    "runs",
    "source",
    "worker_info",
    "zip",
]


def __getattr__(name: str) -> object:
    if name == "DaskExecutor":
        from .executors.dask import DaskExecutor

        return DaskExecutor
    if name == "DataLoader":
        from .dataloader.loader import DataLoader

        return DataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def load_ipython_extension(ip: object) -> None:
    """Register what a notebook needs: `%load_ext nbpipe`, or the import in a kernel."""
    from .jupyter import cells

    cells.load_ipython_extension(ip)


def unload_ipython_extension(ip: object) -> None:
    """Undo `load_ipython_extension`: `%unload_ext nbpipe`."""
    from .jupyter import cells

    cells.unload_ipython_extension(ip)


def _load_in_kernel() -> None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        load_ipython_extension(shell)


_load_in_kernel()
