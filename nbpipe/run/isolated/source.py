"""RemoteSource: the items of a pipeline in another process, as a source in this one."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from ...base.knobs import Knob
from ...engine.expand import EpochItems
from ...engine.machine import CarriedError, Consumer
from ...engine.node import Stages
from .link import Link, NoAnswerError

MOST = 64  # items that come at once, where they are small and the loop waits for them
_IN_A_ROW = 4  # answers that say the same, before more come at once


@final
class RemoteSource(EpochItems):
    """A source that draws from another process; each epoch opens it afresh.

    One item comes at a time, and the next one is under way while the loop is busy. Where the
    loop waits and items are small, more come together, and as many are kept ready here.

    Args:
        link: gives the process in which the next epoch runs.
        consumer: the loop, which waits or does not.
        ready: knob of the items kept ready here.
        settle: called at the end of an epoch, before the loop hears of it.

    Attributes:
        node_state: where the stages go on over there in the epoch that begins.
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
        self.node_state: Stages = {}
        self._tickets = itertools.count(1)
        self._now = RemoteIterator(self, 0, None)

    def begin(self, given: Sequence[Any] | None) -> int:
        """Called when an epoch is about to begin; return its ticket.

        Args:
            given: indices that take the place of the source's own order, or None.
        """
        self._now = RemoteIterator(self, next(self._tickets), given)
        return self._now.ticket

    def of_epoch(self) -> RemoteIterator:
        """Return the items of the epoch that begins."""
        return self._now

    def finish(self) -> None:
        """End the epoch, of which the loop has had everything.

        Raises:
            CacheError: a cache cannot be written over there.
        """
        self._now.finish()

    def cancel(self, ticket: int, had: int) -> None:
        """End an epoch of which so many items were had: whoever waits for one more gets none."""
        if self._now.ticket == ticket:
            self._now.end(had)

    def __iter__(self) -> RemoteIterator:
        return self._now


@final
class RemoteIterator(Iterator[Any]):
    """The items of one epoch.

    Args:
        source: where they come from.
        ticket: tells the epoch from all others.
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
        """Called with the number of the epoch."""
        self._epoch = number

    def __next__(self) -> Any:
        """Wait for the next item.

        Raises:
            CarriedError: the epoch failed over there.
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
                self._ask()  # it gets ready while the loop is busy
            return
        self._over = True
        self._source.settle()
        if kind == "error":
            raise CarriedError(value.unpack())

    def _adapt(self, *, more: bool) -> None:
        """Ask for more at once where the loop waits for them, and for fewer where it does not."""
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
        with contextlib.suppress(OSError):  # it is gone, as the answer will tell
            where = self._epoch, self._given, self._node_state
            begin = () if self._begun else (self._program, *where)
            data.send((self.ticket, self._source.ready.value + 1, *begin))
        if not (self._wanted or self._begun):  # the end came before there was whom to tell
            self.end(0)

    def _answer(self) -> tuple[str, Any]:
        """Wait for what was asked for; leave out what earlier epochs no longer wanted."""
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
        """Take note that the process is gone; one that died between two epochs is replaced."""
        link, self._link, self._asked = self._link, None, False
        assert link is not None
        error = link.died()
        if not link.served or self._begun or not self._wanted:
            self._over = True
            raise CarriedError(error)

    def finish(self) -> None:
        """Have the epoch end over there, with all that this takes; one that died has ended."""
        if self._link is not None:
            with contextlib.suppress(NoAnswerError):
                self._link.request("finish", self.ticket).wait(None)

    def end(self, had: int) -> None:
        """Give up what is left behind so many items: nothing of it is wanted."""
        self._wanted = False
        link = self._link
        if link is not None:
            link.send("end", self.ticket, had)
