"""The numbers of a run for Prometheus, OpenTelemetry, TensorBoard and trainers."""

from .exporters import opentelemetry, prometheus
from .log import NAMES, MetricsLog, values
from .trackers import accelerate, lightning, tensorboard, wandb

__all__ = [
    "NAMES",
    "MetricsLog",
    "accelerate",
    "lightning",
    "opentelemetry",
    "prometheus",
    "tensorboard",
    "values",
    "wandb",
]


def __dir__() -> list[str]:
    return __all__
