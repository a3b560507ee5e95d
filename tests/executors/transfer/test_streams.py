"""Batches on a fake device whose streams stand still: nothing is read too early or too late."""

import random
import threading
from time import perf_counter_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, StageError
from nbpipe.debug import leaks
from tests.executors.transfer.fake import FakeEvent, World, host, machine
from tests.executors.transfer.inner import CopyTracker, device
from tests.gates import delivered, finished

ITEMS = 12


def numbers(count=ITEMS, *, pinned=False):
    """Give a pipeline of tensors on the host."""
    return nbpipe.source(range(count)).map(lambda n: host(n, pinned=pinned), name="load")


def read_all(world, items):
    """Read every batch on this thread's stream and drop it; then carry out everything."""
    for batch in items:
        world.compute(batch)
        del batch
    world.finish()
    return world.seen


def test_memory_is_kept_for_the_stream_that_reads(monkeypatch):
    """Memory of a batch that the loop has dropped is not given to a copy before it was read."""
    with_records = machine(monkeypatch, eager_copies=True)
    read_all(with_records, numbers().to_device("fake"))
    without = machine(monkeypatch, eager_copies=True, records=False)
    read_all(without, numbers().to_device("fake"))
    assert with_records.seen == list(range(ITEMS))
    assert without.seen != list(range(ITEMS)), "the fake does not notice a missing record"


class Fields(dict):
    """A mapping that can record a stream itself, as a TensorDict can."""

    def record_stream(self, stream):
        raise AssertionError("its tensors are asked")


class Opaque:
    """An object of a library that moves itself, and shows no parts."""

    def __init__(self, held):
        self.held = held

    def to(self, device):
        raise AssertionError(f"it lies on {device} already")


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda tensor: Fields(x=[tensor]), lambda batch: batch["x"][0]),
        (lambda tensor: Opaque({"x": (tensor,)}), lambda batch: batch.held["x"][0]),
    ],
    ids=["mapping", "opaque"],
)
def test_memory_inside_other_objects_is_kept(monkeypatch, make, read):
    """Tensors are found in what a stage puts around them."""
    world = machine(monkeypatch, eager_copies=True)
    pipe = numbers().to_device("fake").map(make, device="fake", name="wrap")
    assert read_all(world, map(read, pipe)) == list(range(ITEMS))


def test_readers_wait_for_the_copy(monkeypatch):
    """A stream that works at once waits for a copy that has not been carried out."""
    world = machine(monkeypatch)
    world.default_stream("fake:0").eager = True
    read_all(world, numbers().to_device("fake"))
    without = machine(monkeypatch, waits=False)
    without.default_stream("fake:0").eager = True
    read_all(without, numbers().to_device("fake"))
    assert world.seen == list(range(ITEMS))
    assert without.seen == [None] * ITEMS, "the fake does not notice a missing wait"


def test_reading_does_not_wait_in_the_thread(world):
    """The loop gets batches whose copies have not begun: only its stream waits."""
    with numbers().to_device("fake", depth=ITEMS).start() as run:
        batches = finished(list, run)
        undone = [batch.block.data for batch in batches]
    assert undone == [None] * ITEMS


def test_one_stream_for_the_life_of_a_run(world):
    """Epochs do not make streams, and calls on a device run one after the other."""
    pipe = (
        numbers()
        .to_device("fake:0")
        .to_device("fake:1")
        .to_device("fake:0", depth=4)
        .map(lambda x: x, device="fake:0", name="same")
    )
    with pipe.start() as run:
        for _ in range(3):
            read_all(world, run)
    assert len(world.streams) == 2, "one for each device"
    assert (world.at_once, world.wrong) == ({"fake:0": 1, "fake:1": 1}, [])
    assert world.seen == 3 * list(range(ITEMS))


def test_the_threads_of_a_run_keep_their_own_streams(world):
    """A stage before the device works on the default stream, whatever its thread did before."""
    streams = set()

    def load(n):
        streams.add(world.current_stream("fake:0"))
        return host(n)

    read_all(world, nbpipe.source(range(40)).map(load, concurrency=3).to_device("fake"))
    assert (streams, world.seen) == ({world.default_stream("fake:0")}, list(range(40)))


