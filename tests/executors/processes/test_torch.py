"""torch in workers: tensors that come and go, one thread, numbers by the item."""

import functools
import os
import signal
import warnings
from pathlib import Path

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.conftest import start_server
from tests.gates import delivered, drained

FILES = Path("/proc/self/fd")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def server(server):
    """Load torch before the first test: the fork server starts anew with it.

    The process that names shared memory for torch starts once, and ends with this one.
    """
    import torch

    named(lambda: torch.zeros(1).share_memory_())
    start_server()
    return torch


def test_batches_of_a_worker_are_those_of_a_thread(torch):
    """Numbers beside tensors are stacked to tensors in a worker, too."""
    chain = placed(4, lambda n: {"x": torch.full((2,), n), "y": n, "rate": n / 2})
    (batch,) = drained(chain.batch(4, executor="process"))
    assert [type(leaf) for leaf in batch.values()] == [torch.Tensor] * 3
    assert (batch["y"].tolist(), batch["rate"].tolist()) == ([0, 1, 2, 3], [0, 0.5, 1, 1.5])


@pytest.mark.slow
def test_tensors_take_no_descriptors(torch):
    """However many tensors are kept, no more files are open."""
    with placed(300, lambda n: torch.full((20_000,), n)).start() as run:
        kept = drained(run)
        first = len(list(FILES.iterdir()))
        kept += drained(run)
        assert len(list(FILES.iterdir())) == first
    assert [int(tensor[-1]) for tensor in kept] == [*range(300)] * 2


class Cache:
    """Keeps rows in memory that processes share."""

    def __init__(self, rows):
        self.rows = rows
        self.first = rows[0]

    def fill(self, n):
        """Write a row, if nobody has, and give who wrote it."""
        if not self.rows[n, 1]:
            self.rows[n] = torch_of(n + 1)
        return int(self.rows[n, 0]), int(self.rows[n, 1])


def torch_of(n):
    """Give a row: a number, and who made it."""
    import torch

    return torch.tensor([n, os.getpid()])


def keeping(how, rows):
    """Give a function that fills `rows`, which it reaches in one way or another."""
    cache = Cache(rows)

    def fill(n, cache=None):
        return (cache or held["cache"]).fill(n)

    held = {"cache": cache}
    other = functools.partial(fill, cache=cache)
    return {"method": cache.fill, "closure": fill, "partial": other}[how]


def named(make):
    """Make tensors in shared memory that has a name."""
    from torch import multiprocessing

    before = multiprocessing.get_sharing_strategy()
    multiprocessing.set_sharing_strategy("file_system")
    try:
        return make()
    finally:
        multiprocessing.set_sharing_strategy(before)


@pytest.fixture(params=["open", "named", "file"])
def make_rows(request, tmp_path):
    """Give what makes rows of zeros in memory that torch shares in one way or another."""
    return functools.partial(zeros, request.param, tmp_path / "rows")


def zeros(kind, path):
    """Make rows of zeros in shared memory: an open file's, a named one's, one of a folder."""
    import torch

    def make():
        return torch.zeros(8, 2, dtype=torch.int64).share_memory_()

    if kind == "file":
        return torch.from_file(str(path), shared=True, size=16, dtype=torch.int64).view(8, 2)
    return named(make) if kind == "named" else make()


@pytest.mark.parametrize("how", ["method", "closure", "partial"])
def test_shared_tensors_stay_shared(make_rows, how):
    """What workers write to shared memory is there in the next epoch, and in this process."""
    rows = make_rows()
    with placed(8, keeping(how, rows)).start() as run:
        first = drained(run)
        assert rows.tolist() == [list(row) for row in first]
        run["fn"].concurrency = 4  # late workers find what the first ones wrote
        assert drained(run) == first
    assert [row[0] for row in first] == [*range(1, 9)]
    assert os.getpid() not in {row[1] for row in first}


@pytest.mark.slow
def test_shared_tensors_outlive_a_worker(make_rows):
    """A worker that is killed, and those in its place, write to the same memory."""
    rows = make_rows()

    def work(n):
        rows[n] += 1
        if n == 3 and rows[3, 0] < 3:
            os.kill(os.getpid(), signal.SIGKILL)

    drained(placed(8, work))
    assert rows[3].tolist() == [3, 3]
    assert rows[:, 0].sum() == 10


