"""The process that runs a whole pipeline for a run in another process."""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

import psutil

from ...base.threads import hold_library_threads, in_new_thread
from ...base.tree import size_bytes
from ...engine.nodes.external import Listed
from ...engine.nodes.provenance import StageStates
from ...engine.stats import Row
from ...errors import ArgumentTypeError, RunClosedError, UnpicklableError, WorkerStartError
from ...executors.workers.channel import Channel
from ...executors.workers.remote_errors import pack_error
from ...executors.workers.serialize import load
from ...executors.workers.settings import WorkerSettings, warn_once
from ...executors.workers.worker import LineSender, LogSender
from ...ops.checkpoint import caches
from ...ops.ranges import IndexRanges
from ...ops.stage import CONSUMER, Chain, addresses
from ..core import RunCore
from ..iterator import EpochIterator
from ..live_stage import LiveStage
from ..run import Run
from .link import ChildReport, Values, Workers, received_connection

_SMALL_BYTES = 1 << 18  # items that are larger together are sent one by one

Outcome = tuple[str, Any]


def serve(connection: Connection, argument: bytes) -> None:
    """Run a pipeline until the other end closes the connection."""
    settings = pickle.loads(argument)  # noqa: S301  our own parent's
    control = Channel(received_connection(connection))
    data = Channel(connection, budget_bytes=settings["budget_bytes"])
    sys.stdout, sys.stderr = (LineSender(control, name) for name in ("stdout", "stderr"))
    logging.getLogger().addHandler(LogSender(control))
    loaded = LoadedRun()
    items = ItemServer(loaded, data)
    try:
        ControlServer(loaded, items, control).serve()
    except (EOFError, OSError):  # the run is gone
        return
    finally:
        loaded.close(0)
        with contextlib.suppress(OSError):
            _flush()
        data.close()
        control.close()


def _flush() -> None:
    """Show text that was printed without a line end."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


@final
class LoadedRun:
    """The run in this process.

    Attributes:
        run: the run; None before the parent has sent it.
        number: its number among those that the parent sent.
    """

    def __init__(self) -> None:
        self.run: Run | None = None
        self._chain: Chain = ()
        self.number = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._beginning = threading.Lock()
        self.paused = False

    def load(
        self, number: int, data: bytes, values: Values, seed: int, memory_bytes: int | None
    ) -> None:
        """Build a run from the data of the parent; it replaces the one before."""
        self.close(0)
        error: BaseException | None = None
        try:
            _, self._chain = load(data)
            hold_library_threads()
            _set_values(self._chain, values)
            core = RunCore(self._chain, seed=seed, memory_bytes=memory_bytes, times_steps=False)
            self.run = Run(core)
            self.pause(self.paused)
        except BaseException as problem:  # noqa: BLE001  the loop raises it
            error = problem
        with self._changed:
            self.number, self._error = number, error
            self._changed.notify_all()

    def begin(
        self,
        number: int,
        epoch: int,
        given: Sequence[Any] | None,
        node_state: StageStates | None,
        settings: WorkerSettings,
    ) -> EpochIterator:
        """Start an epoch of the run with this number; wait until it is built.

        Args:
            number: number of the run.
            epoch: number of the epoch.
            given: the indices of its order, or None for the pipeline's own.
            node_state: the states in which its stages begin.
            settings: settings of the parent; those of modules are applied here.

        Raises:
            WorkerStartError: it could not be built.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.number >= number)
            if self._error is not None:
                raise WorkerStartError(
                    "the pipeline could not be built in the process of the run: "
                    f"{type(self._error).__name__}: {self._error}"
                ) from self._error
        with self._beginning:  # a run is closed before it begins an epoch, or after
            if self.run is None:
                raise RunClosedError("the run was closed")
            warn_once(settings.apply_to_modules(next(iter(addresses(self._chain)))))
            self.run.set_epoch(epoch)
            order = None if given is None else Listed(given)
            return self.run._core.resume_epoch(order, node_state)

    def caches(self) -> StageStates:
        """Return for each cache which epoch made its items."""
        return caches(self._chain)

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Start no further call, or start them again."""
        self.paused = paused
        if self.run is not None:
            (self.run.pause if paused else self.run.resume)()

    def hold(self, most_ns: int) -> bool:
        """Start no call for `most_ns` at most; return False if too few items are ready."""
        run = self.run
        return run is not None and run._core.engine.hold(most_ns)

    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while one runs, None after the rest."""
        run = self.run
        return None if run is None else run._core.engine.rested_ns()

    def release(self) -> None:
        """End the rest that `hold` started."""
        run = self.run
        if run is not None:
            run._core.engine.release()

    def turn(self, values: Values) -> None:
        """Set knobs to their values in the parent."""
        if self._chain:
            _set_values(self._chain, values)

    def close(self, timeout_s: float) -> None:
        """End the run."""
        with self._beginning:
            run, self.run = self.run, None
        if run is not None:
            run.close(timeout_s)
        _disconnect(self._chain)


