"""Store: a module and its assets become files, all or none; what the user edited is not lost."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ExportError, ModuleEditedError
from .filename import module_path
from .records import Record, hash_of, is_ours, keep, last_record
from .retune import Moved, moved, retuned
from .secrets import masked, scrubbed

_DIFF_LINES = 60  # of an error
_DIFF_COLUMNS = 200
_WAY_OUT = "pass overwrite=True to replace it, or export to another path"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a file.

    Attributes:
        path: the file.
        changed: it, or an asset, was written; else all was there to the last byte.
        retuned: the parameters whose defaults were rewritten, where nothing else was.
    """

    path: Path
    changed: bool
    retuned: tuple[Moved, ...] = ()


def stored(
    path: str | os.PathLike[str], text: str, assets: Mapping[str, bytes], *, overwrite: bool
) -> Written:
    """Write a module and its assets, all or none.

    Where the file was edited since export wrote it and only defaults of `build_pipeline` moved,
    these are rewritten in it and the edits stay.

    Args:
        path: the module, as "loader.py"; through a symbolic link its target is written.
        text: the module.
        assets: files beside it, by name.
        overwrite: replace also what export did not write.

    Raises:
        ArgumentError: a path that no module can be imported from.
        ModuleEditedError: the file holds what export did not write.
        ExportError: a file cannot be written; all are as they were.
    """
    module = module_path(path)
    try:
        target = module.resolve()
        return _stored(module, target, text, assets, overwrite=overwrite)
    except OSError as error:
        raise ExportError(
            f"cannot write {str(path)!r} ({error}); nothing was changed: export to a folder that "
            "can be written and has room"
        ) from error


def _stored(
    module: Path, target: Path, text: str, assets: Mapping[str, bytes], *, overwrite: bool
) -> Written:
    disk, record, data = _read(target), last_record(target), text.encode("utf-8")
    final = data
    if disk not in (None, data) and not overwrite:
        assert disk is not None
        kept = _as_ours(disk, data) or _with_edits(disk, record, text)
        if kept is None:
            raise _edited(module, disk, record, text)
        final = kept
    files = {module.with_name(name): content for name, content in assets.items()}
    if not overwrite:
        _check_assets(files, record)
    changes = {place: new for place, new in files.items() if _read(place) != new}
    if disk != final:
        changes[target] = final
    _replace(changes)
    hashes = {name: hash_of(content) for name, content in assets.items()}
    keep(target, Record(hash_of(data), text, hashes))
    knobs = _knobs(disk, final) if target in changes else ()
    return Written(module, bool(changes), knobs)


def _as_ours(disk: bytes, data: bytes) -> bytes | None:
    """Give what replaces a file that export wrote; Git may have changed its line ends."""
    if is_ours(disk):
        return data
    if b"\r\n" in disk and is_ours(disk.replace(b"\r\n", b"\n")):
        return data.replace(b"\n", b"\r\n")
    return None


def _with_edits(disk: bytes, record: Record | None, text: str) -> bytes | None:
    """Give an edited file with the defaults that moved since, or None where more did."""
    if record is None or record.text is None:
        return None
    try:
        found = retuned(record.text, text, disk.decode("utf-8"))
    except UnicodeDecodeError:
        return None
    return None if found is None else found.encode("utf-8")


def _knobs(old: bytes | None, new: bytes) -> tuple[Moved, ...]:
    """List the defaults that moved, where nothing else did."""
    if old is None:
        return ()
    try:
        return moved(old.decode("utf-8"), new.decode("utf-8")) or ()
    except UnicodeDecodeError:
        return ()


def _check_assets(files: Mapping[Path, bytes], record: Record | None) -> None:
    ours = {} if record is None else record.assets
    for path, new in files.items():
        old = _read(path)
        if old not in (None, new) and ours.get(path.name) != hash_of(old or b""):
            raise ModuleEditedError(f"{str(path)!r} holds what export did not write; {_WAY_OUT}")


# -- refusing -----------------------------------------------------------------------------
def _edited(module: Path, disk: bytes, record: Record | None, text: str) -> ModuleEditedError:
    now = disk.decode("utf-8", "replace")
    if record is None or record.text is None:
        what, before, after = "holds what export did not write", now, text
        names = ("as it is", "as it would be written")
    else:
        what, before, after = "was edited since it was exported", record.text, now
        names = ("as it was exported", "as it is")
    lines = _difference(before, after, names)
    return ModuleEditedError(f"{str(module)!r} {what}; {_WAY_OUT}\n{lines}")


def _difference(before: str, after: str, names: tuple[str, str]) -> str:
    """Give a unified diff of a bounded number of lines, each of bounded length."""
    texts = _lines(masked(before)), _lines(masked(after))
    found = difflib.unified_diff(*texts, *names, n=2, lineterm="")
    lines = scrubbed("\n".join(found)).splitlines()
    if not lines:
        return "the two differ only in white space at the ends of lines, or in what is a secret"
    shown = [line[:_DIFF_COLUMNS] for line in lines[:_DIFF_LINES]]
    if len(lines) > _DIFF_LINES:
        shown.append(f"... and {len(lines) - _DIFF_LINES} more lines")
    return "\n".join(shown)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.removeprefix("\ufeff").removesuffix("\n").split("\n")]


# -- writing ------------------------------------------------------------------------------
def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(files: Mapping[Path, bytes]) -> None:
    """Write files, all or none; the last one is last."""
    with contextlib.ExitStack() as litter:
        parts = {path: _beside(path, litter) for path in files}
        backups = {path: _beside(path, litter) for path in files}
        for path, data in files.items():
            _write(parts[path], path, data)
        for path, backup in backups.items():
            _back_up(path, backup)
        try:
            for path, part in parts.items():
                part.replace(path)
        except BaseException:
            for path, part in parts.items():
                _restore(path, part, backups[path])
            raise


def _beside(path: Path, litter: contextlib.ExitStack) -> Path:
    """Choose the name of a temporary file in the same folder; it is removed in the end."""
    name = path.with_name(f".nbpipe-{secrets.token_hex(8)}.tmp")
    litter.callback(name.unlink, missing_ok=True)
    return name


def _write(part: Path, path: Path, data: bytes) -> None:
    """Write data that is to take the place of a file, with the rights that this one has."""
    with part.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    for old in _status(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is read-only", str(path))
        new = part.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):  # written as root
            with contextlib.suppress(OSError):
                os.chown(part, old.st_uid, old.st_gid)
        part.chmod(stat.S_IMODE(old.st_mode))
        if (new.st_size, int(new.st_mtime)) == (old.st_size, int(old.st_mtime)):
            # Python would take its old bytecode: it looks at the size and at whole seconds.
            os.utime(part, ns=(new.st_atime_ns, new.st_mtime_ns + 1_000_000_000))


def _back_up(path: Path, backup: Path) -> None:
    """Keep the old file under a second name; it is the same file."""
    for _ in _status(path):
        try:
            backup.hardlink_to(path)
        except (OSError, NotImplementedError):  # a file system without links
            shutil.copy2(path, backup)


def _restore(path: Path, part: Path, backup: Path) -> None:
    with contextlib.suppress(OSError):  # the error that is on its way says more
        if part.exists():  # it was not reached
            return
        if backup.exists():
            backup.replace(path)
        else:
            path.unlink()


def _status(path: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(FileNotFoundError):
        yield path.stat()
