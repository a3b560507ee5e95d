"""What the tests of what is shown in notebooks share."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from tests.gates import still_alive
from tests.jupyter.inner import Publisher


class Outputs:
    """IPython's way to a notebook's outputs: notes what was shown."""

    def __init__(self):
        self.shown = []

    def publish(self, data, *, transient, update):
        shown = SimpleNamespace(data=data, place=transient.get("display_id"), update=update)
        self.shown.append(shown)


@contextmanager
def publisher_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Give a module's publisher, which looks only when it is told to; nothing is left of it.

    Its thread begins with a look at once: what that sends, and the run that it holds meanwhile,
    would come between two lines of a test.
    """
    publisher = Publisher(tick_s=1000.0)
    monkeypatch.setattr(publisher, "_publish", lambda feed: None)
    monkeypatch.setattr(module, "publisher", publisher)
    yield publisher
    thread = publisher._thread
    for feed in list(publisher._feeds.values()):
        publisher.discard(feed)
    assert thread is None or not still_alive([thread])


class Notebook:
    """A kernel, and what its cells have said and raised."""

    def __init__(self, client):
        self.client = client

    def run(self, code, cell_id=None):
        """Run a cell to its end; give what it has printed, and the name of its error."""
        cell, content = self.client.end(code, cell_id)
        return SimpleNamespace(said=self.client.output(cell), error=content.get("ename"))

    def interrupted(self, code, cell_id, printed):
        """Press the stop button once a cell has printed a text; give the name of its error."""
        cell = self.client.execute(code, cell_id=cell_id)
        self.client.printed(cell, printed)
        self.client.interrupt()
        return self.client.reply(cell)["content"].get("ename")


@pytest.fixture(scope="module")
def kernel():
    """Give one kernel for all tests of a file."""
    from tests.kernel.client import running  # which needs ipykernel

    with running("--HistoryManager.enabled=False") as client:
        yield client


@pytest.fixture
def notebook(kernel):
    """Give the kernel with nbpipe imported; close what the test left open."""
    kernel.heard.clear()
    kernel.run("import gc, threading, nbpipe, nbpipe.show.watch\nruns = []")
    yield Notebook(kernel)
    kernel.run("nbpipe.close_all()\nrun = it = None")
