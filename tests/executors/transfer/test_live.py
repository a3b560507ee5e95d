"""A device while an epoch runs: its depth, what is held, many epochs, and who looks at it."""

import gc
import threading

import pytest

import nbpipe
from nbpipe.debug import leaks
from tests.executors.transfer.fake import host
from tests.executors.transfer.inner import addresses, decide, knob_words, worker_words
from tests.gates import Calls, Gate, finished, quiet
from tests.show.test_diagnose import case


def numbers(count, calls=None):
    """Give a pipeline of pinned tensors on the host; `calls` counts those that were loaded."""

    def load(n):
        if calls is not None:
            calls.enter(n)
            calls.leave()
        return host(n, pinned=True)

    return nbpipe.source(range(count)).map(load, prefetch=1)


def ready(run):
    """Wait until nothing moves; give the batches that wait on the device."""
    quiet(run)
    return run.stats()["to_device"].queued


def test_depth_is_turned_in_mid_epoch(world):
    """A raised depth fills at once; a lowered one drains before more is copied."""
    pipe = numbers(60).to_device("fake", depth=1)
    with pipe.start() as run:
        iterator = iter(run)
        next(iterator)
        counts = [ready(run)]
        pipe["to_device"].depth = 6
        counts.append(ready(run))
        run["to_device"].depth = 2
        counts.append(ready(run))
        for _ in range(7):
            next(iterator)
        counts.append(ready(run))
        rest = len(finished(list, iterator))
    assert (counts, rest) == ([2, 7, 7, 3], 52)


def test_neighbours_on_a_device_are_one_buffer(world):
    """Behind an inner stage nothing waits: the depth is that of the last."""
    pipe = numbers(40).to_device("fake", depth=3).map(lambda x: x, device="fake", name="same")
    with pipe.start() as run:
        iterator = iter(run)
        next(iterator)
        quiet(run)
        stats = run.stats()
        assert (stats["to_device"].queued, stats["same"].queued) == (0, 4)


def test_what_is_under_way_is_reported(world):
    """In mid-epoch: tensors that nobody has read, sources of copies, events."""
    with numbers(40).to_device("fake", depth=2).start() as run:
        iterator = iter(run)
        batch = next(iterator)
        ready(run)
        (held,) = leaks(run)
        assert (held.device, held.tensors, held.sources, held.events) == ("fake:0", 3, 4, 4)
        assert repr(leaks(run)) == ("held: fake:0: 3 tensors (24 B), 4 sources (32 B), 4 events")
        del batch


def test_nothing_is_held_after_close(world):
    """Even where the iterator is kept, and no stream has done anything by itself."""
    run = numbers(40).to_device("fake", depth=4).start()
    iterator = iter(run)
    batch = next(iterator)
    ready(run)
    before = bool(leaks(run))
    run.close()
    report = leaks(run)
    assert (before, bool(report), repr(report)) == (True, False, "nothing held")
    assert list(iterator) == []
    assert batch.block.data == 0


@pytest.mark.slow
def test_two_hundred_epochs_leave_nothing(world):
    """Streams, kinds of threads, memory of the device and everything held stay as they were."""
    world.eager_copies = True
    pipe = (
        numbers(6)
        .to_device("fake")
        .map(
            lambda tensor: world.compute(tensor, lambda value: value + 1), device="fake", name="add"
        )
    )
    held = []
    with pipe.start() as run:
        for epoch in range(200):
            for batch in run:
                world.compute(batch)
                del batch
            world.finish()
            if epoch in (9, 199):
                gc.collect()
                names = {thread.name.rpartition("-")[0] for thread in threading.enumerate()}
                held.append((names, bool(leaks(run))))
    assert (held[0], len(world.streams), world.wrong) == (held[1], 1, [])
    most = 2 * 2 * 6  # copies and results of two epochs
    assert world.blocks <= most, "memory of the device grew"
    assert world.seen == 200 * [1, 2, 3, 4, 5, 6]


