"""The process that runs a whole pipeline for a run in another process."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, final

from ...base.threads import hold_library_threads, in_new_thread
from ...base.tree import size_bytes
from ...engine.measures.trace import TracedCalls, TraceEvents
from ...engine.nodes.external import Listed
from ...errors import ArgumentTypeError, RunClosedError, UnpicklableError, WorkerStartError
from ...executors.workers.channel import Channel
from ...executors.workers.remote_errors import pack_error
from ...executors.workers.serialize import load
from ...executors.workers.settings import WorkerSettings, warn_once
from ...executors.workers.worker import LineSender, LogSender
from ...ops.ranges import IndexRanges
from ...ops.stage import Chain, addresses
from ..core import RunCore
from ..iterator import EpochIterator
from ..run import Run
from .link import Beginning, received_connection
from .reports import ChildReport, report_of
from .sent_stages import Values

_SMALL_BYTES = 1 << 18  # items that are larger together are sent one by one

# What others of the parent's requests do with the run; without a run the answer is None.
_OF_RUN: Final[Mapping[str, Callable[..., Any]]] = {
    "pause": lambda core, paused: core.engine.pause(paused=paused),
    "limit_memory": lambda core, limit_bytes: core.engine.limit_memory(limit_bytes),
    "hold": lambda core, most_ns: core.engine.rest.hold(most_ns),
    "rested": lambda core: core.engine.rest.rested_ns(),
    "release": lambda core: core.engine.rest.release(),
    "history": lambda core: core.engine.history(),
    "lock_wait": lambda core, address: core.engine.lock_wait(address),
    "place": lambda core, address: core.engine.place(address),
    "caches": lambda core: core.engine.caches(),
    "node_state": lambda core, epoch, rest: core.node_state(epoch, IndexRanges.read(rest)),
}


def serve(connection: Connection, argument: bytes) -> None:
    """Run a pipeline until the other end closes the connection."""
    control = Channel(received_connection(connection))
    data = Channel(connection, budget_bytes=pickle.loads(argument))  # noqa: S301  our own parent's
    sys.stdout, sys.stderr = (LineSender(control, name) for name in ("stdout", "stderr"))
    logging.getLogger().addHandler(LogSender(control))
    server = RunServer(control, data)
    try:
        server.serve()
    except (EOFError, OSError):  # the run is gone
        return
    finally:
        server.close(0)
        with contextlib.suppress(OSError):
            _flush()
        data.close()
        control.close()


def _flush() -> None:
    """Show text that was printed without a line end."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