def test_two_devices_work_at_the_same_time(world):
    """A call on one device waits for a call on the other, which is possible."""
    both = threading.Barrier(2)

    def meet(tensor):
        both.wait(20)
        return tensor

    pipe = (
        numbers(6, pinned=True)
        .to_device("fake:0", depth=6)
        .map(lambda tensor: meet(tensor) if tensor.block.data != 0 else tensor, device="fake:0")
        .to_device("fake:1", depth=6)
        .map(lambda tensor: meet(tensor) if tensor.block.data != 5 else tensor, device="fake:1")
    )
    world.eager_copies = True
    assert read_all(world, pipe) == list(range(6))


def test_a_pinned_source_is_not_pinned_again(world):
    """What lies in pinned memory is copied from there."""
    read_all(world, numbers(pinned=True).to_device("fake"))
    pinned = world.pinnings
    read_all(world, numbers().to_device("fake"))
    assert (pinned, world.pinnings) == (0, ITEMS)


def test_a_tensor_that_occurs_twice_is_copied_once(world):
    """It is one tensor on the device, too."""

    def twice(n):
        tensor = host(n)
        return {"a": tensor, "b": [tensor]}

    (batch,) = nbpipe.source([1]).map(twice).to_device("fake")
    assert (batch["a"] is batch["b"][0], world.pinnings) == (True, 1)


@pytest.mark.parametrize("end", ["break", "stop", "close", "drop"])
def test_an_epoch_that_is_left_keeps_its_sources_until_they_are_copied(world, end):
    """However an epoch is left in its middle, no source goes before its copy, and none stays."""
    run = numbers(pinned=True).to_device("fake", depth=4).start()
    iterator = iter(run)
    world.compute(next(iterator))
    if end == "stop":
        run.stop()
    elif end == "close":
        run.close()
    elif end == "drop":
        del iterator
    else:
        iterator.close()
    run.close()
    world.finish()
    assert (world.wrong, world.seen, bool(leaks(run))) == ([], [0], False)


def test_an_error_keeps_the_sources_of_what_was_begun(world):
    """A batch of which one tensor cannot be copied: the other's copy is still carried out."""
    world.failing = 3
    pipe = nbpipe.source(range(5)).map(lambda n: [host(10 + n, pinned=True), host(n)])
    got, error = delivered(pipe.to_device("fake"))
    world.finish()
    assert "'to_device' failed on item 3: MemoryError" in str(error)
    assert (len(got), error.executor, world.wrong) == (3, "device", [])


def test_of_a_batch_without_room_nothing_stays_on_the_device(world):
    """Even while the error is kept, as a notebook does: the next try needs the memory."""
    world.failing = 3
    pipe = nbpipe.source([0]).map(lambda _: [host(10), host(3)])
    _, error = delivered(pipe.to_device("fake"))
    world.finish()
    assert (type(error.__cause__), world.blocks) == (MemoryError, 1)
    assert world.blocks_in_use() == 0


def test_a_run_goes_on_after_an_error(world):
    """The next epoch of the run is whole, on the same stream."""
    world.failing = 3
    with numbers().to_device("fake").start() as run:
        with pytest.raises(StageError):
            list(run)
        world.failing = None
        seen = read_all(world, run)
    assert (seen, len(world.streams), world.wrong) == (list(range(ITEMS)), 1, [])


def test_an_error_of_a_map_on_a_device_comes_in_order(world):
    """Earlier batches are delivered, and the failure shows what the function was given."""

    def augment(pair):
        if pair[0] == 2:
            raise ValueError("two")
        return world.compute(pair[1], lambda value: value * 10)

    pairs = nbpipe.source(range(4)).map(lambda n: (n, host(n)), name="load")
    with pairs.to_device("fake").map(augment, device="fake").start() as run:
        with pytest.raises(StageError, match="'augment' failed on item 2: ValueError: two"):
            read_all(world, run)
        world.finish()
        (failure,) = run.failures()
    found = world.seen, failure.stage, failure.input
    assert found == ([0, 10], "augment", "tuple of 2: int 2, FakeTensor")


