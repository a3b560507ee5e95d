"""Records: what export wrote last, in the user's cache folder, so that edits are seen."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "NBPIPE_CACHE_DIR"

_FORMAT = 1
_KEPT = 256  # records
_KEPT_BYTES = 1 << 24  # of all records
_LARGEST_BYTES = 1 << 20  # a longer text is known by its hash alone


@dataclass(frozen=True, slots=True)
class Record:
    """A module that was written.

    Attributes:
        content: hash of its bytes.
        text: its text; None where it was very long.
        assets: hashes of the files beside it, by name.
    """

    content: str
    text: str | None
    assets: Mapping[str, str] = field(default_factory=dict)


def hash_of(data: bytes) -> str:
    """Give the hash that bytes are known by."""
    return blake2b(data, digest_size=16).hexdigest()


def cache_folder() -> Path | None:
    """Give the user's cache folder for nbpipe, which need not exist; None where none is known."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    try:
        return _platform_folder() / "nbpipe"
    except RuntimeError:  # nobody's home
        return None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".cache"


def last_record(path: Path) -> Record | None:
    """Give what was written last to a file, or None where nothing is known of it."""
    found = _newest_first(f"{_place(path)}-*.json")
    return next((record for record in map(_read, found) if record is not None), None)


def is_ours(data: bytes) -> bool:
    """Say whether a module of these bytes was written by export, whatever its path."""
    content = hash_of(data)
    found = map(_read, _newest_first(f"*-{content}.json"))
    return any(record is not None and record.content == content for record in found)


def keep(path: Path, record: Record) -> None:
    """Remember what was written; a cache folder that cannot be written is done without."""
    folder = _folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / f"{_place(path)}-{record.content}.json", _as_bytes(record))
        _prune()


def _as_bytes(record: Record) -> bytes:
    text = record.text
    if text is not None and len(text.encode("utf-8")) > _LARGEST_BYTES:
        text = None
    values = {"content": record.content, "text": text, "assets": dict(record.assets)}
    return json.dumps({"format": _FORMAT, **values}).encode("ascii")


def _write(path: Path, data: bytes) -> None:
    """Write a file that nobody sees half of; its time is exact, for the newest counts."""
    part = path.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        part.touch(mode=0o600, exist_ok=False)
        part.write_bytes(data)
        now_ns = time.time_ns()
        os.utime(part, ns=(now_ns, now_ns))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _prune() -> None:
    """Remove the oldest records beyond what is kept."""
    size_bytes = 0
    for number, path in enumerate(_newest_first("*")):
        with contextlib.suppress(OSError):
            size_bytes += path.stat().st_size
            if number >= _KEPT or size_bytes > _KEPT_BYTES:
                path.unlink(missing_ok=True)


def _read(path: Path) -> Record | None:
    """Read a record; one that is damaged counts as none."""
    try:
        values: Any = json.loads(path.read_bytes())
        if values["format"] != _FORMAT:
            return None
        text = values["text"]
        return Record(
            str(values["content"]), None if text is None else str(text), dict(values["assets"])
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _newest_first(pattern: str) -> Iterator[Path]:
    """List the records that match, without those that another process is removing."""
    folder, found = _folder(), []
    if folder is not None:
        with contextlib.suppress(OSError):
            found = [(-time_ns, path) for path in folder.glob(pattern) for time_ns in _times(path)]
    return (path for _, path in sorted(found))


def _times(path: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield path.stat().st_mtime_ns


def _place(path: Path) -> str:
    return hash_of(os.fsencode(path))


def _folder() -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / "exports"
