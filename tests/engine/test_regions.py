"""Fused stages: neighbours in workers go through one worker, and change nothing else."""

import os
import time
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbpipe
from tests.gates import Gate, delivered, drained
from tests.strategies import examples


def double(item):
    """Give twice the item."""
    return item * 2


def pid(item):
    """Say which process this is."""
    return (item, os.getpid())


def pids(pair):
    """Say which process the second stage runs in."""
    return (*pair, os.getpid())


def odd(item):
    """Tell odd numbers."""
    return item % 2 == 1


def picky(item):
    """Fail on some items."""
    if item % 7 == 3:
        raise ValueError(f"picky about {item}")
    return item


def source(count=40):
    """Begin a chain of numbers."""
    return nbpipe.source(range(count))


def placed(chain, *steps, **first):
    """Append stages in processes: pairs of a method's name and its arguments."""
    for method, fn, options in steps:
        chain = getattr(chain, method)(fn, executor="process", **(options | first))
        first = {}
    return chain


def test_neighbours_share_one_worker():
    """An item goes through both stages in one process; there are as many as calls."""
    chain = placed(source(), ("map", pid, {}), ("map", pids, {}), concurrency=2)
    with chain.start() as run:
        got = drained(run)
        live = run["pid"].pids
    assert [item for item, *_ in got] == list(range(40))
    assert all(first == second for _, first, second in got)
    assert {first for _, first, _ in got} <= set(live)
    assert len(live) <= 2


def test_apart():
    """With `region=False` a stage has workers and limits of its own."""
    chain = placed(source(), ("map", pid, {}), ("map", pids, {"region": False}))
    with chain.start() as run:
        got = drained(run)
        assert run["pid"].pids != run["pids"].pids
    assert all(first != second for _, first, second in got)


def test_one_concurrency_for_all():
    """Set on any stage of a region, it is set on all; derived pipelines share it, too."""
    decoded = placed(source(), ("map", pid, {}), concurrency=2)
    chain = placed(decoded, ("map", pids, {}))
    chain["pids"].concurrency = 5
    assert (chain["pid"].concurrency, decoded["pid"].concurrency) == (5, 5)


def test_another_concurrency_is_refused():
    """A region has one limit: another value names the way out."""
    chain = placed(source(), ("map", pid, {}), concurrency=2)
    with pytest.raises(nbpipe.ArgumentError, match=r"in the workers of pid.*region=False"):
        placed(chain, ("map", pids, {}), concurrency=3)


def test_only_the_last_stage_holds_results():
    """Behind an inner stage nothing waits, so it has no prefetch; the last one inherits it."""
    chain = placed(source(), ("map", pid, {"prefetch": 3}), ("map", pids, {}))
    assert ("prefetch" in chain["pid"].knobs, chain["pids"].prefetch) == (False, 3)


@pytest.mark.parametrize(
    "options", [{"on_error": "skip"}, {"timeout_s": 5.0}, {"ordered": False}, {"region": False}]
)
def test_what_parts_neighbours(options):
    """Stages that differ in what happens to an item do not share their workers."""
    chain = placed(source(), ("map", pid, {}), ("map", pids, options))
    assert chain["pid"].knobs["concurrency"] is not chain["pids"].knobs["concurrency"]


def test_batch_is_made_where_its_items_are():
    """A worker is given the inputs of a whole batch; batches are what they are without it."""
    plain = source(50).map(double).batch(8)
    chain = placed(source(50), ("map", double, {}), concurrency=3).batch(8, executor="process")
    after = placed(chain, ("map", double, {"name": "after"}))
    with after.start() as run:
        got = drained(run)
        stats = run.stats()
    assert [list(batch) for batch in got] == [list(batch * 2) for batch in plain]
    assert [stats[name].items_out for name in ("double", "batch", "after")] == [50, 7, 7]
    assert [stats[name].items_in for name in ("double", "batch", "after")] == [50, 50, 7]


def test_error_inside_a_region_names_its_stage():
    """Every earlier item is delivered; the error names the stage, the item and the process."""
    chain = placed(source(), ("map", double, {}), ("map", picky, {}), concurrency=2)
    got, error = delivered(chain)
    assert (got, error.stage, error.path) == ([0, 2, 4, 6, 8], "picky", 5)
    assert "".join(traceback.format_exception(error)).count("in picky") == 1


