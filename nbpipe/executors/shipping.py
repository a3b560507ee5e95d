"""Shipping: the functions of a stage as bytes for another process, known by their digest."""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..errors import UnpicklableError
from ..tree import is_tensor
from ..units import format_bytes
from .culprit import describe_culprit, find_culprit
from .parts import Part, parts_of
from .pickling import CACHED, Pickler, TooLargeError, dumps, pickled_bytes
from .storages import SharingPickler, is_shared

LOG = logging.getLogger("nbpipe")
LARGE_BYTES = 1 << 20  # captured data above this is worth a word
_MEASURED_BYTES = 1 << 28  # a value that takes more is not pickled to its end to be measured
_NAMED = 3  # variables in one warning
_DEPTH = 8  # helpers that call helpers

_CODE = (FunctionType, MethodType, functools.partial, type, CACHED)

_warned: set[tuple[str, tuple[Captured, ...]]] = set()
_copied: set[str] = set()


@dataclass(frozen=True, slots=True)
class Shipped:
    """A program as it is sent to workers.

    Attributes:
        digest: the same for the same functions with the same data, in one process.
        data: for `load`.
        size_bytes: length of `data` [bytes].
        storages: shared memory of torch that `data` only names; held until it was loaded.
    """

    digest: str
    data: bytes
    size_bytes: int
    storages: tuple[Any, ...] = field(default=(), repr=False, compare=False)


class Captured(NamedTuple):
    """A variable that goes along with a function.

    Attributes:
        name: name of the variable.
        kind: "global", "closure", "default", "attribute", "argument", "item" or "object".
        size_bytes: memory it takes when it is sent [bytes].
        type_name: name of its type.
    """

    name: str
    kind: str
    size_bytes: int
    type_name: str


def ship(value: object, *, stage: str, afar: bool = False) -> Shipped:
    """Pickle a program for other processes.

    Args:
        value: an object that holds the functions.
        stage: address of the stage, for errors.
        afar: they may be on other machines, which share no memory: tensors go as copies.

    Raises:
        UnpicklableError: part of it cannot be pickled; the message names it.
    """
    picklers: list[SharingPickler] = []

    def pickler(sink: object) -> Pickler:
        picklers.append(SharingPickler(sink, by_place=not afar))
        return picklers[-1]

    try:
        data = dumps(value, pickler=pickler)
    except Exception as error:
        raise _refusal(value, stage, error) from error
    storages = tuple(picklers[-1].storages.values())
    if storages and afar:
        _warn_of_copies(stage)
    return Shipped(blake2b(data, digest_size=16).hexdigest(), data, len(data), storages)


def _warn_of_copies(stage: str) -> None:
    """Say once that what is written to shared memory elsewhere is not seen here."""
    if stage not in _copied:
        _copied.add(stage)
        LOG.warning(
            "stage %r captures tensors in shared memory, which its executor's workers get as "
            "copies: what they write to them is not seen here; executor='process' shares them",
            stage,
        )


def _refusal(value: object, stage: str, error: Exception) -> UnpicklableError:
    """Say what cannot be pickled; a value that cannot even be looked at gets fewer words."""
    try:
        culprit = find_culprit(value, error)
        stage, what = culprit.stage or stage, describe_culprit(culprit)
    except Exception:
        what = f"pickling it failed with {type(error).__name__}"
    return UnpicklableError(f"stage {stage!r} cannot be sent to a process: {what}")


def load(data: bytes) -> Any:
    """Build the program again, in the other process.

    Raises:
        Exception: whatever the unpickling raises: a module is missing there, say.
    """
    return pickle.loads(data)  # noqa: S301  of the process that started this one


def captured(fn: object) -> list[Captured]:
    """List the variables that are sent with a function, largest first; helpers' included."""
    found = [
        Captured(part.name, part.kind, _size_bytes(part.value), type(part.value).__name__)
        for part in _data_parts(fn, {id(fn): fn}, 0)
    ]
    return sorted(found, key=lambda one: -one.size_bytes)


def _data_parts(value: object, seen: dict[int, object], depth: int) -> Iterator[Part]:
    """Give what is data; of what is code, its parts."""
    for part in parts_of(value):
        if id(part.value) in seen:
            continue
        seen[id(part.value)] = part.value
        if depth < _DEPTH and (part.kind == "object" or isinstance(part.value, _CODE)):
            yield from _data_parts(part.value, seen, depth + 1)
        elif part.kind not in ("key", "annotation") and not isinstance(part.value, ModuleType):
            yield part


def _size_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return int(value.nbytes)
    if is_tensor(value) and is_shared(value):
        return 0  # it stays where it is
    if is_tensor(value) and hasattr(value, "untyped_storage"):
        return int(value.untyped_storage().nbytes())  # a view takes all of it along
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    try:
        return pickled_bytes(value, _MEASURED_BYTES)
    except TooLargeError:
        return _MEASURED_BYTES
    except Exception:  # it is not sent at all
        return 0


def warn_if_large(fn: object, stage: str) -> None:
    """Say once which variables make a function large, where they are above 1 MiB together."""
    found = captured(fn)
    total_bytes = sum(one.size_bytes for one in found)
    key = (stage, tuple(found))
    if total_bytes <= LARGE_BYTES or key in _warned:
        return
    _warned.add(key)
    large = [one for one in found[:_NAMED] if one.size_bytes * 10 > total_bytes]
    named = ", ".join(
        f"{one.kind} {one.name!r} ({one.type_name}, {format_bytes(one.size_bytes)})"
        for one in large
    )
    LOG.warning(
        "stage %r sends %s with its function to each worker, once: %s; load it in worker_init, "
        "or memory-map it, if that is too much",
        stage,
        format_bytes(total_bytes),
        named,
    )