def test_the_run_does_not_wait_for_the_loop(world):
    """Its stream waits for none of the loop's work: else no copy would go on beside that."""
    pipe = (
        numbers()
        .to_device("fake")
        .map(lambda tensor: world.compute(tensor, lambda value: -value), device="fake", name="one")
        .map(lambda tensor: world.compute(tensor, lambda value: -value), device="fake", name="two")
    )
    read_all(world, pipe)
    (ours,) = world.streams
    assert ours not in [stream for stream, _ in world.waited]
    assert world.seen == list(range(ITEMS))


def test_a_map_on_a_device_may_stand_alone(world):
    """Its function gets what the stage before gave; the loop follows what it made."""

    def upload(tensor):
        return world.copy(world.pinned(tensor), "fake:0")

    pipe = nbpipe.source([host(n, pinned=True) for n in range(4)]).map(upload, device="fake")
    assert read_all(world, pipe) == [0, 1, 2, 3]


def test_two_devices_have_a_stream_each(world):
    """A batch goes from one device to another, and its copy waits for the first."""
    pipe = numbers(6).to_device("fake:0").to_device("fake:1")
    devices = set()
    for batch in pipe:
        devices.add(str(batch.device))
        world.compute(batch)
    world.finish()
    assert (world.seen, devices) == (list(range(6)), {"fake:1"})
    assert (len(world.streams), world.wrong) == (2, [])


@pytest.mark.torch
def test_a_batch_comes_back_to_the_host(world):
    """`to_device("cpu")` waits for what lies on a device, and the rest passes."""
    pipe = (
        nbpipe.source(range(3))
        .map(lambda n: (host(n), "abc"[n]))
        .to_device("fake")
        .map(lambda row: (world.compute(row[0], lambda value: value * 2), row[1]), device="fake")
        .to_device("cpu")
        .map(lambda row: (row[0].block.data, row[1]), device="cpu")
    )
    assert (list(pipe), world.wrong) == ([(0, "a"), (2, "b"), (4, "c")], [])


def test_what_a_stage_made_on_a_device_itself_is_waited_for(world):
    """A copy to another device begins after the default stream, where such a stage works."""
    sources = [host(n, pinned=True) for n in range(4)]

    def made(n):
        return world.copy(sources[n], "fake:0")

    world.eager_copies = True
    world.default_stream("fake:1").eager = True
    pipe = nbpipe.source(range(4)).map(made).to_device("fake:1")
    assert (read_all(world, pipe), world.wrong) == ([0, 1, 2, 3], [])


@pytest.mark.torch
@pytest.mark.parametrize("place", ["copy", "map"])
def test_the_way_back_to_the_host_does_not_wait_for_the_loop(world, place):
    """What the loop has given its own stream is not carried out for it."""
    loops = world.default_stream("fake:0")
    loops.add(lambda: world.wrong.append("the work of the loop was waited for"))
    pipe = numbers(4).to_device("fake")
    if place == "copy":
        pipe = pipe.to_device("cpu")
    else:
        pipe = pipe.map(lambda tensor: tensor.to("cpu"), device="cpu", name="back")
    for _ in range(2):
        assert [tensor.block.data for tensor in pipe] == [0, 1, 2, 3]
    assert (world.wrong, len(world.streams)) == ([], 2)


@pytest.mark.torch
def test_what_passes_through_the_host_is_waited_for(world):
    """A map on the host that hands on what lies on a device: the loop's own stream follows it."""
    mine = world.new_stream("fake:0")
    mine.eager = True
    pipe = numbers(4).to_device("fake").map(lambda tensor: tensor, device="cpu", name="same")
    with pipe.start() as run, world.active("fake:0", mine):
        read_all(world, run)
    assert (world.seen, world.wrong) == ([0, 1, 2, 3], [])


