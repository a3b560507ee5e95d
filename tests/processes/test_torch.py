"""torch in workers: tensors that come and go, one thread, numbers by the item."""

import ast
from pathlib import Path

import pytest

from nbpipe.executors.surroundings import seed_item
from tests.gates import drained
from tests.processes.chain import placed
from tests.processes.conftest import start_server
from tests.processes.script import ran

FILES = Path("/proc/self/fd")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def server(server):
    """Load torch before the first test: the fork server starts anew with it."""
    import torch

    start_server()
    return torch


def test_one_thread_in_each_worker():
    """torch, too, is held to one thread."""

    def work(n):
        import torch

        return torch.get_num_threads(), torch.get_num_interop_threads()

    with placed(4, work).start() as run:
        assert set(drained(run)) == {(1, 1)}


@pytest.mark.parametrize("copy", [True, False])
def test_tensors_come_whole(copy):
    """Tensors of every type come equal: large, small, strided, of no elements, one in another."""
    import torch

    def work(n):
        grid = torch.arange(120_000).reshape(300, 400)
        return {
            "large": torch.full((1_000_000,), n, dtype=torch.float32),
            "half": torch.full((100_000,), n, dtype=torch.bfloat16),
            "strided": grid[::2, 1::3],
            "turned": grid.T,
            "empty": torch.empty(0, 3),
            "one": torch.tensor(n),
            "flags": torch.ones(50_000, dtype=torch.bool),
        }

    with placed(6, work, copy=copy).start() as run:
        got = drained(run)
    for n, one in enumerate(got):
        wanted = work(n)
        assert [name for name in wanted if not torch.equal(one[name], wanted[name])] == []
        assert [one[name].dtype for name in wanted] == [wanted[name].dtype for name in wanted]


def test_batches_of_a_worker_are_those_of_a_thread():
    """Numbers beside tensors are stacked to tensors in a worker, too."""
    import torch

    chain = placed(4, lambda n: {"x": torch.full((2,), n), "y": n, "rate": n / 2})
    with chain.batch(4, executor="process").start() as run:
        (batch,) = drained(run)
    assert [type(leaf) for leaf in batch.values()] == [torch.Tensor] * 3
    assert (batch["y"].tolist(), batch["rate"].tolist()) == ([0, 1, 2, 3], [0, 0.5, 1, 1.5])


def test_tensors_take_no_descriptors():
    """However many tensors are kept, no more files are open."""
    import torch

    with placed(300, lambda n: torch.full((20_000,), n)).start() as run:
        kept = drained(run)
        first = len(list(FILES.iterdir()))
        kept += drained(run)
        assert len(list(FILES.iterdir())) == first
    assert [int(tensor[-1]) for tensor in kept] == [*range(300)] * 2


def test_tensors_that_are_trained_keep_that():
    """A parameter, or a tensor that wants gradients, comes as one."""
    import torch

    def work(n):
        return torch.full((9,), float(n), requires_grad=True), torch.nn.Parameter(torch.ones(2))

    with placed(2, work).start() as run:
        got = drained(run)
    found = [(one.requires_grad, type(other) is torch.nn.Parameter) for one, other in got]
    assert found == [(True, True)] * 2


def drawn(fn, **options):
    """Give what is drawn for each item."""
    options = {"concurrency": 2, **options}
    with placed(30, fn, **options).start(seed=3) as run:
        return drained(run)


def test_torch_draws_by_the_item():
    """Numbers of torch's own generator depend on no worker, and differ between items."""

    def work(n):
        import torch

        return float(torch.rand(1))

    found = drawn(work)
    others = [drawn(work, concurrency=5), drawn(work, max_items_per_worker=4)]
    assert others == [found] * 2
    assert len(set(found)) == 30


def test_torch_that_only_a_worker_loads(tmp_path):
    """A worker whose function loads torch draws by the item from the first one on."""
    import torch

    text = """
        import sys
        import nbpipe

        def work(n):
            import torch
            seed = nbpipe.worker_info().seed
            return torch.get_num_threads(), seed, float(torch.rand(1))

        with nbpipe.source(range(3)).map(work, executor="process").start() as run:
            print("torch" in sys.modules, list(run))
    """
    code, out, err = ran(text, tmp_path)
    assert (code, out[:6], err) == (0, "False ", "")
    for threads, seed, number in ast.literal_eval(out[6:]):
        seed_item(seed)
        assert (threads, number) == (1, float(torch.rand(1)))
