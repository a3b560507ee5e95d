"""Memory of workers and of what goes between: shared memory that is short, freed, and gone."""

import gc
import mmap
import os
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.executors.processes.chain import placed
from tests.gates import HANG_S, drained, quiet
from tests.scripts import ROOT, ran

MB = 1_000_000
SHARED_MEMORY = Path("/dev/shm")
MAPS = Path("/proc/self/maps")
FILES = Path("/proc/self/fd")
# Begins a command with a /dev/shm of its own, in which nothing is free.
ALONE = (
    f"unshare -rm sh -c 'mount -t tmpfs -o size=4k tmpfs {SHARED_MEMORY} && "
    f"dd if=/dev/zero of={SHARED_MEMORY}/filler bs=4k count=1 status=none &&"
)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="shared memory as on Linux")


def filled(n, size_bytes=4 * MB):
    """Give an array that says which item it is."""
    return np.full(size_bytes, n % 251, np.uint8)


def is_whole(n, array):
    """Say whether an array is that of its item."""
    return array[0] == array[-1] == n % 251 and bool((array == array[0]).all())


@pytest.mark.parametrize("copy", [True, False])
def test_large_results(copy):
    """Arrays come whole, copied out or as views, while others follow."""
    with placed(40, filled, copy=copy).start() as run:
        got = [is_whole(n, array) for n, array in enumerate(drained(run))]
    assert got == [True] * 40


@pytest.mark.parametrize("many", [lambda array: array, lambda array: {"image": array, "n": 0}])
@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((20_000,), lambda array: array),
        ((200, 100), lambda array: array.T),
        ((100, 100, 2), lambda array: array.transpose(2, 0, 1)),
        ((200, 200), lambda array: array[::2, 50:150]),
        ((20_000,), lambda array: array[::-1]),
        ((100,), lambda array: np.broadcast_to(array, (20, 100))),
        ((), lambda array: array),
    ],
)
def test_an_array_that_is_filled_anew(shape, view, many):
    """A function may give the same array for each item: what it held is copied at once."""
    array = np.zeros(shape)
    expected = view(array)

    def fill(n):
        array[...] = n
        return many(view(array))

    got = [one["image"] if isinstance(one, dict) else one for one in drained(placed(100, fill))]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(100)]
    dense = expected.copy("K")
    assert {(one.shape, one.flags.fnc) for one in got} == {(dense.shape, dense.flags.fnc)}


def numbers_file(path, order="C"):
    """Write a file of numbers, and map it."""
    mapped = np.lib.format.open_memmap(path, "w+", "f8", (300, 500), fortran_order=order == "F")
    mapped[:] = np.arange(150_000).reshape(300, 500)
    mapped.flush()
    return np.load(path, mmap_mode="r")


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("options", [{}, {"isolate": True}])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("part", [slice(None), 7, slice(20, 90), (slice(None), slice(3, 9))])
def test_a_file_that_is_mapped_is_mapped_by_workers(tmp_path, part, order, options):
    """In one piece, it is no copy: what is written to the file is seen there."""
    array = numbers_file(tmp_path / "numbers.npy", order)[part]
    again = np.load(tmp_path / "numbers.npy", mmap_mode="r+")

    def work(n):
        return array.shape, isinstance(array.base, mmap.mmap), float(array.sum())

    in_one_piece = array.flags.forc
    expected = array.shape, in_one_piece, float(array.sum())
    with placed(1, work).start(**options) as run:
        first = drained(run)
        again[:] = 0
        ((_, _, total),) = drained(run)
    assert (first, total == 0 or not in_one_piece) == ([expected], True)


@linux_only
@pytest.mark.parametrize("mode", ["r+", "c"])
def test_what_a_worker_writes_to_a_mapped_file_stays_there(tmp_path, mode):
    """And what this process keeps for itself goes along."""
    numbers_file(tmp_path / "numbers.npy")
    array = np.load(tmp_path / "numbers.npy", mmap_mode=mode)
    array[0, 0] = 5

    def work(n):
        array[0, 1] -= 1
        return array[0, :2].tolist()

    got = drained(placed(1, work))
    assert (got, array[0, :2].tolist()) == ([[5, 0]], [5, 1])


