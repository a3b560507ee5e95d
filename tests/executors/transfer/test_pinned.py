"""How often a batch is copied on the host on its way to a device."""

from pathlib import Path

import numpy as np
import pytest

import nbpipe
from tests.executors.transfer.fake import World
from tests.executors.transfer.inner import LINUX, PinnedMemory, collate, leaves

pytestmark = pytest.mark.torch


def image(n):
    """Give an array of 600 KB, which goes through shared memory."""
    return np.full((3, 50_000), n, np.float32)


def values(batches):
    """Give the first number of each item of each batch that is on the device."""
    return [[int(np.ravel(row)[0]) for row in batch.block.data] for batch in batches]


def arrays(size):
    """Give a pipeline of arrays, which are stacked last."""
    return nbpipe.source(range(6)).map(lambda n: np.full(4, n, np.float32)).batch(size)


def tensors(size):
    """Give the same of tensors."""
    import torch

    return nbpipe.source(range(6)).map(lambda n: torch.full((4,), n).bfloat16()).batch(size)


def padded(size):
    """Give the same of arrays that differ in length."""
    pipe = nbpipe.source(range(6)).map(lambda n: np.full(3 + n % 2, n, np.int16))
    return pipe.batch(size, pad=-1)


def padded_tensors(size):
    """Give the same of tensors that differ in length."""
    import torch

    pipe = nbpipe.source(range(6)).map(lambda n: torch.full((3 + n % 2,), n))
    return pipe.batch(size, pad=-1)


def by_cost(size):
    """Give the same in batches of a budget."""
    pipe = nbpipe.source(range(6)).map(lambda n: np.full(4, n, np.float32))
    return pipe.batch(size, cost=lambda _: 1)


@pytest.mark.parametrize("made", [arrays, padded, by_cost])
def test_a_batch_is_stacked_into_pinned_memory(world, made):
    """Where a device comes next, the batch is not copied again on the host."""
    world.eager_copies = True
    found = values(made(3).to_device("fake"))
    assert (found, len(world.pinned_blocks), world.pinnings) == ([[0, 1, 2], [3, 4, 5]], 2, 0)


@pytest.mark.parametrize("made", [tensors, padded_tensors])
def test_tensors_are_stacked_into_pinned_memory(world, made):
    """They keep their dtype, whether numpy has it or not."""
    world.eager_copies = True
    plain = list(made(3))
    found = values(made(3).to_device("fake"))
    assert (found, len(world.pinned_blocks), world.pinnings) == ([[0, 1, 2], [3, 4, 5]], 2, 0)
    assert [(batch.dtype, batch.tolist()) for batch in world.given] == [
        (batch.dtype, batch.tolist()) for batch in plain
    ]


def test_a_batch_is_stacked_as_usual_where_no_memory_is_pinned(world):
    """It is copied to pinned memory later, where that is possible."""
    world.eager_copies, world.pins = True, False
    assert values(arrays(3).to_device("fake")) == [[0, 1, 2], [3, 4, 5]]
    assert (world.pinned_blocks, world.pinnings) == ([], 2)


def test_a_batch_with_a_stage_behind_it_takes_no_pinned_memory(world):
    """Only the last copy on the host goes there."""
    pipe = arrays(3).map(lambda batch: batch + 1, executor="inline")
    world.eager_copies = True
    assert values(pipe.to_device("fake")) == [[1, 2, 3], [4, 5, 6]]
    assert (world.pinned_blocks, world.pinnings) == ([], 2)