@final
class RunServer:
    """Answers the requests of the parent one after the other, and those for items in a thread.

    Args:
        control: the channel for requests, and for what is printed.
        data: the channel for items.
    """

    def __init__(self, control: Channel, data: Channel) -> None:
        self._control = control
        self._data = data
        self._settings = WorkerSettings()
        self._run: Run | None = None
        self._chain: Chain = ()
        self._program = 0  # its number among those that the parent sent
        self._error: BaseException | None = None  # why there is no run
        self._trace: TraceEvents | None = None
        self._epoch: EpochIterator | None = None
        self._ticket = self._ended = 0  # of the epoch, and of the last one that the parent ended
        self._changed = threading.Condition(threading.Lock())  # held while an epoch begins or ends
        self._finishing = threading.Lock()
        self._answers: dict[str, Callable[..., Any]] = {
            "load": self.load,
            "turn": self.turn,
            "finish": self.finish,
            "end": self.end,
            "report": self.report,
            "close": self.close,
            "begin_trace": self.begin_trace,
            "end_trace": self.end_trace,
            **{what: functools.partial(self._of_run, answer) for what, answer in _OF_RUN.items()},
        }

    def serve(self) -> None:
        """Answer requests until "close"."""
        threading.Thread(
            target=self._serve_items, name="nbpipe-isolated-child", daemon=True
        ).start()
        what = ""
        while what != "close":
            number, what, *arguments = self._control.recv()
            if what == "finish":  # slow on a slow disk
                in_new_thread(functools.partial(self._answer, number, what, arguments))
            else:
                self._answer(number, what, arguments)

    def _answer(self, number: int, what: str, arguments: Sequence[Any]) -> None:
        try:
            answer = what, number, self._answers[what](*arguments)
        except BaseException as error:  # noqa: BLE001  the parent raises it
            answer = "error", number, pack_error(error)
        self._control.send(answer)

    def _of_run(self, answer: Callable[..., Any], *arguments: Any) -> Any:
        return None if self._run is None else answer(self._run._core, *arguments)

    # -- the run ------------------------------------------------------------------------------
    def load(
        self, program: int, data: bytes, values: Values, seed: int, memory_bytes: int | None
    ) -> None:
        """Build a run from the data of the parent; it replaces the one before."""
        self.close(0)
        error: BaseException | None = None
        try:
            _, self._chain = load(data)
            hold_library_threads()
            self.turn(values)
            core = RunCore(self._chain, seed=seed, memory_bytes=memory_bytes, times_steps=False)
            self._run = Run(core)
        except BaseException as problem:  # noqa: BLE001  the loop raises it
            error = problem
        with self._changed:
            self._program, self._error = program, error
            self._changed.notify_all()

    def turn(self, values: Values) -> None:
        """Set knobs to their values in the parent."""
        stages = addresses(self._chain)
        for (address, name), value in values.items():
            stages[address].knob(name).set(value)

    def report(self, heard: tuple[int, int]) -> ChildReport | None:
        """Return what is to be said now, with the failed items that the parent has not heard of."""
        if self._run is None:
            return None
        known = heard[1] if heard[0] == self._program else 0
        return report_of(self._run, self._ticket, (self._program, known))

    def close(self, timeout_s: float) -> None:
        """End the run."""
        with self._changed:
            run, self._run = self._run, None
        if run is not None:
            run.close(timeout_s)
        for stage in addresses(self._chain).values():
            if stage.executor == "dask":
                given: Any = stage.executor_spec and stage.executor_spec.given
                given.client.close()

    def begin_trace(self, most: int) -> None:
        """Keep the last `most` calls, of this run and of those that replace it."""
        self._trace = self._trace or TraceEvents(most)
        if self._run is not None:
            self._run._core.engine.begin_trace(self._trace)

    def end_trace(self) -> TracedCalls | None:
        """Return the calls that were kept, and keep no more."""
        trace, self._trace = self._trace, None
        if self._run is not None:
            self._run._core.engine.end_trace()
        return None if trace is None else trace.traced()

    # -- its epochs ---------------------------------------------------------------------------
    def _serve_items(self) -> None:
        """Send items: one answer for each request."""
        try:
            while True:
                self._send(*self._next(*self._data.recv()))
        except (EOFError, OSError):  # the run is gone
            return
        finally:
            self._data.close()  # in any case: the loop must not wait forever

    def _next(self, ticket: int, most: int, begins: Beginning | None) -> tuple[Any, ...]:
        """Take the next items of an epoch: one, and small ones that are ready.

        Args:
            ticket: of the epoch.
            most: number of items, at most.
            begins: the epoch begins.

        Returns:
            The ticket, the items, whether more small ones are ready, whether there are no more,
            and the error that comes after them.
        """
        items: list[Any] = []
        epoch, error, more, room = None, None, True, _SMALL_BYTES
        try:
            if begins is not None:
                self._begin(ticket, begins)
            epoch = self._epoch if self._ended < ticket == self._ticket else None
            while epoch is not None and more and len(items) < most:
                entry = epoch.take()
                if entry is None:
                    epoch = None
                else:
                    items.append(entry[1])
                    room -= size_bytes(entry[1])
                    more = room > 0 and epoch.ready
        except BaseException as problem:  # noqa: BLE001  the loop raises it
            epoch, error = None, pack_error(problem)
        if epoch is None:
            _flush()
        return ticket, items, more, epoch is None, error

    def _send(self, ticket: int, items: Sequence[Any], *rest: Any) -> None:
        try:
            self._data.send((ticket, items, *rest))
        except (EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001  pickling an item may raise anything
            sent = [*itertools.takewhile(self._data.carries, items)]
            problem = self._unsendable(items[len(sent)], error)
            self._data.send((ticket, sent, False, True, pack_error(problem)))

    def _unsendable(self, item: Any, error: Exception) -> UnpicklableError:
        why = (
            f"{type(item).__name__} cannot be pickled; hand on plain values, arrays or "
            "tensors, or start the run without isolate"
        )
        if isinstance(error, ArgumentTypeError):  # our own refusal says what to do
            why = str(error)
        problem = UnpicklableError(
            f"an item of stage {list(addresses(self._chain))[-1]!r} cannot be sent out of the "
            f"process of the run: {why}"
        )
        problem.__cause__ = error
        return problem

    def _begin(self, ticket: int, begins: Beginning) -> None:
        """Start an epoch, unless the parent has ended it already.

        Raises:
            WorkerStartError: the run could not be built.
        """
        self._settings.apply(begins.settings)  # in this thread, from which the stages take them
        with self._changed:
            self._changed.wait_for(lambda: self._may_begin(begins.program))
            if self._error is not None:
                raise WorkerStartError(
                    "the pipeline could not be built in the process of the run: "
                    f"{type(self._error).__name__}: {self._error}"
                ) from self._error
            if self._run is None:
                raise RunClosedError("the run was closed")
            if ticket > self._ended:
                warn_once(self._settings.apply_to_modules(next(iter(addresses(self._chain)))))
                self._run.set_epoch(begins.epoch)
                order = None if begins.given is None else Listed(begins.given)
                self._epoch = self._run._core.resume_epoch(order, begins.node_state)
                self._ticket = ticket

    def _may_begin(self, program: int) -> bool:
        """Return whether the run is there and the last epoch ended: both come by the other way."""
        return self._program >= program and (self._epoch is None or self._ticket <= self._ended)

    def finish(self, ticket: int) -> None:
        """Finish an epoch whose items the loop has taken.

        Raises:
            CacheError: a cache cannot be written.
        """
        with self._finishing:  # an interrupted loop asks a second time
            if self._epoch is not None and self._ticket == ticket:
                self._epoch.finish()

    def end(self, ticket: int, had: int) -> None:
        """End an epoch after the loop took `had` items."""
        with self._changed:
            if self._epoch is not None and self._ticket == ticket:
                self._epoch.leave(had)
            self._ended = ticket
            self._changed.notify_all()
