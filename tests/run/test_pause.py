"""A loop that waits in a pause rests, and hears what a front end asks for meanwhile."""

import itertools

import pytest

import nbpipe
from tests.gates import Gate, drained, finished, quiet, stage
from tests.inner import call_between_waits

COUNT, HAD = 40, 3


class Clicks:
    """What a kernel calls between the waits of its cell: at the third look in a pause, a click."""

    def __init__(self, run, click):
        self.run = run
        self.click = click
        self.looks = 0
        call_between_waits(run, self.look)

    def look(self):
        """Look for a click."""
        if self.run.paused:
            self.looks += 1
            if self.looks == 3:
                self.click(self.run)


def paused_loop(run, items):
    """Take some items, pause when the last queue is full, and take the rest; give all of them."""
    got = list(itertools.islice(items, HAD))
    quiet(run)
    run.pause()
    return got + drained(items)


def same(number):
    """Do nothing."""
    return number


def plain(**options):
    """Start a run of numbers of which some are ready for the loop."""
    return nbpipe.source(range(COUNT)).map(same, prefetch=8).start(**options)


def joined():
    """Start a run whose last stage moves items when the loop asks for one."""
    return nbpipe.concat(nbpipe.source(range(20)), nbpipe.source(range(20, COUNT))).start()


WAYS = {
    "map": plain,
    "source": lambda: nbpipe.source(range(COUNT)).start(),
    "join": joined,
    "memory": lambda: plain(memory="1 MB"),
    "isolate": lambda: plain(isolate=True),
    "read ahead": lambda: plain(read_ahead=True),
}
CLICKS = {
    "resume": (lambda run: run.resume(), COUNT),
    "stop": (lambda run: run.stop(), HAD),
    "close": (lambda run: run.close(), HAD),
}


@pytest.mark.parametrize("click", CLICKS)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "isolate")) for way in WAYS]
)
def test_a_click_is_heard_while_items_are_ready(way, click):
    """Resume, Stop and Close reach a loop that waits in a pause with items in the last queue."""
    act, count = CLICKS[click]
    with WAYS[way]() as run:
        clicks = Clicks(run, act)
        assert paused_loop(run, iter(run)) == list(range(count))
    assert clicks.looks == 3


@pytest.mark.parametrize("click", CLICKS)
def test_a_click_is_heard_while_nothing_is_ready(click):
    """So they do where the last queue is empty, and a call is in progress."""
    act, count = CLICKS[click]
    gate = Gate()

    def let_go(run):
        gate.open()
        act(run)

    work = stage("thread", gate=lambda number: gate if number == HAD else None)
    with nbpipe.source(range(COUNT)).map(work).start() as run:
        Clicks(run, let_go)
        items = iter(run)
        got = list(itertools.islice(items, HAD))
        run.pause()
        assert got + drained(items) == list(range(count))


@pytest.mark.parametrize("click", CLICKS)
@pytest.mark.torch
def test_a_click_is_heard_by_a_loader_without_workers(click):
    """Batches that are made in the loop's own thread wait in a pause, and end with a close."""
    act, count = CLICKS[click]
    loader = nbpipe.DataLoader(range(COUNT), None)
    clicks = Clicks(loader.run, act)
    items = iter(loader)
    got = list(itertools.islice(items, HAD))
    loader.run.pause()
    assert (got + drained(items), clicks.looks) == (list(range(count)), 3)


def test_a_click_is_heard_by_a_load():
    """A load that waits for room in a pause hears Resume."""
    with nbpipe.source(range(COUNT)).start() as run, run.open_epoch(depth=1) as epoch:
        Clicks(run, lambda run: run.resume())
        run.pause()
        finished(lambda: [epoch.load([number]) for number in range(HAD)])
        epoch.end()
        assert drained(epoch) == list(range(HAD))


def test_a_click_is_heard_by_a_wait_for_a_training():
    """So does `run.wait()`, while the loop waits in a thread."""
    done = []

    def step(number):
        done.append(number)
        if number == HAD:
            run.pause()

    with plain() as run:
        Clicks(run, lambda run: run.resume())
        assert finished(run.train(step).wait)
    assert done == list(range(COUNT))


def test_a_loop_asks_once_in_a_pause(monkeypatch):
    """It sleeps until the pause is over: a paused run takes no processor time."""
    with plain() as run:
        asked, have_next = [], run._core.life.scheduler.have_next

        def count(epoch):
            asked.append(run.paused)
            return have_next(epoch)

        monkeypatch.setattr(run._core.life.scheduler, "have_next", count)
        Clicks(run, lambda run: run.resume())
        paused_loop(run, iter(run))
        assert asked.count(True) == 1