def test_skipped_items_are_counted_where_they_failed():
    """Failures of a region stand in the row of their stage, and in the run's list."""
    skip = {"on_error": "skip"}
    chain = placed(source(), ("map", double, skip), ("map", picky, skip), concurrency=2)
    with chain.start() as run:
        got = drained(run)
        stats, failures = run.stats(), run.failures()
    assert got == [n * 2 for n in range(40) if n * 2 % 7 != 3]
    assert (stats["double"].errors, stats["picky"].errors) == (0, 5)
    assert {failure.stage for failure in failures} == {"picky"}


def test_retries_of_a_region():
    """Only the stage that failed is called again."""
    retry = {"on_error": nbpipe.Retry(2, then="skip")}
    chain = placed(source(), ("map", double, retry), ("map", picky, retry))
    with chain.start() as run:
        drained(run)
        stats = run.stats()
    assert (stats["double"].retries, stats["picky"].retries) == (0, 10)


def test_route_branches_have_regions():
    """Stages of a branch share their workers as elsewhere."""

    def grown(chain):
        return placed(chain, ("map", pid, {}), ("map", pids, {}), concurrency=2)

    chain = source(20).route(lambda item: item % 2, {0: grown, 1: lambda chain: chain.map(double)})
    got = drained(chain)
    assert all(first == second for _, first, second in got[::2])
    assert got[1::2] == [n * 2 for n in range(1, 20, 2)]
    assert chain["pid@0"].knobs["concurrency"] is chain["pids@0"].knobs["concurrency"]


def test_peek_runs_inline():
    """A peek starts no process: all stages run here."""
    chain = placed(source(), ("map", pid, {}), ("map", pids, {}))
    assert list(chain.peek().items) == [(0, os.getpid(), os.getpid())]


def test_repeat_keeps_the_workers():
    """Passes of a repeat go through the same workers."""
    chain = placed(source(10), ("map", pid, {}), concurrency=2).repeat(3)
    with chain.start() as run:
        got = drained(run)
        live = run["pid"].pids
    assert [item for item, _ in got] == list(range(10)) * 3
    assert {process for _, process in got} <= set(live)


STEPS = {
    "double": lambda chain, where: chain.map(double, **where),
    "odd": lambda chain, where: chain.filter(odd, **where),
    "picky": lambda chain, where: chain.map(picky, on_error="skip", **where),
    "repeated": lambda chain, where: chain.flat_map(lambda n: [n] * (n % 3), **where),
    "plus": lambda chain, where: chain.map(lambda n: n + 1, **where),
    "again": lambda chain, where: chain.map(double, name=f"again{len(chain.stages)}"),
}


@settings(max_examples=examples(0.3))
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    batch=st.sampled_from([None, 1, 3, 16]),
    concurrency=st.sampled_from([1, 2]),
    prefetch=st.sampled_from([1, 5]),
)
def test_any_chain_gives_what_threads_give(steps, batch, concurrency, prefetch):
    """Moved to processes, a chain gives the same items in the same order."""

    def built(executor):
        chain = nbpipe.source(range(25))
        for number, step in enumerate(steps):
            where = {"executor": executor}
            if number == 0 and executor == "process":
                where |= {"concurrency": concurrency, "prefetch": prefetch}
            chain = STEPS[step](chain, where)
        return chain if batch is None else chain.batch(batch, collate=list, executor=executor)

    assert drained(built("process")) == drained(built("thread"))


def test_a_job_that_turns_slow_hands_over_what_it_has():
    """Cheap items are sent several at once; when one turns slow, those before it come out."""
    gate = Gate()

    def work(item):
        if item == 200:
            gate.wait()
        elif item > 180:
            time.sleep(0.03)
        return item

    chain = nbpipe.source(range(240), prefetch=64).map(work, executor="process", prefetch=60)
    with chain.start() as run:
        items = iter(run)
        got = [next(items) for _ in range(200)]
        gate.open()
        got += drained(items)
    assert got == list(range(240))
