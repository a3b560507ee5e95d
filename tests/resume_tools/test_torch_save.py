"""A training saved with `torch.save`, as the page on resuming does it."""

import pytest

from .training import EPOCHS, batches, from_page, loss_of, model_of

pytestmark = pytest.mark.torch


def trained(run, model, optimizer, epochs, *, leave_at=None, path=None):
    """Train; give the batches as lists. Save after some steps, and leave."""
    seen = []
    for _ in epochs:
        for batch_BF in run:
            optimizer.zero_grad()
            loss_of(model, batch_BF).backward()
            optimizer.step()
            seen.append(batch_BF.tolist())
            if len(seen) == leave_at:
                from_page("save")(path, run, model, optimizer)
                return seen
    return seen


@pytest.mark.parametrize("steps", [1, 4, 6, 11, 12])
def test_resumed_training_is_the_same(steps, tmp_path):
    """Wherever it was left, the batches and the weights are those of a training left alone."""
    path = tmp_path / "checkpoint.pt"
    model, optimizer = model_of()
    with batches().start() as run:
        whole = trained(run, model, optimizer, range(EPOCHS))
    with batches().start() as run:
        first = trained(run, *model_of(), range(EPOCHS), leave_at=steps, path=path)
    again, its_optimizer = model_of()
    with batches(concurrency=3, prefetch=1).start() as run:
        epoch = from_page("resume")(path, run, again, its_optimizer)
        rest = trained(run, again, its_optimizer, range(epoch, EPOCHS))
    weights = [[part.tolist() for part in one.parameters()] for one in (model, again)]
    assert (first + rest, weights[0]) == (whole, weights[1])
