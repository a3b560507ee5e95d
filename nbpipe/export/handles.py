"""Handles: what belongs to one process or one notebook, wherever in a value it is."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    TracebackType,
)
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.format import shortened
from ..base.tree import is_tensor
from ..executors.pickling import CACHED, TooLargeError, by_reference, pickled_bytes
from .difference import elements, is_library, stored

# -- Living: values that belong to one process or one notebook, and can never be written -----------
_OWN = __name__.partition(".")[0]
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
# Names that IPython puts into a notebook, and keeps filling.
NOTEBOOK_NAMES = frozenset(
    (
        *("In", "Out", "get_ipython", "display", "exit", "quit", "_", "__", "___"),
        *("_i", "_ii", "_iii", "_ih", "_oh", "_dh", "_exit_code", "_sh"),
    )
)
# Names that every module has.
MODULE_NAMES = frozenset(("__name__", "__doc__", "__file__", "__package__", "__spec__"))


def way_out_of(value: object) -> str | None:
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


def is_handle(value: object) -> bool:
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
    import random

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
    return not isinstance(value, _MIXED) and not is_tensor(value) and way_out_of(value) is None


def _has_recipe(kind: type) -> bool:
    return any(getattr(kind, hook, None) is not getattr(object, hook, None) for hook in _HOOKS)


def _first_of(attribute: str) -> str:
    return attribute.partition(".")[0].partition("[")[0]


def _way_out(step: _Step, depth: int) -> str | None:
    value = step.value
    if type(value) in _EXACT or (depth and is_tensor(value)):
        return None
    if step.is_inside and not is_handle(value):
        return None
    return way_out_of(value)


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
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    given = [*zip(names, defaults, strict=False), *(function.__kwdefaults__ or {}).items()]
    for name, one in given:
        yield _Step(name, f"a default of {called}", one)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            one = cell.cell_contents
        except ValueError:  # not bound yet
            continue
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
        pairs = tuple(_plainly(value))
        for key, one in _lively(pairs, dull):
            words = shortened(repr(key), _LONGEST_KEY) if type(key) in _PLAIN else "..."
            yield step._replace(place=f"{step.place}[{words}]", value=one)
        for key, _ in _lively(((key, key) for key, _ in pairs), dull):
            yield step._replace(place=f"a key of {step.place}", value=key)
    elif isinstance(value, list | tuple | deque):
        for at, one in _lively(enumerate(elements(value)), dull):
            yield step._replace(place=f"{step.place}[{at}]", value=one)
    elif isinstance(value, _SETS):
        for _, one in _lively(enumerate(elements(value)), dull):
            yield step._replace(place=f"an element of {step.place}", value=one)


def _plainly(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Return the items of a mapping as they are stored, whatever its class says."""
    yield from dict.items(value) if isinstance(value, dict) else value.items()


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
        values = stored(step.value)
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
