"""OutputBuffer: the results of the last stage, on their way to the training loop."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from typing import Any, final

from .measures.step_time import STEP_NS
from .nodes.node import Node
from .nodes.step import Chunk, HeldBytes, Paths, Queue, together

SMALL = 4  # chunks of fewer items each go together to a loop that does nothing else
QUICK_NS = 10_000  # a loop that takes less for an item does nothing else


@final
class OutputBuffer:
    """Hands the results of the last stage to the training loop, chunk by chunk.

    The loop takes item number `at` from the chunk as `values[at - first]`. While `at < until` it
    does so without the scheduler's lock; all methods are called under it. `until` is 0 while the
    run is paused, so a paused run hands out nothing.

    Args:
        memory: counts the bytes of waiting items; None without a budget.

    Attributes:
        last: the last node; its `out` is `queue`. None before the epoch is built.
        queue: results that wait for the loop.
        values: the chunk that the loop takes its items from.
        paths: of the same items.
        first: how many items the loop had before this chunk.
        at: how many items the loop has had. It counts an item once it has it, so an interrupt
            loses nothing.
        until: the loop may take the items before this one without the lock.
        times_steps: the steps of the loop are timed, if they are long.
        stepwise: they are long: each item is handed out under the lock.
        paused: nothing is handed out.
        exhausted: nothing more comes into `queue`.
        error: what the loop sees after the last item, or None.
        urgent: the error does not wait for earlier items.
        waiting: the loop waits at the gate.
        gate: locked while the loop has to wait.
    """

    __slots__ = (
        "_chunk_since_ns", "_memory", "_waits_since_ns", "at", "error", "exhausted", "first",
        "gate", "last", "paths", "paused", "queue", "stepwise", "times_steps", "until", "urgent",
        "values", "waiting",
    )  # fmt: skip

    def __init__(self, memory: HeldBytes | None) -> None:
        self._memory = memory
        self.last: Node | None = None
        self.queue = Queue()
        self.values: list[Any] = []
        self.paths: Paths = ()
        self.first = self.at = self.until = 0
        self.times_steps = self.stepwise = False
        self.paused = self.exhausted = self.urgent = self.waiting = False
        self.error: BaseException | None = None
        self.gate = allocate_lock()
        self.gate.acquire()
        self._waits_since_ns = self._chunk_since_ns = 0

    def attach(self, last: Node) -> None:
        """Take the results of this node."""
        self.last = last
        self.queue = last.out

    # -- what the loop gets ---------------------------------------------------------------
    @property
    def has_results(self) -> bool:
        """Whether items wait for the loop."""
        return self.queue.count > 0 or self.at < self.first + len(self.values)

    @property
    def is_over(self) -> bool:
        """Whether the loop gets nothing more."""
        return self.exhausted and (self.urgent or not self.has_results)

    @property
    def ready(self) -> int:
        """How many items the loop may have, none of them made by a call that has yet to begin."""
        count = self.queue.count + max(0, self.first + len(self.values) - self.at)
        node = self.last
        while node is not None and node.upstream and node.runtime.stage.executor == "device":
            count += node.running + node.inbox.count
            node = node.upstream[0]
        return count

    def hand_out(self, now_ns: int) -> bool:
        """Let the loop have items up to `until`; if there are none, note that it waits.

        Returns:
            Whether there are items.
        """
        end = self.first + len(self.values)
        if self.paused or not (self.queue.count or self.at < end):
            self.queue.lent = end - self.at
            self.waiting = True
            self._waits_since_ns = now_ns
            return False
        if self.at < end:  # it left some: a thread was to be woken, or the run was paused
            self.until = self.at + 1 if self.stepwise else end
        else:
            self._take_chunk(now_ns)
        self.queue.lent = self.first + len(self.values) - self.at - 1
        return True

    def _take_chunk(self, now_ns: int) -> None:
        """Take the next chunk of the queue.

        A quick loop takes all chunks that are small (7% of W1's processor time). It comes back for
        the last item of those, so that slow stages know of every place.
        """
        queue, chunks = self.queue, self.queue.chunks
        asked_ns = self._waits_since_ns if self._waits_since_ns > self._chunk_since_ns else now_ns
        spent_ns = asked_ns - self._chunk_since_ns
        quick = spent_ns < len(self.values) * QUICK_NS
        if not quick and self.times_steps and self._chunk_since_ns:
            self.stepwise = self.stepwise or spent_ns >= len(self.values) * STEP_NS
        rest: deque[Chunk] | None = None
        if quick and self._memory is None and queue.count < SMALL * len(chunks) > SMALL:
            chunk, rest = together(chunks), deque()
        else:
            chunk = chunks[0]
        count, size = len(chunk.values), 0 if chunk.sizes is None else sum(chunk.sizes)
        until = self.at + count - (rest is not None)
        if self.stepwise:
            until = self.at + 1
        self._chunk_since_ns = now_ns
        if self._memory is not None:
            self._memory.held_bytes -= size
        # From here on nothing is called, so no interrupt comes in between.
        self.paths = chunk.paths
        self.values = chunk.values
        self.first = self.at
        self.until = until
        queue.count -= count
        if rest is None:
            del chunks[0]
        else:
            queue.chunks = rest

    def recount(self) -> bool:
        """Count the items of its chunk that the loop has yet to take; return whether it took any.

        The loop takes them without the lock, so the count is late.
        """
        left = max(0, self.first + len(self.values) - self.at)
        fewer = bool(self.values) and left < self.queue.lent
        if fewer:
            self.queue.lent = left
        return fewer

    def made_room(self) -> bool:
        """Return whether something may start because the loop took items.

        Once the last stage has all its input, each free place is one for the next epoch.
        """
        assert self.last is not None
        if self.last.input_over:
            return True
        room = self.last.room()
        return room > 0 if len(self.values) > 1 else self._memory is not None or room == 1

    # -- the loop's wait ------------------------------------------------------------------
    def notify(self) -> None:
        """Wake the loop if it waits and there is something for it; in a pause only the end is."""
        if not (self.waiting and (self.exhausted or self.has_results)):
            return
        if self.paused and not self.is_over:
            return
        self.wake()

    def wake(self) -> None:
        """Let the loop look again, if it waits."""
        if self.waiting:
            self.waiting = False
            if self.gate.locked():  # it is open where an interrupt ended the wait before
                self.gate.release()

    def pause(self, *, paused: bool) -> None:
        """Hand out nothing from here on, or hand out again."""
        self.paused = paused
        self.until = 0
        if not paused:
            self.wake()

    # -- the end --------------------------------------------------------------------------
    def close(self, error: BaseException | None) -> None:
        """Note that nothing more comes, and the error that the loop sees after the last item."""
        self.exhausted = True
        if self.error is None:
            self.error = error

    def fail(self, error: BaseException) -> None:
        """End with an error that does not wait for earlier items."""
        self.error = error
        self.until = 0
        self.urgent = self.exhausted = True

    def clear(self) -> list[Any]:
        """Hand out nothing more; return the rest of the loop's chunk, to be released."""
        self.until = 0
        self.exhausted = True
        left, self.values = self.values, []
        return left
