"""One line for each tool that draws curves of a training."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from ..base.checks import seconds
from ..base.names import names_arguments
from ..errors import MissingExtraError
from ..ops.stage import CONSUMER
from .log import MetricsLog, Values, logged, method_of, run_of


def _step_of(run: Any) -> int:
    """Return the number of items that the loop has had, those of earlier epochs included."""
    status = run.status()
    if status.total is None:
        return int(run.stats()[CONSUMER].items_out)
    return int(status.epoch * status.total + status.delivered)


@names_arguments
def tensorboard(run: Any, writer: Any, every_s: float = 10) -> MetricsLog:
    """Write the five numbers of a run as scalars of TensorBoard.

    The step of a scalar is the number of items that your loop has had, those of earlier epochs
    included.

    Args:
        run: a run or a `DataLoader`.
        writer: a `SummaryWriter`, or another object with its `add_scalar`.
        every_s: time between two points [s].

    Returns:
        A `MetricsLog`, as `nbpipe.log_every` does.

    Raises:
        ArgumentError, ArgumentTypeError: see `nbpipe.log_every`; or no `add_scalar`.

    Examples:
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> nbpipe.metrics.tensorboard(run, SummaryWriter("runs/1"))  # doctest: +SKIP
        MetricsLog(every 10 s)
    """
    add = method_of("tensorboard writer", writer, "add_scalar", "a SummaryWriter")

    def emit(run: Any, found: Values) -> None:
        step = _step_of(run)
        for name, value in found.items():
            add(name, value, step)

    return logged("tensorboard", run, every_s, emit)


@names_arguments
def wandb(run: Any, wandb_run: Any, every_s: float = 10) -> MetricsLog:
    """Add the five numbers of a run to your next `log` call of Weights & Biases.

    So they share its step, and do not count as a step of their own.

    Args:
        run: a run or a `DataLoader`.
        wandb_run: the result of `wandb.init()`.
        every_s: time between two points [s].

    Returns:
        A `MetricsLog`, as `nbpipe.log_every` does.

    Raises:
        ArgumentError, ArgumentTypeError: see `nbpipe.log_every`; or no `log`.

    Examples:
        >>> import wandb  # doctest: +SKIP
        >>> nbpipe.metrics.wandb(run, wandb.init(project="mine"))  # doctest: +SKIP
        MetricsLog(every 10 s)
    """
    log = method_of("wandb wandb_run", wandb_run, "log", "the result of wandb.init()")
    return logged("wandb", run, every_s, lambda _, found: log(found, commit=False))


@names_arguments
def accelerate(run: Any, accelerator: Any, every_s: float = 10) -> MetricsLog:
    """Log the five numbers of a run with the trackers of Accelerate.

    The step is the number of items that your loop has had, those of earlier epochs included.

    Args:
        run: a run or a `DataLoader`.
        accelerator: an `Accelerator`, after its `init_trackers`.
        every_s: time between two points [s].

    Returns:
        A `MetricsLog`, as `nbpipe.log_every` does.

    Raises:
        ArgumentError, ArgumentTypeError: see `nbpipe.log_every`; or no `log`.

    Examples:
        >>> nbpipe.metrics.accelerate(run, accelerator)  # doctest: +SKIP
        MetricsLog(every 10 s)
    """
    log = method_of("accelerate accelerator", accelerator, "log", "an Accelerator")
    return logged("accelerate", run, every_s, lambda run, found: log(found, step=_step_of(run)))


@names_arguments
def lightning(run: Any, every_s: float = 10) -> Any:
    """Return a Lightning callback that logs the five numbers of a run with the trainer's loggers.

    It logs after a training batch, with the trainer's `global_step`.

    Args:
        run: a run or a `DataLoader`: the one that the trainer iterates.
        every_s: time between two points [s].

    Returns:
        A `lightning.pytorch.Callback`, for `Trainer(callbacks=[...])`.

    Raises:
        MissingExtraError: Lightning is not installed.
        ArgumentError, ArgumentTypeError: see `nbpipe.log_every`.

    Examples:
        >>> callback = nbpipe.metrics.lightning(run)  # doctest: +SKIP
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """
    kind = _callback_class()
    found = run_of("lightning", run)
    every_s = seconds("lightning every_s", every_s)

    class NbpipeMetrics(kind):  # type: ignore[misc,valid-type]
        """Logs the numbers of a run."""

        def on_train_start(self, trainer: Any, _: object) -> None:
            """Begin."""

            def emit(_: object, found: Values) -> None:
                for logger in trainer.loggers:
                    logger.log_metrics(found, step=trainer.global_step)

            self._log = MetricsLog(found, every_s, emit)

        def on_train_batch_end(self, *_: object) -> None:
            """Log if it is time."""
            self._log()

    return NbpipeMetrics()


def _callback_class() -> Any:
    """Return the class `Callback` of the package that is loaded, else of the one installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).Callback
    raise MissingExtraError(
        "metrics.lightning needs lightning, which is not installed; type: pip install lightning"
    )