@pytest.mark.slow
@linux_only
def test_a_mapped_file_that_is_gone_is_copied(tmp_path):
    """Another file of its name is not read in its place."""
    array = numbers_file(tmp_path / "numbers.npy")
    np.save(tmp_path / "other.npy", np.zeros((300, 500)))
    (tmp_path / "other.npy").rename(tmp_path / "numbers.npy")
    assert drained(placed(3, lambda n: array[n, 2])) == [2, 502, 1002]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, "64 MB"])
def test_views_live_as_long_as_somebody_holds_them(memory):
    """With copy=False, what is kept is not written over by later items, or by the end.

    Beyond the shared memory that is allowed, what follows is copied.
    """
    with placed(60, filled, copy=False).start(memory=memory) as run:
        kept = drained(run)
        second = drained(run)
    gc.collect()
    assert [is_whole(n, array) for n, array in enumerate(kept)] == [True] * 60
    assert [is_whole(n, array) for n, array in enumerate(second)] == [True] * 60


@pytest.fixture
def traced():
    """Count the bytes that Python and numpy allocate in this process."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def mapped_bytes():
    """Return how much shared memory of workers this process has mapped [bytes]."""
    lines = [line for line in MAPS.read_text().splitlines() if "/memfd:nbpipe" in line]
    ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return sum(end - begin for begin, end in ends)


@pytest.mark.slow
@linux_only
def test_the_parents_memory_does_not_grow(traced):
    """Epoch after epoch of large results take no more memory than the first ones."""
    with placed(60, filled).start() as run:
        kept, mapped = [], []
        for _ in range(14):
            for _ in run:
                pass
            quiet(run)
            kept.append(tracemalloc.get_traced_memory()[0])
            mapped.append(mapped_bytes())
    assert max(kept) < 100 * MB, kept  # 64 MB of blocks wait to be used again, where many were held
    assert 0 < max(mapped) < 600 * MB, mapped  # of 3,360 MB


@pytest.mark.slow
def test_the_workers_memory_does_not_grow():
    """A worker does not keep what it has sent."""

    def work(n):
        return tracemalloc.get_traced_memory()[0], filled(n)

    chain = placed(160, work, concurrency=1, worker_init=tracemalloc.start)
    kept = [size for size, _ in drained(chain)]
    assert (len(kept), max(kept) < 3 * 4 * MB) == (160, True)


FULL = """
    import numpy as np
    import nbpipe

    def work(n):
        return np.full(3_000_000, n, np.uint8)

    chain = nbpipe.source(range(20)).map(work, executor="process", concurrency=2)
    with chain.start() as run:
        print([bool((array == n).all()) and array.size for n, array in enumerate(run)])
"""


@pytest.mark.slow
@linux_only
def test_no_more_open_files(tmp_path):
    """Where no worker can be started, an error says what has run out."""
    text = """
        import contextlib, os, resource
        import nbpipe

        chain = nbpipe.source(range(20)).map(lambda n: n, executor="process")
        list(chain)
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        os.close(taken.pop())  # one file is free, a worker needs more
        try:
            list(chain)
        except nbpipe.StageError as error:
            print(type(error.__cause__).__name__, "Too many open files" in str(error))
        for fd in taken:
            os.close(fd)
        print(len(list(chain)))
    """
    code, out, err = ran(text, tmp_path)
    assert (code, out, err) == (0, "WorkerStartError True\n20\n", "")


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("copy", [True, False])
def test_kept_arrays_take_no_descriptors(copy):
    """However many results are kept, no more files are open."""
    counts, kept = [], []
    with placed(100, lambda n: np.full(20_000, n), copy=copy).start() as run:
        for _ in range(2):
            kept += drained(run)
            counts.append(len(list(FILES.iterdir())))
    assert counts[0] == counts[1]
    assert [int(array[-1]) for array in kept] == [*range(100)] * 2


@pytest.mark.slow
@linux_only
def test_a_full_shared_memory(tmp_path):
    """`/dev/shm` may be full, as in a small container: nothing of it is needed."""
    tried = subprocess.run(["sh", "-c", f"{ALONE} df {SHARED_MEMORY}'"], check=False)
    if tried.returncode:
        pytest.skip("this user may not mount a small /dev/shm of its own")
    (tmp_path / "script.py").write_text(textwrap.dedent(FULL))
    done = subprocess.run(
        ["sh", "-c", f"{ALONE} {sys.executable} -W error script.py'"],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[3_000_000] * 20}\n", "")