@pytest.mark.slow
def test_views_of_shared_memory_are_one_memory(torch):
    """However many tensors show parts of it, a worker opens shared memory once."""
    whole = torch.zeros(300, 4).share_memory_()
    views = [*whole, torch.nn.Parameter(whole), whole.T]

    def work(n):
        views[n].add_(1)
        return len(list(FILES.iterdir())), views[300].tolist() == views[301].T.tolist()

    (few,) = drained(placed(1, lambda n: len(list(FILES.iterdir()))))
    got = drained(placed(300, work, concurrency=1))
    assert whole.unique().tolist() == [1]
    assert {alike for _, alike in got} == {True}
    assert max(count for count, _ in got) < few + 20


@pytest.mark.slow
def test_shared_tensors_of_a_run_in_a_process_of_its_own(make_rows):
    """Threads and workers of an isolated run write to the memory of this process."""
    rows = make_rows()

    def mark(n):
        rows[n, 1] = -1
        return n

    def count(n):
        rows[n, 0] = n + 1
        return n

    chain = nbpipe.source(range(8)).map(mark).map(count, executor="process")
    with chain.start(isolate=True) as run:
        drained(run)
    assert rows.tolist() == [[n + 1, -1] for n in range(8)]


def test_shared_tensors_of_a_loader(make_rows):
    """A dataset that fills a cache in its first epoch reads it in the second."""
    rows = make_rows()

    class Dataset:
        def __len__(self):
            return 8

        def __getitem__(self, n):
            return Cache(rows).fill(n)[0]

    loader = nbpipe.DataLoader(Dataset(), 4, num_workers=2)
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert first == second == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert rows[:, 0].tolist() == [*range(1, 9)]


def of_kind(kind):
    """Give a tensor that is none of the plain ones."""
    import torch

    ones = torch.ones(3, dtype=torch.complex64)
    with warnings.catch_warnings():  # torch tells of what is a prototype, or is to go
        warnings.simplefilter("ignore")
        makers = {
            "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)]),
            "jagged": lambda: torch.nested.nested_tensor(
                [torch.zeros(2), torch.ones(3)], layout=torch.jagged
            ),
            "sparse": lambda: torch.eye(3).to_sparse(),
            "rows": lambda: torch.eye(3).to_sparse_csr(),
            "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8),
            "meta": lambda: torch.ones(3, device="meta"),
            "conjugate": ones.conj,
            "negative": lambda: ones.conj().imag,
        }
        return makers[kind]()


KINDS = (
    *("nested", "jagged", "sparse", "rows", "quantized"),
    *("meta", "conjugate", "negative"),
)


def portrait(tensor):
    """Give what tells a tensor from others: what it is, and its values."""
    import torch

    about = (tensor.layout, tensor.dtype, tensor.is_nested, tensor.is_quantized, tensor.device)
    if tensor.is_meta:
        return *about, tuple(tensor.shape)
    parts = tensor.detach().unbind() if tensor.is_nested else [tensor.detach()]
    values = [torch.resolve_neg(part.resolve_conj()) for part in parts]
    dense = [part.dequantize() if part.is_quantized else part.to_dense() for part in values]
    return *about, [part.tolist() for part in dense]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_come_whole():
    """Nested, sparse, quantized and all other tensors arrive as what they are."""
    got = dict(zip(KINDS, drained(placed(len(KINDS), lambda n: of_kind(KINDS[n]))), strict=True))
    wanted = {kind: portrait(of_kind(kind)) for kind in KINDS}
    assert {kind: portrait(tensor) for kind, tensor in got.items()} == wanted


