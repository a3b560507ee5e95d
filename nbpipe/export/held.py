"""Held: what a value holds: handles of its process, secrets, the user's functions and classes."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import pathlib
import random
import re
import sys
import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice, pairwise, zip_longest
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.format import shortened
from ..base.tree import is_tensor
from ..executors.pickling import CACHED, TooLargeError, by_reference, pickled_bytes
from .secrets import (
    HIDDEN,
    as_text,
    holds_token,
    is_letters,
    is_secret,
    is_secret_name,
    is_secret_number,
    is_table,
    knowing,
    looks_secret,
    words_of,
)

# -- Values as they are stored, whatever their classes say -----------------------------------------
_INSTALLED = ("site-packages", "dist-packages")
_OWN = __name__.partition(".")[0]
_SEQUENCES = (list, tuple, set, frozenset, deque)
IN_PYTHON = 1 << 9  # flag of a class that a class statement made


def is_library(module: object) -> bool:
    """Tell whether a module belongs to Python or is installed; no other is known by its name.

    It depends on the place of its file alone, so that the notebook and a fresh process agree.
    """
    if not isinstance(module, str) or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in (_OWN, "builtins"):
        return True
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *(getattr(found, "__path__", None) or ())]
    return any(mark in str(place) for place in places for mark in _INSTALLED)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object as they are stored, without cached properties."""
    found: dict[str, Any] = {}
    with contextlib.suppress(AttributeError):  # it may have slots only
        found.update(object.__getattribute__(value, "__dict__"))
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, functools.cached_property):
                found.pop(name, None)
            elif isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # not set
                    continue
    return found


def _elements_of(value: Any) -> list[Any]:
    """Return the elements of a sequence or set as they are stored, whatever its class says."""
    kind: Any = next(kind for kind in _SEQUENCES if isinstance(value, kind))
    return list(kind.__iter__(value))


