"""cache: items of the first whole epoch, kept for the later ones."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, BinaryIO, ClassVar

from ..base.seeding import Entry, Path
from ..base.tree import copy_leaves
from ..errors import ArgumentTypeError, CacheError
from .chain import append_plain, fingerprint
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import Chain, Operation, Runs


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cache(Operation):
    """Items of the first whole epoch, kept for the later ones."""

    label: ClassVar[str] = "cache"
    chooses: ClassVar[bool] = True
    positional: ClassVar[tuple[str, ...]] = ("path",)
    runs: ClassVar[Runs] = "cache"
    store: CacheStore

    def detail(self) -> str:
        """Return where the items are kept."""
        return str(self.store.place)

    def fingerprint(self) -> dict[str, str]:
        """Return nothing: where items are kept changes none."""
        return {}

    @property
    def kept_in(self) -> CacheStore:
        """Where the items are kept."""
        return self.store

    def arguments(self, given: frozenset[str]) -> list[tuple[str, Any]]:
        """Return the folder, where there is one."""
        return [] if self.store.place == "memory" else [("path", self.store.place)]


def append_cache(chain: Chain, path: str | os.PathLike[str] | None) -> Chain:
    """Append a cache stage."""
    if path is None:
        return append_plain(chain, Cache(MemoryStore()))
    given: object = path
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise ArgumentTypeError(
            f"cache path must be a folder, as a str or a Path, got {path!r}; leave it out to "
            "cache in memory"
        )
    return append_plain(chain, Cache(FolderStore(path, {"chain": fingerprint(chain)})))


_FORMAT = 3

_ITEMS = "items.pickle"

_LONGEST = 120  # characters of a value in a message

_WAY_OUT = "delete it, or cache to another folder"


class PassNumber(int):
    """Number of a repeat's pass inside a path; a cache takes it out and puts in its own."""

    __slots__ = ()


def without_passes(path: Path) -> Path:
    """Return the path of an item without the passes it was made in."""
    if isinstance(path, int):
        return path
    kept = tuple(number for number in path if not isinstance(number, PassNumber))
    return kept if len(kept) > 1 else kept[0]


def with_passes(path: Path, passes: tuple[int, ...]) -> Path:
    """Return the path of an item in the passes in progress."""
    if not passes:
        return path
    return (*(path if isinstance(path, tuple) else (path,)), *map(PassNumber, passes))


class Recorder(ABC):
    """Takes the items of one epoch."""

    @abstractmethod
    def add(self, path: Path, value: Any) -> None:
        """Keep one item."""

    @abstractmethod
    def complete(self) -> None:
        """Called when the epoch is whole: from now on the store can be read.

        Raises:
            CacheError: the items cannot be written.
        """

    @abstractmethod
    def undo_commit(self) -> None:
        """Undo `complete`, where that kept these items and not those of another epoch."""

    @abstractmethod
    def close(self) -> None:
        """Forget what was kept: the epoch is over, and was not whole; from any thread."""


Made = tuple[int, tuple[int, ...]]  # an epoch, and the passes of repeats around the cache in it


@dataclass(frozen=True, slots=True)
class Kept:
    """The items of a whole epoch.

    Attributes:
        made: the epoch.
        entries: reads them, also where the run that made them has taken them back since.
    """

    made: Made
    entries: Callable[[], Iterator[tuple[Path, Any]]]


class CacheStore(ABC):
    """Items of a whole epoch, once there was one.

    Attributes:
        place: where they are.
        as_of: the epoch that the next recording is to make, where another process has begun it.
    """

    place: str
    as_of: Made | None = None

    @property
    @abstractmethod
    def kept(self) -> Kept | None:
        """What can be read now, as of one moment; None where nothing can."""

    @property
    def complete(self) -> bool:
        """Whether the items can be read."""
        return self.kept is not None

    @abstractmethod
    def recorder(self, made: Made) -> Recorder:
        """Return a recorder for an epoch that begins."""


class MemoryStore(CacheStore):
    """Items in memory, for as long as the stage lives."""

    place = "memory"

    def __init__(self) -> None:
        self._whole: tuple[list[tuple[Path, Any]], Made] | None = None

    @property
    def kept(self) -> Kept | None:
        """The items that are here now: another run may take its own back while they are read."""
        if (whole := self._whole) is None:
            return None
        entries, made = whole
        return Kept(made, lambda: _copies(entries))

    def recorder(self, made: Made) -> Recorder:
        """Return a recorder; the first to complete wins."""
        return _MemoryRecorder(self, made)

    def keep(self, entries: list[tuple[Path, Any]], made: Made) -> None:
        """Take over the items of a whole epoch."""
        if self._whole is None:
            self._whole = entries, made

    def drop(self, entries: list[tuple[Path, Any]] | None) -> None:
        """Keep these items no longer."""
        if self._whole is not None and self._whole[0] is entries:
            self._whole = None


