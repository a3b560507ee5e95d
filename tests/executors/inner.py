"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.base.seeding import seed_item
from nbpipe.base.threads import ThreadSettings
from nbpipe.engine.nodes.program import FusedPart, FusedProgram
from nbpipe.executors.coroutine import EventLoop
from nbpipe.executors.workers import channel
from nbpipe.executors.workers.channel import IDLE_MESSAGES, Channel, Ring
from nbpipe.executors.workers.launch import (
    METHOD_VARIABLE,
    UNKNOWN_EXIT,
    _own,
    apply_environment,
    capture_environment,
    launch,
)
from nbpipe.executors.workers.memory import (
    HEADER_BYTES,
    Blocks,
    Lease,
    Packer,
    Slab,
    bytes_of,
    open_memory,
    size_class,
    unpack,
)
from nbpipe.executors.workers.pickling import importable
from nbpipe.executors.workers.serialize import captured, load, serialize, warn_if_large
from nbpipe.ops.call import Map

__all__ = [
    "HEADER_BYTES",
    "IDLE_MESSAGES",
    "METHOD_VARIABLE",
    "UNKNOWN_EXIT",
    "Blocks",
    "Channel",
    "EventLoop",
    "FusedPart",
    "FusedProgram",
    "Lease",
    "Map",
    "Packer",
    "Ring",
    "Slab",
    "ThreadSettings",
    "_own",
    "apply_environment",
    "bytes_of",
    "capture_environment",
    "captured",
    "channel",
    "importable",
    "launch",
    "load",
    "open_memory",
    "seed_item",
    "serialize",
    "size_class",
    "unpack",
    "warn_if_large",
]
