"""How many items a stage may hold: its places, asked of the nodes themselves."""

import pytest

import nbpipe
from nbpipe.engine.build import Builder
from nbpipe.engine.epoch import Ahead, Epoch
from nbpipe.engine.stats import StageRuntime
from nbpipe.engine.task import Chunk, EpochContext

LOT = 256  # a stage with these knobs takes so many cheap items at once
PREFETCH = 8
CONCURRENCY = 4
EACH_NS = 100
PLACES = PREFETCH + CONCURRENCY * LOT


def built(pipe, runtimes, *, ahead=None):
    """Return an epoch of a pipeline, with the runtimes given."""

    def runtime_of(address, stage, prefetch):
        if address not in runtimes:
            runtimes[address] = StageRuntime(address, stage, prefetch=prefetch, now_ns=0)
            runtimes[address].read_knobs()
        return runtimes[address]

    epoch = Epoch(EpochContext(0, 0), memory=None, remember=lambda failure: None)
    Builder(pipe.chain, epoch, runtime_of if ahead is None else ahead.runtime).build()
    return epoch


def chain():
    """Return a source of many items and one stage behind it."""
    source = nbpipe.source(range(10_000))
    return source.map(abs, concurrency=CONCURRENCY, prefetch=PREFETCH, name="abs")


def fed(node, count=5 * LOT):
    """Let items wait for a node, and say that their calls are cheap."""
    node.inbox.put(Chunk(range(count), list(range(count))))
    for _ in range(50):
        node.runtime.count(0, 1, EACH_NS)
    return node


def done(task):
    """Do a task that was taken, as if each call of it were as cheap as those before."""
    task.perform(task)
    task.started_ns, task.ended_ns = 1, 1 + task.count * EACH_NS
    return task


def test_calls_in_progress_keep_a_place_for_each_item():
    """While calls are cheap a task reserves places for all its items, whether begun or not."""
    node = fed(built(chain(), {}).order[0])
    tasks = [node.take(0) for _ in range(CONCURRENCY - 1)]
    assert [task.count for task in tasks] == [LOT] * (CONCURRENCY - 1)
    assert node.room() == (PLACES - len(tasks) * LOT) // LOT


def test_results_that_wait_for_earlier_ones_keep_their_places():
    """A result that came out of turn has its place as long as it waits."""
    node = fed(built(chain(), {}).order[0])
    first, second = node.take(0), done(node.take(0))
    node.settle(second)
    assert (node.out.count, node.waiting) == (0, LOT)
    assert node.room() == (PLACES - 2 * LOT) // LOT
    node.settle(done(first))
    assert (node.out.count, node.waiting) == (2 * LOT, 0)
    assert node.room() == (PLACES - 2 * LOT) // LOT


def test_call_that_turns_slow_takes_one_item_at_a_time():
    """A stage whose call is seen to take long has one place for each call from that moment."""
    node = fed(built(chain(), {}).order[0])
    task = node.take(0)
    task.started_ns = 1
    node.harvest(task, 10_000_000)
    assert node.runtime.places(lots=True) == PREFETCH + CONCURRENCY


@pytest.mark.parametrize("waits", [0, 3])
def test_an_epoch_read_ahead_borrows_what_is_left(waits):
    """It has the places that a stage has no use for; none where items still wait for it."""
    runtimes = {}
    current = built(chain(), runtimes)
    stage, source = current.order
    ahead = Ahead(runtimes, None)
    ahead.epoch = built(chain(), runtimes, ahead=ahead)
    fed(stage, LOT + waits)
    task = done(stage.take(0))
    source.finish()
    stage.settle(task)
    assert current.drains
    assert ahead.admit(current)
    borrowed = ahead.epoch.order[0]
    assert max(0, borrowed.room()) == (0 if waits else stage.room())
    assert borrowed.runtime.concurrency == (0 if waits else CONCURRENCY)


def test_what_a_batch_gathers_is_not_lent():
    """The items that the next stage gathers for a call have places of their own."""
    runtimes = {}
    pipe = chain().batch(5)
    current = built(pipe, runtimes)
    _, stage, source = current.order
    assert stage.gathers == 5
    ahead = Ahead(runtimes, None)
    ahead.epoch = built(pipe, runtimes, ahead=ahead)
    fed(stage, LOT)
    task = done(stage.take(0))
    source.finish()
    stage.settle(task)
    assert ahead.admit(current)
    borrowed = ahead.epoch.order[1]
    assert borrowed.runtime.places(lots=True) == PLACES - LOT


def test_an_epoch_read_ahead_takes_no_more_at_once_than_the_stage():
    """Where calls of the stage turned slow, an epoch that knew cheap ones begins all the same."""
    runtimes = {}
    built(chain(), runtimes)
    ahead = Ahead(runtimes, None)
    ahead.epoch = built(chain(), runtimes, ahead=ahead)
    assert ahead.admit(None)
    borrowed = fed(ahead.epoch.order[0])
    assert ahead.admit(None)
    assert borrowed.room() == PREFETCH + CONCURRENCY
    assert borrowed.take(0).count == 1
