"""Threads: the time in which one computes, and the time in which cores are idle."""

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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_idle_time_is_that_of_the_cores_asked_for():
    """All cores together have been idle for as long as each of them, added up."""
    whole = os.sched_getaffinity(0)
    before_ns = threads.idle_so_far_ns(whole)
    each_ns = sum(threads.idle_so_far_ns({core}) for core in whole)
    after_ns = threads.idle_so_far_ns(whole)
    tick_ns = 10_000_000 * len(whole)  # each is counted in such steps, and rounded
    assert before_ns - tick_ns <= each_ns <= after_ns + tick_ns


def no_file(_):
    """Stand for a system that has no such files."""
    raise FileNotFoundError


@pytest.mark.parametrize(("read", "idle_ns"), [(no_file, None), (lambda _: 0, None), (len, 2)])
def test_idle_time_of_a_system_that_does_not_count_it(monkeypatch, read, idle_ns):
    """It is unknown where there is no such file, or where nothing is counted."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    monkeypatch.setattr(threads, "idle_so_far_ns", read)
    assert threads.own_idle_ns() == idle_ns