def _set_values(chain: Chain, values: Values) -> None:
    """Set knobs to these values."""
    stages = addresses(chain)
    for (address, name), value in values.items():
        stages[address].knob(name).set(value)


def _disconnect(chain: Chain) -> None:
    """Close the Dask clients of a chain."""
    for stage in addresses(chain).values():
        if stage.executor == "dask":
            given: Any = stage.executor_spec and stage.executor_spec.given
            given.client.close()


@final
class ItemServer:
    """Sends items to the parent, in a thread of its own: one answer for each request.

    Args:
        loaded: holds the run.
        data: the channel for items.
    """

    def __init__(self, loaded: LoadedRun, data: Channel) -> None:
        self._loaded = loaded
        self._data = data
        self._epoch: EpochIterator | None = None
        self._settings = WorkerSettings()
        self._token = self._ended = self._left = 0
        self._late: deque[Outcome] = deque()  # answers of this epoch that were split
        self._changed = threading.Condition()
        self._finishing = threading.Lock()
        threading.Thread(target=self._serve, name="nbpipe-isolated-child", daemon=True).start()

    @property
    def ticket(self) -> int:
        """Ticket of the epoch in progress, or of the last one; 0 before the first."""
        token = self._token  # read first, so that it belongs to an epoch that has begun
        return 0 if self._epoch is None else token

    def finish(self, token: int) -> None:
        """Finish an epoch whose items the loop has taken; called in another thread.

        Raises:
            CacheError: a cache cannot be written.
        """
        with self._changed:
            epoch = self._epoch if self._token == token else None
        if epoch is not None:
            with self._finishing:  # an interrupted loop asks a second time
                epoch.finish()

    def end(self, token: int, had: int) -> None:
        """End an epoch after the loop took `had` items, and all earlier ones; as in `finish`."""
        with self._changed:
            self._ended = max(self._ended, token)
            epoch = self._epoch if self._token <= token else None
        if epoch is not None:
            epoch.leave(had)
        with self._changed:
            self._left = max(self._left, token)
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while True:
                token, most, *begin = self._data.recv()
                self._send(token, self._answer(token, most, begin))
        except (EOFError, OSError):  # the run is gone
            return
        finally:
            self._data.close()  # in any case: the loop must not wait forever

    def _answer(self, token: int, most: int, begin: Sequence[Any]) -> Outcome:
        try:
            if token != self._token:
                self._begin(token, *begin)
            if self._late:
                return self._late.popleft()
            if token <= self._ended or self._epoch is None:
                return "over", None
            first = self._epoch.take()
            return ("over", None) if first is None else ("items", self._with_more(first[1], most))
        except BaseException as error:  # noqa: BLE001  the loop raises it
            return "error", pack_error(error)

    def _begin(self, token: int, program: int, *where: Any) -> None:
        """Start an epoch of the run with this number, as `RemoteIterator` asks."""
        number, given, node_state, settings = where
        self._late.clear()
        with self._changed:  # the end of the last epoch comes by another channel
            self._changed.wait_for(lambda: self._epoch is None or self._token <= self._left)
            self._token, self._epoch = token, None
        if token <= self._ended:
            return
        with self._changed:  # `end` waits until the epoch has started
            self._settings.apply(settings)  # in this thread, from which its stages take them
            self._epoch = epoch = self._loaded.begin(
                program, number, given, node_state, self._settings
            )
            ended = token <= self._ended
        if ended:
            epoch.close()

    def _with_more(self, first: Any, most: int) -> tuple[list[Any], bool]:
        """Add small items that are ready; return also whether more are ready."""
        epoch = self._epoch
        assert epoch is not None
        items = [first]
        room = _SMALL_BYTES - size_bytes(first)
        while room > 0 and epoch.ready and len(items) < most:
            entry = epoch.take()
            if entry is None:
                break
            items.append(entry[1])
            room -= size_bytes(entry[1])
        return items, room > 0 and epoch.ready

    def _send(self, token: int, answer: Outcome) -> None:
        kind, value = answer
        if kind != "items":
            _flush()
        try:
            self._data.send((token, kind, value))
        except (EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001  pickling an item may raise anything
            self._send(token, self._instead(value[0], error))

    def _instead(self, items: list[Any], error: Exception) -> Outcome:
        """Split items of which one cannot be sent; return an error if it is alone."""
        if len(items) > 1:
            first, *rest = items
            self._late.extendleft(("items", ([item], True)) for item in reversed(rest))
            return "items", ([first], True)
        self._late.clear()
        assert self._loaded.run is not None
        last = list(self._loaded.run.stages)[-1]
        why = (
            f"{type(items[0]).__name__} cannot be pickled; hand on plain values, arrays or "
            "tensors, or start the run without isolate"
        )
        if isinstance(error, ArgumentTypeError):  # our own refusal says what to do
            why = str(error)
        unsendable = UnpicklableError(
            f"an item of stage {last!r} cannot be sent out of the process of the run: {why}"
        )
        unsendable.__cause__ = error
        return "error", pack_error(unsendable)


@final
class ControlServer:
    """Answers the messages of the parent, one after the other."""

    def __init__(self, loaded: LoadedRun, items: ItemServer, control: Channel) -> None:
        self._loaded = loaded
        self._items = items
        self._control = control
        self._answers: dict[str, Callable[..., Any]] = {
            "load": loaded.load,
            "pause": loaded.pause,
            "hold": loaded.hold,
            "rested": loaded.rested_ns,
            "release": loaded.release,
            "close": loaded.close,
            "report": self._report,
            "history": self._history,
            "node_state": self._node_state,
            "caches": loaded.caches,
            "finish": items.finish,
        }

    def serve(self) -> None:
        """Answer messages until "close"."""
        while True:
            kind, *values = self._control.recv()
            if kind == "turn":
                self._loaded.turn(*values)
            elif kind == "end":
                self._items.end(*values)
            elif values[1:2] == ["finish"]:  # slow on a slow disk
                in_new_thread(functools.partial(self._answer, *values))
            elif self._answer(*values) == "close":
                return

    def _answer(self, number: int, what: str, *arguments: Any) -> str:
        try:
            answer = "answer", number, self._answers[what](*arguments)
        except BaseException as error:  # noqa: BLE001  the parent raises it
            answer = "error", number, pack_error(error)
        self._control.send(answer)
        return what

    def _report(self, heard: tuple[int, int]) -> ChildReport | None:
        number, run = self._loaded.number, self._loaded.run
        if run is None:
            return None
        ticket = self._items.ticket  # read first: an epoch that begins now has skipped nothing
        failures, failed = run._core.failures_since(heard[1] if heard[0] == number else 0)
        rows = dict(run.stats())
        del rows[CONSUMER]
        status = run.status()
        return ChildReport(
            stats=rows,
            failures=failures,
            heard=(number, failed),
            cpu_cores=status.cpu_cores,
            idle_cores=status.idle_cores,
            held_bytes=status.held_bytes,
            workers={
                address: Workers(stage.workers, stage.pids, stage.link, stage.memory_bytes)
                for address in run.stages
                if isinstance(stage := run[address], LiveStage)
            },
            process_bytes=psutil.Process().memory_info().rss,
            skipped=status.skipped,
            ticket=ticket,
        )

    def _history(self) -> list[Row]:
        run = self._loaded.run
        rows = [] if run is None else run.history()
        return [row for row in rows if row["stage"] != CONSUMER]

    def _node_state(self, epoch: int, rest: list[Any]) -> StageStates | None:
        run = self._loaded.run
        return None if run is None else run._core.node_state(epoch, IndexRanges.read(rest))
