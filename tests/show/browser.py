"""A browser that shows one run: it sends messages, and keeps the answers."""

from tests.show.inner import RunChannel


class Browser:
    """One front end of a run."""

    def __init__(self, run):
        self.channel = RunChannel(run, self._receive)
        self.snapshot = self.channel.snapshot
        self._acks = []
        self._later = None

    def _receive(self, message):
        if message["type"] == "exported":
            self._later(message)
        else:
            self._acks.append(message)

    def ask(self, message, later=None):
        """Send a message, and return its answer; `later` gets the result of an export."""
        self._later = later or self._later
        self.channel.receive(message)
        return self._acks.pop()