def _copies(entries: Iterable[tuple[Path, Any]]) -> Iterator[tuple[Path, Any]]:
    """Copy items, so that work in place does not change the cache."""
    return ((path, copy_leaves(value)) for path, value in entries)


class _MemoryRecorder(Recorder):
    def __init__(self, store: MemoryStore, made: Made) -> None:
        self._store = store
        self._made = made
        self._entries: list[tuple[Path, Any]] | None = []

    def add(self, path: Path, value: Any) -> None:
        entries = self._entries
        if entries is not None:  # else the epoch is over
            entries.append((path, copy_leaves(value)))

    def complete(self) -> None:
        entries = self._entries
        if entries is not None:
            self._store.keep(entries, self._made)

    def undo_commit(self) -> None:
        self._store.drop(self._entries)

    def close(self) -> None:
        self._entries = None


class FolderStore(CacheStore):
    """Items in a folder, for as long as the folder lives.

    Items are written to a temporary file that takes its name only when the epoch is whole, so
    a crash leaves no half of a cache. The file begins with the chain that wrote it.

    Args:
        folder: made where it does not exist.
        fingerprint: what the items depend on, as JSON-ready values.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.folder = FilePath(folder)
        self.place = str(folder)
        self.about = {"format": _FORMAT, **json.loads(json.dumps(fingerprint))}

    @property
    def kept(self) -> Kept | None:
        """The whole epoch of this chain that the folder holds; None where it holds none.

        Raises:
            CacheError: it holds one of another chain, or something else.
        """
        try:
            with (self.folder / _ITEMS).open("rb") as file:
                about = dict(json.loads(pickle.load(file)))  # noqa: S301  the user's own cache
                if about == self.about:
                    return Kept(_read_made(file), self.entries)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise self._damaged(error) from error
        raise CacheError(
            f"cache folder {self.place!r} was written by another chain: "
            f"{_difference(about, self.about)}; {_WAY_OUT}"
        )

    def recorder(self, made: Made) -> Recorder:
        """Return a recorder that writes beside the final file.

        Raises:
            CacheError: the folder cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            return _FolderRecorder(self, made)
        except OSError as error:
            raise CacheError(
                f"cache path must be a folder that can be written, got {self.place!r} ({error}); "
                "give another one, or use cache() in memory"
            ) from error

    def _sweep(self) -> None:
        """Remove what processes of this machine left that were killed while writing."""
        import psutil

        for part in self.folder.glob(f"{_ITEMS}.{socket.gethostname()}.*.part"):
            pid = part.name.split(".")[-3]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                part.unlink(missing_ok=True)

    def keep(self, written: FilePath) -> None:
        """Give a whole file its name; of two that are whole, the first stays."""
        if (self.folder / _ITEMS).exists():
            written.unlink()
        else:
            written.replace(self.folder / _ITEMS)

    def drop(self, number: int) -> None:
        """Remove the file where it is the one with this number among those of its disk."""
        with contextlib.suppress(OSError):
            if (self.folder / _ITEMS).stat().st_ino == number:
                (self.folder / _ITEMS).unlink()

    def entries(self) -> Iterator[tuple[Path, Any]]:
        """Read the items one by one.

        Raises:
            CacheError: an item cannot be read back.
        """
        number = 0
        try:
            with (self.folder / _ITEMS).open("rb") as file:
                pickle.load(file)  # noqa: S301  the user's own cache
                pickle.load(file)  # noqa: S301
                count = pickle.load(file)  # noqa: S301
                for number in range(count):  # noqa: B007  named in the error
                    entry = pickle.load(file)  # noqa: S301
                    yield entry
        except GeneratorExit:
            raise
        except Exception as error:
            raise self._damaged(error, f" from item {number} on") from error

    def _damaged(self, error: Exception, where: str = "") -> CacheError:
        return CacheError(
            f"cache folder {self.place!r} cannot be read{where} "
            f"({type(error).__name__}: {error}); {_WAY_OUT}"
        )


