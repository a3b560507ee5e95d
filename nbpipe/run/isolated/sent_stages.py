"""SentStages: the stages of an isolated run, as they are sent to a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

from ...errors import ArgumentError
from ...executors.workers.reloads import are_current, reloaded
from ...executors.workers.serialize import SerializedFunction, serialize
from ...executors.workers.settings import current_settings
from ...ops.stage import Chain, ExecutorSpec, addresses
from .link import Link, NoAnswerError

Values = dict[tuple[str, str], int]  # values of knobs, by address of the stage and name


@final
class SentStages:
    """Starts a process and sends it the stages; again if a cell changed them, or if it died.

    Args:
        chain: the stages, at least one.
        title: of the run, for messages.
        seed: seed of the run.
        memory_bytes: budget for all buffers, or None [bytes].
        sent: called when they are sent.

    Attributes:
        link: the process.
        lock: held while it changes.
        program: how often they were sent.
        stale: a cell may have changed them since.
        paused: calls must not start.

    Raises:
        ArgumentError: a stage has an executor that cannot be used there.
        UnpicklableError: part of a stage cannot be sent.
    """

    def __init__(
        self,
        chain: Chain,
        title: str,
        *,
        seed: int,
        memory_bytes: int | None,
        sent: Callable[[], object],
    ) -> None:
        self.lock = threading.RLock()  # garbage collection may call us while we hold it
        self.program = 0
        self.stale = self.paused = self._closed = False
        self._traced = 0  # calls that a trace keeps; 0 without one
        self._chain = chain
        self._title = title
        self._seed = seed
        self._memory_bytes = memory_bytes
        self._sent = sent
        self._now = serialized = _serialized(chain)
        self.link = self._start(serialized)

    def _start(self, serialized: SerializedFunction) -> Link:
        link = Link(self._title, memory_bytes=self._memory_bytes)
        self._load(link, serialized)
        return link

    def _load(self, link: Link, serialized: SerializedFunction) -> None:
        self.program += 1
        self._sent()
        self._now = replace(serialized, data=b"")  # its storages live until they are opened there
        order = self.program, serialized.data, self._values(), self._seed, self._memory_bytes
        link.loading = link.request("load", *order)
        if self.paused:
            link.request("pause", True)  # noqa: FBT003
        if self._traced:
            link.request("begin_trace", self._traced)

    def _values(self) -> Values:
        return {
            (address, name): knob.value
            for address, stage in addresses(self._chain).items()
            for name, knob in stage.knobs.items()
        }

    # -- for an epoch -------------------------------------------------------------------------
    def renew(self) -> bytes:
        """Send them again if a cell has changed them; return the settings of this process."""
        if self.stale:
            self.stale = False
            serialized = _serialized(self._chain)
            changed = serialized.digest != self._now.digest
            if changed and not reloaded(self._now.versions, serialized.versions):
                with self.lock:
                    self._load(self.link, serialized)
        return current_settings(self._now.modules)

    def revive(self) -> bool:
        """Start another process if this one died, or if a module that it imported was reloaded."""
        with self.lock:
            old = self.link
            if self._closed or not (old.gone or not are_current(self._now.versions)):
                return False
            self.link = self._start(_serialized(self._chain))
        old.close(0)
        return True

    # -- control ------------------------------------------------------------------------------
    def ask(self, what: str, timeout_s: float | None = None, *arguments: Any) -> Any:
        """Ask the process; None if it does not answer in time, or has no stages yet."""
        with contextlib.suppress(NoAnswerError):
            if self.link.is_loaded:
                return self.link.ask(what, *arguments, timeout_s=timeout_s)
        return None

    def turn(self) -> None:
        """Send the values of the knobs."""
        with self.lock:
            self.link.request("turn", self._values())

    def limit_memory(self, limit_bytes: int) -> None:
        """Send the budget for all buffers."""
        with self.lock:
            self._memory_bytes = limit_bytes
            self.link.request("limit_memory", limit_bytes)

    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again; before the answer, calls may still start."""
        self.paused = paused
        answer = self.link.request("pause", paused)
        if self.link.is_open:
            with contextlib.suppress(NoAnswerError):
                answer.wait(self.link.answer_s)

    def begin_trace(self, most: int) -> None:
        """Have the process keep its last `most` calls; so does one that replaces it."""
        with self.lock:
            self._traced = most
            self.link.request("begin_trace", most)

    def end_trace(self, timeout_s: float) -> Any:
        """Return the `TracedCalls` of the process; None if it does not answer."""
        with self.lock:
            self._traced = 0
        return self.ask("end_trace", timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the process."""
        with self.lock:
            self._closed = True
        self.link.close(timeout_s)
        self._now = replace(self._now, storages=())

    def disown(self) -> None:
        """Drop the process in a fork of this one."""
        self._closed = True
        self.link.disown()


def _serialized(chain: Chain) -> SerializedFunction:
    """Serialize a chain, with its knobs at their first values.

    Raises:
        ArgumentError: a stage has an executor that lives in this process.
        UnpicklableError: part of a stage cannot be pickled; the message names it.
    """
    known = list(addresses(chain).items())  # sent as well: errors name a stage by its address
    for address, stage in known:
        if stage.executor_spec is not None:
            _check_placement(stage.executor_spec, address)
    return serialize((known, chain), stage=known[0][0])


def _check_placement(executor_spec: ExecutorSpec, address: str) -> None:
    if executor_spec.executor == "executor":
        kind = type(executor_spec.given).__name__
        raise ArgumentError(
            f"stage {address!r} has an executor object ({kind}), which lives in this process "
            "and cannot be used with isolate=True; give executor='process' or 'thread', or "
            "start the run without isolate"
        )
    if executor_spec.executor == "dask":
        from ...executors.dask import dask_executor_of

        executor = dask_executor_of(executor_spec.given or "dask")
        if executor is not None and executor.address.startswith("inproc:"):
            raise ArgumentError(
                f"stage {address!r} uses a Dask cluster inside this process "
                f"({executor.address}), which another process cannot reach: with isolate=True, "
                "make the client with processes=True"
            )
