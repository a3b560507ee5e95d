"""On a real CUDA device: whole batches, flat memory, copies beside the work of the loop."""

import gc
import threading

import pytest

import nbpipe
from nbpipe.debug import leaks

pytestmark = pytest.mark.gpu

SHAPE = (1 << 20,)  # int32, 4 MB
BATCHES = 60


def filled(count=BATCHES, *, pinned=False):
    """Give a pipeline of tensors on the host, each full of its number."""
    import torch

    def fill(n):
        return torch.full(SHAPE, n, dtype=torch.int32, pin_memory=pinned)

    return nbpipe.source(range(count)).map(fill, prefetch=4)


def slow_sums(batches):
    """Read each batch late, on the stream of this thread; give the extremes that were read."""
    import torch

    weight = torch.rand(4096, 4096, device="cuda")  # some milliseconds for each batch
    read = []
    for batch in batches:
        for _ in range(4):
            weight = (weight @ weight).clamp(-1, 1)  # the stream is behind when the batch is gone
        read.append((batch.min(), batch.max()))
        del batch
    torch.cuda.synchronize()
    return [(int(low), int(high)) for low, high in read]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("side_stream", [False, True])
def test_batches_are_not_corrupted(torch, pinned, side_stream):
    """A loop that lags behind on its own stream reads every batch whole, after it dropped it."""
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream), filled(pinned=pinned).to_device("cuda", depth=8).start() as run:
        read = slow_sums(run)
    assert read == [(n, n) for n in range(BATCHES)]


def test_the_test_of_corruption_notices_a_missing_record(monkeypatch):
    """Without `record_stream` the same loop reads what was copied later."""
    from nbpipe.executors.device.backend import Backend

    monkeypatch.setattr(Backend, "record_stream", lambda *_: None)
    with filled(pinned=True).to_device("cuda", depth=8).start() as run:
        read = slow_sums(run)
    assert read != [(n, n) for n in range(BATCHES)]


def test_a_map_on_the_device_is_in_order():
    """It follows the copy, and the loop follows it."""
    pipe = filled().to_device("cuda").map(lambda batch: batch * 2 + 1, device="cuda", name="odd")
    assert slow_sums(pipe) == [(2 * n + 1, 2 * n + 1) for n in range(BATCHES)]


def stacked(size):
    """Give a pipeline of arrays, four to a batch, and what they are filled with."""
    import numpy as np

    return nbpipe.source(range(BATCHES)).map(lambda n: np.full(size, n, np.int32)).batch(4)


