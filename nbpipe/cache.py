"""Cache stores: the items of one whole epoch, in memory or in a folder."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from types import CodeType
from typing import Any, BinaryIO

from .describe import summarize
from .errors import CacheError
from .seeding import Path
from .text import shortened
from .tree import copy_arrays

_FORMAT = 1
_ITEMS, _ABOUT = "items.pickle", "chain.json"


class Recorder(ABC):
    """Takes the items of one epoch."""

    @abstractmethod
    def add(self, path: Path, value: Any) -> None:
        """Keep one item."""

    @abstractmethod
    def complete(self) -> None:
        """Hear that the epoch is whole: from now on the store can be read."""


class Store(ABC):
    """Items of a whole epoch, once there was one."""

    place: str

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the items can be read."""

    @abstractmethod
    def recorder(self) -> Recorder:
        """Give a recorder for an epoch that begins."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Path, Any]]:
        """Read the items, each a copy of its own."""


class MemoryStore(Store):
    """Items in memory, for as long as the stage lives."""

    place = "memory"

    def __init__(self) -> None:
        self._entries: list[tuple[Path, Any]] | None = None

    @property
    def complete(self) -> bool:
        """Whether an epoch was recorded."""
        return self._entries is not None

    def recorder(self) -> Recorder:
        """Give a recorder; the first to complete wins."""
        return _MemoryRecorder(self)

    def keep(self, entries: list[tuple[Path, Any]]) -> None:
        """Take over the items of a whole epoch."""
        if self._entries is None:
            self._entries = entries

    def entries(self) -> Iterator[tuple[Path, Any]]:
        """Read the items; arrays are copied, so that work in place does not change the cache."""
        return ((path, copy_arrays(value)) for path, value in self._entries or ())


class _MemoryRecorder(Recorder):
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._entries: list[tuple[Path, Any]] = []

    def add(self, path: Path, value: Any) -> None:
        self._entries.append((path, copy_arrays(value)))

    def complete(self) -> None:
        self._store.keep(self._entries)


class FolderStore(Store):
    """Items in a folder, for as long as the folder lives.

    Items are written to a temporary file that takes its name only when the epoch is whole, so
    a crash leaves no half of a cache. The folder remembers the chain that wrote it.

    Args:
        folder: made where it does not exist.
        fingerprint: what the items depend on, as JSON-ready values.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.folder = FilePath(folder)
        self.place = str(folder)
        self._about = {"format": _FORMAT, **fingerprint}
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether the folder holds a whole epoch of this chain.

        Raises:
            CacheError: it holds one of another chain.
        """
        if not (self.folder / _ITEMS).exists():
            return False
        try:
            about = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CacheError(
                f"cache folder {self.place!r} cannot be read ({error}); delete it, or cache to "
                "another folder"
            ) from error
        if about != json.loads(json.dumps(self._about)):
            raise CacheError(
                f"cache folder {self.place!r} was written by another chain: "
                f"{_difference(about, self._about)}; delete it, or cache to another folder"
            )
        return True

    def recorder(self) -> Recorder:
        """Give a recorder that writes beside the final file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return _FolderRecorder(self)

    def keep(self, written: str) -> None:
        """Give a whole file its name."""
        with self._lock:
            about = self.folder / f"{_ABOUT}.{os.getpid()}.{threading.get_ident()}.part"
            about.write_text(json.dumps(self._about, indent=2), encoding="utf-8")
            about.replace(self.folder / _ABOUT)
            FilePath(written).replace(self.folder / _ITEMS)

    def entries(self) -> Iterator[tuple[Path, Any]]:
        """Read the items one by one."""
        with (self.folder / _ITEMS).open("rb") as file:
            count = pickle.load(file)  # noqa: S301  the user's own cache
            for _ in range(count):
                yield pickle.load(file)  # noqa: S301


class _FolderRecorder(Recorder):
    def __init__(self, store: FolderStore) -> None:
        self._store = store
        handle, self._name = tempfile.mkstemp(".part", f"{_ITEMS}.", store.folder)
        self._file: BinaryIO | None = os.fdopen(handle, "wb")
        self._count = 0
        self._file.write(_count_record(0))

    def add(self, path: Path, value: Any) -> None:
        assert self._file is not None
        try:
            pickle.dump((path, value), self._file, protocol=5)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise CacheError(
                f"cache needs items that can be pickled, got {type(value).__name__} ({error}); "
                "put cache() before the stage that makes them, or use cache() in memory"
            ) from error
        self._count += 1

    def complete(self) -> None:
        file, self._file = self._file, None
        assert file is not None
        with file:
            file.seek(0)
            file.write(_count_record(self._count))
            file.flush()
            os.fsync(file.fileno())
        self._store.keep(self._name)

    def __del__(self) -> None:
        """Remove the file of an epoch that was abandoned."""
        file = getattr(self, "_file", None)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
                FilePath(self._name).unlink()


def _count_record(count: int) -> bytes:
    """Give the count as a pickle of fixed length: it is written twice."""
    return b"\x80\x02\x8a\x08" + count.to_bytes(8, "little", signed=True) + b"."


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    for key in new:
        if old.get(key) != new[key]:
            return f"{key} was {_brief(old.get(key))}, is {_brief(new[key])}"
    return "it has more entries"


def _brief(value: Any) -> str:
    return shortened(json.dumps(value), 120)


def code_digest(fn: Any) -> str:
    """Digest what a function does: its code, not its place or its comments."""
    digest = hashlib.blake2b(digest_size=8)
    while isinstance(fn, functools.partial):
        digest.update(summarize((fn.args, sorted(fn.keywords.items()))).encode())
        fn = fn.func
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    if isinstance(code, CodeType):
        _feed(digest, code)
    return digest.hexdigest()


def _feed(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(digest, constant)
        elif isinstance(constant, frozenset):
            digest.update(repr(sorted(map(repr, constant))).encode())
        else:
            digest.update(repr(constant).encode())
