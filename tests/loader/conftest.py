"""What the tests of the loader share: a fork server that has torch, and the three ways to work."""

import pytest

import nbpipe
from tests.executors.processes.conftest import start_server
from tests.inner import holds_lock
from tests.interrupts import Interrupter

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


def begun_everywhere(prepare, look, *, step):
    """Begin an epoch, and look at the loader at one moment after the other, as another thread may.

    Args:
        prepare: makes a loader; it is closed when that moment was looked at.
        look: is given it.
        step: so many moments further it is done again.

    Yields:
        The loader, the epoch that has begun, and what was seen.
    """
    number, where = 0, ""
    while where is not None:
        loader, seen = prepare(), []
        interrupter = Interrupter(
            number,
            lambda loader=loader, seen=seen: seen.append(look(loader)),
            waits=_holds_a_lock,
        )
        with interrupter:
            epoch = iter(loader)
        where = interrupter.where
        yield loader, epoch, seen[0] if where is not None else look(loader)
        epoch.close()
        loader.close()
        number += step


def _holds_a_lock():
    """Return whether this thread holds the lock of a run."""
    return any(map(holds_lock, nbpipe.runs()))
