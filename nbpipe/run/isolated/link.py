"""Link: one process that holds a pipeline, as its parent sees it: tell it, ask it, end it."""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import logging
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from queue import SimpleQueue
from time import monotonic
from typing import Any, final

from ...base.threads import Latch, uninterrupted
from ...engine.external import MAX_DEPTH, Broken, Feed, GivenOrder, Index, Listed
from ...errors import EpochClosedError, WorkerDiedError, WorkerStartError
from ...executors.channel import BUDGET_BYTES, Channel
from ...executors.launch import LEAVE_S, Worker, launch


# -- A second connection to a process that was started with one ------------------------------------
def handed_over(worker: Worker) -> Connection:
    """Return our end of a new connection to a worker that calls `taken_over` first.

    Raises:
        OSError: the worker is gone, or files have run out.
    """
    ours, theirs = Pipe()
    try:
        with theirs:
            send_handle(worker.connection, theirs.fileno(), worker.pid)
    except BaseException:
        ours.close()
        raise
    return ours


def taken_over(connection: Connection) -> Any:
    """Return the other end; a process that user code starts here does not get it."""
    handle = recv_handle(connection)
    os.set_inheritable(handle, False)  # noqa: FBT003
    second = Connection(handle)
    os.register_at_fork(after_in_child=second.close)
    return second


# -- Link: one process that holds a pipeline, as its parent sees it: tell it, ask it, end it -------
ENTRY = f"{__package__}.child:serve"
ANSWER_S = 1.0  # a process that has not answered by then is busy: nobody waits longer
_RING_SHARE = 4  # of the memory budget of a run, this part is for shared memory
_END = None


class NoAnswerError(Exception):
    """The process has not answered in time, or is gone."""


@final
class Reply:
    """An answer to come."""

    def __init__(self) -> None:
        self._arrived = Latch()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def arrived(self) -> bool:
        """Whether there is an answer, or there will be none."""
        return self._arrived.is_open

    def give(self, value: Any, error: BaseException | None = None) -> None:
        """Answer, or say why not."""
        self._value, self._error = value, error
        self._arrived.open()

    def wait(self, timeout_s: float) -> Any:
        """Wait for the answer.

        Raises:
            NoAnswerError: there was none in time.
            Exception: what the process raised.
        """
        if not self._arrived.wait(timeout_s):
            raise NoAnswerError
        if self._error is not None:
            raise self._error
        return self._value


