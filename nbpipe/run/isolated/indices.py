"""Delivery: the order of an epoch, on its way to the process that reads the source."""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, final

from ...engine.external import MAX_DEPTH, Broken, Feed, GivenOrder, Index, Listed
from ...errors import EpochClosedError
from ...executors.channel import Channel
from .link import Link

_LOT = 256  # indices that are sent at once, where they are there without a wait
_AHEAD = 64  # lots drawn from an iterable and not yet begun over there


@final
class Delivery:
    """Passes the loads of one epoch on, and draws them where they come from an iterable.

    Args:
        order: the indices.
        ticket: of the epoch.
        link: the process that reads the source.
        program: number of what it runs.
    """

    def __init__(self, order: GivenOrder, ticket: int, *, link: Link, program: int) -> None:
        self.ticket = ticket
        self.link = link
        self.program = program
        self._listed = order if isinstance(order, Listed) else None
        self._drawn: deque[Sequence[Index]] = deque()
        self.feed = order if isinstance(order, Feed) else Feed(_AHEAD)
        self.feed.pass_on = self._pass_on
        link.deliver(self)

    def _pass_on(self, indices: Sequence[Index] | None) -> None:
        if self._listed is None or indices is None:
            self.link.tell("feed", self.ticket, indices, 1)
            return
        self._drawn.append(indices)
        if len(self._drawn) == 1:  # else it is under way
            self.link.tell_late(self._all_drawn)

    def _all_drawn(self) -> tuple[Any, ...]:
        """Give what was drawn while other messages were sent, as one."""
        indices: list[Index] = []
        lots = 0
        with contextlib.suppress(IndexError):  # to the end: what comes later is told anew
            while True:
                indices += self._drawn.popleft()
                lots += 1
        return "feed", self.ticket, indices, lots

    def heard(self, ticket: int, loads: int) -> None:
        """Hear that so many loads were begun, or with 0 that no more are wanted."""
        if ticket != self.ticket:
            return
        if loads:
            self.feed.began(loads)
        else:
            self.feed.cut()

    def start(self) -> None:
        """Begin to draw, in a thread of its own: whatever gives the indices may be slow."""
        if self._listed is not None:
            threading.Thread(
                target=self._draw, args=(self._listed,), name="nbpipe-indices", daemon=True
            ).start()

    def _draw(self, listed: Listed) -> None:
        try:
            for lot in listed.draw_lots(_LOT):
                if not self.feed.wanted:
                    return
                self.feed.load(lot)
            self.feed.end()
        except EpochClosedError:
            return
        except BaseException as error:  # noqa: BLE001  the source raises it over there
            with contextlib.suppress(EpochClosedError):
                self.feed.load([Broken(error)])
                self.feed.end()
        finally:
            close = getattr(listed.inner, "close", None)
            if close is not None:
                close()

    def close(self) -> None:
        """Draw no more: the epoch is over."""
        self.feed.close(None)


@final
class Feeds:
    """The feeds of this process, by the tickets of the epochs that another one began.

    Args:
        control: the way back: what was begun is told there.
    """

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._feeds: dict[int, Feed] = {}
        self._first = 1  # tickets before it are of epochs that are over
        self._lock = threading.Lock()

    def put(self, ticket: int, indices: Sequence[Index] | None, loads: int) -> None:
        """Take indices in that stand for some loads, or the end."""
        feed = self._of(ticket)
        if feed is None:
            return
        if indices is None:
            feed.end()
            return
        with contextlib.suppress(EpochClosedError):
            feed.load(indices, loads=loads)

    def take(self, ticket: int) -> Feed | None:
        """Give the feed of an epoch that begins, and forget those of earlier ones."""
        feed = self._of(ticket)
        with self._lock:
            self._first = max(self._first, ticket)
            for past in [one for one in self._feeds if one < self._first]:
                del self._feeds[past]
        return feed

    def _of(self, ticket: int) -> Feed | None:
        with self._lock:
            if ticket < self._first:
                return None
            if ticket not in self._feeds:
                self._feeds[ticket] = feed = Feed(MAX_DEPTH)  # the other end bounds it
                feed.hear = functools.partial(self._heard, ticket)
            return self._feeds[ticket]

    def _heard(self, ticket: int, loads: int) -> None:
        if loads:
            self._tell(ticket, loads)
            return
        # it is heard under a lock that must not be held for as long as a pipe is full
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
            _thread.start_new_thread(self._tell, (ticket, loads))

    def _tell(self, ticket: int, loads: int) -> None:
        with contextlib.suppress(OSError):  # the run is gone
            self._control.send(("fed", ticket, loads))
