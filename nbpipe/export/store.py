"""Store: a module and its assets become files, all or none; what the user edited is not lost."""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import json
import keyword
import os
import secrets
import shutil
import site
import stat
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ..errors import ArgumentError, ArgumentTypeError, ExportError, ModuleEditedError
from .secrets import redacted, redacted_source
from .source import defaults_in, replaced, tree_of

# -- File name: where a module may be written, so that it can be imported and hides no other -------
_OWN = __name__.partition(".")[0]


def module_path(path: str | os.PathLike[str]) -> Path:
    """Check a path that a module is to be written to; return it absolute, without `~`.

    Raises:
        ArgumentError: not the path of an importable module in a folder that exists, or it would
            hide another module; the message gives one that would do.
        ArgumentTypeError: not a path at all.
    """
    given: object = path
    if not isinstance(given, str | os.PathLike):
        raise ArgumentTypeError(
            f'export path must be a str or a path, got {type(given).__name__}; as "loader.py"'
        )
    try:
        module = Path(path).expanduser()
        _check_stem(path, module)
        _check_place(path, module)
    except (RuntimeError, ValueError, OSError, TypeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"export path must be the path of a Python file, got {str(path)!r} ({error}); "
            'as "loader.py"'
        ) from error
    return module.absolute()


def _check_place(given: object, module: Path) -> None:
    if not module.parent.is_dir():
        raise ArgumentError(
            f"export path must lie in a folder that exists, got {str(given)!r}; make "
            f"{str(module.parent)!r} first, or export to another folder"
        )
    target = module.resolve()
    try:
        mode = target.stat().st_mode  # `exists` does not tell of a loop, or of a name too long
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        folder = stat.S_ISDIR(mode)
        other = module / "loader.py" if folder else module.with_name("loader.py")
        raise ArgumentError(
            f"export path must be a file, got {str(given)!r}, which is "
            f"{'a folder' if folder else 'no ordinary file'}; as {str(other)!r}"
        )


def _check_stem(given: object, module: Path) -> None:
    stem, hidden, more = module.stem, _hidden(module.stem, module), ""
    if module.suffix != ".py":
        rule = "end in .py"
    elif not stem.isidentifier() or keyword.iskeyword(stem) or stem.startswith("__"):
        rule = "have the name of a module that can be imported"
    elif hidden is not None:
        rule = "not have the name of another module"
        more = f": `import {stem}` beside it would hide {hidden}"
    elif (module.with_suffix("") / "__init__.py").exists():
        rule = "not have the name of a package beside it"
        more = f": `import {stem}` would find the package"
    else:
        return
    raise ArgumentError(f"export path must {rule}, got {str(given)!r}{more}; as {_as(module)}")


def _as(module: Path) -> str:
    """Return a path like this one that would do."""
    stem = module.stem if module.suffix in (".py", ".ipynb", "") else module.name
    stem = "".join(c if c.isidentifier() or c.isdecimal() else "_" for c in stem).strip("_")
    if not stem.isidentifier() or keyword.iskeyword(stem) or _hidden(stem, module):
        stem = f"{stem}_loader" if stem.isidentifier() else "loader"
    return repr(str(module.with_name(f"{stem}.py")))


def _hidden(stem: str, module: Path) -> str | None:
    """Name what a module of this name would hide, or None."""
    if stem == _OWN:
        return _OWN
    if stem in sys.stdlib_module_names:
        return "Python's module"
    found = PathFinder.find_spec(stem, list(_installed()))
    if found is None or (found.origin and Path(found.origin).resolve() == module.resolve()):
        return None
    return "the installed module"


def _installed() -> Iterator[str]:
    """Return the folders that packages are installed in."""
    yield from dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    yield from (entry for entry in map(str, sys.path) if entry in folders or "-packages" in entry)


# -- Records: what export wrote last, in the user's cache folder, so that edits are seen -----------
FOLDER_VARIABLE = "NBPIPE_CACHE_DIR"
_FORMAT = 1
_KEPT = 256  # records
_KEPT_BYTES = 1 << 24  # of all records


@dataclass(frozen=True, slots=True)
class WrittenModule:
    """A module that was written."""

    content: str
    text: str
    assets: Mapping[str, str] = field(default_factory=dict)


def _hash_of(data: bytes) -> str:
    """Return the hash that bytes are known by."""
    return blake2b(data, digest_size=16).hexdigest()


