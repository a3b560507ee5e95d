"""Frames: how a message lies on the wire and in a slab.

A frame begins with a block of fixed size, which one call reads. It holds what comes in it, and
then the table of sizes and the pickled head of a piped message, as far as they fit; the rest
and the buffers follow. Everything of a shared message but its block lies in a slab.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .blocks import empty
from .pickles import Pickled
from .slabs import ALIGNED, HEADER_BYTES, Slab, copy_bytes
from .wire import Piece

PIPED, SHARED, OPENED, DROPPED = range(1, 5)  # a block that was read begins with no zero
BLOCK_BYTES = 1024

# kind, whether classes are defined in it, number of buffers, number of a slab, and a size: of
# the pickled head, or of the slab [bytes]
_PREFIX = struct.Struct("<B?xxIqq")
_ROOM_BYTES = BLOCK_BYTES - _PREFIX.size
_SIZE_BYTES = 8


class Frame(NamedTuple):
    """What a block says."""

    kind: int
    defines: bool
    buffers: int
    number: int
    size_bytes: int


class Body(NamedTuple):
    """A message that was read: its pickled head, and its buffers."""

    head: memoryview
    buffers: list[memoryview]


def read_block(block: bytearray) -> Frame:
    """Read what a block says."""
    return Frame(*_PREFIX.unpack_from(block))


def notice(kind: int, number: int, size_bytes: int = 0) -> bytes:
    """Give the block that says what became of a slab."""
    return _PREFIX.pack(kind, 0, 0, number, size_bytes).ljust(BLOCK_BYTES, b"\0")


# -- in the pipe --------------------------------------------------------------------------


def piped(pickled: Pickled) -> list[Piece]:
    """Give the pieces of a message that goes through the pipe."""
    sizes = [len(buffer) for buffer in pickled.buffers]
    head_bytes = sum(map(len, pickled.parts))
    prefix = _PREFIX.pack(PIPED, pickled.defines, len(sizes), 0, head_bytes)
    table = struct.pack(f"<{len(sizes)}q", *sizes)
    if len(table) + head_bytes > _ROOM_BYTES:
        return [prefix, table, *pickled.parts, *pickled.buffers]
    block = b"".join((prefix, table, *pickled.parts))
    return [block.ljust(BLOCK_BYTES, b"\0"), *pickled.buffers]


def read_piped(block: bytearray, frame: Frame, fill: Callable[[Sequence[Any]], None]) -> Body:
    """Read what follows a block, by `fill`, straight to where it is to stay."""
    body = memoryview(block)[_PREFIX.size :]
    table_bytes = frame.buffers * _SIZE_BYTES
    if table_bytes > _ROOM_BYTES:
        missing = bytearray(table_bytes - _ROOM_BYTES)
        fill((missing,))
        body = memoryview(bytes(body) + missing)
    buffers = [empty(size) for size in struct.unpack_from(f"<{frame.buffers}q", body)]
    head, rest = body[table_bytes : table_bytes + frame.size_bytes], buffers
    if len(head) < frame.size_bytes:
        start, head = head, empty(frame.size_bytes)
        head[: len(start)] = start
        rest = [head[len(start) :], *buffers]
    if rest:
        fill(rest)
    return Body(head, buffers)


# -- in a slab ----------------------------------------------------------------------------


def shared(pickled: Pickled, slab: Slab) -> bytes:
    """Give the block of a message that lies in a slab."""
    head_bytes = sum(map(len, pickled.parts))
    count = len(pickled.buffers)
    prefix = _PREFIX.pack(SHARED, pickled.defines, count, slab.number, head_bytes)
    return prefix.ljust(BLOCK_BYTES, b"\0")


def starts_in_slab(head_bytes: int, sizes: Sequence[int]) -> list[int]:
    """Give where in a slab the head begins, then each buffer, and where the last one ends."""
    lengths = (HEADER_BYTES + len(sizes) * _SIZE_BYTES, head_bytes, *sizes)
    return list(accumulate([-(-length // ALIGNED) * ALIGNED for length in lengths]))


def fill_slab(memory: memoryview, pickled: Pickled, starts: Sequence[int]) -> None:
    """Copy a message to a slab."""
    sizes = [len(buffer) for buffer in pickled.buffers]
    struct.pack_into(f"<{len(sizes)}q", memory, HEADER_BYTES, *sizes)
    at = starts[0]
    for part in pickled.parts:
        copy_bytes(memory[at : at + len(part)], part)
        at += len(part)
    for start, buffer in zip(starts[1:], pickled.buffers, strict=False):
        copy_bytes(memory[start : start + len(buffer)], buffer)


def read_slab(memory: memoryview, frame: Frame) -> Body:
    """Give views of a message in a slab."""
    sizes = struct.unpack_from(f"<{frame.buffers}q", memory, HEADER_BYTES)
    at, *starts, _ = starts_in_slab(frame.size_bytes, sizes)
    buffers = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return Body(memory[at : at + frame.size_bytes], buffers)
