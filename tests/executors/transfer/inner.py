"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.base.collate import collate
from nbpipe.base.tree import leaves
from nbpipe.executors.device import device
from nbpipe.executors.device.backend import PinnedMemory
from nbpipe.executors.device.flight import CopyTracker
from nbpipe.executors.workers.memory import LINUX
from nbpipe.ops.stage import addresses
from nbpipe.show.picture import knob_words, worker_words
from nbpipe.show.verdict.decide import decide

__all__ = [
    "LINUX",
    "CopyTracker",
    "PinnedMemory",
    "addresses",
    "collate",
    "decide",
    "device",
    "knob_words",
    "leaves",
    "worker_words",
]
