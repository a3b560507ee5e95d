"""Slabs, the ring of them, and blocks: sizes, budgets, leases."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.executors.conftest import mapped, open_files
from tests.executors.inner import (
    HEADER_BYTES,
    IDLE_MESSAGES,
    Blocks,
    Lease,
    Ring,
    Slab,
    bytes_of,
    channel,
    open_memory,
    size_class,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory as on Linux")
MB = 1 << 20


@pytest.fixture
def ring():
    """Give a ring of 64 MB."""
    ring = Ring(64 * MB)
    yield ring
    ring.forget()


def taken(ring, size):
    """Take a slab and hand it back at once, as a message that was read."""
    slab = ring.take(size)
    slab.flag[0] = 0
    return slab


@given(st.integers(1, 1 << 40))
def test_size_class_is_near(need):
    """A slab is large enough, and at most an eighth larger than needed."""
    size = size_class(need)
    assert need <= size <= max(need * 9 // 8 + 4096, 1 << 18)


def test_memory_has_no_name_and_its_pages():
    """Memory is allocated at once and nothing of it stands in /dev/shm."""
    before = set(Path("/dev/shm").iterdir())
    fd = open_memory(MB)
    blocks, names = os.fstat(fd).st_blocks, set(Path("/dev/shm").iterdir())
    os.close(fd)
    assert (blocks * 512, names) == (MB, before)


def test_sizes_are_learned(ring):
    """Items of random sizes soon need no new slabs."""
    sizes = np.random.default_rng(0).integers(2 * MB, 4 * MB, 300).tolist()
    early = {taken(ring, size).number for size in sizes[:40]}
    late = {taken(ring, size).number for size in sizes[40:]}
    assert (len(late - early) <= 1, len(early) <= 4) == (True, True)


def test_idle_slabs_are_dropped(ring):
    """A slab that nobody needs any more is dropped, and the other end is told."""
    large = taken(ring, 32 * MB).number
    ring.dropped.clear()
    for _ in range(2 * IDLE_MESSAGES):
        taken(ring, MB)
    assert (large in ring.dropped, ring.held_bytes < 4 * MB) == (True, True)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((48 * MB, 32 * MB), "shared memory is used up: 50.3 MB of 67.1 MB are held by arrays"),
        ((MB, 80 * MB), "a message needs 83.9 MB of shared memory, and 67.1 MB is the most"),
    ],
)
def test_what_does_not_fit_is_told(monkeypatch, caplog, ring, sizes, words):
    """What others hold is named where it is in the way, and not where nothing would help."""
    monkeypatch.setattr(channel, "_warned", set())
    assert [ring.take(size) is None for size in sizes] == [False, True]
    assert [record.getMessage().startswith(words) for record in caplog.records] == [True]


def test_small_message_leaves_a_large_slab(ring):
    """A slab far too large is not taken for a message that may be held for long."""
    large = taken(ring, 32 * MB)
    assert ring.take(MB) is not large


def test_budget_is_kept(ring):
    """Beyond the budget there is no slab; one that comes free is taken again."""
    slabs = [ring.take(10 * MB) for _ in range(8)]
    given, refused = [s for s in slabs if s], slabs.count(None)
    given[0].flag[0] = 0
    assert (refused > 0, ring.held_bytes <= 64 * MB, ring.take(10 * MB)) == (True, True, given[0])


def test_free_slabs_make_room(ring):
    """Slabs that are too small give way to one that is large enough."""
    for size in range(4, 40, 2):
        assert taken(ring, size * MB).size_bytes >= size * MB
    assert ring.held_bytes <= 64 * MB


def test_larger_than_the_budget(ring):
    """A message that can never fit drops nothing for it."""
    small = taken(ring, MB)
    assert (ring.take(65 * MB), ring.take(MB)) == (None, small)


def test_forgotten_ring_leaves_nothing():
    """Slabs are unmapped and their descriptors closed when the ring lets go."""
    before, files = mapped(), open_files()
    ring = Ring(64 * MB)
    ring.take(MB)
    ring.take(MB)
    during = mapped()
    ring.forget()
    after = mapped(), open_files()
    assert (during, after) == (before + 2, (before, files))


def test_lease_ends_with_the_last_view():
    """A slab comes free when no view of it is left, not earlier."""
    fd = open_memory(MB)
    slab = Slab(0, fd, MB)
    os.close(fd)
    slab.flag[0] = 1
    array = np.frombuffer(bytes_of(Lease(slab))[HEADER_BYTES:], np.uint8)
    part = array[10:20].reshape(2, 5).T
    held = [slab.flag[0]]
    del array
    held.append(slab.flag[0])
    del part
    assert [*held, slab.flag[0]] == [1, 1, 0]


@given(st.lists(st.integers(1, 1 << 19), min_size=1, max_size=20))
def test_blocks_copy(sizes):
    """Copies equal their sources, and one that is held is never written again."""
    blocks = Blocks(kept_bytes=MB)
    sources = [memoryview(np.random.default_rng(n).bytes(n)) for n in sizes]
    copies = [blocks.copy(source) for source in sources]
    for source in sources:
        blocks.copy(source)
    assert [bytes(copy) for copy in copies] == [bytes(source) for source in sources]


def test_block_is_used_again():
    """Memory of a copy that is gone serves the next one."""
    blocks, source = Blocks(), memoryview(bytes(MB))
    first = np.frombuffer(blocks.copy(source), np.uint8)
    address = first.ctypes.data
    del first
    second = np.frombuffer(blocks.copy(source), np.uint8)
    assert second.ctypes.data == address
