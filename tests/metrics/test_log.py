"""log_every calls a function with five numbers, in the thread that iterates."""

import gc
import threading
import weakref

import pytest

import nbpipe


def test_names_are_stable():
    """The five names are those of the page, and each has a finite number."""
    with nbpipe.source(range(8)).map(abs).start() as run:
        before = nbpipe.metrics.values(run)
        list(run)
        after = nbpipe.metrics.values(run)
    names = ["items_per_s", "wait_share", "ready_items", "busiest_share", "failed_items"]
    assert list(before) == list(after) == [f"nbpipe/{name}" for name in names]
    assert list(nbpipe.metrics.NAMES) == list(after)
    assert {type(value) for value in after.values()} == {float}


def test_failed_items_are_counted():
    """Items that were skipped count as failed."""
    with nbpipe.source([1, 0, 2, 0]).map(lambda n: 1 / n, on_error="skip").start() as run:
        list(run)
    assert nbpipe.metrics.values(run)["nbpipe/failed_items"] == 2.0


def test_calls_are_every_few_seconds_over_all_epochs(clock):
    """The time between two calls goes over the end of an epoch; slow steps make no extra calls."""
    calls = []
    with nbpipe.source(range(4)).start() as run:
        nbpipe.log_every(run, 10, lambda values: calls.append((clock.now_s, len(values))))
        clock.iterate(run, 4)
        clock.iterate(run, 25)
    # Steps end at 5, 9, 13, 17, then 42, 67, ...; the first call is due at 11.
    assert calls == [(13.0, 5), (42.0, 5), (67.0, 5), (92.0, 5), (117.0, 5)]


def test_an_epoch_in_progress_is_logged(clock):
    """In an endless epoch, the calls begin with the next item."""
    calls = []
    with nbpipe.source(range(9)).repeat().start() as run:
        for number, _ in zip(range(6), run, strict=False):
            if number == 2:
                nbpipe.log_every(run, 10, calls.append)
            clock.now_s += 11
    assert len(calls) == 3


def test_the_thread_that_iterates_calls(clock):
    """In a loop of `train` that is its thread, also while another one waits for the run."""
    threads = set()

    def step(_):
        clock.now_s += 60

    with nbpipe.source(range(5)).start() as run:
        nbpipe.log_every(run, 10, lambda _: threads.add(threading.current_thread().name))
        run.train(step)
        run.wait()
    assert threads == {"nbpipe-train"}


def test_function_may_use_the_run(clock):
    """Whatever it asks the run, or sets, it holds no lock that the run needs."""
    seen = []

    def look(_):
        run["abs"].concurrency = 3
        seen.append((run.status().delivered, run.stats()["abs"].items_out > 0))
        run.history(), run.failures(), run.diagnose(), run.state_dict(), run.summary()

    with nbpipe.source(range(4)).map(abs).start() as run:
        nbpipe.log_every(run, 10, look)
        clock.iterate(run, 11)
    assert seen == [(1, True), (2, True), (3, True), (4, True)]


def test_function_may_stop_the_run(clock):
    """`run.stop()` in it ends the epoch, as in the loop."""
    had = []
    with nbpipe.source(range(9)).start() as run:
        nbpipe.log_every(run, 10, lambda _: run.stop())
        for item in run:
            had.append(item)
            clock.now_s += 6
    assert (had, run.stopped) == ([0, 1], True)


def test_failure_is_logged_once_and_harms_nothing(clock, caplog):
    """Later calls are made, later failures are not logged, and all items come."""
    calls = []

    def broken(_):
        calls.append(1)
        raise StopIteration("no network")

    with nbpipe.source(range(4)).start() as run:
        nbpipe.log_every(run, 10, broken)
        items = []
        for item in run:
            items.append(item)
            clock.now_s += 11
    (said,) = caplog.records
    assert "metrics failed, training continues" in said.getMessage()
    assert "StopIteration: no network" in said.getMessage()
    assert (items, len(calls), said.levelname) == ([0, 1, 2, 3], 4, "WARNING")


