"""A loader whose state is saved and loaded by Lightning, by Accelerate, beside torchdata's."""

import logging
import warnings

import pytest

torch = pytest.importorskip("torch")

from tests.loader.datasets import Numbers  # noqa: E402
from tests.loader.stateful import numbers, plain  # noqa: E402
from tests.resume_tools.training import batches, from_page  # noqa: E402

EPOCHS = 3
SAVES = {"steps": {"every_n_train_steps": 1}, "epochs": {"every_n_epochs": 1}}

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own


def imported(name):
    """Import a package that warns of what it imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.fixture(scope="module")
def lightning():
    """Import Lightning, and let it say less."""
    found = imported("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return found


def fitted(lightning, way, folder, begins=None, saves="steps"):
    """Train, save at each step or begin at a checkpoint; give the batches with their epochs."""

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, batch, step):
            self.seen.append((self.current_epoch, plain(batch)))
            return self.layer(batch[:, None].float()).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    saver = lightning.callbacks.ModelCheckpoint(
        dirpath=folder, save_top_k=-1, filename="{step}", **SAVES[saves]
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[] if begins else [saver],
        enable_checkpointing=not begins,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=EPOCHS,
    )
    network = Network()
    goes_on = {"ckpt_path": begins, "weights_only": True} if begins else {}
    trainer.fit(network, datamodule=from_page("data_module")(numbers(**way)), **goes_on)
    return network.seen


@pytest.mark.parametrize("way", [{}, {"num_workers": 2, "workers": "thread"}], ids=["0", "2"])
def test_lightning(lightning, way, tmp_path):
    """From a checkpoint behind any step Lightning goes on with the uninterrupted batches."""
    torch.manual_seed(3)
    wanted = fitted(lightning, way, tmp_path)
    got = {}
    for step in (1, 5, 6, 7, 12, 17):
        torch.manual_seed(44)
        got[step] = fitted(lightning, way, None, str(tmp_path / f"step={step}.ckpt"))
    assert got == {step: wanted[step:] for step in got}


def test_lightning_at_the_end_of_an_epoch(lightning, tmp_path):
    """From the checkpoint that Lightning takes by default the order of the next epochs goes on."""
    torch.manual_seed(3)
    wanted = fitted(lightning, {}, tmp_path, saves="epochs")
    torch.manual_seed(44)
    assert fitted(lightning, {}, None, str(tmp_path / "step=6.ckpt")) == wanted[6:]


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
