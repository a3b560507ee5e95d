"""Catalogue: who takes part, with which settings, and what each cannot do.

The settings are the best that were found for a workload; what is not named here is the default of
the contender's module. `python -m benchmarks --set name=value` tries another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """One who takes part.

    Attributes:
        name: name in tables.
        module: module in `benchmarks.peers`.
        packages: distributions it needs, as `pip install` takes them.
        only: workloads it takes part in; all where there are none.
        every: settings for all workloads.
        options: settings for a workload.
        share: part of the workload's items or cycles it is given, where it is very slow.
        notes: what is different about the way it does a workload.
        refusals: why it cannot do a workload.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    every: Options = field(default_factory=dict)
    options: Mapping[str, Options] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)

    def takes_part(self, workload: str) -> bool:
        """Return whether it is asked for a workload at all."""
        return not self.only or workload in self.only

    def settings(self, workload: str) -> dict[str, Any]:
        """Return the settings for a workload."""
        return {**self.every, **self.options.get(workload, {})}

    def missing(self) -> str:
        """Name the line that installs a package which is not there; else an empty text."""
        for package in self.packages:
            if installed_version(package) is None:
                return f"{package} is not installed: pip install {' '.join(self.packages)}"
        return ""


def installed_version(package: str) -> str | None:
    """Return the version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_FIXED = "its concurrency is fixed when it is built"
_ALONE = "has no way to run a pipeline in a process of its own"
_BLOCKS = {"W5": "has no async stages: the same wait blocks 256 threads"}
_THREADS, _ARRAYS = ("W1", "W2", "W2b", "W3"), ("W6", "W6s")
_VIEWS = dict.fromkeys(_ARRAYS, "arrays are views of shared memory")
_SPDL = ("spdl_pipeline", ("spdl",))
_TORCHDATA = ("torchdata_nodes", ("torchdata", "torch"))

# fmt: off
CONTENDERS = (
    Contender("nbpipe", "ours", options={"W2i": {"isolate": True}}),
    Contender("nbpipe views", "ours", (), _ARRAYS, {"copy": False}, notes=_VIEWS),
    Contender("nbpipe 1 process", "ours", (), _ARRAYS, {"workers": 1}),
    Contender("nbpipe 1 process views", "ours", (), _ARRAYS, {"workers": 1, "copy": False}),
    Contender("nbpipe prefetch 2", "ours", (), _THREADS, {"prefetch": 2}),
    Contender("nbpipe prefetch 64", "ours", (), _THREADS, {"prefetch": 64}),
    Contender(
        "spdl", *_SPDL,
        options={
            "W1": {"sink": 64}, "W2i": {"isolate": True}, "W3": {"sink": 16}, "W4": {"chunk": 8},
            "W5": {"sink": 64}, "W6s": {"chunk": 16},
        },
        share={"W1": 0.06, "W6": 0.2, "W6s": 0.2},
        refusals={
            "live": _FIXED,
            "metrics": "its stats are written to the log; none can be read while it runs",
        },
    ),
    Contender(
        "spdl region", *_SPDL, ("W4", *_ARRAYS), {"way": "region"},
        options={
            "W4": {"buffer_in": 8, "buffer_out": 4, "sink": 16},
            "W6s": {"buffer_in": 32, "buffer_out": 8},
        },
        share={"W6": 0.2, "W6s": 0.2},
        notes=dict.fromkeys(("W4", *_ARRAYS), "regions do not keep the order of the input"),
    ),
    Contender(
        "spdl ring", *_SPDL, _ARRAYS, {"way": "ring"},
        options={"W6s": {"slots": 80, "buffer": 64}},
        share={"W6": 0.5, "W6s": 0.5},
        notes=dict.fromkeys(_ARRAYS, "one process; copied out"),
    ),
    Contender(
        "spdl pool", *_SPDL, _ARRAYS, {"way": "pool"},
        options={"W6": {"slots": 4}, "W6s": {"slots": 20, "buffer": 16}},
        notes=dict.fromkeys(_ARRAYS, "one process; arrays are views of shared memory"),
    ),
    Contender(
        "spdl 2 pools", *_SPDL, ("W4", *_ARRAYS), {"way": "pool", "workers": 2},
        notes=dict.fromkeys(
            ("W4", *_ARRAYS),
            "two processes with a zero-copy pool each, which the benchmark takes from in turn",
        ),
    ),
    Contender(
        "spdl with stats", *_SPDL, ("W1", "W2"), {"hooks": True, "queue_stats": True},
        options={"W1": {"sink": 64}},
        share={"W1": 0.06},
        notes=dict.fromkeys(("W1", "W2"), "counts and times what passes, as nbpipe always does"),
    ),
    Contender(
        "torchdata", *_TORCHDATA,
        options={
            "W1": {"prebatch": 32}, "W2b": {"prefetch": 4}, "W3": {"prefetch": 4},
            "W4": {"tensors": False, "prebatch": 4}, "W6s": {"tensors": False, "prebatch": 8},
            "idle4": {"tensors": False},
        },
        share={"W1": 0.5, "W6": 0.5, "W6s": 0.3},
        notes=_BLOCKS,
        refusals={"W2i": _ALONE, "live": _FIXED, "metrics": "it counts nothing"},
    ),
    Contender(
        "torchdata prebatch", *_TORCHDATA, ("W1", "W2", "W2b"), {"prebatch": 8},
        options={"W1": {"prebatch": 256}, "W2b": {"prefetch": 4}},
    ),
    Contender(
        "grain", "grain_dataset", ("grain",),
        options={
            "W1": {"buffer": 16}, "W2b": {"prefetch": 4}, "W2i": {"isolate": True},
            "W3": {"batch_in_threads": True, "buffer": 16}, "W5": {"buffer": 256},
        },
        share={"W1": 0.2, "W6": 0.1, "W6s": 0.1},
        notes={
            "W2": "both waits in one stage on 40 threads, as many as the two stages have",
            "W2b": "both waits in one stage on 40 threads",
            **_BLOCKS,
        },
        refusals={"live": _FIXED, "metrics": "its stats are written to the log every minute"},
    ),
    Contender(
        "DataLoader", "torch_loader", ("torch",),
        options={
            "W1": {"workers": 2, "batch": 1024}, "W4": {"batch": 8}, "W6": {"batch": 4},
            "W6s": {"batch": 64},
        },
        share={"W6": 0.5, "W6s": 0.2, "W7": 0.4},
        notes={
            "W1": "2 worker processes; batches of 1,024, taken apart again by the consumer",
            "W2": "40 worker processes, each sleeps through its whole batch",
            **dict.fromkeys(("W2b", "W2i"), "40 worker processes"),
            "W3": "worker processes",
            "W4": "batches of 8, taken apart again by the consumer",
            "W5": "4 worker processes, each gathers 64 waits on a loop of its own",
            "W6": "batches of 4, taken apart again by the consumer",
            "W6s": "batches of 64, taken apart again by the consumer",
        },
        refusals=dict.fromkeys(
            ("live", "metrics"), "its workers are fixed when it is built, and it counts nothing"
        ),
    ),
    Contender(
        "bare", "bare",
        refusals={
            "W7": "nothing is started that could be closed",
            "live": "a bare loop has no knobs",
            "metrics": "it counts nothing",
            **dict.fromkeys(("idle", "idle4"), "nothing waits in a bare loop"),
        },
    ),
)
# fmt: on
BY_NAME = {contender.name: contender for contender in CONTENDERS}