def test_a_stage_on_a_device_cannot_iterate_its_run(world):
    """A stage on a device is a stage: it must not iterate the run that runs it."""
    runs = []

    def iterate(tensor):
        return next(iter(runs[0]))

    with numbers(3).map(iterate, device="fake").start() as run:
        runs.append(run)
        with pytest.raises(nbpipe.StageError) as caught:
            finished(list, run)
    assert isinstance(caught.value.__cause__, nbpipe.RunError)


def test_a_close_names_the_function_that_does_not_end(world, caplog):
    """A stage on a device that is still in user code is named, and left a daemon."""
    gate, begun = Gate(), Gate()

    def stuck(tensor):
        begun.open()
        gate.wait()
        return tensor

    run = numbers(3).map(stuck, device="fake").start()
    iterator = iter(run)
    thread = threading.Thread(target=lambda: list(iterator), daemon=True)
    thread.start()
    begun.wait()
    run.close(timeout_s=0.01)
    gate.open()
    thread.join()
    assert "still inside user code: stuck" in caplog.text


def test_a_call_that_ends_after_the_close_lets_go_of_the_device(world):
    """Its copies are waited for, and its stream goes to the next run."""
    gate, begun, threads = Gate(), Gate(), []

    def stuck(tensor):
        threads.append(threading.current_thread())
        begun.open()
        gate.wait()
        return tensor

    pipe = numbers(3).to_device("fake").map(stuck, device="fake")
    run = pipe.start()
    thread = threading.Thread(target=lambda: list(run), daemon=True)
    thread.start()
    begun.wait()
    run.close(timeout_s=0.01)
    before = dict(world.idle)
    gate.open()
    thread.join()
    threads[0].join()
    assert (before, world.idle) == ({}, {"fake:0": world.streams})
    assert not leaks(run)


def test_an_epoch_that_is_left_ends_at_once(world):
    """The batches that wait on the device are dropped, and the next epoch begins afresh."""
    calls = Calls()
    with numbers(30, calls).to_device("fake").start() as run:
        for _ in range(3):
            for batch in run:
                world.compute(batch)
                break
        world.finish()
        assert world.seen == [0, 0, 0]
        finished(list, run)
    assert calls.of[29] == 1


def test_leaks_of_something_else_are_refused():
    """The message shows what was given, and what is wanted."""
    with pytest.raises(nbpipe.ArgumentTypeError, match=r"pipe\.start\(\).*got 3"):
        leaks(3)
    assert issubclass(nbpipe.ArgumentTypeError, TypeError)


# -- Who looks at a run with a device: diagnosis, panel, controls ----------------------------------
PIPE = nbpipe.source(range(9), name="files").to_device("cuda").map(abs, device="cuda")


def test_a_device_that_limits_is_named_with_what_helps():
    """There is no concurrency to raise: less work, in words."""
    rows = {"files": (0.01, 0, 0.9), "to_device": (0.1, 0, 0), "abs": (0.88, 0, 0)}
    found = decide(case(rows, 0.62, addresses(PIPE.chain)))
    assert (found.stage, found.suggestion) == ("abs", None)
    assert (found.cause, "one batch at a time" in found.evidence) == ("device", True)
    assert "Do less on the device" in found.advice


def test_the_panel_shows_depth_and_no_workers(world):
    """A device has no workers; the knob is shown as any other."""
    pipe = nbpipe.source(range(3)).map(host).to_device("fake").map(lambda x: x, device="fake")
    with pipe.start() as run:
        list(run)
        from tests.inner import snapshot

        copy, after = snapshot(run)["stages"][2:4]
    assert (copy["workers"], copy["unit"], knob_words(copy)) == (None, "items", "depth 2")
    assert (copy["knobs"][0]["maximum"], worker_words(after)) == (16, "with to_device")
