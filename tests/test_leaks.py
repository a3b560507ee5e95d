"""The leak check of conftest.py finds each kind of leak, and nothing else."""

import os
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

import pytest

from tests.gates import HANG_S
from tests.leaks import Held, find_leaks


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    """Wait no longer than a moment for what is left on purpose."""
    monkeypatch.setattr("tests.leaks.GRACE_S", 0.01)


def test_nothing_held_is_no_leak():
    """A test that leaves nothing behind has no leaks."""
    assert find_leaks(Held.now()) == []


def test_thread_is_found_and_gone_when_it_ends():
    """A thread still running is named; ended, it is no leak."""
    before, gate = Held.now(), threading.Event()
    thread = threading.Thread(target=gate.wait, name="left")
    thread.start()
    found = find_leaks(before)
    gate.set()
    thread.join()
    assert (found, find_leaks(before)) == (["thread 'left'"], [])


def test_ending_thread_of_nbpipe_has_grace(monkeypatch):
    """A thread of nbpipe that is about to end is waited for."""
    monkeypatch.setattr("tests.leaks.GRACE_S", HANG_S)
    before, gate = Held.now(), threading.Event()
    thread = threading.Thread(target=gate.wait, name="nbpipe-worker-1")
    thread.start()
    gate.set()
    assert find_leaks(before) == []


def test_open_file_is_found():
    """A file descriptor that stays open is named with what it points to."""
    before = Held.now()
    fd = os.open(__file__, os.O_RDONLY)
    found = find_leaks(before)
    os.close(fd)
    assert found == [f"open file {fd} of {__file__}"]


def test_child_process_is_found():
    """A child process that goes on running is named."""
    before = Held.now()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = find_leaks(before)
    child.communicate(b"\n")
    assert f"child process {child.pid}" in found


def test_shared_memory_is_found():
    """A segment that was not unlinked is named."""
    before = Held.now()
    segment = SharedMemory(create=True, size=16)
    found = find_leaks(before)
    segment.close()
    segment.unlink()
    assert f"shared memory {segment.name!r}" in found
