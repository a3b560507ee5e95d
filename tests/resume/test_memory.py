"""Memory: what a run remembers of the way of its items stays bounded."""

import nbpipe
from nbpipe.engine import node
from nbpipe.engine.node import _upstream_first
from nbpipe.ops import join
from nbpipe.ops.batch import BatchByCost
from nbpipe.ops.shuffle import Shuffling

COUNT = 100_000
AT_MOST = 20_000  # entries of all logs together, once they forgot what the loop has had
BETWEEN = 100_000  # entries while the loop is fast: they are forgotten every now and then
LOGS = (node.Drops, node.Arrivals, node.Children, join.ChoiceLog, BatchByCost, Shuffling)


def entries(run):
    """Count what all logs of the epoch in progress hold."""
    epoch = run._life.epoch
    nodes = _upstream_first(epoch.last, [], set())
    seen, waiting = set(), list(nodes)
    kept = []
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, LOGS):
            kept.append(one)
        waiting += _parts(one)
    return sum(_size(log) for log in kept), len(kept)


def _parts(one):
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [getattr(one, name, None) for name in names]
    values += list(getattr(one, "__dict__", {}).values())
    wanted = ("nbpipe.engine", "nbpipe.ops")
    return [v for v in values if type(v).__module__.startswith(wanted)]


def _size(log):
    names = [name for kind in type(log).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [getattr(log, name, None) for name in names]
    values += list(getattr(log, "__dict__", {}).values())
    return sum(_length(value) for value in values)


def _length(value):
    if hasattr(value, "gaps"):
        return len(value.gaps)
    return len(value) if hasattr(value, "__len__") else 0


def run_through(pipe, count=COUNT):
    """Take items of an epoch; count what is remembered at its end, and the logs."""
    with pipe.start() as run:
        items = iter(run)
        for _ in range(count):
            next(items)
        held, found = entries(run)
        scheduler, epoch = run._scheduler, run._life.epoch
        with scheduler.lock:
            epoch.forget()
        assert entries(run)[0] < AT_MOST
        return held, found


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
    held, found = run_through(pipe, COUNT * 9 // 10)
    assert found >= 5
    assert held < BETWEEN


def test_joins():
    """A mix and an interleave forget what they drew."""
    parts = [nbpipe.source(range(COUNT // 2)).filter(_third) for _ in range(2)]
    both = nbpipe.mix(parts, [1, 2])
    pipe = nbpipe.interleave([both, nbpipe.source(range(COUNT // 2)).flat_map(_twice)])
    held, found = run_through(pipe, COUNT)
    assert found >= 5
    assert held < BETWEEN


def test_repeat():
    """Passes that were had are forgotten, each with its logs."""
    pipe = nbpipe.source(range(100)).filter(_third).shuffle(buffer_size=50).repeat().map(abs)
    held, found = run_through(pipe, COUNT // 3)
    assert found >= 2
    assert held < BETWEEN


def test_completion_order():
    """In completion order what came early is forgotten, too."""
    pipe = nbpipe.source(range(COUNT)).map(abs, ordered=False, concurrency=4)
    pipe = pipe.filter(_third, ordered=False, concurrency=4)
    pipe = pipe.flat_map(_twice, ordered=False, concurrency=2).batch(8, collate=list)
    held, found = run_through(pipe, COUNT // 7)
    assert found >= 3
    assert held < BETWEEN


def test_batches_by_cost():
    """Sizes of batches that were had are forgotten."""
    pipe = nbpipe.source(range(COUNT)).filter(_third)
    pipe = pipe.batch(4, cost=_third, collate=list).unbatch().window(3, 2)
    held, found = run_through(pipe, COUNT // 4)
    assert found >= 3
    assert held < BETWEEN
