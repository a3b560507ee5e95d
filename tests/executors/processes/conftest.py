"""What the tests of worker processes share: a look at who is left."""

import psutil
import pytest

import nbpipe
from tests.gates import HANG_S, drained


@pytest.fixture(autouse=True, scope="module")
def server():
    """Have a fork server before the first test, so that none of them is taken to leave it."""
    start_server()


def start_server():
    """Start the fork server where there is none; it lives as long as this process."""
    drained(nbpipe.source([0]).map(int, executor="process"))


@pytest.fixture(autouse=True)
def no_workers_left():
    """Fail a test that leaves a worker behind, which is a child of the fork server."""
    before = set(descendants())
    yield
    new = [process for process in descendants() if process not in before]
    _, left = psutil.wait_procs(new, timeout=HANG_S)
    for process in left:
        process.kill()
    if left:
        pytest.fail(f"left behind: {left}", pytrace=False)


def descendants():
    """Give the processes that this one and its children have started."""
    return psutil.Process().children(recursive=True)
