"""Threads: the time in which one computes."""

import os

import pytest

from nbpipe.base import threads


@pytest.mark.parametrize(
    ("told", "wanted_ns"), [(b"5 700 3\n", 700), (b"", 0), (b"none", 0), (OSError(), 0)]
)
def test_time_without_a_core_is_told_apart(monkeypatch, tmp_path, told, wanted_ns):
    """What a thread waited for a core is told beside what it computed, where that is known."""
    file = tmp_path / "schedstat"
    open_file = os.open
    if isinstance(told, bytes):
        file.write_bytes(told)
    monkeypatch.setattr(threads, "thread_time_ns", lambda: 1_000)
    monkeypatch.setattr(threads.os, "open", lambda _, flags: open_file(file, flags))
    assert threads.core_times_ns() == (1_000, wanted_ns)