def _pairs_of(value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping; those of a dict as they are stored."""
    return dict.items(value) if isinstance(value, dict) else value.items()


def defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return the parameters of a function that have a default, each with it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from zip(names, defaults, strict=False)
    yield from sorted((function.__kwdefaults__ or {}).items())


def captured_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return the variables that a function captured and that are bound, each with its value."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents


# -- Living: values that belong to one process or one notebook, and can never be written -----------
_CONNECTION = "open it inside the stage, or in worker_init, instead"
_NOTEBOOK = "take what the stage needs out of it, as plain values"
_WAYS_OUT = {  # by the beginning of module and class
    "_io.": "open it inside the stage instead",
    "socket.": _CONNECTION,
    "_socket.": _CONNECTION,
    "ssl.": _CONNECTION,
    "sqlite3.": _CONNECTION,
    "http.client.": _CONNECTION,
    "requests.sessions.": _CONNECTION,
    "boto3.": _CONNECTION,
    "h5py.": _CONNECTION,
    "zipfile.ZipFile": _CONNECTION,
    "zipfile.Path": _CONNECTION,
    "zipfile._path.Path": _CONNECTION,
    "tarfile.TarFile": _CONNECTION,
    "shelve.Shelf": _CONNECTION,
    "logging.FileHandler": _CONNECTION,
    "_csv.": _CONNECTION,
    "csv.DictReader": _CONNECTION,
    "csv.DictWriter": _CONNECTION,
    "subprocess.": "start it inside the stage instead",
    "threading.Thread": "start it inside the stage, or in worker_init, instead",
    "multiprocessing.": "make it inside the stage instead",
    "concurrent.futures.": "make it inside the stage instead",
    "asyncio.": "make it inside the stage instead",
    "tempfile.": "its files end with the notebook: keep them in a folder of their own",
    "mmap.": "open it inside the stage instead",
    "ipywidgets.": f"{_NOTEBOOK}, as widget.value",
    "anywidget.": _NOTEBOOK,
    "traitlets.": _NOTEBOOK,
    "IPython.": _NOTEBOOK,
    "ipykernel.": _NOTEBOOK,
    "distributed.": 'leave it out: executor="dask" takes the client of the process it runs in',
    "tqdm.": "leave the progress bar out: nbpipe.progress() shows one",
    "matplotlib.figure.": "make it inside the stage instead",
    "matplotlib.axes.": "make it inside the stage instead",
    f"{_OWN}.pipeline.": "a stage cannot hold a pipeline: give its items, or join pipelines",
    f"{_OWN}.run.": "a stage cannot hold a run: take what it needs out of it, as plain values",
}
# What the system opened, wherever it is.
_OPENED = ("socket.", "_socket.", "ssl.", "sqlite3.", "mmap.", "subprocess.", "zipfile.ZipFile")
_CLOSING = ("close", "dispose")
_KINDS: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()
_MOST_BYTES = 1 << 20  # that are pickled to see whether a value can be


def _way_out_of(value: object) -> str | None:
    """Tell what to do instead of writing a value that lives in one process; None where it may be.

    Loggers and locks may be written: a module makes its own.
    """
    if isinstance(value, GeneratorType | AsyncGeneratorType | CoroutineType):
        return "write a function that makes it, and call that inside the stage"
    if isinstance(value, FrameType | TracebackType):
        return "leave it out"
    if isinstance(value, io.IOBase):
        return _WAYS_OUT["_io."]
    if is_tensor(value) and value.is_cuda:  # type: ignore[attr-defined]
        return "keep tensor.cpu() in the variable instead"
    found = _way_out_of_kind(type(value))
    if found is not None:
        return found
    if _is_connection(value):
        return _CONNECTION
    if isinstance(value, Iterator | AsyncIterator) and type(value).__module__ == "builtins":
        return "write a function that makes it, or keep a list"
    return None


def _way_out_of_kind(kind: type) -> str | None:
    if kind not in _KINDS:
        names = (f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__)
        kept = [name for name in names if not _is_harmless(name)]
        ways = (way for name in kept for start, way in _WAYS_OUT.items() if name.startswith(start))
        _KINDS[kind] = next(ways, None)
    return _KINDS[kind]


def _is_handle(value: object) -> bool:
    """Tell whether a value is what the system opened: a file, a socket, a process."""
    if isinstance(value, io.IOBase):
        return not isinstance(value, io.BytesIO | io.StringIO)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    return any(name.startswith(_OPENED) for name in names)


def _is_connection(value: object) -> bool:
    """Tell whether a library's object is to be closed, and cannot be sent to another process.

    Parsers are closed, too, and may be made anew.
    """
    kind = type(value)
    if isinstance(value, type) or not is_library(kind.__module__) or _is_local(kind):
        return False
    if not any(callable(getattr(kind, name, None)) for name in _CLOSING) or hasattr(kind, "feed"):
        return False
    try:
        pickled_bytes(value, _MOST_BYTES)
    except TooLargeError:
        return False
    except Exception:  # noqa: BLE001  whatever a library raises
        return True
    return False


def _is_local(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in (_OWN, "logging", "threading")


def _is_harmless(name: str) -> bool:
    return name in ("distributed.lock.Lock", "asyncio.events.Handle")


def kind_of(value: object) -> str:
    """Name a value's type, and the file it belongs to."""
    name = getattr(value, "name", None)
    place = f" on {name!r}" if isinstance(value, io.IOBase) and isinstance(name, str) else ""
    return f"{type(value).__name__}{place}"


def is_generator(value: object) -> bool:
    """Tell whether a value draws random numbers: its state moves on as it is used."""
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return True
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    return kind is not None and isinstance(value, kind)


# -- Handles: what belongs to one process, wherever in a value it is -------------------------------
_BUDGET = 50_000  # values that are looked at, besides numbers, texts and their like
_DEPTH = 32
_LONGEST_KEY = 40
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range)
_SETS = (set, frozenset)
_SKIPPED = (types.ModuleType, types.CodeType, logging.Logger, threading.local, np.generic, np.dtype)
_EXACT = {dict, list, tuple, set, frozenset}
_MIXED = (io.IOBase, Iterator)  # some of a type are handles, others are not
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__")
_CALLABLES = (
    *(FunctionType, type, types.MethodType, functools.partial, CACHED, types.MappingProxyType),
    types.SimpleNamespace,
)
_PROTOCOL = 4
_STATE = 2  # place of the state in what `__reduce_ex__` gives
_KEPT = ", or in a function under @functools.cache, which opens it once in each process"


