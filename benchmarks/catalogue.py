"""Catalogue: who takes part, with which settings, and what each cannot do.

The first settings of a workload are the best that were found; `alternatives` are what they were
chosen from. `python -m benchmarks.settings` tries them again on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Options = Mapping[str, Any]

_FIXED = "its concurrency is fixed when it is built"
_NO_ASYNC = "has no async stages: the same wait blocks 256 threads"


@dataclass(frozen=True, slots=True)
class Contender:
    """One who takes part.

    Attributes:
        name: name in tables.
        module: module in `benchmarks.peers`.
        packages: distributions it needs; the first one is named in the pip line.
        pip: what to install.
        options: settings for a workload.
        alternatives: other settings that were tried.
        refusals: why it cannot do a workload.
        notes: what is different about the way it does a workload.
        only: workloads it takes part in; all where there are none.
        share: part of the workload's items or cycles it is given, where it is very slow.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()
    pip: str = ""
    options: Mapping[str, Options] = field(default_factory=dict)
    alternatives: Mapping[str, tuple[Options, ...]] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    share: Mapping[str, float] = field(default_factory=dict)

    def takes_part(self, workload: str) -> bool:
        """Tell whether it is asked for a workload at all."""
        return not self.only or workload in self.only

    def missing(self) -> str:
        """Name the pip line where a package is not installed; else an empty text."""
        for package in self.packages:
            if installed_version(package) is None:
                return f"{package} is not installed: pip install {self.pip}"
        return ""