def test_memory_is_bounded_where_the_loop_never_waits(world):
    """A loop whose thread is ahead of its stream does not fill the device, nor pinned memory."""
    sources = []
    with numbers(60).to_device("fake", depth=2).start() as run:
        for batch in run:
            world.compute(batch)
            del batch
            sources.append(sum(one.sources for one in leaks(run)))
    world.finish()
    # ready; still to be read, with the next one; one that a thread has not let go of yet
    most = (2 + 1) + (2 + 2) + 1
    assert world.blocks <= most, "memory of the device grew"
    assert max(sources) <= most, "pinned memory grew"
    assert (world.seen, world.wrong) == (list(range(60)), [])


def test_a_loop_that_waits_for_its_own_stream_does_not_wait_for_the_pipeline(world, monkeypatch):
    """What its work on the device takes is the time of the loop itself in `status()`."""
    now_ns = [perf_counter_ns()]
    monkeypatch.setattr("nbpipe.run.iterator.perf_counter_ns", lambda: now_ns[0])
    wait = FakeEvent.synchronize

    def slow(event):
        if threading.current_thread() is threading.main_thread():
            now_ns[0] += 10**9
        wait(event)

    monkeypatch.setattr(FakeEvent, "synchronize", slow)
    with numbers().to_device("fake", depth=2).start() as run:
        begun_ns = now_ns[0]
        for batch in run:
            world.compute(batch)
        spent_s = (now_ns[0] - begun_ns) / 1e9
        waited_s = run.status().waited_s
    assert (spent_s > 0, waited_s) == (True, 0.0)


def test_a_loop_may_be_ahead_by_the_depth_that_is_set_now(world):
    """The knob is read for each batch: its stream is waited for as soon as it is lowered."""
    pipe = numbers(40).to_device("fake", depth=16)
    with pipe.start() as run:
        iterator = iter(run)
        first = taken(iterator, 8)
        undone = [batch.block.data for batch in first]
        pipe["to_device"].depth = 1
        rest = len(list(iterator))
    assert (undone, rest, first[0].block.data) == ([None] * 8, 32, 0)


def test_runs_that_follow_one_another_share_a_stream(world):
    """Memory is cached for each stream: a stream for each run would hold it for all of them."""
    pipe = numbers(3).to_device("fake")
    for _ in range(3):
        read_all(world, pipe)
    pipe.peek(2)
    with pipe.start() as one, pipe.start() as other:
        at_once = next(iter(one)), next(iter(other))
    world.finish()
    assert (len(at_once), len(world.streams), world.seen) == (2, 2, 3 * [0, 1, 2])


def test_a_stream_of_the_user_is_not_lent_to_other_runs(world):
    """It goes on being the user's alone."""
    mine = world.new_stream("fake:0")
    read_all(world, numbers(3).to_device("fake", stream=mine))
    read_all(world, numbers(3).to_device("fake"))
    assert (world.streams[0], len(world.streams)) == (mine, 2)


def test_the_stream_of_the_user_is_used(world):
    """`stream=` takes the place of the run's own."""
    mine = world.new_stream("fake:0")
    pipe = numbers(3).to_device("fake", stream=mine).map(lambda x: x, device="fake", name="same")
    read_all(world, pipe)
    assert (world.seen, world.streams) == ([0, 1, 2], [mine])


def test_a_stream_of_another_device_is_refused(world):
    """It is said when the run starts."""
    pipe = numbers(3).to_device("fake:0", stream=world.new_stream("fake:1"))
    with pytest.raises(ArgumentError, match="to_device stream must be one of fake:0, got one of"):
        pipe.start()


def test_a_peek_leaves_nothing_in_flight(world):
    """It goes through the device in the thread that asks, and waits."""
    made = []

    def add(tensor):
        made.append(world.compute(tensor, lambda value: value + 1))
        return made[-1]

    numbers(3).to_device("fake").map(add, device="fake").peek(2)
    assert [tensor.block.data for tensor in made] == [1, 2]


def test_a_state_goes_on_behind_a_device(world):
    """What the loop has had is not copied again."""
    with numbers(6).to_device("fake").start() as run:
        iterator = iter(run)
        first = [next(iterator) for _ in range(2)]
        state = run.state_dict()
        iterator.close()
        run.load_state_dict(state)
        rest = list(run)
        for batch in (*first, *rest):
            world.compute(batch)
        world.finish()
    assert world.seen == list(range(6))