class Handle(NamedTuple):
    """A handle, and where it is.

    Attributes:
        place: as "RES['db']"; the name alone where the value itself is one.
        value: it.
        way_out: what to do instead.
        attribute: the attribute of the value that leads there; empty where none does.
    """

    place: str
    value: object
    way_out: str
    attribute: str = ""

    @property
    def words(self) -> str:
        """What is wrong, and the way out."""
        return f"{self.place} is a live {kind_of(self.value)}; {self.way_out}"


class _Step(NamedTuple):
    """A value on the way.

    Attributes:
        place: an expression.
        of: the function that it belongs to, in words; empty where that is none.
        value: it.
        is_inside: it belongs to a library's object, where only what the system opened counts.
    """

    place: str
    of: str
    value: Any
    is_inside: bool = False


def handle_in(name: str, value: object) -> Handle | None:
    """Look for something that lives in one process: an open file, a connection, a thread.

    Containers, attributes, captured variables, defaults and attributes of classes are looked
    through; what an object leaves out when it is pickled does not count.

    Args:
        name: what the value is called.
        value: anything.
    """
    seen: dict[int, object] = {}
    dull = set(_PLAIN)  # types of values that hold nothing
    steps = deque([(_Step(name, "", value), 0)])
    while steps and len(seen) < _BUDGET:
        step, depth = steps.popleft()
        if type(step.value) in dull or id(step.value) in seen:
            continue
        seen[id(step.value)] = step.value  # kept alive: its id stays its own
        if depth and any(step.value is one for one in _standard()):
            continue
        way_out = _way_out(step, depth)
        if way_out is not None:
            place = step.place + (f" ({step.of})" if step.of else "")
            attribute = step.place[len(name) + 1 :] if step.place.startswith(f"{name}.") else ""
            more = _KEPT if depth and "open it" in way_out else ""
            return Handle(place, step.value, way_out + more, _first_of(attribute))
        if depth < _DEPTH:
            with contextlib.suppress(Exception):  # a class of the user's may refuse to be read
                steps += [(inner, depth + 1) for inner in _inside(step, dull)]
    return None


def _lively(values: Iterable[tuple[Any, Any]], dull: set[type]) -> Iterator[tuple[Any, Any]]:
    """Leave out values that hold nothing, each with its place; note their types.

    Args:
        values: places and values.
        dull: types of values that hold nothing.
    """
    for place, one in values:
        kind = type(one)
        if kind in (list, tuple):
            is_empty = all(_is_noted(part, dull) for part in one)
        elif kind is dict:
            is_empty = all(_is_noted(part, dull) for pair in one.items() for part in pair)
        else:
            is_empty = _is_noted(one, dull)
        if not is_empty:
            yield place, one


def _is_noted(value: object, dull: set[type]) -> bool:
    """Tell whether a value holds nothing, and note its type."""
    kind = type(value)
    if kind not in dull and kind not in _EXACT and _is_dull(value):
        dull.add(kind)
    return kind in dull


def _is_dull(value: object) -> bool:
    """Tell whether values of a type hold nothing: a library's, which says how it is made again."""
    kind = type(value)
    looked_into = (dict, list, tuple, deque, *_SETS, *_CALLABLES, np.ndarray)
    if not _has_recipe(kind) or not is_library(kind.__module__) or issubclass(kind, looked_into):
        return False
    return not isinstance(value, _MIXED) and not is_tensor(value) and _way_out_of(value) is None


def _has_recipe(kind: type) -> bool:
    return any(getattr(kind, hook, None) is not getattr(object, hook, None) for hook in _HOOKS)