class _FolderRecorder(Recorder):
    def __init__(self, store: FolderStore, made: Made) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._count = self._number = 0
        self._full: OSError | None = None  # what kept an item from being written
        prefix = f"{_ITEMS}.{socket.gethostname()}.{os.getpid()}."
        handle, name = tempfile.mkstemp(".part", prefix, store.folder)
        self._path = FilePath(name)
        self._file: BinaryIO | None = os.fdopen(handle, "wb")
        pickle.dump(json.dumps(store.about), self._file, protocol=5)
        pickle.dump(json.dumps(made), self._file, protocol=5)
        self._count_at = self._file.tell()
        self._file.write(_count_record(0))

    def add(self, path: Path, value: Any) -> None:
        with self._lock:
            if self._file is None:  # the epoch is over
                return
            try:
                pickle.dump((path, value), self._file, protocol=5)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise CacheError(
                    f"cache items must be picklable, got {type(value).__name__} ({error}); put "
                    "cache() before the stage that makes them, or use cache() in memory"
                ) from error
            except OSError as error:  # told when the loop has had all items
                self._full = error
                self._discard()
            self._count += 1

    def complete(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if self._full is not None:
            raise self._unwritten(self._full) from self._full
        if file is None:
            return
        try:
            with file:
                file.seek(self._count_at)
                file.write(_count_record(self._count))
                file.flush()
                os.fsync(file.fileno())
                self._number = os.fstat(file.fileno()).st_ino
            self._store.keep(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink()
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> CacheError:
        return CacheError(
            f"cache folder {self._store.place!r} cannot be written ({error}); make room, "
            "cache to another folder, or use cache() in memory"
        )

    def undo_commit(self) -> None:
        self._store.drop(self._number)

    def close(self) -> None:
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        """Remove the file; on a full disk what is not written yet is lost on closing it."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def __del__(self, unlink: Callable[[str], object] = os.unlink) -> None:
        """Remove the file of an epoch that was abandoned."""
        file, self._file = getattr(self, "_file", None), None
        if file is None:
            return
        try:  # modules may be empty by now, arguments are not
            file.close()
            unlink(self._path.__fspath__())
        except OSError:
            pass


def _read_made(file: BinaryIO) -> Made:
    """Read the epoch that made the items, which stands after the chain that wrote them."""
    epoch, passes = json.loads(pickle.load(file))  # noqa: S301  the user's own cache
    return epoch, tuple(passes)


def _count_record(count: int) -> bytes:
    """Return the count as a pickle of fixed length: it is written twice."""
    return b"\x80\x02\x8a\x08" + count.to_bytes(8, "little", signed=True) + b"."


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return what the first difference of two fingerprints is."""
    if old.get("format") != new["format"]:
        return f"format was {old.get('format')}, is {new['format']}"
    was, now = old.get("chain", []), new.get("chain", [])
    names = [[stage.get("name") for stage in chain] for chain in (was, now)]
    if names[0] != names[1]:
        return "its stages were {}, they are {}".format(*(", ".join(map(str, n)) for n in names))
    for before, after in zip(was, now, strict=True):
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                values = f"was {_brief(before.get(key))}, is {_brief(after.get(key))}"
                return f"{key} of stage {after['name']!r} {values}"
    return "something that is not of any stage"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class Recording(StatefulOp):
    """Passes items on and keeps them in a cache.

    The cache is complete only when the epoch was consumed to its end: how far the stage had run
    ahead when a loop was left is a matter of timing, and must not show.

    The passes of repeats around it move to the end of each path, where a replay puts them.
    """

    commits = True

    def __init__(
        self, store: CacheStore, passes: tuple[int, ...], made: Made, node_state: NodeState
    ) -> None:
        self._store = store
        self._passes = passes
        self._as_of = made
        self._rest = IndexRanges.read(node_state.get("rest", [0, []]))
        self._keeps = self._rest.is_all  # else the beginning was seen by another process
        self._made: Recorder | None = None
        self._closed = False
        self._pushed = 0
        self._whole: bool = node_state.get("whole", False)  # all were had before it went on

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Return which items are left, for a cache that is complete by then; or that none is."""
        if self._whole and rest.start >= self._pushed:
            node_state["whole"] = True
        node_state["rest"] = self._rest.of_wanted(rest).data
        node_state["made"] = [self._as_of[0], list(self._as_of[1])]
        return rest

    def _recorder(self) -> Recorder:
        recorder = self._made
        if recorder is None:  # made when it is first used: some inputs are never opened
            recorder = self._made = self._store.recorder(self._as_of)
            if self._closed:
                recorder.close()
        return recorder

    def process(self, entry: Entry) -> Entry | None:
        """Keep an item."""
        path = entry[0]
        if self._passes:
            path = without_passes(path)
        if self._keeps:
            self._recorder().add(path, entry[1])
        self._pushed += 1
        return (with_passes(path, self._passes), entry[1])

    def finish(self) -> Iterator[Entry]:
        """Take note that all items were seen."""
        self._whole = True
        return iter(())

    def commit(self) -> None:
        """Complete the cache: all items were consumed; or have the next epoch make them again."""
        if self._whole and self._keeps:
            self._recorder().complete()
        elif self._whole:
            self._store.as_of = self._as_of

    def undo_commit(self) -> None:
        """Have the cache complete no longer."""
        if self._made is not None:
            self._made.undo_commit()

    def close(self) -> None:
        """Forget what was kept, unless it is complete; from any thread."""
        self._closed = True
        if self._made is not None:
            self._made.close()
