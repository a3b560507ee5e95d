"""Private memory that is used again: fresh pages cost more than the copy that fills them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, cast, final

import numpy as np

from .slabs import copy_bytes, size_class

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

KEPT_BYTES = 1 << 26

_FROM_BYTES = 1 << 19  # smaller ones `malloc` keeps itself
_CLEARED_BYTES = 1 << 15  # so few are cleared before numpy has made an array


@final
class Blocks:
    """Copies memory into blocks, each used again once nobody holds what was copied into it.

    Args:
        kept_bytes: most memory in blocks that wait to be used again [bytes].
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._returned: deque[_Bytes] = deque()  # filled by whoever collects garbage
        self._free: list[_Bytes] = []
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Memory in blocks that wait to be used again [bytes]."""
        return sum(map(len, [*self._free, *self._returned]))

    def copy(self, source: memoryview) -> memoryview:
        """Copy some bytes."""
        size = len(source)
        if size < _FROM_BYTES:
            target = empty(size)
        else:
            loan = _Loan(self._block(size), self._returned)
            target = memoryview(cast(Any, np.asarray(loan)))[:size]
        copy_bytes(target, source)
        return target

    def _block(self, size_bytes: int) -> _Bytes:
        size_bytes = size_class(size_bytes)
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            found = next((b for b in reversed(self._free) if len(b) == size_bytes), None)
            if found is not None:
                self._free = [block for block in self._free if block is not found]
            while sum(map(len, self._free)) > self._kept_bytes:
                self._free.pop(0)
        return np.empty(size_bytes, np.uint8) if found is None else found


def empty(size_bytes: int) -> memoryview:
    """Give fresh memory to write to."""
    if size_bytes < _CLEARED_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(cast(Any, np.empty(size_bytes, np.uint8)))


@final
class _Loan:
    """Hands a block back when the last array over it is gone."""

    __slots__ = ("__array_interface__", "_block", "_returned")

    def __init__(self, block: _Bytes, returned: deque[_Bytes]) -> None:
        self._returned = returned
        self.__array_interface__: dict[str, Any] = block.__array_interface__
        self._block = block

    def __del__(self) -> None:
        self._returned.append(self._block)