def test_tensors_that_cannot_be_sent_cost_no_worker():
    """A result that torch cannot pickle is refused by stage and type, and its worker goes on."""

    def work(n):
        import torch

        return torch.ones(3).to_mkldnn() if n == 1 else os.getpid()

    with placed(4, work, on_error="skip", concurrency=1).start() as run:
        pids = drained(run)
        (failure,) = run.failures()
    assert (len(pids), len(set(pids))) == (3, 1)
    assert "stage 'fn' gave a Tensor, which cannot be sent from its worker" in str(failure)


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.t(),
        lambda tensor: {"x": tensor[:, ::2]},
        lambda tensor: tensor[:1].expand(9, -1),
    ],
)
def test_a_tensor_that_is_filled_anew(torch, view):
    """A function may give the same tensor for each item: what it held is copied at once."""
    tensor = torch.zeros(80, 60)

    def fill(n):
        tensor[:] = n
        return view(tensor)

    got = [one["x"] if isinstance(one, dict) else one for one in drained(placed(100, fill))]
    assert [(int(one.min()), int(one.max())) for one in got] == [(n, n) for n in range(100)]


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"a": {"x": t}}, lambda t: (t[::2], 0)])
def test_a_tensor_that_is_filled_again(torch, wrap):
    """Tensors are copied as arrays are."""
    buffer = torch.zeros(1000)

    def fill(n):
        buffer[:] = n
        return wrap(buffer)

    got = drained(placed(100, fill))
    leaves = [one["a"]["x"] if isinstance(one, dict) else one for one in got]
    leaves = [one[0] if isinstance(one, tuple) else one for one in leaves]
    assert [(int(one.min()), int(one.max())) for one in leaves] == [(n, n) for n in range(100)]


def test_a_tensor_that_stands_twice(torch):
    """Tensors are one object, too."""

    def twice(n):
        tensor = torch.full((5000,), n)
        return tensor, [tensor]

    got = drained(placed(40, twice))
    assert [one is other for one, (other,) in got] == [True] * 40


# -- Types for which torch has no class of storage -------------------------------------------------
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["uint16", "uint64", "float8_e4m3fn", "complex32", "bfloat16"])
def test_tensors_of_rare_types(torch, dtype, shared):
    """A function may hold them, take them and return them; shared memory stays shared."""
    table = torch.arange(64, dtype=torch.uint8).view(getattr(torch, dtype))
    if shared:
        table.share_memory_()
    part = table[2:4]

    def work(given):
        table.view(torch.uint8)[:] = 7
        return given, table

    ((given, got),) = drained(placed([part.clone()], work))
    assert (given.dtype, got.dtype, got.shape) == (table.dtype, table.dtype, table.shape)
    assert given.view(torch.uint8).tolist() == list(range(2 * table.itemsize, 4 * table.itemsize))
    assert (table.view(torch.uint8)[0] == 7) == shared


# -- Results that cannot be sent -------------------------------------------------------------------
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"loss": (t, 1)}])
@pytest.mark.parametrize("options", [{}, {"timeout_s": 60}])
def test_a_result_that_requires_grad_is_refused(torch, wrap, options):
    """Its graph would be lost on the way: the stage and the way out are named."""
    weight = torch.ones(3, requires_grad=True)
    got, error = delivered(placed(3, lambda n: wrap(weight * n), **options))
    assert (got, type(error.__cause__)) == ([], nbpipe.UnpicklableError)
    assert ("'fn'" in str(error), "requires grad" in str(error)) == (True, True)
    assert "return tensor.detach()" in str(error)


def test_an_item_that_requires_grad_is_refused(torch):
    """On its way to a worker, too."""
    weight = torch.ones(3, requires_grad=True)
    chain = nbpipe.source(range(3)).map(lambda n: weight * n)
    got, error = delivered(chain.map(len, name="fn", executor="process"))
    assert (got, type(error.__cause__)) == ([], nbpipe.UnpicklableError)
    assert ("'fn'" in str(error), "return tensor.detach()" in str(error)) == (True, True)


def test_an_item_of_an_isolated_run_that_requires_grad_is_refused(torch):
    """The stage that gave it is named."""
    weight = torch.ones(3, requires_grad=True)
    with nbpipe.source(range(3)).map(lambda n: weight * n, name="fn").start(isolate=True) as run:
        got, error = delivered(run)
    assert (got, type(error)) == ([], nbpipe.UnpicklableError)
    assert ("'fn'" in str(error), "return tensor.detach()" in str(error)) == (True, True)


def test_a_parameter_may_be_sent(torch):
    """A tensor that requires grad and that no computation gave has no graph to lose."""
    got = drained(placed(2, lambda n: torch.full((2,), float(n), requires_grad=True)))
    assert [(one.requires_grad, one.is_leaf) for one in got] == [(True, True)] * 2
