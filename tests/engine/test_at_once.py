"""What threads do to the same things at once; without an interpreter lock they really do."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

import nbpipe
from tests.engine.inner import Unbegun
from tests.gates import HANG_S, drained


def compute_until(happened):
    """Compute, and wait for nothing, until something has happened."""
    end_s = monotonic() + HANG_S
    while not happened.is_set():
        if monotonic() > end_s:
            raise TimeoutError


# -- items of a task -------------------------------------------------------------------------------


def test_an_item_is_drawn_or_taken_back_once():
    """Of the items of a task each goes to its thread or to the one that takes back, in order."""
    with ThreadPoolExecutor(1) as pool:
        for count in range(200):
            items = Unbegun(range(count))
            taken = pool.submit(items.reclaim)
            assert [*items, *taken.result()] == list(range(count))


@pytest.mark.parametrize("kind", ["map", "filter", "source", "flat_map"])
def test_a_chunk_is_freed_while_a_call_computes(kind):
    """The consumer gets all items before one whose call goes on in pure Python."""
    came = threading.Event()

    def work(item):
        if item == 500:
            compute_until(came)
        return item + 1

    source = nbpipe.source(range(600))
    chain = {
        "map": lambda: source.map(work),
        "filter": lambda: source.filter(work),
        "source": lambda: nbpipe.source(lambda: map(work, range(600))),
        "flat_map": lambda: source.take(1).flat_map(lambda _: map(work, range(600))),
    }[kind]()
    expected = list(range(600)) if kind == "filter" else list(range(1, 601))

    def opened(run):
        for item in run:
            if item == expected[499]:
                came.set()
            yield item

    with chain.start() as run:
        assert drained(opened(run)) == expected


@pytest.mark.parametrize("ordered", [True, False])
def test_each_call_is_made_once_while_cheap_calls_turn_slow(ordered):
    """With many threads, and chunks taken back all the time, no item is lost or done twice."""
    called = [[] for _ in range(3)]

    def made(calls):
        def work(item):
            calls.append(item)
            for _ in range(50_000 if item % 150 == 149 else 20):  # some 2 ms among the cheap ones
                pass
            return item

        return work

    pipe = nbpipe.source(range(1500))
    for calls in called:
        pipe = pipe.map(made(calls), concurrency=4, ordered=ordered)
    with pipe.start() as run:
        got = drained(run)
        stats = run.stats()
    assert got == list(range(1500)) if ordered else sorted(got) == list(range(1500))
    assert [Counter(calls) for calls in called] == [Counter(range(1500))] * 3
    assert {stats[name].items_in for name in list(stats)[1:]} == {1500}
