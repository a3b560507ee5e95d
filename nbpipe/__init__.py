"""nbpipe: data loading pipelines that you build, watch and tune in a notebook.

pipe = nbpipe.source(paths).shuffle().map(decode, concurrency=8).batch(64)
with pipe.start() as run:
    for batch in run:
        train(batch)
"""

from .engine.failures import Failure
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    CacheError,
    ConcurrentIterationError,
    DuplicateNameError,
    FailureBudgetError,
    KnobError,
    LengthUnknownError,
    MissingExtraError,
    NbpipeError,
    ReentrantRunError,
    RunClosedError,
    RunError,
    StageError,
    StageTimeoutError,
    UnknownKnobError,
    UnknownStageError,
)
from .joins import concat, interleave, mix, zip  # noqa: A004  the field's word
from .knobs import Knob, KnobChange
from .metrics import StageStats
from .operations import Retry
from .pipeline import Pipeline
from .run import Run
from .source import source
from .stage import Stage
from .version import __version__

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CacheError",
    "ConcurrentIterationError",
    "DuplicateNameError",
    "Failure",
    "FailureBudgetError",
    "Knob",
    "KnobChange",
    "KnobError",
    "LengthUnknownError",
    "MissingExtraError",
    "NbpipeError",
    "Pipeline",
    "ReentrantRunError",
    "Retry",
    "Run",
    "RunClosedError",
    "RunError",
    "Stage",
    "StageError",
    "StageStats",
    "StageTimeoutError",
    "UnknownKnobError",
    "UnknownStageError",
    "__version__",
    "concat",
    "interleave",
    "mix",
    "source",
    "zip",
]
