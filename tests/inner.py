"""Parts behind the public names that tests of several folders reach, each named here alone.

A test says what a user can see. Some promises are about what no user sees: which lock is held, or
which numbers an order is drawn with.
"""

from nbpipe.base.seeding import generator_for, order_generator
from nbpipe.base.threads import FREE_THREADED, holds
from nbpipe.show.snapshot import snapshot

__all__ = [
    "FREE_THREADED",
    "call_between_waits",
    "engine_of",
    "generator_for",
    "holds",
    "holds_lock",
    "lock_of",
    "order_generator",
    "snapshot",
]


def lock_of(run):
    """Give the lock under which a run hands out its work."""
    return run._core.life.scheduler.lock


def holds_lock(run):
    """Return whether this thread holds the lock of a run."""
    return holds(lock_of(run))


def engine_of(run):
    """Give what lets the workers of a run rest, and knows its process."""
    return run._core.engine


def call_between_waits(run, function):
    """Have the loop call a function before it takes an item, and while it waits for one."""
    run.between_waits = function
