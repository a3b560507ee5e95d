"""Catalogue of SPDL: its threads, its processes, and the ways arrays come out of those."""

from __future__ import annotations

from .contender import FIXED, TRANSPORT, Contender

SPDL = (
    Contender(
        "spdl",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        options={
            "W1": {"sink": 64},
            "W2i": {"isolate": True},
            "W3": {"sink": 16},
            "W4": {"way": "executor", "chunk": 8},
            "W5": {"sink": 64},
            "W6": {"way": "executor"},
            "W6s": {"way": "executor", "chunk": 16},
            "idle4": {"way": "executor"},
        },
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
            "W2i": (
                {"isolate": True, "buffer": 16},
                {"isolate": True, "sink": 16, "buffer": 16},
            ),
            "W4": (
                {"way": "executor"},
                {"way": "executor", "calls": 4},
                {"way": "executor", "calls": 4, "chunk": 8},
                {"way": "executor", "calls": 8, "sink": 16},
                {"way": "executor", "calls": 4, "order": "completion"},
                {"way": "ring", "workers": 2},
            ),
            "W5": (
                {},
                {"sink": 64, "order": "completion"},
                {"sink": 64, "deep_queues": True},
            ),
            "W6": (
                {"way": "executor", "calls": 4},
                {"way": "executor", "workers": 1, "calls": 2},
                {"way": "queue"},
            ),
            "W6s": (
                {"way": "executor"},
                {"way": "executor", "calls": 4, "chunk": 16},
                {"way": "executor", "calls": 4},
                {"way": "executor", "workers": 1, "calls": 2},
                {"way": "executor", "calls": 8, "sink": 16},
                {"way": "queue"},
            ),
        },
        refusals={
            "live": FIXED,
            "metrics": "its stats are written to the log; none can be read while it runs",
        },
        share={"W1": 0.06, "W6": 0.2, "W6s": 0.2},
    ),
    Contender(
        "spdl region",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        only=("W4", *TRANSPORT),
        options={
            "W4": {"way": "region", "buffer_in": 8, "buffer_out": 4, "sink": 16},
            "W6": {"way": "region"},
            "W6s": {"way": "region", "buffer_in": 32, "buffer_out": 8},
        },
        alternatives={
            "W4": (
                {"way": "region"},
                {"way": "region", "buffer_in": 8},
            ),
            "W6": (
                {"way": "region", "workers": 1},
                {"way": "region", "buffer_in": 8, "buffer_out": 2},
            ),
            "W6s": (
                {"way": "region"},
                {"way": "region", "buffer_in": 32, "buffer_out": 8, "sink": 64},
                {"way": "region", "workers": 1, "buffer_in": 32, "buffer_out": 8, "sink": 64},
            ),
        },
        notes=dict.fromkeys(("W4", *TRANSPORT), "regions do not keep the order of the input"),
        share={"W6": 0.2, "W6s": 0.2},
    ),
    Contender(
        "spdl ring",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        only=TRANSPORT,
        options={
            "W6": {"way": "ring"},
            "W6s": {"way": "ring", "slots": 80, "buffer": 64},
        },
        alternatives={
            "W6": (
                {"way": "ring", "slots": 4},
                {"way": "ring", "slots": 20, "buffer": 16},
            ),
            "W6s": (
                {"way": "ring"},
                {"way": "ring", "slots": 20, "buffer": 16},
            ),
        },
        notes=dict.fromkeys(TRANSPORT, "one process; copied out"),
        share={"W6": 0.5, "W6s": 0.5},
    ),
    Contender(
        "spdl pool",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        only=TRANSPORT,
        options={
            "W6": {"way": "pool", "slots": 4},
            "W6s": {"way": "pool", "slots": 20, "buffer": 16},
        },
        alternatives={
            "W6": (
                {"way": "pool"},
                {"way": "pool", "slots": 20, "buffer": 16},
            ),
            "W6s": (
                {"way": "pool"},
                {"way": "pool", "slots": 80, "buffer": 64},
            ),
        },
        notes=dict.fromkeys(TRANSPORT, "one process; arrays are views of shared memory"),
    ),
    Contender(
        "spdl 2 pools",
        "spdl_pipeline",
        packages=("spdl",),
        pip="spdl",
        only=("W4", *TRANSPORT),
        options={key: {"way": "pool", "workers": 2} for key in ("W4", *TRANSPORT)},
        notes=dict.fromkeys(
            ("W4", *TRANSPORT),
            "two processes with a zero-copy pool each, which the benchmark takes from in turn",
        ),
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
)
