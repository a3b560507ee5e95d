"""RemoteSource: the items of a pipeline in another process, as a source in this one."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from ...base.knobs import Knob
from ...engine.consumer import Consumer
from ...engine.engine import CarriedError
from ...engine.nodes.factories import EpochItems
from ...engine.nodes.provenance import StageStates
from ...engine.stats import CHUNK_MAX
from .link import Link, NoAnswerError

MOST = CHUNK_MAX  # items in one answer, at most
_IN_A_ROW = 4  # answers that show a waiting loop before more items come at once


@final
class RemoteSource(EpochItems):
    """A source that draws from another process; each epoch opens it again.

    It asks for one item at a time, and for the next one while the loop is busy. If the loop waits
    and items are small, several come in one answer, and as many are kept ready here.

    Args:
        link: returns the process in which the next epoch runs.
        consumer: the training loop.
        ready: knob of the items kept ready here.
        settle: called at the end of an epoch, before the loop gets to know of it.

    Attributes:
        node_state: the states in which the stages of the next epoch begin.
        settings: settings of this process for that epoch.
    """

    def __init__(
        self,
        link: Callable[[], tuple[Link, int]],
        consumer: Consumer,
        ready: Knob,
        settle: Callable[[], object],
    ) -> None:
        self.link = link
        self.consumer = consumer
        self.ready = ready
        self.settle = settle
        self.node_state: StageStates = {}
        self.settings = b""
        self._tickets = itertools.count(1)
        self._now = RemoteIterator(self, 0, None)

    def begin(self, given: Sequence[Any] | None) -> int:
        """Prepare an epoch; return its ticket.

        Args:
            given: indices that replace the source's own order, or None.
        """
        before, self._now = self._now, RemoteIterator(self, next(self._tickets), given)
        before.give_up()
        return self._now.ticket

    @property
    def ticket(self) -> int:
        """Ticket of the epoch in progress, or of the last one; 0 before the first."""
        return self._now.ticket

    def of_epoch(self) -> RemoteIterator:
        """Return the items of the epoch that begins."""
        return self._now

    def finish(self) -> None:
        """Finish an epoch whose items the loop has taken.

        Raises:
            CacheError: the other process cannot write a cache.
        """
        self._now.finish()

    def cancel(self, ticket: int, had: int) -> None:
        """End an epoch after the loop took `had` items; threads that wait for one get none."""
        if self._now.ticket == ticket:
            self._now.end(had)

    def __iter__(self) -> RemoteIterator:
        return self._now


@final
class RemoteIterator(Iterator[Any]):
    """The items of one epoch.

    Args:
        source: where they come from.
        ticket: identifies the epoch.
        given: indices of an order from outside, or None.
    """

    def __init__(self, source: RemoteSource, ticket: int, given: Sequence[Any] | None) -> None:
        self.ticket = ticket
        self._source = source
        self._epoch = 0
        self._given = given
        self._node_state = source.node_state
        self._link: Link | None = None
        self._program = 0
        self._items: deque[Any] = deque()
        self._wanted = True
        self._asked = self._begun = self._over = False
        self._hungry = self._sated = 0  # answers in a row that the loop waited for, or did not

    def set_epoch(self, number: int) -> None:
        """Set the number of the epoch."""
        self._epoch = number

    def __next__(self) -> Any:
        """Wait for the next item.

        Raises:
            CarriedError: the epoch failed in the other process.
        """
        while not self._items:
            if self._over or not self._wanted:
                raise StopIteration
            self._fetch()
        return self._items.popleft()

    def _fetch(self) -> None:
        kind, value = self._answer()
        self._asked = False
        if kind == "items":
            items, more = value
            self._begun = True
            self._items.extend(items)
            self._adapt(more=more)
            if self._wanted:
                self._ask()  # the other process prepares it while the loop is busy
            return
        self._over = True
        self._source.settle()
        if kind == "error":
            raise CarriedError(value.unpack())

    def _adapt(self, *, more: bool) -> None:
        """Ask for more items at once if the loop waits for them, for fewer if it does not."""
        knob = self._source.ready
        waits = bool(self._source.consumer.waits_since_ns)
        self._hungry = self._hungry + 1 if waits and more else 0
        self._sated = 0 if waits else self._sated + 1
        if self._hungry == _IN_A_ROW:
            self._hungry = 0
            knob.set(min(2 * knob.value + 1, MOST - 1))
        elif self._sated == 2 * _IN_A_ROW:
            self._sated = 0
            knob.set(knob.value // 2)

    def _ask(self) -> None:
        """Ask for the next items."""
        if self._link is None:
            self._link, self._program = self._source.link()
        data = self._link.ready()
        self._asked = True
        with contextlib.suppress(OSError):  # the process is gone: `_answer` finds out
            where = self._epoch, self._given, self._node_state, self._source.settings
            begin = () if self._begun else (self._program, *where)
            data.send((self.ticket, self._source.ready.value + 1, *begin))
        if not (self._wanted or self._begun):  # the end came before there was a link to send it to
            self.end(0)

    def _answer(self) -> tuple[str, Any]:
        """Wait for the answer; skip answers to earlier epochs."""
        while True:
            try:
                if not self._asked:
                    self._ask()
                assert self._link is not None
                token, kind, value = self._link.ready().recv()
            except (EOFError, OSError):
                self._lost()
                continue
            except BaseException as error:
                raise CarriedError(error) from error
            if token == self.ticket:
                self._link.served = True
                return kind, value

    def _lost(self) -> None:
        """Handle the death of the process: one that died between two epochs is replaced."""
        link, self._link, self._asked = self._link, None, False
        assert link is not None
        error = link.died()
        if not link.served or self._begun or not self._wanted:
            self._over = True
            raise CarriedError(error)

    def finish(self) -> None:
        """Have the other process finish the epoch; if it died, the epoch has ended."""
        if self._link is not None:
            with contextlib.suppress(NoAnswerError):
                self._link.request("finish", self.ticket).wait(None)

    def give_up(self) -> None:
        """End an epoch that an interrupt hit at its start, so that the run never had it.

        The other process waits for the end of an epoch before it begins the next one.
        """
        if self._wanted:
            self.end(0)

    def end(self, had: int) -> None:
        """End the epoch after the loop took `had` items."""
        self._wanted = False
        link = self._link
        if link is not None:
            link.send("end", self.ticket, had)
