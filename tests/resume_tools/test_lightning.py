"""A run as Lightning's loader: resumed from any checkpoint, the batches go on."""

import logging
import warnings

import pytest

from .training import EPOCHS, batches, from_page, loss_of, model_of, some_batches

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # its own
SAVES = {
    "steps": {"every_n_train_steps": 1},
    "epochs": {"every_n_epochs": 1},
}


@pytest.fixture(scope="module")
def lightning():
    """Import Lightning, which warns of what it imports, and let it say less."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("lightning.pytorch")
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


def fitted(lightning, pipe, *, folder=None, saves=None, begins=None, validates=False, steps=None):
    """Train; give the steps and the weights. Save to `folder`, begin at a checkpoint."""
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
    with pipe.start() as run:
        module = from_page("data_module")(run)
        if validates:
            module.val_dataloader = batches
        goes_on = {} if begins is None else {"ckpt_path": begins, "weights_only": True}
        trainer.fit(model, datamodule=module, **goes_on)
    return model.seen, [part.tolist() for part in model.parameters()]


@pytest.mark.parametrize("validates", [False, True], ids=["trains", "validates"])
@pytest.mark.parametrize("saves", SAVES)
def test_lightning_resumes(lightning, saves, validates, tmp_path):
    """From each checkpoint, in an epoch and at its end, the rest and the weights are the same."""
    options = {"validates": validates}
    whole, weights = fitted(lightning, batches(), folder=tmp_path, saves=SAVES[saves], **options)
    wrong = []
    for checkpoint in sorted(tmp_path.glob("*.ckpt")):
        step = int(checkpoint.stem.partition("step=")[2])
        rest = fitted(lightning, batches(concurrency=3), begins=checkpoint, **options)
        if rest != (whole[step:], weights):
            wrong.append(checkpoint.stem)
    assert (wrong, len(whole)) == ([], 12)


def test_lightning_resumes_without_a_length(lightning, tmp_path):
    """With a number of batches to train on, Lightning takes none ahead, and none is lost."""
    saves = SAVES["steps"]
    whole, weights = fitted(lightning, some_batches(), folder=tmp_path, saves=saves, steps=3)
    checkpoint = next(tmp_path.glob("*step=5.ckpt"))
    rest = fitted(lightning, some_batches(concurrency=3), begins=checkpoint, steps=3)
    assert rest == (whole[5:], weights)


def test_lightnings_epochs_are_the_runs(lightning):
    """Lightning's epoch 0 is the run's, although it calls `iter` before it."""
    seen, _ = fitted(lightning, batches())
    with batches().start() as run:
        assert [batch for _, _, batch in seen] == [
            batch_BF.tolist() for _ in range(EPOCHS) for batch_BF in run
        ]