@final
class Link:
    """A process with a pipeline in it, and the two threads that talk with it.

    One thread starts it and tells it things, so that no caller waits for a process that does
    not read, and none is interrupted in the middle of a message; the other hears it. Items
    come by a way of their own, `data`, which is read by one thread at a time.

    Args:
        title: addresses of the stages, for messages.
        memory_bytes: the run's budget for all buffers [bytes], or None.

    Attributes:
        data: the way that items come, once the process has started.
        served: items came from it.
    """

    def __init__(self, title: str, *, memory_bytes: int | None) -> None:
        self.data: Channel | None = None
        self.served = False
        self._title = title
        self._budget_bytes = BUDGET_BYTES if memory_bytes is None else memory_bytes // _RING_SHARE
        self._worker: Worker | None = None
        self._connection: Connection | None = None
        self._control: Channel | None = None
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._pending: dict[int, Reply] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # garbage that is found below us may come here again
        self._started = Latch()
        self._error: BaseException | None = None
        self._gone = self._closed = False
        self._delivery: IndexSender | None = None
        self._teller = _daemon(self._tell, "nbpipe-isolated-tell")
        self._hearer = _daemon(self._hear, "nbpipe-isolated-hear")
        uninterrupted(self._teller.start)

    # -- its life -------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        """Process id; 0 before it was started."""
        return 0 if self._worker is None else self._worker.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended, or never began."""
        return self._gone or (self._worker is not None and self._worker.wait(0) is not None)

    @property
    def listens(self) -> bool:
        """Whether the process has started and is there."""
        return self._started.is_open and not self._gone

    def ready(self) -> Channel:
        """Wait until the process was started; give the way that items come.

        Raises:
            WorkerStartError: it could not be started.
        """
        self._started.wait()
        if self._error is not None:
            raise WorkerStartError(
                f"the process of the run '{self._title}' could not be started: {self._error}"
            ) from self._error
        assert self.data is not None
        return self.data

    def _start(self) -> None:
        """Start the process; what it is told goes another way than the items come."""
        worker = launch(ENTRY, pickle.dumps({"budget_bytes": self._budget_bytes}))
        try:
            self._connection = handed_over(worker)
        except BaseException:
            worker.close()
            raise
        self._control = Channel(self._connection)
        self.data = Channel(worker.connection, budget_bytes=self._budget_bytes)
        self._worker = worker

    def died(self) -> WorkerDiedError:
        """Tell how the process ended, once it no longer answers."""
        return WorkerDiedError(
            f"the process of the run '{self._title}' (process {self.pid}) died {self._reaped()}; "
            "the next epoch starts a new one",
            executor="process",
        )

    def _reaped(self) -> str:
        assert self._worker is not None
        return self._worker.end()

    # -- telling and asking ---------------------------------------------------------------
    def tell(self, *order: Any) -> None:
        """Have something done; return at once, also where the process is gone."""
        self._orders.put(order)

    def tell_late(self, order: Callable[[], tuple[Any, ...]]) -> None:
        """Have something done that is put into words only when its turn has come."""
        self._orders.put(order)

    def ask(self, what: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        """Have something answered, and wait for it.

        Raises:
            NoAnswerError: there was no answer in time.
            Exception: what the process raised.
        """
        return self.asked(what, *arguments).wait(timeout_s)

    def asked(self, what: str, *arguments: Any) -> Reply:
        """Have something answered; give the answer to come."""
        reply = Reply()
        number = next(self._numbers)
        with self._lock:
            if self._gone:
                reply.give(None, NoAnswerError())
                return reply
            self._pending[number] = reply
        self.tell("ask", number, what, *arguments)
        return reply

    def deliver(self, delivery: IndexSender) -> None:
        """Let a delivery hear what becomes of it; that of the epoch before is over."""
        with self._lock:
            self._delivery, gone = delivery, self._gone
        if gone:
            delivery.heard(delivery.ticket, 0)

    # -- the two threads ------------------------------------------------------------------
    def _tell(self) -> None:
        """Start the process, then pass orders on, one after the other."""
        try:
            self._start()
            self._hearer.start()
        except BaseException as error:  # noqa: BLE001  whoever wants an item hears of it
            self._error = error
            self._lost()
            return
        finally:
            self._started.open()
        assert self._control is not None
        with contextlib.suppress(OSError):  # it is gone: the other thread finds that out
            while (order := self._orders.get()) is not _END:
                self._control.send(order() if callable(order) else order)
        if self._closed:
            self._hang_up()  # it may have started only after it was given up

    def _hear(self) -> None:
        """Take in what the process says, until it is gone."""
        assert self._control is not None
        try:
            while True:
                kind, *values = self._control.recv()
                self._heard(kind, values)
        except (EOFError, OSError):
            pass
        finally:
            self._lost()

    def _heard(self, kind: str, values: list[Any]) -> None:
        if kind == "text":
            name, text = values
            stream = getattr(sys, name, None)
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it
                    stream.write(text)
        elif kind == "log":
            name, level, text = values
            logging.getLogger(name).log(level, "%s", text)
        elif kind == "fed":
            if self._delivery is not None:
                self._delivery.heard(*values)
        else:
            self._answered(kind, *values)

    def _answered(self, kind: str, number: int, value: Any) -> None:
        with self._lock:
            reply = self._pending.pop(number, None)
        if reply is None:
            return
        if kind == "error":
            reply.give(None, value.unpack())
        else:
            reply.give(value)

    def _lost(self) -> None:
        """Take note that nothing more will be heard."""
        with self._lock:
            self._gone = True
            pending, self._pending = self._pending, {}
            delivery = self._delivery
        if delivery is not None:
            delivery.heard(delivery.ticket, 0)
        for reply in pending.values():
            reply.give(None, NoAnswerError())
        if self._worker is not None and not self._closed:
            self._worker.kill()  # whoever waits for items hears of it
        self._orders.put(_END)

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float) -> None:
        """End the process; its stages have `timeout_s` to come to an end."""
        self._closed = True
        deadline_s = monotonic() + timeout_s + LEAVE_S
        self._started.wait(LEAVE_S)
        with contextlib.suppress(NoAnswerError):
            self.ask("close", timeout_s, timeout_s=timeout_s + ANSWER_S)
        if self._worker is not None:
            self._worker.end(max(0.0, deadline_s - monotonic()))
        self._orders.put(_END)
        self._hang_up()
        for thread in (self._teller, self._hearer):
            with contextlib.suppress(RuntimeError):  # it never began, or it is this one
                thread.join(LEAVE_S)

    def _hang_up(self) -> None:
        for channel in (self.data, self._control):
            if channel is not None:
                channel.close()

    def disown(self) -> None:
        """Let go of it in a process that was forked: it is the other one's."""
        self._gone = self._closed = True
        if self._connection is not None:
            self._connection.close()  # not the channel, which would hang up for the other one


def _daemon(target: Callable[[], None], name: str) -> threading.Thread:
    return threading.Thread(target=target, name=name, daemon=True)


# -- The order of an epoch, on its way to the process that reads the source ------------------------
_LOT = 256  # indices that are sent at once, where they are there without a wait
_AHEAD = 64  # lots drawn from an iterable and not yet begun over there


@final
class IndexSender:
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
        """Return what was drawn while other messages were sent, as one."""
        indices: list[Index] = []
        lots = 0
        with contextlib.suppress(IndexError):  # to the end: what comes later is told anew
            while True:
                indices += self._drawn.popleft()
                lots += 1
        return "feed", self.ticket, indices, lots

    def heard(self, ticket: int, loads: int) -> None:
        """Called when so many loads were begun, or with 0 that no more are wanted."""
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
        """Return the feed of an epoch that begins, and forget those of earlier ones."""
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
