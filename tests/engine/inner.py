"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.base import gil
from nbpipe.base.gil import Switches
from nbpipe.base.threads import Latch
from nbpipe.engine.epoch import Epoch
from nbpipe.engine.measures.consumer import Consumer
from nbpipe.engine.measures.counters import SAMPLE_NS, WINDOW_NS, Counters, StageRuntime, stats_of
from nbpipe.engine.measures.record import TICKS_KEPT, RunRecord
from nbpipe.engine.measures.stats import RunStats, Status
from nbpipe.engine.measures.step_time import CORES, LOCK, UNKNOWN, StepTimes, Usage
from nbpipe.engine.nodes import node, program
from nbpipe.engine.nodes.step import Unbegun
from nbpipe.engine.ticker import Ticker

__all__ = [
    "CORES",
    "LOCK",
    "SAMPLE_NS",
    "TICKS_KEPT",
    "UNKNOWN",
    "WINDOW_NS",
    "Consumer",
    "Counters",
    "Epoch",
    "Latch",
    "RunRecord",
    "RunStats",
    "StageRuntime",
    "Status",
    "StepTimes",
    "Switches",
    "Ticker",
    "Unbegun",
    "Usage",
    "gil",
    "node",
    "program",
    "stats_of",
]