def cache_folder() -> Path | None:
    """Return the user's cache folder for nbpipe, which need not exist; None where none is known."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    try:
        folder = user_cache_path("nbpipe", appauthor=False, opinion=False)
    except RuntimeError:  # there is no home folder
        return None
    return folder if folder.is_absolute() else None  # older versions return "~/.cache/nbpipe" then


def _last_record(path: Path) -> WrittenModule | None:
    """Return what was written last to a file, or None where nothing is known of it."""
    found = _newest_first(f"{_place(path)}-*.json")
    return next((record for record in map(_read_record, found) if record is not None), None)


def is_ours(data: bytes) -> bool:
    """Return whether a module of these bytes was written by export, whatever its path."""
    content = _hash_of(data)
    found = map(_read_record, _newest_first(f"*-{content}.json"))
    return any(record is not None and record.content == content for record in found)


def keep(path: Path, record: WrittenModule) -> None:
    """Remember what was written; a cache folder that cannot be written is done without."""
    folder = _folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = json.dumps({"format": _FORMAT, **asdict(record)}).encode("ascii")
        _write_record(folder / f"{_place(path)}-{record.content}.json", data)
        _prune()


def _write_record(path: Path, data: bytes) -> None:
    """Write a file that is seen whole or not at all; its time is exact, for the newest counts."""
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


def _read_record(path: Path) -> WrittenModule | None:
    """Read a record; one that is damaged counts as none."""
    try:
        values: Any = json.loads(path.read_bytes())
        if values["format"] != _FORMAT:
            return None
        return WrittenModule(str(values["content"]), str(values["text"]), dict(values["assets"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _newest_first(pattern: str) -> Iterator[Path]:
    """List the records that match, without those that another process is removing."""
    folder, found = _folder(), []
    if folder is not None:
        with contextlib.suppress(OSError):
            for path in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    found.append((-path.stat().st_mtime_ns, path))
    return (path for _, path in sorted(found))


def _place(path: Path) -> str:
    return _hash_of(os.fsencode(path))


def _folder() -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / "exports"


# -- Defaults of `build_pipeline`: those that moved are rewritten, also in an edited file ----------
_BUILD = "build_pipeline"
_MARK = "\ufeff"  # a byte order mark, which the parser does not take


@dataclass(frozen=True, slots=True)
class Moved:
    """A parameter whose default moved."""

    name: str
    old: str
    new: str


def moved(old_text: str, new_text: str) -> tuple[Moved, ...] | None:
    """List the parameters whose defaults differ between two texts of a module.

    Returns:
        The parameters in their order, or None where the texts differ in more than that.
    """
    old, new = _defaults(old_text), _defaults(new_text)
    if old is None or new is None or list(old) != list(new):
        return None
    if _without(old_text, old) != _without(new_text, new):
        return None
    pairs = [(name, _source(old_text, old[name]), _source(new_text, new[name])) for name in new]
    return tuple(Moved(*pair) for pair in pairs if pair[1] != pair[2])


def patched(text: str, moves: Iterable[Moved]) -> str | None:
    """Rewrite defaults in the text of an edited module; None where one is gone, or edited too."""
    found = _defaults(text) or {}
    places = []
    for one in moves:
        default = found.get(one.name)
        if default is None or _source(text, default) not in (one.old, one.new):
            return None
        places.append((default, one.new))
    return replaced(text, places)


def _without(text: str, defaults: dict[str, ast.expr]) -> str:
    """Return a text with its defaults blanked out."""
    return replaced(text, ((default, "") for default in defaults.values()))


def _source(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ""


def _defaults(text: str) -> dict[str, ast.expr] | None:
    """Find the defaults of the one function `build_pipeline`, by the names of its parameters."""
    found = _build_in(text.removeprefix(_MARK))
    return None if found is None else dict(defaults_in(found.args))


def _build_in(text: str) -> ast.FunctionDef | None:
    """Return the one function `build_pipeline`; None where the text is no Python by now."""
    tree = tree_of(text) or ast.Module([], [])
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == _BUILD]
    return found[0] if len(found) == 1 else None


# -- Store: a module and its assets become files, all or none; what the user edited is not lost ----
_DIFF_LINES = 60  # of an error
_DIFF_COLUMNS = 200
_WAY_OUT = f"{ModuleEditedError.WAY_OUT} to replace it, or export to another path"


@dataclass(frozen=True, slots=True)
class Exported(os.PathLike[str]):
    """What became of an export; it may be opened as a path.

    Attributes:
        path: the file.
        compared: items of the module that were found equal to the notebook's [items].
        notes: what to know of it, each in one sentence.
        changed: the file was written; False where it held the same bytes.
        patched: parameters whose defaults moved, where nothing else did.
    """

    path: Path
    compared: int = 0
    notes: tuple[str, ...] = ()
    changed: bool = True
    patched: tuple[Moved, ...] = ()

    def __fspath__(self) -> str:
        """Return the path as text."""
        return str(self.path)

    def __str__(self) -> str:
        """Return what became of it, in lines."""
        return "\n".join([self._headline(), *(f"  note: {note}" for note in self.notes)])

    def _headline(self) -> str:
        if not self.changed:
            return f"{self.path} is up to date"
        if self.patched:
            moves = ", ".join(f"{one.name} {one.old} -> {one.new}" for one in self.patched)
            return f"rewrote defaults in {self.path}: {moves}"
        checked = f"; the first {self.compared} items are the same there" if self.compared else ""
        return f"wrote {self.path}{checked}"

    __repr__ = __str__


def stored(
    path: str | os.PathLike[str], text: str, assets: Mapping[str, bytes], *, overwrite: bool
) -> Exported:
    """Write a module and its assets, all or none.

    Where the file was edited since export wrote it, and only defaults of `build_pipeline` moved,
    they are rewritten and the edits stay.

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
) -> Exported:
    disk, record, data = _read(target), _last_record(target), text.encode("utf-8")
    final = data
    if disk not in (None, data) and not overwrite:
        assert disk is not None
        known, crlf = disk.replace(b"\r\n", b"\n"), b"\r\n" in disk  # as Git may have it
        kept: str | None = text
        if not is_ours(known):
            moves = None if record is None else moved(record.text, text)
            kept = None if moves is None else _kept(known, moves)
        if kept is None:
            raise _edited(module, disk, record, text)
        final = kept.encode("utf-8").replace(b"\n", b"\r\n" if crlf else b"\n")
    files = {module.with_name(name): content for name, content in assets.items()}
    if not overwrite:
        _check_assets(files, record)
    changes = {place: new for place, new in files.items() if _read(place) != new}
    if disk != final:
        changes[target] = final
    _replace(changes)
    hashes = {name: _hash_of(content) for name, content in assets.items()}
    keep(target, WrittenModule(_hash_of(data), text, hashes))
    knobs = _knobs(disk, final) if target in changes else ()
    return Exported(module, changed=bool(changes), patched=knobs)


