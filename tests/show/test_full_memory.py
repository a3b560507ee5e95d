"""Memory that is nearly full: the verdict says how full, and names what holds most of it."""

from dataclasses import replace

import numpy as np
import pytest

import nbpipe
from nbpipe.base.machine import Machine
from tests.gates import until
from tests.show.fakes import photographs
from tests.show.inner import MemoryReader, ResidentMemory, diagnose

GB = 10**9
MB = 10**6


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets how much more memory can be got [bytes]."""

    def set_free(size_bytes):
        monkeypatch.setattr(Machine, "free_bytes", lambda _: size_bytes)
        monkeypatch.setattr("nbpipe.show.verdict.memory.reader", MemoryReader())

    return set_free


@pytest.fixture
def others(monkeypatch):
    """Leave out the memory of what other tests have started."""
    read, before_bytes = Machine.resident_bytes, Machine().resident_bytes()
    monkeypatch.setattr(Machine, "resident_bytes", lambda self: max(1, read(self) - before_bytes))


def said(monkeypatch, resident, free, **rows):
    """Return the verdict about a fixed run with so much memory."""
    memory = ResidentMemory(resident, free)
    monkeypatch.setattr(MemoryReader, "read", lambda _: memory)
    run = photographs(limit_bytes=None)
    run.stages["batch"].knobs["concurrency"]._last = None  # it has not just changed
    for name, changes in rows.items():
        run.rows[name] = replace(run.rows[name], **changes)
    return diagnose(run)


@pytest.mark.parametrize(("free", "cause"), [(GB // 2, "full-memory"), (2 * GB, "more-calls")])
def test_from_nine_tenths_on(monkeypatch, free, cause):
    """With less in use, something else limits."""
    assert said(monkeypatch, 7 * GB, free, consumer={}).cause == cause


@pytest.mark.parametrize(
    ("rows", "evidence", "advice", "target"),
    [
        (
            {"read": {"queued": 60, "item_bytes": 100 * MB}},
            "results of read that wait take 6 GB, the largest part",
            "Set read.prefetch to 8.",
            ("read", "prefetch", 8),
        ),
        (
            {"batch": {"workers": 2, "starting": 0, "memory_bytes": 6 * GB}},
            "2 workers of batch take 6 GB, the largest part",
            "Set batch.concurrency to 1.",
            ("batch", "concurrency", 1),
        ),
        (
            {},
            "this process takes 7.2 GB, the largest part",
            "Keep fewer batches in your loop, or use a smaller model or batch.",
            None,
        ),
    ],
)
def test_the_largest_holder_is_named(monkeypatch, rows, evidence, advice, target):
    """Buffers of a stage, its workers, or the process itself; each has its own advice."""
    found = said(monkeypatch, 7_500 * MB, 100 * MB, **rows)
    assert found.text == "Memory is nearly full: 7.5 GB of 7.6 GB in use."
    assert (found.evidence, found.advice, found.suggestion) == (evidence, advice, target)
    assert (found.cause, found.severity) == ("full-memory", "warning")


def test_without_a_reading(monkeypatch):
    """Where the system does not report memory, nothing is said of it."""

    def fails(_):
        raise OSError

    monkeypatch.setattr(Machine, "resident_bytes", fails)
    monkeypatch.setattr("nbpipe.show.verdict.memory.reader", MemoryReader())
    assert diagnose(photographs()).cause != "full-memory"


def large(number):
    """Make an item of 40 MB."""
    return np.ones(5_000_000) * number


@pytest.mark.slow
def test_buffers_of_a_real_run(others, free):
    """Items that wait in a buffer are found, and the knob that holds fewer of them."""
    pipe = nbpipe.source(range(40)).map(large, prefetch=16)
    with pipe.start() as run:
        for number, _ in enumerate(run):
            if number == 3:
                until(lambda: run.stats()["large"].queued >= 15)
                free(1 * MB)
                until(lambda: run.diagnose().cause == "full-memory")
                found = run.diagnose()
                break
    assert found.evidence.startswith("results of large that wait take ")
    assert found.suggestion == ("large", "prefetch", 8)


def heavy(number, kept=[]):  # noqa: B006  memory that a worker keeps
    """Keep 400 MB in the worker."""
    kept.append(large(number)) if len(kept) < 10 else None
    return number


@pytest.mark.slow
def test_workers_of_a_real_run(others, free):
    """The memory of worker processes counts, and they are named."""
    pipe = nbpipe.source(range(10**6)).map(heavy, executor="process", concurrency=2)
    with pipe.start() as run:
        for _ in run:
            row = run.stats()["heavy"]
            if row.memory_bytes > 700 * MB:
                free(1 * MB)
            found = run.diagnose()
            if found.cause == "full-memory":
                break
    assert found.evidence.startswith("2 workers of heavy take ")
    assert found.suggestion == ("heavy", "concurrency", 1)
