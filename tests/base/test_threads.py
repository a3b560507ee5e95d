"""Threads: the time in which one computes."""

import os

import pytest

from nbpipe.base import threads


@pytest.mark.parametrize(
    ("told", "computed_ns"),
    [(b"5 700 3\n", 1_700), (b"", 1_000), (b"none", 1_000), (OSError(), 1_000)],
)
def test_time_without_a_core_counts_as_computing(monkeypatch, tmp_path, told, computed_ns):
    """What a thread waited for a core is added where the system tells it; else it computed."""
    file = tmp_path / "schedstat"
    open_file = os.open
    if isinstance(told, bytes):
        file.write_bytes(told)
    monkeypatch.setattr(threads, "thread_time_ns", lambda: 1_000)
    monkeypatch.setattr(threads.os, "open", lambda _, flags: open_file(file, flags))
    assert threads.computing_ns() == computed_ns
