"""load(): a module that was exported comes back as a pipeline with its knobs."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .base.knobs import Knob
from .errors import ArgumentError, ArgumentTypeError, near_match
from .export.module import stage_words
from .pipeline import Pipeline
from .show.exported import note_export

_BUILD = "build_pipeline"
_WAY_OUT = 'write one with pipe.export("loader.py")'
_NAMED = 8  # names of a module in a message
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A module that was loaded, the name it has, and the bytes that it was made of."""

    name: str
    module: ModuleType
    content: bytes


_loaded: dict[Path, _Loaded] = {}
_lock = threading.RLock()  # a module may load another one


def load(path: str | os.PathLike[str], /, **changes: Any) -> Pipeline:
    """Build the pipeline of a module that `pipe.export` wrote.

    The file is run as a module of its own, once, and again after it was edited; its neighbours
    can be imported meanwhile. Its functions reach worker processes from any folder.

    Args:
        path: the file, as "loader.py".
        **changes: values for parameters of its `build_pipeline`, in the place of the defaults.

    Returns:
        What `build_pipeline(**changes)` gives.

    Raises:
        ArgumentError: there is no such file, it has no `build_pipeline` that gives a pipeline,
            or a change that this does not take; the message names those that it takes.
        Exception: whatever the file raises when it is run; a note names the file.

    Examples:
        >>> import nbpipe, pathlib, tempfile
        >>> code = '''import nbpipe
        ... def build_pipeline(*, batch_size=2):
        ...     return nbpipe.source(range(4)).batch(batch_size, collate=list)
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "loader.py")
        ...     _ = path.write_text(code)
        ...     list(nbpipe.load(path, batch_size=3))
        [[0, 1, 2], [3]]
    """
    file = _file(path)
    module = _module(file)
    build = _builder(file, module)
    parameters = _parameters(file, build)
    _check_changes(file, parameters, changes)
    pipe = build(**changes)
    if not isinstance(pipe, Pipeline):
        raise ArgumentError(
            f"{_BUILD} of {str(file)!r} must return an nbpipe.Pipeline, got {type(pipe).__name__}; "
            "end it with `return nbpipe.source(...)...`"
        )
    note_export(_exported_values(pipe, parameters), file)
    return pipe


# -- the file -----------------------------------------------------------------------------
def _file(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f'load path must be a str or a path, got {type(path).__name__}; as load("loader.py")'
        )
    file = Path(os.fsdecode(path)).expanduser()
    if file.is_file() and file.suffix == ".py":
        return Path(os.path.abspath(file))  # noqa: PTH100  a link keeps its name
    raise ArgumentError(f"load path must be a Python file, got {str(path)!r}{_instead(file)}")


def _instead(file: Path) -> str:
    """Tell what is wrong with a path, and what to give in its place."""
    if file.name and not file.suffix and file.with_name(f"{file.name}.py").is_file():
        by_name = f", or import it: from {file} import {_BUILD}" if file.name == str(file) else ""
        return f"; give its path, load({f'{file}.py'!r}){by_name}"
    if file.is_dir():
        return f", a folder; give the file, as load({str(file / 'loader.py')!r})"
    if file.exists():
        return f", which does not end in .py; {_WAY_OUT}"
    names = [str(one) for one in file.parent.glob("*.py")]
    return f", which does not exist{near_match(str(file), names)}; {_WAY_OUT}"


