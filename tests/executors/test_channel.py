"""Channels: what goes in comes out, whatever becomes of memory and of the other process."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nbpipe import ArgumentTypeError
from tests.executors.conftest import mapped, open_files
from tests.executors.inner import Channel, channel

ROOT = Path(__file__).resolve().parent.parent.parent
MB = 1 << 20
pytestmark = pytest.mark.skipif(os.name != "posix", reason="peers are given a Unix socket")
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and files as on Linux")


class Point(NamedTuple):
    x: object
    y: object


@contextmanager
def peer(behaviour, *numbers, **options):
    """Start a process at the other end of a channel; give the channel and the process."""
    mine, other = multiprocessing.Pipe(duplex=True)
    command = [sys.executable, "-m", "tests.executors.peer", str(other.fileno()), behaviour]
    process = subprocess.Popen([*command, *map(str, numbers)], cwd=ROOT, pass_fds=[other.fileno()])
    other.close()
    channel = Channel(mine, **options)
    try:
        yield channel, process
    finally:
        channel.close()
        process.wait()


@pytest.fixture(scope="module", params=["echo", "echo_views"])
def echo(request):
    """Give a channel whose other end sends everything back."""
    with peer(request.param) as (channel, _):
        yield channel


def back(channel, value, copy=None):
    """Send a value and receive what the other process makes of it."""
    channel.send(value)
    before = channel.copy
    channel.copy = before if copy is None else copy
    try:
        return channel.recv()
    finally:
        channel.copy = before


@contextmanager
def two_ends(**options):
    """Give both ends of a channel, in this process."""
    one, other = (Channel(end, **options) for end in multiprocessing.Pipe(duplex=True))
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def same(one, other):
    """Compare nested values: types, dtypes, shapes, order in memory, numbers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ma.MaskedArray):
        return same(one.filled(), other.filled()) and same(one.mask, other.mask)
    if isinstance(one, np.ndarray):
        kinds = (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.hasobject or not kinds:
            return kinds and one.tolist() == other.tolist()
        turned = one.size == 0 or 1 in one.shape or _order(one) == _order(other)
        return turned and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, memoryview):
        return (one.format, one.shape, bytes(one)) == (other.format, other.shape, bytes(other))
    return one == other


def _order(array):
    """Give the order of the axes in memory."""
    return np.argsort(-np.abs(array.strides), kind="stable").tolist()


# -- what can be sent ------------------------------------------------------------------------------

DTYPES = [
    "u1",
    "i2",
    "<f4",
    ">f8",
    "f2",
    "c16",
    "?",
    "M8[s]",
    "S3",
    "U2",
    [("a", "i4"), ("b", "f8", 2)],
]
LAYOUTS = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "turned": lambda a: a.transpose(),
    "rolled": lambda a: np.moveaxis(a, -1, 0) if a.ndim else a,
    "gaps": lambda a: a[..., ::2] if a.ndim else a,
    "crop": lambda a: a[1:-1] if a.ndim else a,
    "flip": lambda a: a[::-1] if a.ndim else a,
    "spread": lambda a: np.broadcast_to(a, (3, *a.shape)),
    "readonly": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@st.composite
def arrays(draw):
    """Draw an array of any kind, up to a few hundred kilobytes."""
    dtype, layout = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(list(LAYOUTS)))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 30]), max_size=4))
    seed, count = draw(st.integers(0, 99)), int(np.prod(shape, dtype=int))
    numbers = np.random.default_rng(seed).integers(0, 2, count)
    array = np.zeros(count, dtype)
    if dtype.names:
        array["a"], array["b"][:, 1] = numbers, numbers
    else:
        array[:] = numbers.astype(dtype)
    return LAYOUTS[layout](array.reshape(shape))


