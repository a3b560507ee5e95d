"""What the stages do: the same functions for every contender.

No peer and no torch is imported here, so that a workload costs what it costs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .job import Job

FETCH_S = 0.005
CONVERT_S = 0.001
WAIT_S = 0.020
PHOTO_PIXELS = 256
SAMPLE_PIXELS = 224
BATCH = 32
_BURNT = bytes(1_000)

# (start, end) of the latest calls [s]: with it a close can be told from a task still running.
JOURNAL: deque[tuple[float, float]] = deque(maxlen=4096)


def same(item: int) -> int:
    """Do nothing, as a stage."""
    return item


def fetch(item: int) -> int:
    """Wait as a read from a disk or a network does."""
    start_s = time.perf_counter()
    time.sleep(FETCH_S)
    JOURNAL.append((start_s, time.perf_counter()))
    return item


def wait(item: int) -> int:
    """Block for the time of `wait_async`."""
    time.sleep(WAIT_S)
    return item


async def wait_async(item: int) -> int:
    """Wait on the event loop."""
    await asyncio.sleep(WAIT_S)
    return item


def decode(path: str) -> NDArray[np.uint8]:
    """Read a JPEG file and resize it: (224, 224, 3) uint8."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as photo:
        small = photo.convert("RGB").resize((SAMPLE_PIXELS, SAMPLE_PIXELS))
    return np.asarray(small)


def array_of(item: int, *, floats: int, loops: int = 0) -> NDArray[np.float32]:
    """Compute in Python, then give a new array that is full of `item`: (floats,) float32."""
    import numpy as np

    burn(loops)
    return np.full(floats, item, np.float32)


def producer(job: Job) -> Callable[[int], NDArray[np.float32]]:
    """Give the stage of W4 and W6: a function that any process can import."""
    return partial(array_of, floats=job.floats, loops=job.burn_loops)


def burn(loops: int) -> int:
    """Keep the interpreter busy for a fixed amount of Python, which holds its lock.

    With checksums of a few bytes: a loop that only adds takes up to 30% longer where its numbers
    happen to lie badly in the heap of a process, and then says more of that than of who runs it.
    """
    total = 0
    for _ in repeat(None, loops):
        total = crc32(_BURNT, total)
    return total


def burn_loops(seconds: float) -> int:
    """Return the number of loops that `burn` does in `seconds` while it has the core to itself."""
    loops, best_s = 1_000, float("inf")
    for _ in range(15):
        start_s = time.perf_counter()
        burn(loops)
        best_s = min(best_s, time.perf_counter() - start_s)
    return max(1, int(loops * seconds / best_s))
