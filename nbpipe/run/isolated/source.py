"""Crossing: the items of a pipeline in another process, as a source in this one."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final

from ...base.knobs import Knob
from ...engine.machine import CarriedError, Consumer
from ...engine.node import Stages
from .link import IndexSender, Link

MOST = 64  # items that cross at once, where they are small and the loop waits for them
_IN_A_ROW = 4  # answers that say the same, before more cross


@final
class RemoteSource:
    """A source that draws from another process; each epoch opens it afresh.

    One item crosses at a time, and the next one is under way while the loop is busy. Where the
    loop waits and items are small, more cross together, and as many are kept ready here.

    Args:
        link: gives the process in which the next epoch runs.
        consumer: the loop, which waits or not.
        ready: knob of the items kept ready here.
        settle: called at the end of an epoch, before the loop hears of it.
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
        self._epoch = 0
        self._open: RemoteIterator | None = None
        self.node_state: Stages = {}  # where the stages go on over there
        self._delivery: IndexSender | None = None
        self._ticket = self._cancelled = 0
        self._tokens = itertools.count(1)

    def begin(self, deliver: Callable[[int], IndexSender] | None) -> int:
        """Called when an epoch is about to begin; give its ticket.

        Args:
            deliver: sends the order of the epoch with this ticket over there, or None.
        """
        self._ticket += 1
        self._delivery = None if deliver is None else deliver(self._ticket)
        return self._ticket

    def cancel(self, ticket: int) -> None:
        """End an epoch: whoever waits for an item of it gets none."""
        self._cancelled = max(self._cancelled, ticket)
        passage = self._open
        if passage is not None and passage.ticket <= ticket:
            passage.close()
        delivery = self._delivery
        if delivery is not None and delivery.ticket <= ticket:
            delivery.close()

    def wants(self, ticket: int) -> bool:
        """Tell whether anybody waits for the items of an epoch."""
        return ticket > self._cancelled

    def set_epoch(self, number: int) -> None:
        """Hear the number of the epoch that begins."""
        self._epoch = number

    def __iter__(self) -> RemoteIterator:
        """Begin the epoch over there."""
        token, delivery = next(self._tokens), self._delivery
        self._open = passage = RemoteIterator(self, self._ticket, token, self._epoch, delivery)
        if delivery is not None:
            delivery.start()
        return passage


@final
class RemoteIterator(Iterator[Any]):
    """The items of one epoch.

    Args:
        crossing: where they come from.
        ticket: of the epoch.
        token: tells this passage from all others.
        epoch: number of the epoch.
        delivery: sends the order of the epoch over there, or None.
    """

    def __init__(
        self,
        crossing: RemoteSource,
        ticket: int,
        token: int,
        epoch: int,
        delivery: IndexSender | None,
    ) -> None:
        self.ticket = ticket
        self._crossing = crossing
        self._token = token
        self._epoch = epoch
        self._delivery = delivery
        self._link: Link | None = None
        self._program = 0
        if delivery is not None:  # its order went there, and nowhere else
            self._link, self._program = delivery.link, delivery.program
        self._items: deque[Any] = deque()
        self._asked = self._begun = self._over = False
        self._hungry = self._sated = 0  # answers in a row that the loop waited for, or did not

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

    @property
    def _wanted(self) -> bool:
        return self._crossing.wants(self.ticket)

    def _fetch(self) -> None:
        kind, value = self._answer()
        self._asked = False
        if kind == "items":
            entries, more = value
            self._begun = True
            self._items.extend(entry[1] for entry in entries)
            self._adapt(more=more)
            if self._wanted:
                self._ask()  # it gets ready while the loop is busy
            return
        self._over = True
        self._crossing.settle()
        if kind == "error":
            raise CarriedError(value.unpack())

    def _adapt(self, *, more: bool) -> None:
        """Let more cross at once where the loop waits for it, and fewer where it does not."""
        knob = self._crossing.ready
        waits = bool(self._crossing.consumer.waits_since_ns)
        self._hungry = self._hungry + 1 if waits and more else 0
        self._sated = 0 if waits else self._sated + 1
        if self._hungry == _IN_A_ROW:
            self._hungry = 0
            knob.set(min(2 * knob.value + 1, MOST - 1))
        elif self._sated == 2 * _IN_A_ROW:
            self._sated = 0
            knob.set(knob.value // 2)

    def _ask(self) -> None:
        """Ask for the next items, as many as there is room for."""
        if self._link is None:
            self._link, self._program = self._crossing.link()
        link, most = self._link, self._crossing.ready.value + 1
        data = link.ready()
        self._asked = True
        with contextlib.suppress(OSError):  # it is gone, as the answer will tell
            given = 0 if self._delivery is None else self.ticket
            node_state = None if self._begun else self._crossing.node_state
            data.send((self._token, most, self._program, self._epoch, given, node_state))
        if not self._wanted:
            self.close()

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
            if token == self._token:
                self._link.served = True
                return kind, value

    def _lost(self) -> None:
        """Take note that the process is gone; one that died between two epochs is replaced."""
        link, self._link, self._asked = self._link, None, False
        assert link is not None
        error = link.died()
        again = link.served and not self._begun and self._delivery is None
        if not again or not self._wanted:
            self._over = True
            raise CarriedError(error)

    def close(self) -> None:
        """Let go of what is left: nothing of it is wanted."""
        link = self._link
        if link is not None and not self._over:
            link.tell("end", self._token)