def _first_of(attribute: str) -> str:
    return attribute.partition(".")[0].partition("[")[0]


def _way_out(step: _Step, depth: int) -> str | None:
    value = step.value
    if type(value) in _EXACT or (depth and is_tensor(value)):
        return None
    if step.is_inside and not _is_handle(value):
        return None
    return _way_out_of(value)


def _standard() -> tuple[object, ...]:
    return (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)


def _inside(step: _Step, dull: set[type]) -> Iterator[_Step]:
    """Return what a value consists of."""
    value = step.value
    if type(value) in _EXACT:
        yield from _of_container(step, dull)
    elif isinstance(value, _SKIPPED) or is_tensor(value):
        return
    elif isinstance(value, FunctionType):
        yield from _of_function(step)
    elif isinstance(value, type):
        yield from _of_class(step)
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield step._replace(place=f"{step.place}[...]", value=value.tolist())
    else:
        yield from _of_container(step, dull)
        yield from _of_wrapper(step)
        yield from _of_object(step)


def _of_function(step: _Step) -> Iterator[_Step]:
    function: FunctionType = step.value
    if by_reference(function):
        return
    called = "the lambda" if function.__name__ == "<lambda>" else f"{function.__name__}()"
    for name, one in defaults_of(function):
        yield _Step(name, f"a default of {called}", one)
    for name, one in captured_by(function):
        yield _Step(name, f"captured by {called}", one)
    for name, one in vars(function).items():
        yield _Step(f"{function.__name__}.{name}", step.of, one)


def _of_class(step: _Step) -> Iterator[_Step]:
    if by_reference(step.value) or is_library(step.value.__module__):
        return
    for name, one in vars(step.value).items():
        if name not in ("__dict__", "__weakref__"):
            yield _Step(f"{step.place}.{name}", step.of, one)


def _of_container(step: _Step, dull: set[type]) -> Iterator[_Step]:
    value = step.value
    if isinstance(value, dict | types.MappingProxyType):
        pairs = tuple(_pairs_of(value))
        for key, one in _lively(pairs, dull):
            words = shortened(repr(key), _LONGEST_KEY) if type(key) in _PLAIN else "..."
            yield step._replace(place=f"{step.place}[{words}]", value=one)
        for key, _ in _lively(((key, key) for key, _ in pairs), dull):
            yield step._replace(place=f"a key of {step.place}", value=key)
    elif isinstance(value, list | tuple | deque):
        for at, one in _lively(enumerate(_elements_of(value)), dull):
            yield step._replace(place=f"{step.place}[{at}]", value=one)
    elif isinstance(value, _SETS):
        for _, one in _lively(enumerate(_elements_of(value)), dull):
            yield step._replace(place=f"an element of {step.place}", value=one)


def _of_wrapper(step: _Step) -> Iterator[_Step]:
    """Return the functions, and what they are given, inside a callable or a descriptor."""
    value, place = step.value, step.place
    match value:
        case functools.partial():
            yield _Step(place, step.of, value.func)
            named = {str(at): one for at, one in enumerate(value.args)} | value.keywords
            for name, one in named.items():
                yield _Step(name, f"an argument of {place}", one)
        case types.MethodType():
            yield _Step(f"{place}.__self__", step.of, value.__self__)
            yield _Step(place, step.of, value.__func__)
        case staticmethod() | classmethod():
            yield _Step(place, step.of, value.__func__)
        case property():
            for one in (value.fget, value.fset, value.fdel):
                yield _Step(place, step.of, one)
        case functools.cached_property():
            yield _Step(place, step.of, value.func)
        case functools.partialmethod():
            for one in (value.func, value.args, value.keywords):
                yield _Step(place, step.of, one)
        case functools.singledispatchmethod():
            yield _Step(place, step.of, value.dispatcher)
        case CACHED():
            yield _Step(place, step.of, value.__wrapped__)


