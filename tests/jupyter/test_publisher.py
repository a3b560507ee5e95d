"""The thread that keeps open panels up to date."""

import gc
import logging
import threading

import pytest

import nbpipe
from tests.gates import finished
from tests.jupyter.inner import Publisher, RunChannel


class Feed:
    """A feed that is wanted for so many looks."""

    def __init__(self, looks, error=None):
        self.left = looks
        self.error = error
        self.published = 0
        self.over = threading.Event()

    @property
    def wanted(self):
        if self.left == 0:
            self.over.set()
        return self.left > 0

    def publish(self):
        self.left -= 1
        self.published += 1
        if self.error:
            raise self.error


@pytest.fixture
def publisher():
    """Give a publisher that hardly waits."""
    return Publisher(tick_s=0.001)


def ended(publisher, *feeds):
    """Wait until feeds are no longer wanted, and the thread is gone."""
    for feed in feeds:
        feed.over.wait()
    while (thread := publisher._thread) is not None:
        thread.join()


def test_feeds_publish_while_they_are_wanted(publisher):
    """Each feed publishes until nobody looks; then the thread ends."""
    feeds = [Feed(3), Feed(5)]
    for feed in feeds:
        publisher.add(feed)
    ended(publisher, *feeds)
    assert [feed.published for feed in feeds] == [3, 5]


def test_feed_may_come_again(publisher):
    """After the thread has ended, a feed that is added starts it anew."""
    feed = Feed(1)
    publisher.add(feed)
    ended(publisher, feed)
    feed.left = 2
    feed.over.clear()
    publisher.add(feed)
    ended(publisher, feed)
    assert feed.published == 3


def test_feed_that_fails_is_left_alone(publisher, caplog):
    """A feed that fails is dropped, with one entry in the log; the others go on."""
    caplog.set_level(logging.ERROR, "nbpipe")
    good, bad = Feed(3), Feed(3, error=OSError("comm is closed"))
    publisher.add(bad)
    publisher.add(good)
    ended(publisher, good)
    found = (good.published, bad.published, len(caplog.records))
    assert found == (3, 1, 1)


class Watching(Feed):
    """A feed that looks once at what was told before it."""

    def __init__(self, told):
        super().__init__(1)
        self.told = told

    def publish(self):
        super().publish()
        self.told.append("list")


def test_feed_of_one_run_publishes_before_the_list_of_all(publisher):
    """The list looks at what the others published, however long it has been there."""
    told = []
    every = Watching(told)
    with nbpipe.source([1]).start() as run:
        one = RunChannel(run, lambda message: told.append(message["type"]))
        one.receive({"op": "view", "id": 1, "view": "a", "open": True})
        run.pause()
        publisher._feeds[id(every)] = every
        publisher.add(one)
        every.over.wait()
        one.close()
        ended(publisher)
    assert told == ["hello", "tick", "list"]


class Garbage(Feed):
    """A feed that is only found by the garbage collector, and discards itself then."""

    def __init__(self, publisher):
        super().__init__(-1)
        self.publisher = publisher
        self.itself = self

    def __del__(self):
        self.publisher.discard(self)


class Collecting(Feed):
    """A feed during whose look garbage is found."""

    @property
    def wanted(self):
        Garbage(self.publisher)
        gc.collect(0)  # the youngest alone: all that a long session holds takes a second
        return super().wanted


def test_garbage_may_be_discarded_anywhere(publisher):
    """A collection while feeds are looked at, which discards one, holds nobody up."""
    feeds = [Collecting(5), Collecting(9)]
    for feed in feeds:
        feed.publisher = publisher
        publisher.add(feed)
        publisher.add(Garbage(publisher))
    finished(ended, publisher, *feeds)
    assert [feed.published for feed in feeds] == [5, 9]


def test_garbage_may_be_discarded_by_a_thread_that_begins(publisher, monkeypatch):
    """It is found before the thread has told that it began, while another one waits for that."""
    began, feed = threading.Event.set, Feed(3)

    def begin(event):
        if publisher._thread and publisher._thread.ident == threading.get_ident():
            publisher.discard(Feed(0))
        began(event)

    monkeypatch.setattr(threading.Event, "set", begin)
    finished(publisher.add, feed)
    finished(ended, publisher, feed)
    assert feed.published == 3
