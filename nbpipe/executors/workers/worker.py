"""The loop of a worker process: it takes jobs from its pipe, one after the other."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any, final

from ...base.seeding import NUMBER
from ...base.threads import hold_library_threads
from ..stack import write_stacks
from .channel import Channel, Wire
from .remote_errors import pack_error
from .serialize import load
from .settings import WorkerSettings

ENTRY = f"{__name__}:serve"
OUTPUT = ("text", "log")  # kinds of messages that `show_output` takes
ENDED = -1  # in the place of a stage's number: the last call has ended
_TOLD = (str, int, float, bool, type(None))
_EXPANSION_NS = 2_000_000  # children are sent after so long, however many are wanted


def serve(connection: Connection, argument: bytes) -> None:
    """Do jobs until the other end closes the pipe."""
    NUMBER[0], budget_bytes = pickle.loads(argument)  # noqa: S301  our own parent's
    with contextlib.suppress(OSError, EOFError):  # the parent is gone
        stacks = Wire(connection).recv_fd()
        if stacks is not None:
            os.set_inheritable(stacks, False)  # noqa: FBT003
            write_stacks(stacks)
    channel = Channel(connection, copy=False, budget_bytes=budget_bytes)
    streams = [LineSender(channel, name) for name in ("stdout", "stderr")]
    sys.stdout, sys.stderr = streams
    logging.lastResort = LogSender(channel)  # handlers of `worker_init`'s own come first
    server = _JobServer(channel)
    with contextlib.suppress(EOFError, OSError):  # the run is over, or its process is gone
        while True:
            try:
                kind, *arguments = channel.recv()
            except (EOFError, OSError):
                raise
            except Exception as error:  # an item that cannot be loaded here; the next one may
                channel.send(("error", pack_error(error)))
            else:
                server.handle(kind, arguments)
    channel.close()


class _JobServer:
    """Answers one message after the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._results = channel.writer()
        self._program: Any = None
        self._data = b""
        self._settings = WorkerSettings()
        self._children: Iterator[Any] = iter(())

    def handle(self, kind: str, arguments: list[Any]) -> None:
        """Do what a message asks for, and answer; what goes wrong is an answer, too."""
        answers: dict[str, Callable[..., tuple[Any, ...]]] = {
            "program": self._load,
            "do": self._do,
            "open": self._open,
            "more": self._more,
        }
        if kind == "drop":
            self._drop()
            return
        try:
            answer = answers[kind](*arguments)
        except BaseException as error:
            self._results.drop()
            answer = ("error", pack_error(error))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, LineSender):
                stream.flush()
        try:
            self._channel.send(answer)
        except (EOFError, OSError):
            raise
        except BaseException as error:  # it cannot be pickled
            self._results.drop()
            self._channel.send(("error", pack_error(error)))

    def _load(self, data: bytes, settings: bytes) -> tuple[Any, ...]:
        first = self._program is None
        self._settings.apply(settings)
        if data != self._data:
            self._program, self._data = load(data), data
        notes = self._settings.apply_to_modules(self._program.label)
        hold_library_threads()
        if first:
            try:
                self._program.prepare()
            except BaseException as error:
                return ("ready", pack_error(error), notes)
        return ("ready", None, notes)

    def _do(self, entries: list[Any], epoch: int, announces: bool) -> tuple[Any, ...]:  # noqa: FBT001
        """Do the work on entries; the answer says if all was done and the epoch continues."""
        self._results.begin(len(entries))
        begun = self._announce if announces else None

        def kept(entry: Any, result: Any) -> Any:
            if announces:
                self._announce(ENDED)
            return self._kept(entry, result)

        answer = self._program.work(entries, epoch, begun, kept)
        results = answer.results
        goes_on = len(results) == len(entries) and not getattr(results[-1], "fatal", False)
        return ("response", results, answer.tally, answer.retried, self._results.end(), goes_on)

    def _kept(self, entry: Any, result: Any) -> Any:
        """Pickle an item before the next call begins; a failure is sent in place of a bad one."""
        if type(result) is not tuple:
            return result
        try:
            return result[0], self._results.add(result[1])
        except Exception as error:
            return self._program.unsendable(entry, result, error)

    def _announce(self, stage: int, path: Any = None) -> None:
        self._channel.send(("begun", stage, path))

    def _open(self, entry: Any, epoch: int) -> tuple[Any, ...]:
        path, value = entry
        self._children = iter(self._program.open(value, path, epoch))
        return ("opened",)

    def _more(self, count: int) -> tuple[Any, ...]:
        """Draw children: as many as are wanted, or those that came in time."""
        begun_ns = perf_counter_ns()
        drawn: list[Any] = []
        over = False
        self._results.begin(count)
        for child in islice(self._children, count):
            drawn.append(self._results.add(child))
            if perf_counter_ns() - begun_ns > _EXPANSION_NS:
                break
        else:
            over = len(drawn) < count
        busy_ns = perf_counter_ns() - begun_ns
        return ("children", drawn, self._results.end(), over, busy_ns)

    def _drop(self) -> None:
        close = getattr(self._children, "close", None)
        self._children = iter(())
        if close is not None:
            try:
                close()
            except BaseException as error:
                self._channel.send(("text", "stderr", f"closing a generator failed: {error!r}\n"))


@final
class LineSender(io.TextIOBase):
    """Standard output of the stages: whole lines are sent to the parent, which prints them.

    Where several threads print at once, each has a line of its own.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._lock = threading.RLock()  # garbage that is found below us may come here again
        self._unfinished: dict[int, str] = {}
        self._pid = os.getpid()

    def fileno(self) -> int:
        """Return the descriptor that C code writes to."""
        return {"stdout": 1, "stderr": 2}[self._name]

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Send the lines that are complete."""
        if self._pid != os.getpid():  # the stage forked a process of its own
            return int(getattr(sys, f"__{self._name}__").write(text))
        me = threading.get_ident()
        with self._lock:
            lines, newline, rest = (self._unfinished.pop(me, "") + text).rpartition("\n")
            if rest:
                self._unfinished[me] = rest
        if newline:
            self._channel.send(("text", self._name, lines + newline))
        return len(text)

    def flush(self) -> None:
        """Send the text so far, also without the end of its line."""
        with self._lock:
            unfinished, self._unfinished = self._unfinished, {}
        for rest in unfinished.values():
            self._channel.send(("text", self._name, rest))


@final
class LogSender(logging.Handler):
    """Has the parent log what is logged here."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Send what a record tells in words and numbers, its traceback among them."""
        text = self.format(record)
        if self._pid != os.getpid():  # the stage forked a process of its own
            if sys.__stderr__ is not None:
                sys.__stderr__.write(f"{text}\n")
            return
        told = {name: value for name, value in vars(record).items() if type(value) in _TOLD}
        told |= {"msg": record.message, "args": None}
        with contextlib.suppress(OSError):
            self._channel.send(("log", told))


def show_output(kind: str, *values: Any) -> None:
    """Print here what a worker has printed, or log what it has logged."""
    if kind == "log":
        record = logging.makeLogRecord(values[0])
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
        return
    name, text = values
    stream = getattr(sys, name, None)
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed: nothing reads it
            stream.write(text)
