"""A run as Lightning's loader: resumed from any checkpoint, the batches go on."""

import functools
import logging
from contextlib import closing

import pytest

from .training import EPOCHS, batches, from_page, imported, loader, loss_of, model_of, some_batches

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own
SAVES = {"steps": {"every_n_train_steps": 1}, "epochs": {"every_n_epochs": 1}}


@pytest.fixture(scope="module")
def lightning():
    """Import Lightning, and let it say less."""
    found = imported("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return found


def network(lightning, validates):
    """Make a module that notes the epoch and the batch of every step."""

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, _ = model_of()
            self.seen = []

        def training_step(self, batch_BF, step):
            self.seen.append((self.current_epoch, step, batch_BF.tolist()))
            return loss_of(self.layer, batch_BF)

        if validates:

            def validation_step(self, batch_BF, step):
                return None

        def configure_optimizers(self):
            import torch

            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    return Network()


def fitted(lightning, given, *, folder=None, saves=None, begins=None, validates=False, steps=None):
    """Train on a run or a loader; give the steps and the weights. Save, or begin at a checkpoint.

    Torch's own generator stands elsewhere in each training that begins at a checkpoint.
    """
    import torch

    if folder is None:
        callbacks, keeps = [], False
    else:
        saver = lightning.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1, **saves)
        callbacks, keeps = [saver], True
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        enable_checkpointing=keeps,
        enable_model_summary=False,
        enable_progress_bar=False,
        limit_train_batches=steps,
        logger=False,
        max_epochs=EPOCHS,
    )
    model = network(lightning, validates)
    torch.manual_seed(44 if begins else 3)
    with closing(given):
        module = from_page("data_module")(given)
        if validates:
            module.val_dataloader = batches
        goes_on = {} if begins is None else {"ckpt_path": begins, "weights_only": True}
        trainer.fit(model, datamodule=module, **goes_on)
    return model.seen, [part.tolist() for part in model.parameters()]


def saved_in(folder):
    """List the checkpoints of a training, each with its number of steps."""
    return [(int(one.stem.partition("step=")[2]), one) for one in sorted(folder.glob("*.ckpt"))]


@pytest.mark.slow
@pytest.mark.parametrize("validates", [False, True], ids=["trains", "validates"])
@pytest.mark.parametrize("saves", SAVES)
def test_lightning_resumes(lightning, saves, validates, tmp_path):
    """From each checkpoint, in an epoch and at its end, the rest and the weights are the same."""
    fit = functools.partial(fitted, lightning, validates=validates)
    whole, weights = fit(batches().start(), folder=tmp_path, saves=SAVES[saves])
    wrong = [
        step
        for step, checkpoint in saved_in(tmp_path)
        if fit(batches(concurrency=3).start(), begins=checkpoint) != (whole[step:], weights)
    ]
    assert (wrong, len(whole)) == ([], 12)


@pytest.mark.slow
@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("way", [{}, {"num_workers": 2, "workers": "thread"}], ids=["0", "2"])
def test_lightning_resumes_a_loader(lightning, way, saves, tmp_path):
    """From each checkpoint a loader goes on, too: with the batches in the order that torch drew."""
    whole, weights = fitted(lightning, loader(**way), folder=tmp_path, saves=SAVES[saves])
    wrong = [
        step
        for step, checkpoint in saved_in(tmp_path)
        if fitted(lightning, loader(**way), begins=checkpoint) != (whole[step:], weights)
    ]
    assert (wrong, len(whole)) == ([], 12)


def test_lightning_resumes_without_a_length(lightning, tmp_path):
    """With a number of batches to train on, Lightning takes none ahead, and none is lost."""
    fit = functools.partial(fitted, lightning, steps=3)
    whole, weights = fit(some_batches().start(), folder=tmp_path, saves=SAVES["steps"])
    checkpoint = next(tmp_path.glob("*step=5.ckpt"))
    rest = fit(some_batches(concurrency=3).start(), begins=checkpoint)
    assert rest == (whole[5:], weights)


def test_lightnings_epochs_are_the_runs(lightning):
    """Lightning's epoch 0 is the run's, although it calls `iter` before it."""
    seen, _ = fitted(lightning, batches().start())
    with batches().start() as run:
        assert [batch for _, _, batch in seen] == [
            batch_BF.tolist() for _ in range(EPOCHS) for batch_BF in run
        ]
