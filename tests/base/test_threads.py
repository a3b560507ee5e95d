"""Threads: the time in which one computes, and those whose start is not waited for."""

import os
import sys

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


@pytest.mark.skipif(threads.FREE_THREADED, reason="threads run at once there")
def test_a_start_does_not_wait_for_the_thread():
    """Whoever starts a thread goes on; to wait for its end waits for its beginning, too."""
    began = []
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(100)  # the interpreter stays with this thread until it waits
    try:
        several = [threads.QuickThread(began.append, f"quick-{n}", (n,)) for n in range(8)]
        for thread in several:
            thread.start()
        assert not began
        for thread in several:
            thread.join()
    finally:
        sys.setswitchinterval(before_s)
    assert sorted(began) == list(range(8))
    assert not any(thread.is_alive() for thread in several)


def test_the_end_of_a_started_thread_is_waited_for_no_longer_than_asked():
    """A wait with a limit ends with it, whether the thread runs yet or not."""
    gate = threads.Latch()
    thread = threads.QuickThread(gate.wait, "quick")
    thread.start()
    thread.join(0.0)
    thread.join(0.001)
    assert thread.daemon
    gate.open()
    thread.join()
    assert not thread.is_alive()