def test_sources_live_until_they_are_copied(world, monkeypatch):
    """Nobody else holds the source of a copy that is not carried out yet; the fake notices it."""
    read_all(world, numbers(pinned=True).to_device("fake"))
    assert (world.wrong, world.seen) == ([], list(range(ITEMS)))
    monkeypatch.setattr(CopyTracker, "hold", lambda *_: None)
    read_all(world, numbers(pinned=True).to_device("fake"))
    assert set(world.wrong) == {"a source was freed before its copy"}


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_any_schedule_gives_every_batch_whole(seed):
    """Whenever streams go on, whatever is kept, however depth is turned: nothing is mixed up."""
    rng = random.Random(seed)
    world = World(eager_copies=rng.random() < 0.5)
    device.BACKENDS["fake"] = world
    pipe = (
        numbers(20, pinned=rng.random() < 0.5)
        .to_device("fake", depth=rng.randint(1, 16))
        .map(lambda x: world.compute(x, lambda value: value + 1), device="fake", name="one")
        .map(lambda x: world.compute(x, lambda value: value + 1), device="fake", name="two")
    )
    kept = []
    mine = world.new_stream("fake:0") if rng.random() < 0.5 else world.default_stream("fake:0")
    mine.eager = rng.random() < 0.3
    with pipe.start() as run, world.active("fake:0", mine):
        for batch in run:
            world.compute(batch)
            if rng.random() < 0.3:
                kept.append(batch)
            del batch
            if rng.random() < 0.3:
                world.carry_out(rng.choice([*world.streams, mine]))
            if rng.random() < 0.2:
                pipe["one"].depth = rng.randint(1, 16)
        world.finish()
    del device.BACKENDS["fake"]
    assert (world.seen, world.wrong, bool(leaks(run))) == (list(range(2, 22)), [], False)


@pytest.mark.parametrize(("error", "had"), [(KeyboardInterrupt, 3), (RuntimeError, 4)])
def test_a_batch_whose_arrival_is_hit(world, monkeypatch, error, had):
    """An interrupt while a batch arrives loses nothing; an error costs that batch alone."""
    wait, me, hits = world.wait_event, threading.current_thread(), []

    def hit(stream, event):
        if threading.current_thread() is me:
            hits.append(event)
            if len(hits) == 4:
                raise error
        wait(stream, event)

    monkeypatch.setattr(world, "wait_event", hit)
    with numbers().to_device("fake").start() as run:
        items, got = iter(run), []
        with pytest.raises(error):
            got.extend(taken(items, 4))
        state = run.state_dict()
        rest = list(items)
        run.load_state_dict(state)
        again = list(run)
        world.finish()
    wanted = list(range(had, ITEMS))
    assert [tensor.block.data for tensor in rest] == wanted
    assert [tensor.block.data for tensor in again] == wanted


def taken(items, count):
    """Give so many items."""
    return [next(items) for _ in range(count)]


def test_a_device_that_fails_by_itself_is_named(world, monkeypatch):
    """No function has failed: the batch is named all the same, and earlier ones are delivered."""
    record, done = world.record_event, []

    def breaking(stream):
        if stream in world.streams:
            done.append(stream)
            if len(done) > 3:
                raise RuntimeError("the device is lost")
        return record(stream)

    monkeypatch.setattr(world, "record_event", breaking)
    got = []
    with pytest.raises(StageError, match="'to_device' failed on item 3: RuntimeError: the device"):
        got.extend(numbers().to_device("fake"))
    world.finish()
    assert [tensor.block.data for tensor in got] == [0, 1, 2]


def test_a_run_on_a_lost_device_closes_in_silence(world, monkeypatch):
    """Its events can not be waited for; the failed batch has told of it, and nothing is held."""

    def lost(*_):
        raise RuntimeError("the device is lost")

    run = numbers().to_device("fake", depth=4).start()
    next(iter(run))
    monkeypatch.setattr(FakeEvent, "synchronize", lost)
    monkeypatch.setattr(FakeEvent, "query", lost)
    run.close()
    assert not leaks(run)
