"""One kernel of each version of ipykernel, shared by the tests of that version."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.kernel.client import Client, running
from tests.kernel.versions import INSTALLED, VERSIONS, InstallError, has_subshells, path_of

PREPARE = "from tests.kernel.cells import *"
WAYS = [
    pytest.param(
        (version, subshell),
        id=f"{version}{'-subshell' * subshell}",
        marks=[] if version == INSTALLED else pytest.mark.slow,
    )
    for version in VERSIONS
    for subshell in (False, True)
    if has_subshells(version) or not subshell
]

BY_SUBSHELL = [way for way in WAYS if way.values[0][1]]
# There a comm says which subshell a message is for.
ROUTED = [way for way in BY_SUBSHELL if way.values[0][0] >= "7.4"]
# Elsewhere the event loop of a cell that awaits keeps messages until the cell ends.
AWAITED = [way for way in WAYS if way.values[0][1] or not "7.0" <= way.values[0][0] < "7.4"]

# A run whose stage gives one item, and more once four of its calls run at once.
MEET = """
import threading
import nbpipe
barrier = threading.Barrier(4)
def meet(number):
    if number:
        barrier.wait(HANG_S)
    return number
run = nbpipe.source(range(9)).map(meet, name="meet", concurrency=1).start()
"""
EPOCH = """
for number in run:
    print("begun" if number == 0 else number, flush=True)
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what talks to a kernel."""
    if "kernels" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.kernel)


class Talk:
    """A kernel, and a way to reach its comms: by a subshell, or not."""

    def __init__(self, client: Client, version: str) -> None:
        self.client = client
        self.version = version
        self.subshell: str | None = None

    def knob(self, options: str = "") -> str:
        """Make the knob of this test in the kernel, as `knob`; return its id."""
        printed = self.client.run(f"knob = Knob({options}); print('id', knob.comm.comm_id)")
        return printed.split()[-1]

    def begin(self, code: str) -> str:
        """Send a cell, and wait until it is busy; return its id."""
        cell = self.client.execute(code)
        self.client.printed(cell, "begun\n")
        return cell

    def told(self, comm: str, wanted: Callable[[dict], bool]) -> dict:
        """Wait for a message of a widget that is wanted; return it."""

        def is_wanted(one: dict) -> bool:
            data = one["content"].get("data", {})
            here = one["content"].get("comm_id") == comm and data.get("method") == "custom"
            return here and wanted(data["content"])

        return self.client.wait(is_wanted, "message of a widget")["content"]["data"]["content"]

    def say(self, comm: str, data: object) -> str:
        """Send data to a comm; return the message's id."""
        return self.client.say(comm, data, subshell=self.subshell)


def find(version: str) -> tuple[str, str]:
    """Return where a version of ipykernel is, and why it cannot be had."""
    try:
        return path_of(version), ""
    except InstallError as error:
        return "", str(error)


@pytest.fixture(scope="session", params=WAYS)
def way(request) -> tuple[str, bool]:
    """Return a version of ipykernel, and whether its subshells are used."""
    return request.param


@pytest.fixture(scope="session")
def kernels() -> Iterator[Callable[[str], Client]]:
    """Give a function that gives the kernel of a version; it is started by the first call."""
    started: dict[str, Client] = {}
    with ExitStack() as stack:

        def give(version: str) -> Client:
            if version not in started:
                path, missing = find(version)
                if missing:
                    pytest.fail(missing, pytrace=False)
                started[version] = stack.enter_context(running(python_path=path))
            return started[version]

        yield give


@pytest.fixture(scope="session")
def kernel(way, kernels) -> Talk:
    """Give a kernel of each version."""
    version, subshell = way
    talk = Talk(kernels(version), version)
    talk.client.run(PREPARE)
    talk.subshell = talk.client.create_subshell() if subshell else None
    return talk


@pytest.fixture(scope="session")
def client(kernels) -> Client:
    """Give the kernel of the version that is installed."""
    return kernels(INSTALLED)


@pytest.fixture
def notebook(client) -> Iterator[Client]:
    """Return the kernel that is installed, with no run left of other tests."""
    client.heard.clear()
    yield client
    client.run("if 'run' in globals(): run.close()")


@pytest.fixture
def talk(kernel) -> Talk:
    """Return the kernel, and forget what was said before."""
    kernel.client.heard.clear()
    return kernel


@pytest.fixture
def direct(talk) -> Iterator[Talk]:
    """Return the kernel, and reach it without a subshell, as older front ends do."""
    subshell, talk.subshell = talk.subshell, None
    yield talk
    talk.subshell = subshell