def _of_object(step: _Step) -> Iterator[_Step]:
    """Return the attributes of an object: those that it keeps when it is pickled."""
    kind = type(step.value)
    inside = step.is_inside or is_library(kind.__module__)
    if isinstance(step.value, types.SimpleNamespace):
        values, inside = vars(step.value), step.is_inside
    elif not _has_recipe(kind):
        values = attributes_of(step.value)
    elif inside:
        values = {}
    else:
        values = _reduced(step.value)
    for name, one in values.items():
        yield step._replace(place=f"{step.place}.{name}", value=one, is_inside=inside)


def _reduced(value: Any) -> dict[str, Any]:
    try:
        state = value.__reduce_ex__(_PROTOCOL)[_STATE]
    except Exception:  # noqa: BLE001  a class of the user's, or one that cannot be pickled
        return {}
    return state if isinstance(state, dict) else {}


# -- Secrets in live values ------------------------------------------------------------------------
_PAIR = 2  # a name and its value
_HEAD = 100_000  # characters of a text that are looked at
_SECRET_MOST = 20_000  # values that are looked at
_SECRET_DEPTH = 24  # levels of nesting
_FEW = 64  # numbers of a list, one of which may be a PIN
_CHUNK = 50_000  # texts of an array that are looked at together
_BYTE = 255
# Written by their names, or not at all: what they hold belongs to the process.
_NAMED_ONLY = (logging.Logger, logging.Handler, threading.Thread, io.IOBase)
_SECRET_TYPES = ("SecretStr", "SecretBytes", "Secret")


def secret_in(name: str, value: object) -> str | None:
    """Tell what looks like a secret in a variable: "API_KEY", "CONFIG['token']"; None if nothing.

    A text counts by the name of the variable, key, attribute, parameter or field that holds it,
    by its look, and where it holds what is known to be a secret, as one of the environment. At
    most 20,000 values are looked at one by one; arrays whole.

    Args:
        name: of the variable.
        value: what it holds.
    """
    with knowing():
        return next(_Search().search(name, name, value, 0, named=False), (None, ""))[0]


def texts_named_as_secrets(name: str, value: object) -> Iterator[str]:
    """Return the texts in a variable that are secrets.

    Args:
        name: of the variable.
        value: what it holds.
    """
    return (text for _, text in _Search().search(name, name, value, 0, named=False) if text)


_Secrets = Iterator[tuple[str, str]]  # where a secret stands, and the text


