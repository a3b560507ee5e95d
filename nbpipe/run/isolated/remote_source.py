"""RemoteSource: the items of a pipeline in another process, as a source in this one."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from ...base.knobs import Knob
from ...engine.engine import CarriedError
from ...engine.measures.consumer import Consumer
from ...engine.measures.counters import CHUNK_MAX
from ...engine.nodes.factories import EpochItems
from ...engine.nodes.provenance import StageStates
from .link import Beginning, Link, NoAnswerError

MOST = CHUNK_MAX  # items in one answer, at most
_IN_A_ROW = 4  # answers that show a waiting loop before more items come at once


@final
class RemoteSource(EpochItems):
    """A source that draws from another process; each epoch opens it again.

    It asks for one item at a time, and for the next one while the loop is busy. If the loop waits
    and items are small, several come in one answer, and as many are kept ready here.

    Args:
        link: returns the process in which the next epoch runs, and the number of the program.
        consumer: the training loop.
        ready: knob of the items kept ready here.
        settle: called at the end of an epoch, before the loop gets to know of it.

    Attributes:
        now: the items of the epoch in progress, or of the last one.
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
        self._tickets = itertools.count()
        self.now = RemoteIterator(self, next(self._tickets), None, {}, b"")

    def begin(self, given: Sequence[Any] | None, node_state: StageStates, settings: bytes) -> int:
        """Prepare an epoch; return its ticket.

        Args:
            given: indices that replace the source's own order, or None.
            node_state: the states in which the stages begin.
            settings: settings of this process.
        """
        self.now = RemoteIterator(self, next(self._tickets), given, node_state, settings)
        return self.now.ticket

    def of_epoch(self) -> RemoteIterator:
        """Return the items of the epoch that begins."""
        return self.now

    def __iter__(self) -> RemoteIterator:
        return self.now


@final
class RemoteIterator(Iterator[Any]):
    """The items of one epoch.

    Args:
        source: where they come from.
        ticket: identifies the epoch.
        given: indices of an order from outside, or None.
        node_state: the states in which the stages begin.
        settings: settings of this process.
    """

    def __init__(
        self,
        source: RemoteSource,
        ticket: int,
        given: Sequence[Any] | None,
        node_state: StageStates,
        settings: bytes,
    ) -> None:
        self.ticket = ticket
        self.node_state = node_state
        self._source = source
        self._given = given
        self._settings = settings
        self._epoch = 0
        self._link: Link | None = None
        self._items: deque[Any] = deque()
        self._error: BaseException | None = None  # that comes after them
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
            if self._error is not None:
                raise CarriedError(self._error)
            if self._over or not self._wanted:
                raise StopIteration
            self._receive()
        return self._items.popleft()

    def _receive(self) -> None:
        """Wait for the answer to the last request, and send the next one."""
        try:
            items, more, self._over, packed = self._answer()
        except (EOFError, OSError):
            self._lost()
            return
        except BaseException as error:
            raise CarriedError(error) from error
        self._items.extend(items)
        if self._over:
            self._error = None if packed is None else packed.unpack()
            self._source.settle()
        elif self._wanted:
            self._adapt(more=more)
            self._ask()  # the other process prepares it while the loop is busy

    def _answer(self) -> Any:
        """Wait for the answer; skip answers to earlier epochs."""
        link = self._link if self._asked and self._link is not None else self._ask()
        ticket = -1
        while ticket != self.ticket:
            ticket, *answer = link.data().recv()
        self._asked, self._begun, link.served = False, True, True
        return answer

    def _ask(self) -> Link:
        """Ask for the next items; return the process that was asked."""
        begins: Beginning | None = None
        link = self._link
        if link is None:
            link, program = self._source.link()
            self._link = link
            begins = Beginning(program, self._epoch, self._given, self.node_state, self._settings)
        data = link.data()
        self._asked = True
        with contextlib.suppress(OSError):  # the process is gone: `_answer` finds out
            data.send((self.ticket, self._source.ready.value + 1, begins))
        if begins and not self._wanted:  # the end came before there was a link to send it to
            self.end(0)
        return link

    def _lost(self) -> None:
        """Handle the death of the process: one that died between two epochs is replaced."""
        link, self._link, self._asked = self._link, None, False
        assert link is not None
        error = link.died()
        if not link.served or self._begun or not self._wanted:
            self._over = True
            raise CarriedError(error)

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

    # -- its end ------------------------------------------------------------------------------
    def finish(self) -> None:
        """Have the other process finish the epoch; if it died, the epoch has ended.

        Raises:
            CacheError: the other process cannot write a cache.
        """
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
        """End the epoch after the loop took `had` items; threads that wait for one get none."""
        self._wanted = False
        if self._link is not None:
            self._link.request("end", self.ticket, had)