def _kept(disk: bytes, moves: tuple[Moved, ...]) -> str | None:
    """Return an edited file with the defaults that moved; None where they cannot be written."""
    try:
        text = disk.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return patched(text, moves) if moves else text


def _knobs(old: bytes | None, new: bytes) -> tuple[Moved, ...]:
    """List the defaults that moved, where nothing else did."""
    if old is None:
        return ()
    try:
        return moved(old.decode("utf-8"), new.decode("utf-8")) or ()
    except UnicodeDecodeError:
        return ()


def _check_assets(files: Mapping[Path, bytes], record: WrittenModule | None) -> None:
    ours = {} if record is None else record.assets
    for path, new in files.items():
        old = _read(path)
        if old not in (None, new) and ours.get(path.name) != _hash_of(old or b""):
            raise ModuleEditedError(f"{str(path)!r} holds what export did not write; {_WAY_OUT}")


# -- refusing --------------------------------------------------------------------------------------
def _edited(
    module: Path, disk: bytes, record: WrittenModule | None, text: str
) -> ModuleEditedError:
    now = disk.decode("utf-8", "replace")
    if record is None:
        what, before, after = "holds what export did not write", now, text
        names = ("as it is", "as it would be written")
    else:
        what, before, after = "was edited since it was exported", record.text, now
        names = ("as it was exported", "as it is")
    lines = _difference(before, after, names)
    return ModuleEditedError(f"{str(module)!r} {what}; {_WAY_OUT}\n{lines}")


def _difference(before: str, after: str, names: tuple[str, str]) -> str:
    """Return a unified diff of a bounded number of lines, each of bounded length."""
    texts = _lines(redacted_source(before)), _lines(redacted_source(after))
    found = difflib.unified_diff(*texts, *names, n=2, lineterm="")
    lines = redacted("\n".join(found)).splitlines()
    if not lines:
        return "the two differ only in white space at the ends of lines, or in secrets"
    shown = [line[:_DIFF_COLUMNS] for line in lines[:_DIFF_LINES]]
    if len(lines) > _DIFF_LINES:
        shown.append(f"... and {len(lines) - _DIFF_LINES} more lines")
    return "\n".join(shown)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.removeprefix(_MARK).removesuffix("\n").split("\n")]


# -- writing ---------------------------------------------------------------------------------------
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
            if path.exists():
                shutil.copy2(path, backup)
        try:
            for path, part in parts.items():
                part.replace(path)
        except BaseException:
            for path in (path for path, part in parts.items() if not part.exists()):
                with contextlib.suppress(OSError):  # the error that is on its way says more
                    backup = backups[path]
                    backup.replace(path) if backup.exists() else path.unlink()
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
    if not path.exists():
        return
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", str(path))
    old, new = path.stat(), part.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):  # written as root
        with contextlib.suppress(OSError):
            os.chown(part, old.st_uid, old.st_gid)
    part.chmod(stat.S_IMODE(old.st_mode))
    if (new.st_size, int(new.st_mtime)) == (old.st_size, int(old.st_mtime)):
        # Python would take its old bytecode: it looks at the size and at whole seconds.
        os.utime(part, ns=(new.st_atime_ns, new.st_mtime_ns + 1_000_000_000))