class _Search:
    """One search; each object is looked at once."""

    def __init__(self) -> None:
        self._left = _SECRET_MOST
        self._seen: dict[int, object] = {}

    def search(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> _Secrets:
        """Search a value that stands at `path`; `named`: what holds it is named as a secret."""
        self._left -= 1
        if self._left < 0 or depth > _SECRET_DEPTH:
            return
        try:
            yield from self._search(path, name, value, depth, named=named)
        except Exception:  # noqa: BLE001 - one that cannot be looked at hides no other
            return

    def _search(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> _Secrets:
        if isinstance(value, str | bytes | bytearray):
            text = as_text(value)
            if is_secret("password" if named else name, text[:_HEAD]):
                yield path, text
        elif isinstance(value, int | float | complex | None):
            if is_secret_number(name, value):
                yield path, str(value)
        elif type(value).__name__ in _SECRET_TYPES:
            yield path, ""
        elif id(value) not in self._seen or named:
            self._seen[id(value)] = value  # kept alive: its id stays its own
            yield from self._search_parts(path, name, value, depth, named=named)

    def _search_parts(
        self, path: str, name: str, value: Any, depth: int, *, named: bool
    ) -> _Secrets:
        named = named or is_secret_name(name) or words_of(name) == ["auth"]
        if named and is_letters(value):
            yield path, bytes(np.asarray(value).ravel().tolist()).decode("latin-1")
        if isinstance(value, np.ndarray | np.generic) or is_tensor(value):
            yield from self._search_array(path, name, value, depth, named=named)
            return
        parts = _parts(value)
        while True:
            try:
                step, inner, part = next(parts)
            except StopIteration:
                return
            if self._left < 0:
                return
            yield from self.search(f"{path}{step}", inner or name, part, depth + 1, named=named)

    def _search_array(
        self, path: str, name: str, value: Any, depth: int, *, named: bool
    ) -> _Secrets:
        """Search an array or tensor: texts all at once, objects one by one, bytes as a text."""
        array = np.asarray(value.detach().cpu() if is_tensor(value) else value)
        fields = array.dtype.names or ()
        for field in fields:
            yield from self.search(f"{path}[{field!r}]", field, array[field], depth, named=named)
        if array.dtype.kind == "O":
            for at, part in enumerate(array.ravel()):
                yield from self.search(f"{path}[{at}]", name, part, depth + 1, named=named)
        elif array.dtype.kind in "SU":
            texts = [as_text(one) for one in np.unique(array).tolist()]
            label = "password" if named else name
            for at in range(0, len(texts), _CHUNK):
                chunk = texts[at : at + _CHUNK]
                if looks_secret("\n".join(chunk), dense=False):
                    yield path, ""
                yield from ((path, text) for text in chunk if is_secret(label, text[:_HEAD]))
        elif not fields and holds_token(_as_bytes(array)):
            yield path, ""


def _as_bytes(array: Any) -> bytes:
    """Return the bytes that an array may be made of: its own, or one for each small number."""
    if array.dtype.itemsize == 1 or array.dtype.kind == "V":
        return bytes(array.tobytes())
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > _BYTE:
        return b""
    return bytes(array.astype("uint8").tobytes())


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Return what a value holds: how it is reached, the name it has there, the part."""
    if isinstance(value, dict):  # as it is stored: the methods of a subclass may do anything
        yield from _parts_of_mapping(list(dict.items(value)))
    elif isinstance(value, Mapping):
        yield from _parts_of_foreign_mapping(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from _attributes(zip(value._fields, tuple.__iter__(value), strict=False))
    elif _is_pair(value):
        yield from (("[0]", "", value[0]), ("[1]", value[0], value[1]))
    elif isinstance(value, _SEQUENCES):
        yield from _parts_of_sequence(_elements_of(value))
    elif isinstance(value, functools.partial):
        yield from ((f"({name})", name, part) for name, part in value.keywords.items())
        yield from _parts_given(value)
        yield "", "", value.func
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType | BuiltinFunctionType):
        yield "", "", value.__self__
    elif isinstance(value, re.Pattern):
        yield "", "", value.pattern
    elif isinstance(value, pathlib.PurePath):
        yield "", "", str(value)
    else:
        yield from _parts_of_object(value)
    if isinstance(value, dict | list | tuple | set | frozenset | Mapping):
        yield from _attributes(attributes_of(value).items())


def _is_pair(value: Any) -> bool:
    """Tell whether a tuple, or a list, is a name and what it stands for."""
    if type(value) not in (tuple, list) or len(value) != _PAIR or not isinstance(value[0], str):
        return False
    return isinstance(value, tuple) or is_secret_name(value[0])


def _parts_of_mapping(pairs: list[tuple[Any, Any]]) -> Iterator[tuple[str, str, Any]]:
    table = len(pairs) > 1 and is_table(part for _, part in pairs)
    for key, part in pairs:
        last = (
            key[-1] if isinstance(key, tuple) and key else key
        )  # as in `{("db", "password"): ...}`
        text = as_text(last) if isinstance(last, str | bytes) else ""
        yield f"[{_key(key)}]", "" if table else text, part
        if isinstance(key, str | bytes | tuple):
            yield " (a key)", "", key


def _parts_of_foreign_mapping(value: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    try:
        pairs = list(islice(value.items(), _SECRET_MOST))
    except Exception:  # noqa: BLE001 - what it holds is looked at as it is stored
        return
    yield from _parts_of_mapping(pairs)


def _parts_of_sequence(values: list[Any]) -> Iterator[tuple[str, str, Any]]:
    numbers = (int, float, complex, type(None)) if len(values) > _FEW else ()
    yield from ((f"[{at}]", "", one) for at, one in enumerate(values) if type(one) not in numbers)
    for at, (flag, part) in enumerate(pairwise(values)):
        if isinstance(flag, str) and flag[:1] == "-" and isinstance(part, str):
            yield f"[{at + 1}]", "", f"{flag} {part}"  # as in `["curl", "-u", "me:..."]`
    texts = [one for one in values[:_FEW] if isinstance(one, str)]
    if any(one[:1] == "-" for one in texts):
        yield "", "", " ".join(texts)


def _parts_given(value: functools.partial[Any]) -> Iterator[tuple[str, str, Any]]:
    """Return the arguments of a partial that have no name in it, as its function calls them."""
    code = getattr(value.func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
    for at, (part, name) in enumerate(zip_longest(value.args, names[: len(value.args)])):
        yield f"({name or at})", name or "", part


def _key(key: object) -> str:
    shown = repr(key) if isinstance(key, str | int | float | bytes) else type(key).__name__
    return HIDDEN if isinstance(key, str) and looks_secret(key) else shown[:60]


def _attributes(pairs: Any) -> Iterator[tuple[str, str, Any]]:
    return ((f".{name}", str(name), part) for name, part in pairs)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    yield from ((f"({name})", name, part) for name, part in defaults_of(function))
    yield from ((f" ({name})", name, part) for name, part in captured_by(function))


def _parts_of_object(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Return attributes as they are stored: no property runs."""
    if isinstance(value, type):
        public = [pair for pair in vars(value).items() if not pair[0].startswith("__")]
        yield from _attributes(public)
        return
    if hasattr(type(value), "__self__") or type(value).__module__ in ("builtins", "numpy"):
        return
    if isinstance(value, _NAMED_ONLY):
        return
    if type(value).__module__.partition(".")[0] == "pandas":
        yield from _parts_of_frame(value)
    yield from _attributes(attributes_of(value).items())


def _parts_of_frame(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Return the columns of a table of pandas, or the values of one."""
    if hasattr(value, "columns"):
        yield from ((f"[{_key(name)}]", str(name), value[name].to_numpy()) for name in value)
    elif hasattr(value, "to_numpy"):
        yield "", str(getattr(value, "name", None) or ""), value.to_numpy()


# -- Code: the user's functions and classes that a value holds, as registries do -------------------
_NESTED = 3  # levels of containers
_MOST_HELD = 1000  # items of one


class _HeldCode(NamedTuple):
    """A function or class that a container or an object holds.

    Attributes:
        place: where it is, as "['crop']" or ".known['crop']".
        value: it.
    """

    place: str
    value: Any


def held_in(value: Any, place: str = "", depth: int = 0) -> Iterator[_HeldCode]:
    """Return the functions and classes that a value holds."""
    if isinstance(value, FunctionType | type) or _is_cached(value):
        if depth:
            yield _HeldCode(place, value)
    elif depth >= _NESTED:
        return
    elif isinstance(value, functools.partial):
        yield from held_in(value.func, f"{place}.func", depth + 1)
    elif isinstance(value, dict):
        for key, one in islice(dict.items(value), _MOST_HELD):
            yield from held_in(one, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple | set | deque):
        for at, one in enumerate(_elements_of(value)[:_MOST_HELD]):
            yield from held_in(one, f"{place}[{at}]", depth + 1)
    elif type(value).__flags__ & IN_PYTHON and not by_reference(type(value)):
        for name, one in attributes_of(value).items():
            yield from held_in(one, f"{place}.{name}", depth + 1)


def members_of(kind: type) -> dict[str, Any]:
    """Return the attributes of a class that are none of its own methods."""
    return {
        name: one
        for name, one in vars(kind).items()
        if not isinstance(one, FunctionType) or one.__name__ == one.__qualname__
    }


def _is_cached(value: Any) -> bool:
    return isinstance(value, CACHED) and hasattr(value, "__name__")
