"""Memory: what a run remembers of the way of its items stays bounded."""

import gc

import pytest

import nbpipe
from nbpipe.engine.nodes import provenance
from nbpipe.ops import join
from nbpipe.ops.batch import BatchByCost
from nbpipe.ops.shuffle import Shuffling
from tests.inner import lock_of

pytestmark = pytest.mark.slow

COUNT = 100_000
# Entries of all logs together, once they forgot what the loop has had: of what is on its way, up to
# 1,024 cheap items for each call at once.
AT_MOST = 40_000
BETWEEN = 100_000  # entries while the loop is fast: they are forgotten every now and then
LOGS = (
    provenance.DropLog,
    provenance.ArrivalLog,
    provenance.ChildLog,
    join.ChoiceLog,
    BatchByCost,
    Shuffling,
)


def entries():
    """Count what all logs hold, and the logs."""
    gc.collect()
    # Of each its type alone: some objects of torch warn when they are asked for their class.
    logs = [one for one in gc.get_objects() if issubclass(type(one), LOGS)]
    return sum(map(_size, logs)), len(logs)


def _size(log):
    names = [name for kind in type(log).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [getattr(log, name, None) for name in names]
    values += list(getattr(log, "__dict__", {}).values())
    return sum(_length(value) for value in values)


def _length(value):
    if hasattr(value, "gaps"):
        return len(value.gaps)
    return len(value) if hasattr(value, "__len__") else 0


def check(pipe, count, least):
    """Take items of an epoch: what so many logs and more remember stays bounded, and is let go."""
    with pipe.start() as run:
        items = iter(run)
        for _ in range(count):
            next(items)
        held, found = entries()
        with lock_of(run):
            run._core.life.position.epoch.forget()
        left, _ = entries()
    assert found >= least
    assert held < BETWEEN
    assert left < AT_MOST


def _third(item):
    return item % 3


def _twice(item):
    return (item, item)


def test_filter_buffer_route_and_expansion():
    """A state that nobody asks for does not cost memory for every item."""
    pipe = (
        nbpipe.source(range(COUNT))
        .filter(_third)
        .shuffle(buffer_size=1000)
        .route(_third, {1: lambda c: c.filter(bool), 2: lambda c: c.flat_map(_twice)})
    )
    check(pipe, COUNT * 9 // 10, least=5)


def test_joins():
    """A mix and an interleave forget what they drew."""
    parts = [nbpipe.source(range(COUNT // 2)).filter(_third) for _ in range(2)]
    both = nbpipe.mix(parts, [1, 2])
    pipe = nbpipe.interleave([both, nbpipe.source(range(COUNT // 2)).flat_map(_twice)])
    check(pipe, COUNT, least=5)


def test_repeat():
    """Passes that were had are forgotten, each with its logs."""
    pipe = nbpipe.source(range(100)).filter(_third).shuffle(buffer_size=50).repeat().map(abs)
    check(pipe, COUNT // 3, least=2)


def test_completion_order():
    """In completion order what came early is forgotten, too."""
    pipe = nbpipe.source(range(COUNT)).map(abs, ordered=False, concurrency=4)
    pipe = pipe.filter(_third, ordered=False, concurrency=4)
    pipe = pipe.flat_map(_twice, ordered=False, concurrency=2).batch(8, collate=list)
    check(pipe, COUNT // 7, least=3)


def test_batches_by_cost():
    """Sizes of batches that were had are forgotten."""
    pipe = nbpipe.source(range(COUNT)).filter(_third)
    pipe = pipe.batch(4, cost=_third, collate=list).unbatch().window(3, 2)
    check(pipe, COUNT // 4, least=3)
