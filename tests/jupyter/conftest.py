"""What the tests of what is shown in notebooks share."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from nbpipe.jupyter.publisher import Publisher
from tests.gates import still_alive


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