LEAVES = st.one_of(
    arrays(),
    arrays(),
    st.integers(),
    st.text(max_size=5),
    st.builds(lambda n: bytes(n % 256 for n in range(n)), st.sampled_from([0, 9, 5000, 300_000])),
    st.builds(bytearray, st.sampled_from([0, 7, 100_000])),
    st.builds(lambda n: memoryview(bytes(n)), st.sampled_from([0, 7, 100_000])),
    st.builds(lambda n: "é" * n, st.sampled_from([70_000])),
    st.builds(lambda n: np.array([n, None, "a"], dtype=object), st.integers()),
    st.builds(lambda n: np.ma.masked_less(np.arange(n), 3), st.sampled_from([5, 9000])),
)
BATCHES = st.recursive(
    LEAVES,
    lambda leaves: st.one_of(
        st.lists(leaves, max_size=4),
        st.dictionaries(st.text(max_size=3), leaves, max_size=3),
        st.tuples(leaves, leaves),
        st.builds(Point, leaves, leaves),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(batch=BATCHES, copy=st.booleans())
def test_round_trip(echo, batch, copy):
    """A nested batch comes back from the other process as it was."""
    assert same(back(echo, batch, copy), batch)


TORCH_LAYOUTS = {
    "plain": lambda t: t,
    "turned": lambda t: t.transpose(0, -1) if t.dim() else t,
    "gaps": lambda t: t[..., ::2] if t.dim() else t,
    "part": lambda t: t[1:] if t.dim() else t,
    "spread": lambda t: t.expand(2, *t.shape),
}


@pytest.mark.slow
@pytest.mark.torch
@given(
    dtype=st.sampled_from(
        ["uint8", "int64", "bool", "float32", "float16", "bfloat16", "complex64", "float8_e4m3fn"]
    ),
    shape=st.lists(st.sampled_from([0, 1, 2, 5, 40]), max_size=4),
    layout=st.sampled_from(list(TORCH_LAYOUTS)),
    copy=st.booleans(),
)
def test_tensor_round_trip(echo, dtype, shape, layout, copy):
    """A tensor comes back with its dtype, shape, order in memory and every bit."""
    import torch

    raw = torch.randint(0, 2, (int(np.prod(shape, dtype=int)), 16), dtype=torch.uint8)
    kind = getattr(torch, dtype)
    sent = TORCH_LAYOUTS[layout](raw[:, : kind.itemsize].contiguous().view(kind).reshape(shape))
    got = back(echo, {"t": sent}, copy)["t"]
    kinds = [(t.dtype, t.shape, bits(t)) for t in (got, sent)]
    orders = [t.stride() for t in (got, sent) if layout == "turned" and min(t.shape, default=0) > 1]
    assert (kinds[0], orders[:1]) == (kinds[1], orders[1:])


def bits(tensor):
    """Give the bytes of a tensor in logical order."""
    import torch

    dense = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return bytes(dense.view(torch.uint8).numpy())


@pytest.mark.slow
def test_tensors_of_special_kinds(torch, echo):
    """Gradients, parameters, sparse and conjugate tensors arrive as such."""
    leaf = torch.ones(50_000, requires_grad=True)
    sent = {
        "leaf": leaf,
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "grown": (leaf * 2).detach(),
    }
    got = back(echo, sent)
    equal = [torch.equal(got[name].to_dense(), sent[name].to_dense()) for name in sent]
    grads = (got["leaf"].requires_grad, got["leaf"].is_leaf, type(got["parameter"]).__name__)
    assert (equal, grads) == ([True] * 5, (True, True, "Parameter"))


def test_tensor_elsewhere_is_refused(torch):
    """A tensor on a device is refused with the way out, and nothing was sent."""

    class Elsewhere:
        def __reduce__(self):
            from nbpipe.executors.workers import pickling

            return pickling.reduce_tensor(types.SimpleNamespace(device=torch.device("cuda:0")))

    with two_ends() as (one, other):
        with pytest.raises(ArgumentTypeError, match=r"must be on the cpu.*tensor\.cpu\(\)"):
            one.send(Elsewhere())
        one.send("next")
        assert other.recv() == "next"


@pytest.mark.gpu
def test_tensor_on_the_gpu_is_refused(torch):
    """A CUDA tensor in a batch is refused."""
    with two_ends() as (one, _), pytest.raises(ArgumentTypeError) as caught:
        one.send([torch.ones(3, device="cuda")])
    assert "tensor.cpu()" in str(caught.value)


@pytest.mark.parametrize("size", [10, 5000, 500_000])
@pytest.mark.parametrize("copy", [True, False])
def test_received_arrays_are_writable(echo, size, copy):
    """What comes in can be written to, small or large, copied or not."""
    array = back(echo, np.zeros(size, np.uint8), copy)
    array += 1
    assert array.sum() == size


@pytest.mark.parametrize("copy", [True, False])
def test_large_arrays_are_aligned(echo, copy):
    """Numbers lie where the processor wants them."""
    batch = back(echo, [np.zeros(n, np.float64) for n in (300, 1001, 20_000)], copy)
    assert all(array.flags.aligned for array in batch)


def test_one_object_stays_one(echo):
    """What stands twice in a message is one object at the other end as well."""
    array = np.zeros(50_000)
    one, two = back(echo, [array, array])
    assert one is two


# -- classes of a notebook, and objects that go wrong ----------------------------------------------


CELL = """
@dataclasses.dataclass
class Item:
    array: object
    name: str
    mark = "new"

    def double(self):
        return self.array * 2
"""


@pytest.fixture
def in_main():
    """Define a dataclass as a cell would."""
    main = sys.modules["__main__"]
    space = {"__name__": "__main__", "dataclasses": dataclasses}
    exec(CELL, space)
    main.Item = space["Item"]
    yield main.Item
    del main.Item


def test_class_of_a_notebook_stays_whole(echo, in_main):
    """What comes back leaves the class as it is: methods that the notebook sees, attributes."""
    method, in_main.total = in_main.double, 5
    channel_sees = back(echo, in_main(2, "a"))
    in_main.total = 6
    again = back(echo, [in_main(3, "b")])[0]
    found = in_main.double is method, in_main.total, again.double(), channel_sees.double()
    assert (type(again), *found) == (in_main, True, 6, 6, 4)


@pytest.mark.slow
def test_change_of_a_class_is_sent(in_main):
    """A class that was changed in place is changed at the other end, one that was not is left."""
    with peer("attribute") as (channel, _):
        in_main.total = 5
        told = [back(channel, in_main(2, "a")), back(channel, in_main(2, "a"))]
        in_main.total = 6
        told += [back(channel, in_main(2, "a")), back(channel, in_main(2, "a"))]
        channel.send("end")
    assert told == [(5, "new"), (5, "set here"), (6, "new"), (6, "set here")]


def test_class_made_elsewhere(echo):
    """A class that no module holds goes there and back and stays the same one."""

    class Local(list):
        pass

    there = [type(item) for item in back(echo, [Local([1]), Local([2])])]
    assert there == [Local, Local]


def test_function_is_sent_by_value(echo):
    """What plain pickle refuses goes by value, and stays in its file, as tracebacks tell."""
    number = 5
    sent = back(echo, lambda x: lambda: x + number)
    inner = sent(2)
    assert inner() == 7
    assert {sent.__code__.co_filename, inner.__code__.co_filename} == {__file__}


def test_error_in_pickling_leaves_the_channel(echo):
    """The error is the object's own, the other end sees nothing of it."""

    class Broken:
        def __reduce__(self):
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        echo.send([np.zeros(100_000), Broken()])
    assert back(echo, "next") == "next"


def test_error_in_loading_leaves_the_channel(echo):
    """A message that cannot be loaded costs itself only."""
    module = types.ModuleType("only_here")
    exec("class Item:\n    pass", module.__dict__)
    sys.modules["only_here"] = module
    try:
        told = back(echo, [np.zeros(100_000), module.Item()])
    finally:
        del sys.modules["only_here"]
    assert (told, back(echo, 5)) == ("ModuleNotFoundError: No module named 'only_here'", 5)


def test_error_in_loading_frees_its_slab():
    """A traceback that is kept keeps no shared memory."""
    with two_ends() as (one, other):
        kept = []
        for _ in range(5):
            one.send([np.zeros(MB, np.uint8), np.dtype, Raises()])
            with pytest.raises(RuntimeError, match="on arrival") as caught:
                other.recv()
            kept.append(caught.value)
        assert (len(kept), one.held_bytes < 3 * MB) == (5, True)


def fail_on_arrival():
    """Raise where it is loaded."""
    raise RuntimeError("on arrival")


class Raises:
    """Pickles well and cannot be loaded."""

    def __reduce__(self):
        return fail_on_arrival, ()


# -- leases ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_views_are_never_overwritten():
    """Arrays taken as views keep their numbers through 1,000 later messages."""
    with peer("count", 200_000, 1010, copy=False) as (channel, _):
        kept = [back(channel, None) for _ in range(10)]
        for _ in range(1000):
            back(channel, None)
        values = [np.unique(array).tolist() for array in kept]
        channel.send(None)
        assert values == [[number] for number in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "count", "options", "least", "most"),
    [
        (4 * MB - 4096, 24, {}, 60 * MB, 80 * MB),
        (MB - 4096, 20, {"budget_bytes": 8 * MB}, 0, 6 * MB),  # a half: none goes through the pipe
    ],
)
def test_copies_hold_little_shared_memory(caplog, size, count, options, least, most):  # noqa: PLR0917
    """What is to be copied keeps its slab as long as few are kept; the rest is copied out."""
    with two_ends(**options) as (one, other):
        kept = []
        for number in range(count):
            one.send(np.full(size, number, np.uint8))
            kept.append(other.recv())
        values = [np.unique(array).tolist() for array in kept]
        held = one.held_bytes
    assert (values, least <= held <= most) == ([[n] for n in range(count)], True)
    assert caplog.records == []


def through_results(values, **options):
    """Send results twice and open them at the other end: the second time their size is known."""
    with two_ends(**options) as (one, other):
        writer = one.writer()
        for _ in range(2):
            writer.begin(len(values))
            written = [*map(writer.add, values)]
            sent = threading.Thread(target=one.send, args=((written, writer.end()),))
            sent.start()  # more than a socket holds waits for its reader
            results, slabs = other.recv()
            sent.join()
            got = [*map(other.reader(slabs).open, results)]
        return got


@pytest.mark.slow
@linux
@example(values=[([], np.broadcast_to(np.ones(2), (3, 2)))], copy=False, budget_bytes=MB)
@example(values=[np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)], copy=True, budget_bytes=MB)
@given(
    st.lists(BATCHES, min_size=1, max_size=4), st.booleans(), st.sampled_from([0, MB // 2, 8 * MB])
)
def test_results_come_as_they_were(values, copy, budget_bytes):
    """Each comes by itself, whatever it is, and however little shared memory there is."""
    assert same(through_results(values, copy=copy, budget_bytes=budget_bytes), values)


@linux
@pytest.mark.torch
def test_tensors_come_as_they_were(torch):
    """Tensors come as results, those that are more than their memory, too."""
    weight = torch.nn.Parameter(torch.ones(4000))
    tensors = [torch.arange(5000), torch.ones(3000, dtype=torch.bfloat16), torch.ones(60, 50).t()]
    pair, got_weight, *got = through_results([(tensors[0], 7), weight, *tensors])
    assert (pair[1], torch.equal(pair[0], tensors[0]), type(got_weight)) == (7, True, type(weight))
    assert all(map(torch.equal, got, tensors))
    assert [one.dtype for one in got] == [one.dtype for one in tensors]


@linux
def test_one_array_of_a_result_stays_one():
    """An array that a result holds twice is one array; that of another is another."""
    array = np.zeros(5000)
    first, second = through_results([[array, array], [array, array]])
    assert (first[0] is first[1], np.shares_memory(first[0], second[0])) == (True, False)


@pytest.mark.parametrize("copy", [True, False])
def test_results_are_copied_where_that_is_asked(copy):
    """However much of them is kept: without `copy` they stay views of the sender's memory."""
    kept = []
    with two_ends(copy=copy) as (one, other):
        writer = one.writer()
        for number in range(25):
            writer.begin(1)
            result = writer.add(np.full(4 * MB - 4096, number, np.uint8))
            one.send((result, writer.end()))
            got, slabs = other.recv()
            kept.append(other.reader(slabs).open(got))
        held = one.held_bytes
    assert [{array.min(), array.max()} for array in kept] == [{n} for n in range(25)]
    assert (held > 90 * MB) == (not copy)


def test_results_that_are_not_sent_hold_no_slab():
    """Nor does a job whose results need no shared memory, where others did before."""
    with two_ends() as (one, _):
        writer, held = one.writer(), []
        for make in (np.zeros, int, np.zeros, int) * 10:
            writer.begin(1)
            writer.add(make(MB))
            if make is int:
                writer.end()
            else:
                writer.drop()
            held.append(one.held_bytes)
        assert held[4:] == held[:1] * 36 != [0] * 36


@pytest.mark.slow
@linux
def test_views_outlive_the_channel_and_the_process():
    """Views stay valid when the other process was killed and the channel closed, then go."""
    before = mapped()
    with peer("count", MB, 2, copy=False) as (channel, process):
        view = back(channel, None)
        process.kill()
        process.wait()
    total, during = int(view.sum()), mapped()
    view += 3
    del view
    assert (total, during, mapped()) == (0, before + 1, before)


@linux
def test_slabs_hold_no_file_descriptors():
    """Many slabs in use need no file descriptor each, at either end."""
    with two_ends(copy=False) as (one, other):
        before, kept = open_files(), []
        for _ in range(50):
            one.send(np.zeros(200_000, np.uint8))
            kept.append(other.recv())
        assert open_files() == before


@pytest.mark.slow
def test_forked_copy_of_a_view_frees_nothing():
    """A forked process that drops its copy of a view leaves the slab in use."""
    with peer("fork") as (channel, _):
        told = [back(channel, np.full(MB, 1, np.uint8))]
        for number in range(2, 6):
            channel.send(np.full(MB, number, np.uint8))
        assert [*told, channel.recv()] == ["dropped", [1]]


# -- memory that there is not ----------------------------------------------------------------------


@pytest.mark.slow
def test_budget_falls_back_to_the_pipe():
    """Beyond the budget messages go through the pipe, equal, with one warning."""
    with peer("hold", 300_000, 20, 2_000_000, copy=False) as (channel, _):
        kept = [channel.recv() for _ in range(20)]
        records, held = channel.recv()
        values = [np.unique(array).tolist() for array in kept]
    assert (values, len(records), held <= 2_000_000) == ([[n] for n in range(20)], 1, True)
    assert "copy=True" in records[0]


@pytest.mark.slow
@linux
@pytest.mark.parametrize(("name", "limit"), [("RLIMIT_FSIZE", 100_000), ("RLIMIT_NOFILE", 3)])
def test_no_memory_falls_back_to_the_pipe(name, limit):
    """Where the system refuses memory, messages are slower and equal, with one warning."""
    with peer("limited", name, limit, 2 * MB) as (channel, _):
        got = [np.unique(channel.recv()).tolist() for _ in range(2)]
        records = channel.recv()
        assert (got, len(records), channel.held_bytes) == ([[1], [2]], 1, 0)


@pytest.mark.slow
@linux
def test_receiver_that_cannot_map():
    """A message that the receiver cannot map is lost with an error; others arrive."""
    with peer("deaf", 200 * MB) as (channel, _):
        lost = back(channel, np.zeros(300 * MB, np.uint8))
        assert ("could not map" in lost, back(channel, np.zeros(MB, np.uint8))) == (True, MB)


def test_messages_around_the_size_of_a_block():
    """Small messages of every length, and of many buffers, arrive whole through the pipe."""
    with two_ends(budget_bytes=0) as (one, other):
        sent = ["x" * number for number in range(850, 1100)]
        sent += [[np.full(300, n) for n in range(count)] for count in (1, 7, 120, 126, 200)]
        sent += [{"a": np.arange(4000.0).reshape(40, 100).T, "b": [np.arange(10_000)], "c": b"x"}]
        got = []
        for message in sent:
            sender = threading.Thread(target=one.send, args=(message,))
            sender.start()  # more than a socket holds waits for its reader
            got.append(other.recv())
            sender.join()
        assert (same(got, sent), one.held_bytes, other.held_bytes) == (True, 0, 0)


@linux
def test_memory_as_on_other_systems(monkeypatch):
    """Without memory that has no name at all, a file does that has lost its name."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(channel, "LINUX", False)
    files = open_files()
    with two_ends() as (one, other):
        for number in range(5):
            one.send(np.full(MB, number, np.uint8))
            got = other.recv()
        shared, held = one.held_bytes, other.held_bytes
    assert (int(got[0]), shared > MB, shared, open_files()) == (4, True, held, files)


def test_over_a_pipe_that_is_no_socket():
    """A connection that can carry no descriptors carries everything else."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    one, other = Channel(writer), Channel(reader)
    try:
        one.send([np.arange(6000), "a"])
        array, text = other.recv()
        assert (int(array[-1]), text, one.held_bytes) == (5999, "a", 0)
    finally:
        one.close()
        other.close()


@pytest.mark.slow
def test_memory_is_bounded_over_random_sizes():
    """500 messages of random sizes take no more than a few of the largest, both ways."""
    sizes = np.random.default_rng(1).integers(1, 3 * MB, 500).tolist()
    with peer("echo") as (channel, _):
        held = [back(channel, bytes(size)) and channel.held_bytes for size in sizes]
        channel.send("end")
    assert max(held) <= 2 * 4 * 3 * MB


# -- the other end goes away -----------------------------------------------------------------------


@pytest.mark.slow
def test_killed_in_the_middle_of_a_message():
    """The other process killed while it writes 300 MB into the pipe: an error, at once."""
    with peer("flood", 300 * MB) as (channel, process):
        pass
    with peer("hold", 300 * MB, 1, 0) as (channel, process):
        channel.poll(None)
        process.kill()
        process.wait()
        with pytest.raises((EOFError, OSError)):
            channel.recv()
        with pytest.raises((EOFError, OSError)):
            channel.recv()
        assert process.returncode == -signal.SIGKILL


def test_killed_while_it_fills_a_slab():
    """Killed while it writes 300 MB into shared memory: an error, or the whole message."""
    with peer("flood", 300 * MB) as (channel, process):
        first = channel.recv()
        process.kill()
        try:
            size = len(channel.recv())
        except (EOFError, OSError):
            size = 300 * MB
        assert (first, size) == ("now", 300 * MB)


def test_end_of_the_other_process():
    """A process that ended is heard of by who waits for it."""
    with peer("echo") as (channel, _):
        channel.send("end")
        readable = channel.poll(None)
        with pytest.raises(EOFError):
            channel.recv()
        assert readable


def test_sending_to_a_process_that_is_gone():
    """A message to a process that was killed raises, however large it is."""
    with peer("echo") as (channel, process):
        process.kill()
        process.wait()
        for size in (10, MB):
            with pytest.raises(OSError, match=r".*"):
                channel.send(bytes(size))
        assert process.returncode == -signal.SIGKILL


def test_close_wakes_who_receives():
    """Closing a channel ends a `recv` that waits in another thread."""
    with two_ends() as (one, _):
        caught, waiting = [], threading.Event()

        def wait():
            waiting.set()
            try:
                one.recv()
            except (EOFError, OSError) as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        one.close()
        thread.join()
        assert len(caught) == 1


def test_closed_channel_raises():
    """A closed channel can be closed again, and neither sends nor receives."""
    with two_ends() as (one, _):
        one.close()
        one.close()
        with pytest.raises(OSError, match="closed"):
            one.send(1)
        with pytest.raises((OSError, EOFError)):
            one.recv()
        assert one.held_bytes == 0


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_send_at_once(echo):
    """Messages of several threads arrive whole, each once."""

    def send(start):
        for number in range(start, start + 100):
            echo.send((number, np.full(1 + number * 300, number, np.int64)))

    threads = [threading.Thread(target=send, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    got = [echo.recv() for _ in range(400)]
    for thread in threads:
        thread.join()
    whole = all((array == number).all() for number, array in got)
    assert (Counter(number for number, _ in got), whole) == (Counter(range(400)), True)
