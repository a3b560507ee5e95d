"""A run that Accelerate saves and loads with all else."""

import warnings

import pytest

from .training import EPOCHS, batches, loss_of, model_of

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own


@pytest.fixture(scope="module")
def accelerate():
    """Import Accelerate, which warns of what it imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("accelerate")


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
