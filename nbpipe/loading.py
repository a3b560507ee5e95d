"""load(): a module that was exported comes back as a pipeline with its knobs."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from .base.knobs import Knob
from .base.names import parameters_of
from .errors import ArgumentError, ArgumentTypeError, add_note, near_match
from .pipeline import Pipeline
from .show.watch import record_export

_BUILD = "build_pipeline"
_WAY_OUT = 'write one with pipe.export("loader.py")'
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load(path: str | os.PathLike[str], /, **changes: Any) -> Pipeline:
    """Build the pipeline of a module that `pipe.export` wrote.

    Each call runs the file as a module of its own; modules beside it can be imported meanwhile.
    Its functions reach worker processes from any folder.

    Args:
        path: the file, for example "loader.py".
        **changes: values for parameters of its `build_pipeline`, in place of the defaults.

    Returns:
        The pipeline that `build_pipeline(**changes)` returns.

    Raises:
        ArgumentError: the file does not exist, or has no `build_pipeline` that returns a pipeline
            and takes these changes; the message names the parameters.
        ArgumentTypeError: `path` is neither a str nor a path.
        Exception: the file raised it; a note names the file.

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
    file = file_of(path)
    builder = PipelineBuilder.of(file, module_of(file))
    builder.check(changes)
    return builder.pipeline(changes)


class PipelineBuilder(NamedTuple):
    """The `build_pipeline` of a module.

    Attributes:
        file: where the module is.
        function: the function.
        parameters: what it takes, by name.
    """

    file: Path
    function: Callable[..., object]
    parameters: Mapping[str, inspect.Parameter]

    @classmethod
    def of(cls, file: Path, module: ModuleType) -> PipelineBuilder:
        """Find it.

        Raises:
            ArgumentError: the module has none.
        """
        function = _builder(file, module)
        return cls(file, function, parameters_of(function))

    def check(self, changes: Mapping[str, object]) -> None:
        """Refuse changes that it does not take, or lacks.

        Raises:
            ArgumentError: with the names that it takes.
        """
        _check_changes(self.file, self.parameters, changes)

    def pipeline(self, changes: Mapping[str, Any]) -> Pipeline:
        """Build the pipeline.

        Raises:
            ArgumentError: it gives something else.
            Exception: what the function raises.
        """
        pipe = self.function(**changes)
        if not isinstance(pipe, Pipeline):
            raise ArgumentError(
                f"{_BUILD} of {str(self.file)!r} must return an nbpipe.Pipeline, got "
                f"{type(pipe).__name__}; end it with `return nbpipe.source(...)...`"
            )
        record_export(_exported_values(pipe, self.parameters), self.file)
        return pipe


# -- the file --------------------------------------------------------------------------------------
def file_of(path: object) -> Path:
    """Return the absolute path of a Python file.

    Raises:
        ArgumentError: there is no such file.
        ArgumentTypeError: neither a str nor a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f"load path must be a str or a path, got {type(path).__name__}; for example "
            'load("loader.py")'
        )
    file = Path(os.fsdecode(path)).expanduser()
    if file.is_file() and file.suffix == ".py":
        return Path(os.path.abspath(file))  # noqa: PTH100  a link keeps its name
    raise ArgumentError(f"load path must be a Python file, got {str(path)!r}{_instead(file)}")


def _instead(file: Path) -> str:
    """Explain why a path cannot be loaded, and what to give in its place."""
    if file.is_dir():
        return f", a folder; give the file, for example load({str(file / 'loader.py')!r})"
    if file.exists():
        return f", which does not end in .py; {_WAY_OUT}"
    names = [str(one) for one in file.parent.glob("*.py")]
    return f", which does not exist{near_match(str(file), names)}; {_WAY_OUT}"


# -- its module ------------------------------------------------------------------------------------
class _Loader(SourceFileLoader):
    """Runs a file as it is now: bytecode is matched to its source by size and seconds alone."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def module_of(file: Path) -> ModuleType:
    """Run a file as a module; what was known by its name before stays if that fails.

    Raises:
        Exception: whatever the file raises; a note names it.
    """
    name = _name(file)
    spec = spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec is not None
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        _run(module, str(file.parent))
    except BaseException as error:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        add_note(error, f"nbpipe was loading {str(file)!r}")
        raise
    return module


def _name(file: Path) -> str:
    """Name a module by its file, or differently where that is another module's name."""
    stem = re.sub(r"\W", "_", file.stem)
    if stem.isidentifier() and _is_free(stem, file):
        return stem
    return f"{stem}_{blake2b(os.fsencode(file), digest_size=4).hexdigest()}"


def _is_free(name: str, file: Path) -> bool:
    """Return whether a name means no module but this file, also where it is imported later."""
    known = getattr(sys.modules.get(name), "__spec__", None)
    if known is not None and isinstance(known.loader, _Loader) and known.origin == str(file):
        return True
    if name in sys.modules or name in sys.stdlib_module_names:
        return False
    found = PathFinder.find_spec(name)
    return found is None or (
        found.origin is not None and Path(found.origin).resolve() == file.resolve()
    )


def _run(module: ModuleType, folder: str) -> None:
    """Run a module; it finds what lies in its folder, after all other importable modules."""
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


# -- its function ----------------------------------------------------------------------------------
def _builder(file: Path, module: ModuleType) -> Callable[..., object]:
    build: Callable[..., object] | None = getattr(module, _BUILD, None)
    if callable(build):
        return build
    raise ArgumentError(
        f"load path must be a module with a function {_BUILD!r}, got {str(file)!r}, which has none"
        f"{near_match(_BUILD, vars(module))}; {_WAY_OUT}"
    )


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
    from .export.layout import stage_words  # half of the exporter comes with it

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
