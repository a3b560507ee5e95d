"""An interrupt at any moment: nothing is lost, nothing hangs, nothing stays."""

import _thread
import sys
import threading

import pytest

import nbpipe
from tests.gates import HANG_S, finished, still_alive, until
from tests.interrupts import interrupted_everywhere

SWITCH_S = sys.getswitchinterval()


@pytest.fixture(autouse=True)
def hit_finalisers(monkeypatch):
    """Let an interrupt of a finaliser be lost: it is sent again, or hit where none can catch it."""
    told = sys.unraisablehook

    def tell(what):
        if what.exc_type is not KeyboardInterrupt:
            told(what)

    monkeypatch.setattr(sys, "unraisablehook", tell)
    monkeypatch.setattr(_thread, "interrupt_main", lambda: None)


async def awaited(item):
    """Give the item from a coroutine."""
    return item


def doubled(item):
    """Double an item."""
    return 2 * item


def threads():
    """Stages in threads."""
    return nbpipe.source(range(12)).map(doubled, concurrency=2).batch(3, collate=list)


def coroutines():
    """A stage on the event loop."""
    return nbpipe.source(range(12)).map(awaited, concurrency=3).batch(3, collate=list)


def processes():
    """A stage in worker processes."""
    return nbpipe.source(range(12)).map(doubled, executor="process").batch(3, collate=list)


def joined():
    """A join, and stages that keep items."""
    pipe = nbpipe.mix([nbpipe.source(range(6)), nbpipe.source(range(6, 12))])
    return pipe.shuffle(buffer_size=4).flat_map(lambda n: [n]).batch(3, collate=list)


def items_of(batches):
    """Give the items of batches."""
    return [item for batch in batches for item in batch]


def iterate(run):
    """Iterate an epoch."""
    for _ in run:
        pass


def turn_and_look(run):
    """Turn a knob, look and stop."""
    items = iter(run)
    next(items)
    run["doubled"].concurrency = 4
    assert run.stats()
    assert run.state_dict()
    run["doubled"].concurrency = 1
    run.stop()


def pause_and_go_on(run):
    """Pause, and go on."""
    items = iter(run)
    run.pause()
    run.resume()
    next(items)
    items.close()


def open_and_load(run):
    """Push indices."""
    with run.open_epoch() as epoch:
        epoch.load([3, 1, 2])
        assert next(epoch)


def iterate_and_skip(run):
    """Iterate an epoch, begin the one that was read ahead, leave it, throw away the next."""
    iterate(run)
    items = iter(run)
    next(items)
    items.close()
    iterate(run)
    run.set_epoch(7)


def train(run):
    """Train in the background, and wait."""
    run.train(lambda _: None)
    run.wait()


def left_behind():
    """Name the threads of nbpipe that do not end, and a switch interval that is not put back."""
    left = [t for t in threading.enumerate() if t.name.startswith("nbpipe")]
    alive = still_alive(left)
    changed = [] if sys.getswitchinterval() == SWITCH_S else [sys.getswitchinterval()]
    return alive + changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "act", "step", "option"),
    [
        (threads, iterate, 1, ""),
        (coroutines, iterate, 3, ""),
        (joined, iterate, 5, ""),
        (processes, iterate, 600, ""),
        (threads, iterate, 500, "isolate"),
        (threads, turn_and_look, 3, ""),
        (threads, turn_and_look, 500, "isolate"),
        (threads, pause_and_go_on, 3, ""),
        (threads, open_and_load, 3, ""),
        (threads, train, 3, ""),
        (threads, iterate_and_skip, 50, "read_ahead"),
        (joined, iterate_and_skip, 90, "read_ahead"),
    ],
)
def test_next_epoch_is_whole(chain, act, step, option):
    """Wherever a run is hit, its next epoch is whole; it closes, and nothing of it is left."""
    pipe = chain()
    with pipe.start() as run:
        whole = sorted(items_of(run))

    def begun():
        return pipe.start(**({option: True} if option else {}))

    for run, where in interrupted_everywhere(begun, act, step=step):
        run.stop()
        run.resume()
        assert run.wait(HANG_S), where
        assert sorted(items_of(run)) == whole, where
        run.close()
        assert left_behind() == [], where


@pytest.mark.parametrize("option", [{}, {"isolate": True}, {"read_ahead": True}])
def test_an_epoch_that_has_begun_and_is_not_known(monkeypatch, option):
    """One whose first calls run as the interrupt comes is over, wherever its stages are."""
    with threads().start(**option) as run:
        start = run._core.life.engine.epochs.start

        def hit(*place, **how):
            epoch = start(*place, **how)
            until(lambda: epoch.output.queue.count)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(run._core.life.engine.epochs, "start", hit)
            with pytest.raises(KeyboardInterrupt):
                iter(run)
        again = finished(lambda: [items_of(run), items_of(run)])
    assert again == [[2 * n for n in range(12)]] * 2


@pytest.mark.parametrize(("chain", "step"), [(threads, 5), (coroutines, 5), (joined, 13)])
def test_iterator_goes_on(chain, step):
    """Wherever `next` is hit, the iterator goes on with the item that is next."""
    pipe = chain()
    with pipe.start() as run:
        whole = items_of(run)

    def begun():
        run = pipe.start()
        return run, iter(run), []

    def take(subject):
        _, items, got = subject
        for batch in items:
            got.append(batch)

    for (run, items, got), where in interrupted_everywhere(begun, take, step=step):
        got.extend(items)
        assert items_of(got) == whole, where
        run.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "step"), [(threads, 1), (coroutines, 2), (joined, 3), (processes, 20)]
)
def test_interrupted_close_leaves_nothing(chain, step):
    """Wherever `close` is hit, the rest is done all the same."""
    pipe = chain()

    def used():
        run = pipe.start()
        next(iter(run))
        return run

    for run, where in interrupted_everywhere(used, nbpipe.Run.close, step=step):
        run.close()
        assert left_behind() == [], where
