"""Settings: what was set in this process and changes results holds in its worker processes too.

They are read where an epoch begins, and set in each worker before its first item. A worker sets
again only what has changed since, so that what `worker_init` sets stays.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import logging
import os
import pickle
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, final

import numpy as np

from ...base.seeding import NUMBER
from ...base.threads import THREAD_VARIABLES
from .pickling import working_folder
from .reloads import is_of_user

LOG = logging.getLogger("nbpipe")
_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), PurePath, enum.Enum, np.dtype)
_SIMPLE = frozenset({bool, int, float, str, type(None)})
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
_MOST_VALUES = 1_000  # in a variable of a module that is sent
_LONGEST_TEXT = 10_000  # characters of one of these values


# -- Settings of Python and of libraries -----------------------------------------------------------
class _Setting(NamedTuple):
    """One setting.

    Attributes:
        module: it belongs to; not imported where it was not, unless the value is another.
        default: value that holds without it; `_MISSING` where that is not known.
        read: returns its value, given the module.
        write: sets its value, given the module and the value.
    """

    module: str
    default: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]


def _attribute(module: str, name: str, default: Any) -> _Setting:
    return _Setting(
        module, default, lambda m: getattr(m, name), lambda m, value: setattr(m, name, value)
    )


def _print_options(numpy: Any) -> dict[str, Any]:
    options = numpy.get_printoptions()
    return {name: one for name, one in options.items() if isinstance(one, _PLAIN)}


def _decimals(decimal: Any) -> Any:
    context = decimal.getcontext().copy()
    context.clear_flags()
    return context


def _set_decimals(decimal: Any, context: Any) -> None:
    if repr(_decimals(decimal)) != repr(context):
        decimal.setcontext(context)


def _set_device(torch: Any, name: str) -> None:
    if name.partition(":")[0] in ("cpu", "meta"):
        torch.set_default_device(None if name == "cpu" else name)
    elif NUMBER[0] == 0:
        LOG.warning(
            "torch's default device is %s here and cpu in worker processes: give device= where "
            "a stage makes tensors, or move batches with to_device",
            name,
        )


def _autocast(torch: Any) -> tuple[bool, str]:
    return torch.is_autocast_enabled("cpu"), _name(torch.get_autocast_dtype("cpu"))


def _set_autocast(torch: Any, value: tuple[bool, str]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", getattr(torch, value[1]))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _filters(_: Any) -> list[tuple[Any, ...]]:
    """Return the filters of warnings, but for those of a class that a worker cannot import."""
    return [one for one in warnings.filters if one[2].__module__ != "__main__"]


def _set_filters(module: Any, filters: list[Any]) -> None:
    module.filters[:] = filters
    module._filters_mutated()


def _set_zone(module: Any, zone: tuple[Any, ...]) -> None:
    if (module.tzname, module.timezone) != zone and hasattr(module, "tzset"):
        module.tzset()  # as this process did after it had set TZ


_SETTINGS: dict[str, _Setting] = {
    "folder": _Setting("os", _MISSING, lambda _: working_folder() or None, lambda m, v: m.chdir(v)),
    "zone": _Setting("time", _MISSING, lambda m: (m.tzname, m.timezone), _set_zone),
    "recursion": _Setting(
        "sys", 1000, lambda m: m.getrecursionlimit(), lambda m, v: m.setrecursionlimit(v)
    ),
    "digits": _Setting(
        "sys", 4300, lambda m: m.get_int_max_str_digits(), lambda m, v: m.set_int_max_str_digits(v)
    ),
    "socket": _Setting(
        "socket", None, lambda m: m.getdefaulttimeout(), lambda m, v: m.setdefaulttimeout(v)
    ),
    "csv": _Setting(
        "csv", 1 << 17, lambda m: m.field_size_limit(), lambda m, v: m.field_size_limit(v)
    ),
    "locale": _Setting(
        "locale", _MISSING, lambda m: m.setlocale(m.LC_ALL), lambda m, v: m.setlocale(m.LC_ALL, v)
    ),
    "decimal": _Setting("decimal", _MISSING, _decimals, _set_decimals),
    "numpy.err": _Setting("numpy", _MISSING, lambda m: m.geterr(), lambda m, v: m.seterr(**v)),
    "numpy.print": _Setting(
        "numpy", _MISSING, _print_options, lambda m, v: m.set_printoptions(**v)
    ),
    "torch.dtype": _Setting(
        "torch",
        "float32",
        lambda m: _name(m.get_default_dtype()),
        lambda m, v: m.set_default_dtype(getattr(m, v)),
    ),
    "torch.device": _Setting("torch", "cpu", lambda m: str(m.get_default_device()), _set_device),
    "torch.grad": _Setting(
        module="torch",
        default=True,
        read=lambda m: m.is_grad_enabled(),
        write=lambda m, v: m.set_grad_enabled(v),
    ),
    "torch.autocast": _Setting("torch", (False, "bfloat16"), _autocast, _set_autocast),
    "torch.deterministic": _Setting(
        "torch",
        0,
        lambda m: m.get_deterministic_debug_mode(),
        lambda m, v: m.set_deterministic_debug_mode(v),
    ),
    "torch.precision": _Setting(
        "torch",
        "highest",
        lambda m: m.get_float32_matmul_precision(),
        lambda m, v: m.set_float32_matmul_precision(v),
    ),
    "truncated": _attribute("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", default=False),
    "pixels": _attribute("PIL.Image", "MAX_IMAGE_PIXELS", 1024 * 1024 * 1024 // 4 // 3),
    # Last, as what is imported here may warn.
    "warnings": _Setting("warnings", _MISSING, _filters, _set_filters),
}


# -- Reading them ----------------------------------------------------------------------------------
def current_settings(modules: Modules) -> bytes:
    """Return the settings of this process and thread, for `WorkerSettings`.

    Args:
        modules: those that the functions need; their public variables are settings, too.
    """
    found: dict[str, object] = {name: _read(setting) for name, setting in _SETTINGS.items()}
    limits = set(THREAD_VARIABLES)
    found["environment"] = {k: v for k, v in os.environ.items() if k not in limits}
    found["path"] = only_texts(sys.path)
    pickled = {name: _pickled(value) for name, value in found.items()}
    kept = {name: data for name, data in pickled.items() if data is not None}
    variables, marks = {}, {}
    for name in modules.names:
        module = sys.modules.get(name)
        for word, value in (_public if is_of_user(module) else _options)(module):
            data = _pickled(value) if _is_plain(value, [_MOST_VALUES]) else None
            if data is not None:
                variables[name, word] = data
            else:
                marks[name, word] = _mark(value)
    return pickle.dumps((kept, modules.imported, variables, marks))


def only_texts(values: Iterable[object]) -> list[str]:
    """Return the texts among some values: what else is in a path means something here alone."""
    return [value for value in values if isinstance(value, str)]


def _read(setting: _Setting) -> Any:
    module = sys.modules.get(setting.module)
    if module is None:
        return _MISSING
    try:
        return setting.read(module)
    except Exception:  # another version has no such setting, or a thread is importing it
        return _MISSING


def _pickled(value: Any) -> bytes | None:
    try:
        return None if value is _MISSING else pickle.dumps(value)
    except Exception:
        return None


class Modules(NamedTuple):
    """Modules that functions need.

    Attributes:
        names: of all of them.
        imported: of these, the ones that workers import before the first call, as a function may
            do it in its body.
    """

    names: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()


def modules_in(data: bytes, users: Iterable[str]) -> Modules:
    """Return the modules that pickled functions need.

    Args:
        data: the functions.
        users: the user's own modules among them, with those that these import in turn.
    """
    texts = set()  # the short ones in the data: names of modules and variables are among them
    for start in _TEXTS.finditer(data) if len(data) < _SEARCHED_BYTES else ():
        first = start.end()
        texts.add(data[first : first + data[first - 1]])
    libraries = [
        name
        for name, module in tuple(sys.modules.items())
        if name.encode() in texts and name.partition(".")[0] not in _OURS and not is_of_user(module)
    ]
    names = (*users, *libraries)
    imported = tuple(
        name
        for name in names
        if name.encode() in texts or texts.issuperset(name.encode().split(b"."))
    )
    return Modules(names, imported)


_TEXTS = re.compile(rb"\x8c[\x01-\xff](?=[A-Za-z_])")  # as pickle begins a short text
_SEARCHED_BYTES = 1 << 23
_OURS = sys.stdlib_module_names | {"__main__", __package__.partition(".")[0]}


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    """Return the public variables of a module."""
    variables = tuple(vars(module).items()) if isinstance(module, ModuleType) else ()
    for name, value in variables:
        if not name.startswith("_") and not isinstance(value, ModuleType):
            yield name, value


def _options(module: Any) -> Iterator[tuple[str, Any]]:
    """Return what looks like options of an installed module: numbers and texts in capitals.

    Tables of its own belong together with functions, which are not sent.
    """
    variables = tuple(vars(module).items())
    return (one for one in variables if type(one[1]) in _SIMPLE and one[0].isupper())


def _is_plain(value: Any, left: list[int]) -> bool:
    """Return whether a value is text, numbers and containers of them, and not too many."""
    left[0] -= 1
    if isinstance(value, _PLAIN):
        is_here = type(value).__module__ == "__main__"
        return not is_here and not (isinstance(value, str | bytes) and len(value) > _LONGEST_TEXT)
    if type(value) in _NAMESPACES:
        value = vars(value)
    parts: Iterable[Any] = ()
    if type(value) is dict:
        parts = [*value.keys(), *value.values()]
    elif type(value) in (list, tuple, set, frozenset):
        parts = value
    else:
        return False
    return len(value) <= left[0] and all(_is_plain(part, left) for part in tuple(parts))


def _mark(value: Any) -> str:
    """Name a function or class, or the class of an object: alike where it was not replaced."""
    kind = value if isinstance(value, FunctionType | type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


# -- Setting them ----------------------------------------------------------------------------------
@final
class WorkerSettings:
    """Sets in a worker process what was captured in its parent."""

    def __init__(self) -> None:
        self._known: dict[Any, bytes] = {}
        self._environment: dict[str, str] = dict(os.environ)
        self._imported: tuple[str, ...] = ()
        self._late: list[dict[tuple[str, str], Any]] = [{}, {}]  # variables, marks

    def apply(self, data: bytes) -> None:
        """Set those of Python and of libraries; called before functions are loaded."""
        kept, self._imported, *self._late = pickle.loads(data)  # noqa: S301  of the process that started this one
        for name in ("environment", "path", *_SETTINGS):
            changed = self._changed(name, kept)
            if changed is _MISSING:
                continue
            with contextlib.suppress(Exception):  # not every system has all of them
                if name == "environment":
                    self._set_environment(changed)
                elif name == "path":
                    sys.path[:] = changed
                    importlib.invalidate_caches()
                else:
                    _write(_SETTINGS[name], changed)

    def apply_to_modules(self, stage: str) -> list[str]:
        """Set the variables of modules; called when the functions were loaded.

        Args:
            stage: address of the stage.

        Returns:
            For `warn_once`, what is another function or object here than in the parent.
        """
        variables, marks = self._late
        for name in self._imported:
            with contextlib.suppress(Exception):  # its import fails here: so will the function
                importlib.import_module(name)
        for name, word in variables:
            module = sys.modules.get(name)
            if module is None:
                continue
            value = self._changed((name, word), variables)
            if value is not _MISSING:
                _set_variable(module, word, value)
        notes = []
        for (name, word), mark in marks.items():
            own = vars(sys.modules.get(name, sys)).get(word, _MISSING)
            found = "nothing" if own is _MISSING else _mark(own)
            if name in sys.modules and found != mark:
                notes.append(
                    f"stage {stage!r}: {name}.{word} was changed after the import of its module, "
                    f"to {mark}; worker processes have {found}. Give it to the function as an "
                    "argument, or set it in worker_init"
                )
        return notes

    def _changed(self, name: Any, kept: Mapping[Any, bytes]) -> Any:
        """Return a value that is another one than before."""
        data = kept.get(name)
        if data is None or self._known.get(name) == data:
            return _MISSING
        self._known[name] = data
        try:
            return pickle.loads(data)  # noqa: S301  of the process that started this one
        except Exception:  # a class that is not here
            return _MISSING

    def _set_environment(self, wanted: dict[str, str]) -> None:
        before, self._environment = self._environment, wanted
        for name in before.keys() - wanted.keys() - set(THREAD_VARIABLES):
            os.environ.pop(name, None)
        for name, value in wanted.items():
            if before.get(name) != value:
                os.environ[name] = value


def _write(setting: _Setting, value: Any) -> None:
    if setting.module not in sys.modules and value == setting.default:
        return
    module = importlib.import_module(setting.module)
    if _read(setting) != value:
        setting.write(module, value)


def _set_variable(module: ModuleType, name: str, value: Any) -> None:
    own = vars(module).get(name, _MISSING)
    if type(own) is not type(value):
        setattr(module, name, value)
    elif own == value:
        return
    elif isinstance(own, list):  # others may hold it, too
        own[:] = value
    elif isinstance(own, dict | set):
        own.clear()
        own.update(value)
    elif isinstance(own, _NAMESPACES):
        vars(own).clear()
        vars(own).update(vars(value))
    else:
        setattr(module, name, value)


_told: set[str] = set()


def warn_once(notes: Iterable[str]) -> None:
    """Log what workers have found to differ from this process, each once."""
    for note in notes:
        if note not in _told:
            _told.add(note)
            LOG.warning("%s", note)
