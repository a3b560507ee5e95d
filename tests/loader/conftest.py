"""What the tests of the loader share: a fork server that has torch, and the three ways to work."""

import pytest

from tests.executors.processes.conftest import start_server

WAYS = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2, "workers": "thread"},
    "process": {"num_workers": 2, "workers": "process"},
}


@pytest.fixture(autouse=True, scope="package")
def server(torch):
    """Have a fork server that has torch before the first test; it marks all tests, too."""
    start_server()


@pytest.fixture(params=WAYS)
def way(request):
    """Give the arguments of a loader that works inline, in threads or in processes."""
    return WAYS[request.param]


@pytest.fixture(params=["thread", "process"])
def placed(request):
    """Give the arguments of a loader with two workers."""
    return WAYS[request.param]
