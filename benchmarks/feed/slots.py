"""Slots: bare processes that write each row where it belongs in a batch, in shared memory.

It shows what rows in place cost the loop at least. One pipe carries the orders to all workers, one
their answers and the slabs that the loop has done with.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from . import work
from .job import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLABS = 6
AHEAD = 2  # orders for each worker
ORDER = struct.Struct("<4q")  # slab, first row, first input, batch: less than a pipe writes at once
FREE = -1  # in place of the slab: the loop has done with the slab named as batch
END = -2  # in place of the slab: the thread ends


class Slabs:
    """Batches in shared memory, and the processes that fill them.

    Args:
        job: its work must give arrays of `work.SHAPE`.
        chunk: rows that a worker fills for one message.
    """

    def __init__(self, job: Job, chunk: int) -> None:
        shape = (job.size, *work.SHAPE)
        memory = [mmap.mmap(-1, int(np.prod(shape))) for _ in range(SLABS)]
        self._slabs = [np.frombuffer(one, np.uint8).reshape(shape) for one in memory]
        self._job, self._chunk = job, min(chunk, job.size)
        self._inputs = work.inputs(job.work, job.batches * job.size, job.photos)
        self._orders, self._answers = os.pipe(), os.pipe()
        self._full: SimpleQueue[int] = SimpleQueue()
        self._pids = [self._fork() for _ in range(job.workers)]
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        """Give each batch; its memory is used again after the next one is asked for."""
        for _ in range(self._job.batches):
            slab = self._full.get()
            yield self._slabs[slab]
            os.write(self._answers[1], ORDER.pack(FREE, 0, 0, slab))

    def close(self) -> None:
        """End the workers and the thread."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.write(self._answers[1], ORDER.pack(END, 0, 0, 0))
        self._server.join()
        for end in (*self._orders, *self._answers):
            os.close(end)

    def _fork(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            item, inputs = work.ITEMS[self._job.work], self._inputs
            while order := os.read(self._orders[0], ORDER.size):
                slab, row, first, _ = ORDER.unpack(order)
                for place in range(self._chunk):
                    self._slabs[slab][row + place] = item(inputs[first + place])
                os.write(self._answers[1], order)
        finally:
            os._exit(1)

    def _serve(self) -> None:
        """Hand out orders while there are slabs, and hand over whole batches in order."""
        size, chunk = self._job.size, self._chunk
        orders = ((b, row) for b in range(self._job.batches) for row in range(0, size, chunk))
        order, under_way, given = next(orders, None), 0, 0
        free, slab_of, left = list(range(SLABS)), dict[int, int](), dict[int, int]()
        while given < self._job.batches:
            while order and under_way < AHEAD * self._job.workers and (order[0] in left or free):
                batch, row = order
                if batch not in left:
                    slab_of[batch], left[batch] = free.pop(), size // chunk
                at = ORDER.pack(slab_of[batch], row, batch * size + row, batch)
                os.write(self._orders[1], at)
                order, under_way = next(orders, None), under_way + 1
            slab, _, _, batch = ORDER.unpack(os.read(self._answers[0], ORDER.size))
            if slab == END:
                return
            if slab == FREE:
                free.append(batch)
                continue
            under_way, left[batch] = under_way - 1, left[batch] - 1
            while left.get(given) == 0:
                self._full.put(slab_of.pop(given))
                left.pop(given)
                given += 1


@contextmanager
def opened_1(job: Job) -> Iterator[Iterator[Any]]:
    """Open batches whose rows come one by one."""
    yield from _opened(job, 1)


@contextmanager
def opened_8(job: Job) -> Iterator[Iterator[Any]]:
    """Open batches whose rows come by eights."""
    yield from _opened(job, 8)


def _opened(job: Job, chunk: int) -> Iterator[Iterator[Any]]:
    slabs = Slabs(job, chunk)
    try:
        yield iter(slabs)
    finally:
        slabs.close()