def odd_samples(torch):
    """Give samples that are stacked in ways of their own, and how many blocks they take."""
    one, two = np.float32(1), np.float32(2)
    complex_one = torch.view_as_complex(torch.ones(3, 2))
    return {
        "scalars": ([np.array(1), np.array(2)], {}, 1),
        "reversed": ([np.arange(6)[::-1], np.arange(6)], {}, 1),
        "several dtypes": ([np.arange(3), np.ones(3)], {}, 1),
        "cast": ([np.ones(3), np.zeros(3)], {"dtype": "float16"}, 1),
        "bool": ([np.ones(3, bool), np.zeros(3, bool)], {}, 1),
        "nested": ([{"x": np.ones(2), "y": (np.ones(3),)}] * 2, {}, 2),
        "channels last": ([torch.rand(2, 3, 4).permute(2, 0, 1)] * 2, {}, 1),
        "float8": ([torch.ones(3).to(torch.float8_e4m3fn)] * 2, {}, 1),
        "complex": ([torch.ones(3, dtype=torch.complex128)] * 2, {}, 1),
        "numbers": ([one, two], {}, 0),
        "empty": ([np.ones(0), np.zeros(0)], {}, 0),
        "other byte order": ([np.arange(3, dtype=">i4")] * 2, {}, 0),
        "dates": ([np.array(["2020-01-01"], "datetime64[D]")] * 2, {}, 0),
        "conj": ([complex_one.conj()] * 2, {}, 0),
        "gradients": ([torch.ones(3, requires_grad=True)] * 2, {}, 0),
        "cast tensors": ([torch.ones(3), torch.zeros(3)], {"dtype": "float16"}, 0),
        "sparse": ([torch.eye(3).to_sparse()] * 2, {}, 0),
    }


@pytest.mark.parametrize("case", range(17))
def test_what_is_stacked_does_not_depend_on_the_memory(torch, case):
    """Values, dtypes and shapes are those of numpy and torch."""
    samples, options, blocks = list(odd_samples(torch).values())[case]
    world = World()
    made = collate(samples, **options, memory=PinnedMemory(world, "fake:0"))
    wanted = collate(samples, **options)
    assert len(world.pinned_blocks) == blocks
    for one, other in zip(leaves(made), leaves(wanted), strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert _numbers(one) == _numbers(other)


def _numbers(batch):
    return batch.to_dense().tolist() if hasattr(batch, "to_dense") else batch.tolist()


def test_a_value_out_of_range_is_refused_in_pinned_memory_too():
    """The message is that of any batch."""
    memory = PinnedMemory(World(), "fake:0")
    with pytest.raises(nbpipe.ArgumentError, match="every value must be in the range of float16"):
        collate([np.array([1e30]), np.array([1.0])], dtype="float16", memory=memory)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1, 7).reshape(3, 2)[::-1],
        np.arange(1, 7, dtype=">i4").reshape(3, 2),
        np.broadcast_to(np.arange(1, 3), (3, 2)),
        np.frombuffer(b"abcdef", np.uint8).reshape(3, 2),
    ],
    ids=["reversed", "other byte order", "broadcast", "read only"],
)
def test_an_odd_array_is_copied_once_on_the_host(world, array):
    """A tensor cannot share its memory: the copy is made in pinned memory."""
    (batch,) = nbpipe.source([array]).to_device("fake")
    world.finish()
    assert (batch.block.data, world.pinnings) == (array.tolist(), 0)
    assert len(world.pinned_blocks) == 1


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="memory is looked up in a file of Linux")
@pytest.mark.parametrize("isolate", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_comes_from_a_process_is_copied_once_on_the_host(world, isolate):
    """From the memory that the processes share, straight into pinned memory."""
    world.eager_copies = True
    pipe = nbpipe.source(range(6)).map(image)
    pipe = pipe.batch(2) if isolate else pipe.batch(2, executor="process")
    with pipe.to_device("fake").start(isolate=isolate) as run:
        found = values(run)
        shared = [in_shared_memory(tensor.data_ptr()) for tensor in world.given]
    assert (found, shared) == ([[0, 1], [2, 3], [4, 5]], [True] * 3)
    assert (world.pinnings, world.pinned_blocks) == (3, [])


def in_shared_memory(address):
    """Return whether an address lies in memory that a process of nbpipe's has shared."""
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            begins, ends = (int(word, 16) for word in line.split()[0].split("-"))
            if begins <= address < ends:
                return "memfd:nbpipe" in line
    return False
