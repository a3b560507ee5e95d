"""File name: where a module may be written, so that it can be imported and hides no other."""

from __future__ import annotations

import keyword
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from ..errors import ArgumentError, ArgumentTypeError

_OWN = __name__.partition(".")[0]


def module_path(path: str | os.PathLike[str]) -> Path:
    """Check a path that a module is to be written to, and give it absolute, without `~`.

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
        _check_folder(module)
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


def _check_folder(module: Path) -> None:
    """Refuse a relative path where there is no working folder."""
    try:
        module.absolute()
    except FileNotFoundError as error:
        raise ArgumentError(
            f"export path must be absolute, got {str(module)!r}: the working folder was deleted; "
            "change to one that exists with os.chdir(...)"
        ) from error


def _check_place(given: object, module: Path) -> None:
    if not module.parent.is_dir():
        raise ArgumentError(
            f"export path must lie in a folder that exists, got {str(given)!r}; make "
            f"{str(module.parent)!r} first, or export to another folder"
        )
    target = module.resolve()
    if target.is_symlink():  # from Python 3.13 on, nobody else says so
        raise ValueError("Symlink loop")
    if not target.parent.is_dir():
        raise ArgumentError(
            f"export path must not be a link into a folder that does not exist, got "
            f"{str(given)!r}, a link to {str(target)!r}; remove the link, or make the folder"
        )
    if target.exists() and not target.is_file():
        folder = target.is_dir()
        other = module / "loader.py" if folder else module.with_name("loader.py")
        raise ArgumentError(
            f"export path must be a file, got {str(given)!r}, which is "
            f"{'a folder' if folder else 'no ordinary file'}; as {str(other)!r}"
        )


def _check_stem(given: object, module: Path) -> None:
    stem = module.stem
    if module.suffix != ".py":
        raise ArgumentError(f"export path must end in .py, got {str(given)!r}; as {_as(module)}")
    if not stem.isidentifier() or keyword.iskeyword(stem) or stem.startswith("__"):
        raise ArgumentError(
            f"export path must have the name of a module that can be imported, got {str(given)!r}; "
            f"as {_as(module)}"
        )
    hidden = _hidden(stem, module)
    if hidden is not None:
        raise ArgumentError(
            f"export path must not have the name of another module, got {str(given)!r}: `import "
            f"{stem}` beside it would no longer find {hidden}; as {_as(module)}"
        )
    if (module.with_suffix("") / "__init__.py").exists():
        raise ArgumentError(
            f"export path must not have the name of a package beside it, got {str(given)!r}: "
            f"`import {stem}` would find the package; as {_as(module)}"
        )


def _as(module: Path) -> str:
    """Give a path like this one that would do."""
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
        return "that of Python"
    found = PathFinder.find_spec(stem, list(_installed()))
    if found is None or (found.origin and Path(found.origin).resolve() == module.resolve()):
        return None
    return "the installed one"


def _installed() -> Iterator[str]:
    """Give the folders that packages are installed in."""
    yield from dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    yield from (entry for entry in map(str, sys.path) if entry in folders or "-packages" in entry)