def test_a_batch_is_stacked_into_pinned_memory(torch):
    """A stage on the device, where it comes next, gets it so."""
    pinned = []

    def look(batch):
        pinned.append(torch.from_numpy(batch).is_pinned())
        return torch.zeros(1, device="cuda")

    list(stacked(1_000).map(look, device="cuda"))
    assert pinned == [True] * (BATCHES // 4)


def test_a_batch_that_was_stacked_in_pinned_memory_is_whole():
    """Its memory is not used again before the copy is done."""
    read = slow_sums(stacked(1 << 18).to_device("cuda", depth=8))
    assert read == [(n, n + 3) for n in range(0, BATCHES, 4)]


def test_the_threads_of_a_run_keep_their_own_stream(torch):
    """A stage before the device works on the default stream, whatever its thread did before."""
    streams = set()

    def load(n):
        streams.add((torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream))
        return torch.full(SHAPE, n, dtype=torch.int32)

    device = torch.cuda.device_count() - 1
    here = torch.cuda.current_device(), torch.cuda.default_stream().cuda_stream
    pipe = nbpipe.source(range(BATCHES)).map(load, concurrency=3)
    read = slow_sums(batch.to("cuda") for batch in pipe.to_device(f"cuda:{device}"))
    assert (streams, len(read)) == ({here}, BATCHES)


def test_batches_come_back_to_the_host():
    """They are whole."""
    pipe = filled().to_device("cuda").map(lambda batch: batch + 1, device="cuda").to_device("cpu")
    found = [(str(batch.device), int(batch.min()), int(batch.max())) for batch in pipe]
    assert found == [("cpu", n + 1, n + 1) for n in range(BATCHES)]


def test_memory_is_flat_over_many_epochs(torch):
    """On the device and pinned; no threads are left but those that the run may have."""
    pipe = filled(6).to_device("cuda").map(lambda batch: batch + 1, device="cuda", name="add")
    held = []
    with pipe.start() as run:
        for epoch in range(200):
            for batch in run:
                batch.sum()
                del batch
            if epoch in (19, 199):
                torch.cuda.synchronize()
                gc.collect()
                names = {thread.name.rpartition("-")[0] for thread in threading.enumerate()}
                held.append((torch.cuda.memory_reserved(), names))
        report = leaks(run)
    assert held[1][1] == held[0][1]
    assert held[1][0] <= held[0][0] * 1.1, "memory of the device grew"
    assert not report


def test_memory_is_bounded_where_the_loop_never_waits(torch):
    """A loop whose thread is far ahead of its stream does not fill the device."""
    tensor = torch.ones(SHAPE, dtype=torch.int32, pin_memory=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    with nbpipe.source([tensor] * 200).to_device("cuda", depth=2).start() as run:
        for batch in run:
            torch.cuda._sleep(2_000_000)  # about a millisecond of the loop's stream
            batch.sum()
            del batch
    peak = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    # torch takes the memory of a batch back when it is next asked for some: two more, and the sums
    assert peak <= (2 * 2 + 3 + 3) * tensor.nbytes


def test_runs_that_follow_one_another_share_memory(torch):
    """A loop over the pipeline starts a run for each epoch; torch's cache serves all of them."""
    pipe = filled(6).to_device("cuda")
    reserved = []
    for _ in range(40):
        for batch in pipe:
            batch.sum()
            del batch
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[4] * 1.1


def test_what_passes_through_the_host_is_whole_on_a_stream_of_the_loops_own(torch):
    """A map on the host hands on what lies on the device; the loop's stream follows it."""
    pipe = filled(pinned=True).to_device("cuda", depth=8).map(lambda x: x, device="cpu")
    with torch.cuda.stream(torch.cuda.Stream()), pipe.start() as run:
        read = slow_sums(run)
    assert read == [(n, n) for n in range(BATCHES)]


def kinds(torch):
    """Give tensors that are copied in ways of their own, by what makes them special."""
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "bfloat16": numbers.bfloat16(),
        "bool": numbers > 3,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(5),
        "transposed": numbers.transpose(0, 2),
        "view": numbers[:, 1:],
        "pinned": numbers.pin_memory(),
        "sparse": numbers[0].to_sparse(),
        "on the device": numbers.cuda(),
        "conj": torch.complex(numbers, numbers).conj(),
    }


def test_tensors_of_every_kind_arrive(torch):
    """They lie on the device, with the values, shape and dtype they had."""
    batch = kinds(torch)
    (there,) = nbpipe.source([batch]).to_device("cuda")
    assert {one.device.type for one in there.values()} == {"cuda"}
    wrong = [name for name, one in there.items() if not same(torch, one, batch[name])]
    assert wrong == []


def same(torch, one, other):
    """Return whether two tensors are the same but for where they lie."""
    one, other = (
        (tensor.to_dense() if tensor.is_sparse else tensor).cpu() for tensor in (one, other)
    )
    return one.dtype == other.dtype and torch.equal(one, other)


def test_a_lazy_result_of_a_map_on_the_device_arrives(torch):
    """A conjugate is a view of what it is made of, and its memory is kept as any other."""
    batch = torch.complex(torch.ones(4), torch.ones(4))
    pipe = nbpipe.source([batch]).to_device("cuda").map(torch.conj, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        (there,) = pipe
        assert torch.equal(there.cpu(), batch.conj())


def test_a_batch_that_can_pin_itself_arrives(torch):
    """A packed sequence is moved by its own methods."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    (there,) = nbpipe.source([{"text": packed}]).to_device("cuda")
    found = there["text"]
    assert (type(found), found.data.device.type) == (type(packed), "cuda")
    assert torch.equal(found.data.cpu(), packed.data)


def test_an_epoch_that_is_left_holds_nothing():
    """After close, neither tensors nor sources nor events are held."""
    run = filled().to_device("cuda", depth=8).start()
    iterator = iter(run)
    next(iterator)
    run.close()
    assert not leaks(run)


def test_copies_go_on_beside_the_work_of_the_loop(torch):
    """A copy runs while the loop's stream is busy: it is done before the loop's work is."""
    side = torch.cuda.Stream()
    tensors = [torch.full(SHAPE, n, dtype=torch.int32, pin_memory=True) for n in range(12)]
    with nbpipe.source(tensors).to_device("cuda", depth=2).start() as run:
        warm = list(run)  # memory that is asked for the first time stops the whole device
        del warm
        iterator = iter(run)
        next(iterator)
        torch.cuda._sleep(2_000_000_000)  # about a second of the loop's stream
        busy = torch.cuda.Event()
        busy.record()
        with torch.cuda.stream(side):
            rest = [next(iterator) for _ in range(11)]
        side.synchronize()
        overlapped = not busy.query()
    torch.cuda.synchronize()
    assert (overlapped, len(rest)) == (True, 11)


def test_arrays_and_nested_batches_arrive():
    """Arrays become tensors on the device; strings pass; a tensor that occurs twice is one."""
    import numpy as np

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    item = {"x": array, "y": [array, ("name", None)]}
    (batch,) = nbpipe.source([item]).to_device("cuda")
    assert (batch["x"].device.type, batch["x"].tolist()) == ("cuda", array.tolist())
    assert (batch["y"][0] is batch["x"], batch["y"][1]) == (True, ("name", None))


def test_a_device_that_is_not_there_is_counted(torch):
    """The message says how many there are."""
    count = torch.cuda.device_count()
    with pytest.raises(nbpipe.ArgumentError, match=rf"this machine has {count} CUDA device\(s\)"):
        filled().to_device(f"cuda:{count}").start()


def test_two_devices(torch):
    """A batch goes from one to the other."""
    if torch.cuda.device_count() == 1:
        pytest.skip("one CUDA device")
    pipe = filled().to_device("cuda:0").to_device("cuda:1")
    with torch.cuda.device(1):
        assert slow_sums(pipe) == [(n, n) for n in range(BATCHES)]
