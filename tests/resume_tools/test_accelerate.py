"""A run that Accelerate saves and loads with all else."""

import json
import sys

import pytest

from tests.scripts import printed

from .training import EPOCHS, batches, from_page, imported, loss_of, model_of, some_batches

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own


@pytest.fixture(scope="module")
def accelerate():
    """Import Accelerate."""
    return imported("accelerate")


def trained(accelerate, folder, *, first_epoch=0, resumes=False, leave_at=None, **how):
    """Train with Accelerate; give the batches and the weights."""
    accelerator = accelerate.Accelerator(cpu=True)
    seen = []
    with batches(**how).start() as run:
        model, optimizer, prepared = accelerator.prepare(*model_of(), run)
        accelerator.register_for_checkpointing(prepared)
        if resumes:
            accelerator.load_state(folder)
        for _ in range(first_epoch, EPOCHS):
            for batch_BF in prepared:
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, batch_BF))
                optimizer.step()
                seen.append(batch_BF.tolist())
                if len(seen) == leave_at:
                    accelerator.save_state(folder)
                    return seen, None
    return seen, [part.tolist() for part in model.parameters()]


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_accelerate_resumes(accelerate, steps, tmp_path):
    """`save_state` in an epoch and `load_state`: the batches and the weights go on."""
    whole, weights = trained(accelerate, tmp_path)
    first, _ = trained(accelerate, tmp_path, leave_at=steps)
    epoch = (steps - 1) // 4
    rest, resumed = trained(
        accelerate, tmp_path, first_epoch=epoch, resumes=True, concurrency=3, prefetch=1
    )
    assert (first + rest, resumed) == (whole, weights)


def test_accelerate_leaves_a_run_as_it_is(accelerate):
    """`prepare` gives the run itself back."""
    with batches().start() as run:
        assert accelerate.Accelerator(cpu=True).prepare(run) is run


def ranks_had(folder):
    """Let two ranks begin the epoch; give what they had."""
    here = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    job = ["torch.distributed.run", *here, "-m", "tests.resume_tools.job", folder]
    printed("-m", *job, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has another name")
def test_accelerate_on_two_ranks_resumes_on_one(accelerate, tmp_path):
    """Ranks that had different numbers of batches: one process has each item that is left, once."""
    had = ranks_had(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True)
    with some_batches(shard=(0, 1)).start() as run:
        accelerator.register_for_checkpointing(from_page("AllRanks")(run))
        accelerator.load_state(tmp_path / "saved")
        rest = [row for batch_BF in run for row in batch_BF.tolist()]
    with some_batches().start() as run:
        whole = [row for batch_BF in run for row in batch_BF.tolist()]
    assert sorted(whole) == sorted([*had[0], *had[1], *rest])
