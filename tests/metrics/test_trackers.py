"""One line for each tracker: TensorBoard, Weights & Biases, Accelerate, Lightning."""

import csv
from pathlib import Path

import pytest

import nbpipe
from tests.resume_tools.training import batches, imported, loss_of, model_of


class Calls:
    """A stand-in for an object of a library that is not installed: it keeps the calls."""

    def __init__(self):
        self.points = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        """Do what the documentation of `SummaryWriter` says."""
        self.points.append((tag, scalar_value, global_step))

    def log(self, data, step=None, commit=None):
        """Do what the documentation of `wandb.Run` says."""
        self.points.append((tuple(data), step, commit))


def test_tensorboard(clock):
    """Each name is a scalar; its step counts the batches of all epochs."""
    writer = Calls()
    with nbpipe.source(range(6)).batch(2).start() as run:
        nbpipe.metrics.tensorboard(run, writer)
        clock.iterate(run, 11)
        clock.iterate(run, 6)
    steps = [step for name, _, step in writer.points if name == "nbpipe/wait_share"]
    assert {name for name, *_ in writer.points} == set(nbpipe.metrics.NAMES)
    assert steps == [1, 2, 3, 5]
    assert {type(value) for _, value, _ in writer.points} == {float}


def test_steps_of_an_unknown_length(clock):
    """Where the length of an epoch is not known, the step counts what the loop has had."""
    writer = Calls()
    with nbpipe.source(range(4)).filter(lambda n: n > 1).start() as run:
        nbpipe.metrics.tensorboard(run, writer)
        clock.iterate(run, 11)
        clock.iterate(run, 11)
    assert sorted({step for *_, step in writer.points}) == [1, 2, 3, 4]


def test_wandb(clock):
    """The numbers wait for the user's next call of `log`, and make no step of their own."""
    theirs = Calls()
    with nbpipe.source(range(2)).start() as run:
        nbpipe.metrics.wandb(run, theirs, every_s=20)
        clock.iterate(run, 11)
    assert theirs.points == [(nbpipe.metrics.NAMES, None, False)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("tensorboard", "tensorboard writer must be a SummaryWriter, got a int, which has no add_"),
        ("wandb", r"wandb wandb_run must be the result of wandb.init\(\), got a int"),
        ("accelerate", "accelerate accelerator must be an Accelerator, got a int"),
    ],
)
def test_other_objects_are_refused(function, message):
    """Another object is named at once, not in mid-epoch."""
    with nbpipe.source([1]).start() as run, pytest.raises(TypeError, match=message):
        getattr(nbpipe.metrics, function)(run, 3)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # Accelerate's own
def test_accelerate(clock):
    """Its trackers get the numbers, with the number of batches as step."""
    accelerate = imported("accelerate")
    from accelerate.tracking import GeneralTracker

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "ours", False, None
        logged = ()

        def store_init_configuration(self, values):
            pass

        def log(self, values, step, **_):
            self.logged += ((tuple(values), step),)

    tracker = Tracker()
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("project")
    with nbpipe.source(range(6)).batch(2).start() as run:
        nbpipe.metrics.accelerate(run, accelerator)
        clock.iterate(accelerator.prepare(run), 11)
    assert tracker.logged == tuple((nbpipe.metrics.NAMES, step) for step in (1, 2, 3))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning(clock, tmp_path):
    """The trainer's loggers get the numbers, with the trainer's step."""
    lightning = imported("lightning.pytorch")

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, _ = model_of()

        def training_step(self, batch_BF, _):
            clock.now_s += 6
            return loss_of(self.layer, batch_BF)

        def configure_optimizers(self):
            import torch

            return torch.optim.SGD(self.parameters(), lr=0.01)

    logger = lightning.loggers.CSVLogger(tmp_path)
    with batches().start() as run:
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=logger,
            callbacks=[nbpipe.metrics.lightning(run)],
            accelerator="cpu",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Network(), run)
    logger.save()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["2", "4", "6", "8"]
    assert set(nbpipe.metrics.NAMES) <= set(rows[0])
