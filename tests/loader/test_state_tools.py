"""A loader whose state is saved and loaded by Accelerate, beside torchdata's."""

import pytest
import torch

from tests.loader.datasets import Numbers
from tests.loader.stateful import numbers, plain
from tests.resume_tools.training import batches, from_page, imported

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own


def test_skipping_is_refused_aloud():
    """Accelerate's `skip_first_batches` is an error of what the page gives, and no other loader."""
    accelerate = imported("accelerate")
    accelerate.PartialState(cpu=True)
    with batches().start() as run:
        for given in (run, from_page("Resumable")(run), from_page("Resumable")(numbers())):
            with pytest.raises(AttributeError, match="dataset"):
                accelerate.skip_first_batches(given, 2)


def test_what_skips_instead():
    """Of a loader the page's own line gives the batches that `skip_first_batches` gives."""
    accelerate = imported("accelerate")
    accelerate.PartialState(cpu=True)
    loader = numbers(shuffle=False)
    wanted = [plain(batch) for batch in accelerate.skip_first_batches(loader, 2)]
    assert [plain(batch) for batch in from_page("skipping")(loader, 2)] == wanted


@pytest.mark.parametrize("kind", ["loader", "run"])
def test_no_epoch_without_a_batch(kind):
    """A trainer that ends at an epoch without a batch goes on from the end of an epoch."""

    def made():
        return numbers() if kind == "loader" else batches().start()

    def epochs(given, count):
        resumable = from_page("Resumable")(given)
        return [[plain(batch) for batch in resumable] for _ in range(count)]

    torch.manual_seed(3)
    first, other = made(), made()
    items = iter(first)
    for _ in range(len(first)):
        next(items)
    state = first.state_dict()
    wanted = (list(items), epochs(first, 2))
    other.load_state_dict(state)
    got = epochs(other, 2)
    first.close()
    other.close()
    assert ([], got) == wanted
    assert all(got)


def test_accelerate(way, tmp_path):
    """Registered for checkpoints, a loader goes on with what Accelerate loads."""
    accelerate = imported("accelerate")

    def prepared():
        accelerator = accelerate.Accelerator(cpu=True)
        loader = accelerator.prepare(numbers(**way))
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    torch.manual_seed(3)
    accelerator, loader = prepared()
    batches = iter(loader)
    next(batches)
    accelerator.save_state(str(tmp_path))
    wanted = [[plain(batch) for batch in batches], [plain(batch) for batch in loader]]
    accelerator, loader = prepared()
    accelerator.load_state(str(tmp_path))
    assert [[plain(batch) for batch in loader] for _ in range(2)] == wanted


def test_as_a_stateful_loader():
    """A loop written for torchdata's loader works with ours: each goes on with as many samples."""
    kind = imported("torchdata.stateful_dataloader").StatefulDataLoader

    def left(make):
        loader = make()
        batches = iter(loader)
        had = [plain(next(batches)) for _ in range(2)]
        state = loader.state_dict()
        other = make()
        other.load_state_dict(state)
        return had, [plain(batch) for batch in other]

    assert left(lambda: kind(Numbers(), 4)) == left(lambda: numbers(shuffle=False))
