"""Catalogue: who takes part, with which settings, and what each cannot do.

The first settings of a workload are the best that were found; `alternatives` are what they were
chosen from. `python -m benchmarks.settings` tries them again on this machine.
"""

from __future__ import annotations

from .catalogue_spdl import SPDL
from .contender import FIXED, TRANSPORT, Contender, installed_version

__all__ = ["BY_NAME", "CONTENDERS", "installed_version"]

_NO_ASYNC = "has no async stages: the same wait blocks 256 threads"
_KNOB_TABLES = ("W1", "W2", "W2b", "W3")
_ALONE = "has no way to run a pipeline in a process of its own"
_PROCESS_WAITS = dict.fromkeys(
    ("live", "metrics"), "its workers are fixed when it is built, and it counts nothing"
)

CONTENDERS = (
    Contender("nbpipe", "ours", options={"W2i": {"isolate": True}}),
    Contender(
        "nbpipe views",
        "ours",
        only=TRANSPORT,
        options={key: {"copy": False} for key in TRANSPORT},
        notes=dict.fromkeys(TRANSPORT, "arrays are views of shared memory"),
    ),
    Contender(
        "nbpipe 1 process",
        "ours",
        only=TRANSPORT,
        options={key: {"workers": 1} for key in TRANSPORT},
    ),
    Contender(
        "nbpipe 1 process views",
        "ours",
        only=TRANSPORT,
        options={key: {"workers": 1, "copy": False} for key in TRANSPORT},
    ),
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
    *SPDL,
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
            "W4": {"tensors": False, "prebatch": 4, "snapshot_frequency": 1000},
            "W6": {"snapshot_frequency": 1000},
            "W6s": {"tensors": False, "prebatch": 8, "snapshot_frequency": 1000},
            "W7": {"snapshot_frequency": 1000},
            "idle": {"snapshot_frequency": 1000},
            "idle4": {"tensors": False, "snapshot_frequency": 1000},
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
            "W4": (
                {"snapshot_frequency": 1000},
                {"tensors": False, "snapshot_frequency": 1000},
                {"tensors": False, "context": "fork", "snapshot_frequency": 1000},
            ),
            "W6": (
                {"tensors": False, "snapshot_frequency": 1000},
                {"workers": 1, "snapshot_frequency": 1000},
                {"prebatch": 2, "snapshot_frequency": 1000},
            ),
            "W6s": (
                {"snapshot_frequency": 1000},
                {"tensors": False, "snapshot_frequency": 1000},
                {"tensors": False, "workers": 1, "snapshot_frequency": 1000},
                {"prebatch": 8, "snapshot_frequency": 1000},
            ),
        },
        refusals={"W2i": _ALONE, "live": FIXED, "metrics": "it counts nothing"},
        notes={"W5": _NO_ASYNC},
        share={"W1": 0.5, "W6": 0.5, "W6s": 0.3},
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
            "W2i": {"isolate": True, "worker_buffer": 4},
            "W3": {"batch_in_threads": True, "buffer": 16},
            "W4": {"threads": 0, "worker_buffer": 4},
            "W5": {"buffer": 256},
            "W6": {"threads": 0, "worker_buffer": 4},
            "W6s": {"threads": 0, "worker_buffer": 4},
            "idle4": {"threads": 0, "worker_buffer": 4},
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
            "W2i": (
                {"isolate": True},
                {"isolate": True, "prefetch": 4},
            ),
            "W4": ({}, {"worker_buffer": 4}, {"threads": 0}),
            "W5": ({}, {"buffer": 300}, {"buffer": 2000}),
            "W6": ({}, {"threads": 0}, {"threads": 0, "workers": 1, "worker_buffer": 4}),
            "W6s": (
                {},
                {"threads": 0},
                {"threads": 0, "worker_buffer": 16},
                {"threads": 0, "workers": 1, "worker_buffer": 16},
            ),
        },
        refusals={"live": FIXED, "metrics": "its stats are written to the log every minute"},
        notes={
            "W2": "both waits in one stage on 40 threads, as many as the two stages have",
            "W2b": "both waits in one stage on 40 threads",
            "W5": _NO_ASYNC,
        },
        share={"W1": 0.2, "W6": 0.1, "W6s": 0.1},
    ),
    Contender(
        "DataLoader",
        "torch_loader",
        packages=("torch",),
        pip="torch",
        options={
            "W1": {"workers": 2, "batch": 1024},
            "W4": {"batch": 8},
            "W5": {"workers": 4, "batch": 64},
            "W6": {"batch": 4},
            "W6s": {"batch": 64},
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
            "W4": ({}, {"prefetch": 8}, {"sharing": "file_system"}),
            "W5": ({"workers": 1, "batch": 256}, {"workers": 2, "batch": 128}),
            "W6": (
                {},
                {"prefetch": 8},
                {"sharing": "file_system"},
                {"batch": 4, "sharing": "file_system"},
            ),
            "W6s": (
                {},
                {"prefetch": 8},
                {"batch": 16},
                {"sharing": "file_system"},
            ),
        },
        refusals=_PROCESS_WAITS,
        notes={
            "W1": "2 worker processes; batches of 1,024, taken apart again by the consumer",
            "W2": "40 worker processes, each sleeps through its whole batch",
            "W2b": "40 worker processes",
            "W2i": "40 worker processes",
            "W3": "worker processes",
            "W4": "batches of 8, taken apart again by the consumer",
            "W5": "4 worker processes, each gathers 64 waits on a loop of its own",
            "W6": "batches of 4, taken apart again by the consumer",
            "W6s": "batches of 64, taken apart again by the consumer",
        },
        share={"W6": 0.5, "W6s": 0.2, "W7": 0.4},
    ),
    Contender(
        "bare",
        "bare",
        refusals={
            "W7": "nothing is started that could be closed",
            "live": "a bare loop has no knobs",
            "metrics": "it counts nothing",
            "idle": "nothing waits in a bare loop",
            "idle4": "nothing waits in a bare loop",
        },
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}
