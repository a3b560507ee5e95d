"""What the tests of the loader share: a fork server that has torch, and the three ways to work."""

import pytest

from nbpipe.executors.launch import stop_server
from tests.gates import drained
from tests.processes.conftest import START_S

WAYS = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2, "workers": "thread"},
    "process": {"num_workers": 2, "workers": "process"},
}


@pytest.fixture(autouse=True, scope="package")
def server():
    """Start a fork server that has torch before the first test."""
    pytest.importorskip("torch")
    import nbpipe

    drained(nbpipe.source([0]).map(int, executor="process"), START_S)
    yield
    stop_server()


@pytest.fixture(params=WAYS)
def way(request):
    """Give the arguments of a loader that works inline, in threads or in processes."""
    return WAYS[request.param]


@pytest.fixture(params=["thread", "process"])
def placed(request):
    """Give the arguments of a loader with two workers."""
    return WAYS[request.param]