# -- its module ---------------------------------------------------------------------------
class _Source(SourceFileLoader):
    """Runs bytes that were read; bytecode is told from its source by size and seconds alone."""

    def __init__(self, name: str, path: str, data: bytes) -> None:
        super().__init__(name, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes."""
        return self.source_to_code(self._data, self.path)


def _module(file: Path) -> ModuleType:
    """Return the module of a file: the one there is, unless the file changed since."""
    with _lock:
        data = file.read_bytes()
        content = blake2b(data, digest_size=16).digest() + _asset(file)
        known = _loaded.get(file)
        if known is not None and known.content == content:
            if sys.modules.setdefault(known.name, known.module) is known.module:
                return known.module
            known = None
        name = _name(file, known)
        module = _executed(name, file, data)
        _loaded[file] = _Loaded(name, module, content)
        return module


def _asset(file: Path) -> bytes:
    """Return what changes with the arrays beside a file."""
    try:
        status = file.with_suffix(".npz").stat()
    except OSError:
        return b""
    return f"{status.st_size},{status.st_mtime_ns}".encode()


def _name(file: Path, known: _Loaded | None) -> str:
    """Name a module by its file, or differently where that is another module's name."""
    if known is not None and sys.modules.get(known.name, known.module) is known.module:
        return known.name
    stem = re.sub(r"\W", "_", file.stem)
    if stem.isidentifier() and _is_free(stem, file):
        return stem
    return f"{stem}_{blake2b(os.fsencode(file), digest_size=4).hexdigest()}"


def _is_free(name: str, file: Path) -> bool:
    """Tell whether a name means no module but this file, also where it is imported later."""
    if name in sys.modules or name in sys.stdlib_module_names:
        return False
    found = PathFinder.find_spec(name)
    return found is None or (
        found.origin is not None and Path(found.origin).resolve() == file.resolve()
    )


def _executed(name: str, file: Path, data: bytes) -> ModuleType:
    """Run a file as a module; what was known by its name before stays if that fails."""
    module = module_from_spec(_spec(name, file, data))
    before = sys.modules.get(name, _NOTHING)
    sys.modules[name] = module
    try:
        _run(module, str(file.parent))
    except BaseException as error:
        if before is _NOTHING:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before  # type: ignore[assignment]
        error.add_note(f"nbpipe was loading {str(file)!r}")
        raise
    return sys.modules.get(name, module)


def _spec(name: str, file: Path, data: bytes) -> ModuleSpec:
    spec = spec_from_file_location(name, file, loader=_Source(name, str(file), data))
    assert spec is not None
    return spec


def _run(module: ModuleType, folder: str) -> None:
    """Run a module; it finds what lies in its folder, after all else that can be imported."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    sys.path.append(folder)
    try:
        module.__spec__.loader.exec_module(module)
    finally:
        for place in reversed(range(len(sys.path))):
            if sys.path[place] is folder:  # the very text: the module may have added an equal one
                del sys.path[place]
                break


# -- its function -------------------------------------------------------------------------
def _builder(file: Path, module: ModuleType) -> Callable[..., object]:
    build: Callable[..., object] | None = getattr(module, _BUILD, None)
    if callable(build):
        return build
    names = [name for name, value in vars(module).items() if _is_own(name, value, module)]
    has = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    raise ArgumentError(
        f"load path must be a module with a function {_BUILD!r}, got {str(file)!r}, which has "
        f"{has or 'no functions'}{near_match(_BUILD, names)}; {_WAY_OUT}"
    )


def _is_own(name: str, value: object, module: ModuleType) -> bool:
    ours = getattr(value, "__module__", None) == module.__name__
    return ours and callable(value) and not name.startswith("__")


def _parameters(file: Path, build: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(build).parameters
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{_BUILD} of {str(file)!r} must be a function, got {type(build).__name__} ({error})"
        ) from error


def _check_changes(
    file: Path, parameters: Mapping[str, inspect.Parameter], changes: Mapping[str, object]
) -> None:
    """Refuse what the function does not take, or lacks."""
    takes = {one.name: one for one in parameters.values() if one.kind in _BY_NAME}
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in changes:
        if name not in takes and not any_name:
            raise ArgumentError(
                f"{_BUILD} of {str(file)!r} has no parameter {name!r}{near_match(name, takes)} "
                f"(parameters: {', '.join(takes) or 'none'})"
            )
    missing = [name for name, one in takes.items() if one.default is one.empty]
    missing = [name for name in missing if name not in changes]
    if missing:
        given = ", ".join(f"{name}=..." for name in missing)
        raise ArgumentError(
            f"{_BUILD} of {str(file)!r} needs {', '.join(map(repr, missing))}; "
            f"give load({file.name!r}, {given})"
        )


def _exported_values(
    pipe: Pipeline, parameters: Mapping[str, inspect.Parameter]
) -> dict[Knob, int]:
    """Return the value that each knob has in the file: a default, or what the code says."""
    values: dict[Knob, int] = {}
    words = stage_words(pipe.chain)
    for stage in pipe.stages:
        for word, knob in stage.knobs.items():
            parameter = parameters.get(f"{words[id(stage)]}_{word}")
            default = None if parameter is None else parameter.default
            if isinstance(default, int) and not isinstance(default, bool):
                values[knob] = default
            else:  # stages that share a knob have one parameter
                values.setdefault(knob, knob.value)
    return values