def installed_version(package: str) -> str | None:
    """Give the version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_KNOB_TABLES = ("W1", "W2", "W2b", "W3")
_PROCESS_WAITS = dict.fromkeys(
    ("live", "metrics"), "its workers are fixed when it is built, and it counts nothing"
)

CONTENDERS = (
    Contender("nbpipe", "ours"),
    Contender(
        "nbpipe prefetch 2",
        "ours",
        only=_KNOB_TABLES,
        options={key: {"prefetch": 2} for key in _KNOB_TABLES},
    ),
    Contender(
        "nbpipe prefetch 64",
        "ours",
        only=_KNOB_TABLES,
        options={key: {"prefetch": 64} for key in _KNOB_TABLES},
    ),
    Contender(
        "spdl",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        options={"W1": {"sink": 64}, "W3": {"sink": 16}, "W5": {"sink": 64}},
        alternatives={
            "W1": (
                {},
                {"hooks": True, "queue_stats": True, "thread_queue": False},
                {"thread_queue": False},
                {"threads": 4},
                {"threads": 32},
                {"sink": 64, "order": "completion"},
                {"sink": 64, "deep_queues": True},
            ),
            "W2": (
                {"hooks": True, "queue_stats": True, "thread_queue": False},
                {"thread_queue": False},
                {"threads": 64},
                {"sink": 16},
                {"order": "completion"},
                {"deep_queues": True},
            ),
            "W2b": ({"thread_queue": False}, {"sink": 16}, {"deep_queues": True}),
            "W3": (
                {},
                {"sink": 16, "thread_queue": False},
                {"sink": 16, "deep_queues": True},
            ),
            "W5": (
                {},
                {"sink": 64, "order": "completion"},
                {"sink": 64, "deep_queues": True},
            ),
        },
        refusals={
            "live": _FIXED,
            "metrics": "its stats are written to the log; none can be read while it runs",
        },
        share={"W1": 0.06},
    ),
    Contender(
        "spdl with stats",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        only=("W1", "W2"),
        options={
            "W1": {"sink": 64, "hooks": True, "queue_stats": True},
            "W2": {"hooks": True, "queue_stats": True},
        },
        notes=dict.fromkeys(("W1", "W2"), "counts and times what passes, as nbpipe always does"),
        share={"W1": 0.06},
    ),
    Contender(
        "torchdata",
        "torchdata_nodes",
        packages=("torchdata", "torch"),
        pip="torchdata torch",
        options={
            "W1": {"prebatch": 32, "snapshot_frequency": 1000},
            "W2": {"snapshot_frequency": 1000},
            "W2b": {"prefetch": 4, "snapshot_frequency": 1000},
            "W3": {"prefetch": 4, "snapshot_frequency": 1000},
            "W5": {"snapshot_frequency": 1000},
            "W7": {"snapshot_frequency": 1000},
            "idle": {"snapshot_frequency": 1000},
        },
        alternatives={
            "W1": (
                {},
                {"prebatch": 32},
                {"prebatch": 256, "snapshot_frequency": 1000},
                {"prebatch": 32, "prefetch": 4},
            ),
            "W2": (
                {},
                {"prefetch": 4},
                {"prefetch": 4, "snapshot_frequency": 1000},
                {"prebatch": 4, "snapshot_frequency": 1000},
                {"prebatch": 8, "snapshot_frequency": 1000},
            ),
            "W2b": (
                {},
                {"prefetch": 4},
                {"prebatch": 4, "snapshot_frequency": 1000},
                {"prebatch": 4, "prefetch": 4, "snapshot_frequency": 1000},
                {"prebatch": 8, "prefetch": 4, "snapshot_frequency": 1000},
            ),
            "W3": ({}, {"prefetch": 4}, {"snapshot_frequency": 1000}),
            "W5": ({}, {"prebatch": 4, "snapshot_frequency": 1000}),
        },
        refusals={"live": _FIXED, "metrics": "it counts nothing"},
        notes={"W5": _NO_ASYNC},
        share={"W1": 0.5},
    ),
    Contender(
        "torchdata prebatch",
        "torchdata_nodes",
        packages=("torchdata", "torch"),
        pip="torchdata torch",
        only=("W1", "W2", "W2b"),
        options={
            "W1": {"prebatch": 256, "snapshot_frequency": 1000},
            "W2": {"prebatch": 8, "snapshot_frequency": 1000},
            "W2b": {"prebatch": 8, "prefetch": 4, "snapshot_frequency": 1000},
        },
    ),
    Contender(
        "grain",
        "grain_dataset",
        packages=("grain",),
        pip="grain",
        options={
            "W1": {"buffer": 16},
            "W2b": {"prefetch": 4},
            "W3": {"batch_in_threads": True, "buffer": 16},
            "W5": {"buffer": 256},
        },
        alternatives={
            "W1": (
                {"buffer": 4},
                {"buffer": 8},
                {"buffer": 64},
                {},
                {"buffer": 16, "threads": 2},
                {"threads": 0},
            ),
            "W2": (
                {"buffer": 80},
                {"threads": 32},
                {"prefetch": 4},
                {"batch_in_threads": True, "buffer": 80},
            ),
            "W2b": ({}, {"batch_in_threads": True, "buffer": 80}),
            "W3": ({}, {"buffer": 16}, {"prefetch": 4}),
            "W5": ({}, {"buffer": 300}, {"buffer": 2000}),
        },
        refusals={"live": _FIXED, "metrics": "its stats are written to the log every minute"},
        notes={
            "W2": "both waits in one stage on 40 threads, as many as the two stages have",
            "W2b": "both waits in one stage on 40 threads",
            "W5": _NO_ASYNC,
        },
        share={"W1": 0.2},
    ),
    Contender(
        "DataLoader",
        "torch_loader",
        packages=("torch",),
        pip="torch",
        options={
            "W1": {"workers": 2, "batch": 1024},
            "W5": {"workers": 4, "batch": 64},
        },
        alternatives={
            "W1": (
                {},
                {"workers": 2},
                {"workers": 4, "batch": 32},
                {"workers": 4, "batch": 1024},
                {"workers": 2, "batch": 4096},
            ),
            "W2": ({"workers": 32},),
            "W2b": ({"workers": 32},),
            "W3": ({"numpy": True},),
            "W5": ({"workers": 1, "batch": 256}, {"workers": 2, "batch": 128}),
        },
        refusals=_PROCESS_WAITS,
        notes={
            "W1": "2 worker processes; batches of 1,024, taken apart again by the consumer",
            "W2": "40 worker processes, each sleeps through its whole batch",
            "W2b": "40 worker processes",
            "W3": "worker processes",
            "W5": "4 worker processes, each gathers 64 waits on a loop of its own",
        },
        share={"W7": 0.4},
    ),
    Contender(
        "bare",
        "bare",
        refusals={
            "W7": "nothing is started that could be closed",
            "live": "a bare loop has no knobs",
            "metrics": "it counts nothing",
            "idle": "nothing waits in a bare loop",
        },
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}
