"""What threads do to the same things at once; without an interpreter lock they really do."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

import nbpipe
from tests.gates import HANG_S, drained, until


def compute_until(happened):
    """Compute, and wait for nothing, until something has happened."""
    end_s = monotonic() + HANG_S
    while not happened.is_set():
        if monotonic() > end_s:
            raise TimeoutError


# -- items of a task ---------------------------------------------------------------------------


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


# -- states ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "stage",
    [
        lambda pipe: pipe.dedupe(lambda item: item % 1000, 100),
        lambda pipe: pipe.batch(6, cost=lambda item: item % 4, collate=tuple),
        lambda pipe: pipe.shuffle(buffer_size=50, seed=1),
        lambda pipe: pipe.window(3),
        lambda pipe: pipe.filter(lambda item: item % 3),
        lambda pipe: pipe.flat_map(lambda item: [item] * (item % 3)),
    ],
    ids=["dedupe", "cost", "shuffle", "window", "filter", "flat_map"],
)
def test_a_state_is_whole_whatever_moment_it_is_taken_at(stage):
    """Another thread takes states while items go through; those looked at go on exactly."""
    pipe = stage(nbpipe.source(range(1500)))
    with pipe.start() as run:
        expected = drained(run)
    states, over = [], threading.Event()
    with pipe.start() as run:

        def take():
            while not over.is_set():
                states.append(run.state_dict())

        def watched():
            for number, item in enumerate(run):
                yield item
                if number == 50:  # the other thread has had its turn by now, and goes on
                    before = len(states)
                    until(lambda before=before: len(states) > before + 1)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(take)
            try:
                assert drained(watched()) == expected
            finally:
                over.set()
    inside = [state for state in states if state["epoch"] == 0]
    assert any(state["delivered"] for state in inside)
    for state in inside[:: max(1, len(inside) // 5)]:
        with pipe.start() as run:
            run.load_state_dict(state)
            rest = drained(run)
        assert rest == expected[len(expected) - len(rest) :]
        assert state["delivered"] == len(expected) - len(rest)