def test_an_interrupt_is_no_failure(clock):
    """Ctrl-C in the function ends the loop, as anywhere in it."""

    def interrupted(_):
        raise KeyboardInterrupt

    with nbpipe.source(range(4)).start() as run:
        nbpipe.log_every(run, 10, interrupted)
        with pytest.raises(KeyboardInterrupt):
            clock.iterate(run, 11)


def test_stop_ends_the_calls(clock):
    """Both in the epoch in progress and in later ones; other logs continue."""
    calls, others = [], []
    with nbpipe.source(range(2)).start() as run:
        log = nbpipe.log_every(run, 10, calls.append)
        nbpipe.log_every(run, 10, others.append)
        for _ in run:
            clock.now_s += 11
            log.stop()
        clock.iterate(run, 11)
        log.stop()
    assert (len(calls), len(others), repr(log)) == (0, 4, "MetricsLog(every 10 s, stopped)")


def test_no_calls_during_a_pause(clock):
    """A paused run has nothing to report; the first call comes after `resume`."""
    calls = []
    with nbpipe.source(range(2)).start() as run:
        log = nbpipe.log_every(run, 10, calls.append)
        clock.now_s += 60
        run.pause()
        log()
        assert calls == []
        run.resume()
        list(run)
    assert len(calls) == 1


def test_a_log_does_not_keep_the_run():
    """A run that nothing else refers to is collected."""
    run = nbpipe.source(range(4)).start()
    log, seen = nbpipe.log_every(run, 10, print), weakref.ref(run)
    del run
    gc.collect()
    log()
    log.stop()
    assert seen() is None


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_loader(workers, clock):
    """A `DataLoader` is logged with workers, also those that stay, and without."""
    calls, during = [], []
    stays = {"workers": "thread", "persistent_workers": True} if workers else {}
    loader = nbpipe.DataLoader(range(4), batch_size=2, num_workers=workers, **stays)
    list(loader)
    log = nbpipe.log_every(loader, 10, lambda values: calls.append(len(values)))
    clock.iterate(loader, 11)
    clock.iterate(loader, 11)
    log.stop()
    clock.iterate(loader, 11)
    batches = iter(loader)
    next(batches)
    nbpipe.log_every(loader, 10, during.append)
    clock.now_s += 11
    list(batches)
    loader.run.close()
    assert (calls, len(during)) == ([5, 5, 5, 5], 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 10, print), "log_every must be given a run or a nbpipe.DataLoader, got a list"),
        ((nbpipe.source([1]), 10, print), "got a Pipeline; start it with run = pipe.start()"),
        ((None, 0, print), r"log_every every_s must be a number above 0 \[s\], got 0"),
        ((None, "10", print), r"must be a number above 0 \[s\], got '10'"),
        ((None, 10, "print"), "log_every fn must be a function, got 'print'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    """Each is named, with what to give."""
    given, *others = arguments
    with nbpipe.source([1]).start() as run, pytest.raises(nbpipe.NbpipeError, match=message):
        nbpipe.log_every(run if given is None else given, *others)


def test_an_async_function_is_refused():
    """Nothing would await it."""

    async def send(_):
        pass

    with nbpipe.source([1]).start() as run, pytest.raises(TypeError, match="got an async one"):
        nbpipe.log_every(run, 10, send)


def test_summary_after_the_end():
    """A script prints it once the run is closed: position, bottleneck, a row for each stage."""
    with nbpipe.source(range(6), name="files").map(abs).batch(2).start() as run:
        list(run)
    lines = run.summary().splitlines()
    assert lines[0] == "files > abs > batch"
    assert lines[1].startswith("closed, epoch 0, 3/3 batches (100%)")
    assert [line.split("  ")[0] for line in lines[-4:]] == [
        "files",
        "abs",
        "batch",
        "training loop",
    ]
