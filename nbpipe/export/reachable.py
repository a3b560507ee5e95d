"""Reachable: what a value reaches: live resources, secrets, the user's functions and classes."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import pathlib
import random
import re
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.metadata import packages_distributions
from itertools import islice
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from ..base.format import shortened
from ..base.names import own_kind
from ..base.tree import is_tensor
from ..executors.workers.pickling import CACHED, TooLargeError, by_reference, pickled_bytes
from .argument_names import argument_names
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

_Found = TypeVar("_Found")

# -- Values as they are stored, whatever their classes say -----------------------------------------
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = sysconfig.get_path("stdlib")
_OWN = __name__.partition(".")[0]
_SEQUENCES = (list, tuple, set, frozenset, deque)
_GENERATED = ("__dict__", "__weakref__")
IN_PYTHON = 1 << 9  # flag of a class that a class statement made


def is_library(module: object) -> bool:
    """Return whether a module belongs to Python or is installed; no other is known by its name.

    It depends on the place of its file alone, so that the notebook and a fresh process agree.
    """
    if not isinstance(module, str) or module == "__main__":
        return False
    top = module.partition(".")[0]
    own = top in sys.stdlib_module_names or top in (_OWN, "builtins")
    return own or any(map(is_installed, _places_of(top)))


@functools.cache
def is_local(module: str) -> bool:
    """Return whether a module is a file of the user's own, not a part of an installed package."""
    top = module.partition(".")[0]
    if is_library(module) or not _places_of(top):
        return False
    return top not in packages_distributions()  # of an installed package, in a folder of its own


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    path = pathlib.Path(file)
    return not _INSTALLED.isdisjoint(path.parts) or path.is_relative_to(_STDLIB)


def _places_of(top: str) -> list[str]:
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *(getattr(found, "__path__", None) or ())]
    return [place for place in places if isinstance(place, str)]


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


def of_shell(value: Any) -> Any:
    """Return what a `!` line gives as the plain list or text that it is."""
    if type(value).__module__ == "IPython.utils.text":
        return list(value) if isinstance(value, list) else str(value)
    return value


def holds_pipeline(value: Any) -> bool:
    """Report whether a value is a pipeline, run or loader, or a container of such."""
    inner = value.values() if isinstance(value, dict) else value
    several = isinstance(value, dict | list | tuple)
    return any(hasattr(one, "_export_goal_") for one in (inner if several else (value,)))


def _elements_of(value: Any) -> list[Any]:
    """Return the elements of a sequence or set as they are stored, whatever its class says."""
    kind: Any = next(kind for kind in _SEQUENCES if isinstance(value, kind))
    return list(kind.__iter__(value))


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
_MADE = "create it inside the stage instead"
_WAYS_OUT = {  # by the beginning of module and class
    **dict.fromkeys(("_io.", "mmap."), "open it inside the stage instead"),
    **dict.fromkeys(
        (
            *("socket.", "_socket.", "ssl.", "sqlite3.", "http.client.", "requests.sessions."),
            *("boto3.", "h5py.", "zipfile.ZipFile", "zipfile.Path", "zipfile._path.Path"),
            *("tarfile.TarFile", "shelve.Shelf", "logging.FileHandler"),
            *("_csv.", "csv.DictReader", "csv.DictWriter"),
        ),
        _CONNECTION,
    ),
    **dict.fromkeys(("multiprocessing.", "concurrent.futures.", "asyncio."), _MADE),
    **dict.fromkeys(("matplotlib.figure.", "matplotlib.axes."), _MADE),
    "subprocess.": "start it inside the stage instead",
    "threading.Thread": "start it inside the stage, or in worker_init, instead",
    "tempfile.": "its files end with the notebook: keep them in a folder of their own",
    "ipywidgets.": f"{_NOTEBOOK}, as widget.value",
    **dict.fromkeys(("anywidget.", "traitlets.", "IPython.", "ipykernel."), _NOTEBOOK),
    "distributed.": 'leave it out: executor="dask" takes the client of the process it runs in',
    "tqdm.": "leave the progress bar out: nbpipe.progress() shows one",
}
_WAYS_OUT_OF_OWN = {  # by the kind of nbpipe's object
    "pipeline": "a stage cannot hold a pipeline: pass its items, or join the pipelines",
    "run": "a stage cannot hold a run: take what it needs out of it, as plain values",
}
# What the system opened, wherever it is.
_OPENED = ("socket.", "_socket.", "ssl.", "sqlite3.", "mmap.", "subprocess.", "zipfile.ZipFile")
_CLOSING = ("close", "dispose")
_KINDS: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()
_MOST_BYTES = 1 << 20  # that are pickled to see whether a value can be


def _way_out_of(value: object) -> str | None:
    """Return what to do instead of writing a value that lives in one process; None where it may be.

    Loggers and locks may be written: a module makes its own.
    """
    if isinstance(value, GeneratorType | AsyncGeneratorType | CoroutineType):
        return "write a function that returns it, and call it inside the stage"
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
        return "write a function that returns it, or keep a list"
    return None


def _way_out_of_kind(kind: type) -> str | None:
    if kind not in _KINDS:
        names = (f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__)
        kept = [name for name in names if not _is_harmless(name)]
        ways = (way for name in kept for start, way in _WAYS_OUT.items() if name.startswith(start))
        _KINDS[kind] = _WAYS_OUT_OF_OWN.get(own_kind(kind)) or next(ways, None)
    return _KINDS[kind]


def _is_handle(value: object) -> bool:
    """Return whether a value is what the system opened: a file, a socket, a process."""
    if isinstance(value, io.IOBase):
        return not isinstance(value, io.BytesIO | io.StringIO)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    return any(name.startswith(_OPENED) for name in names)


def _is_connection(value: object) -> bool:
    """Return whether a library's object is to be closed, and cannot be sent to another process.

    Parsers are closed, too, and may be created again.
    """
    kind = type(value)
    top = kind.__module__.partition(".")[0]
    if isinstance(value, type) or not is_library(top) or top in (_OWN, "logging", "threading"):
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


def _is_harmless(name: str) -> bool:
    locks = ("asyncio.locks.", "asyncio.mixins.")  # they belong to a loop once somebody waits
    return name in ("distributed.lock.Lock", "asyncio.events.Handle") or name.startswith(locks)


def kind_of(value: object) -> str:
    """Name a value's type, and the file it belongs to."""
    name = getattr(value, "name", None)
    place = f" on {name!r}" if isinstance(value, io.IOBase) and isinstance(name, str) else ""
    return f"{type(value).__name__}{place}"


def is_generator(value: object) -> bool:
    """Return whether a value draws random numbers: its state moves on as it is used."""
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return True
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    return kind is not None and isinstance(value, kind)


# -- The walk: what a value holds, each object once ------------------------------------------------
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range)
_ENTRIES = ("item", "key", "element")
_WRAPPERS: tuple[tuple[Any, tuple[str, ...]], ...] = (  # and where they keep what they wrap
    ((staticmethod, classmethod), ("__func__",)),
    (property, ("fget", "fset", "fdel")),
    (functools.cached_property, ("func",)),
    (functools.partialmethod, ("func", "args", "keywords")),
    (functools.singledispatchmethod, ("dispatcher",)),
    (CACHED, ("__wrapped__",)),
)


class _Step(NamedTuple):
    """A value on the way.

    Attributes:
        value: it.
        place: an expression.
        name: what it is called there.
        of: the function that it belongs to, in words; empty where that is none.
        is_marked: what the visitor knows of all that is inside something.
        depth: how many things are around it.
    """

    value: Any
    place: str
    name: str = ""
    of: str = ""
    is_marked: bool = False
    depth: int = 0


def _walk(
    start: _Step,
    found: Callable[[_Step], Iterator[_Found]],
    inside: Callable[[_Step], Iterator[_Step]],
    *,
    most: int,
    deepest: int,
) -> Iterator[_Found]:
    """Visit a value, and what it holds, level by level; what cannot be looked at hides no other."""
    steps = deque([start])
    seen: dict[tuple[int, bool], object] = {}
    while steps and most > 0:
        step = steps.popleft()
        key = (id(step.value), step.is_marked)
        if key in seen:
            continue
        most -= 1
        if type(step.value) not in _PLAIN:
            seen[key] = step.value  # kept alive: its id stays its own
        with contextlib.suppress(Exception):  # a class of the user's may refuse to be read
            yield from found(step)
            if step.depth < deepest:
                inner = islice(inside(step), most)
                steps.extend(one._replace(depth=step.depth + 1) for one in inner)


def _parts_of(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return what a container, a function, a class or a wrapper holds, as it is stored.

    Returns:
        How it is held: as "item", "key", "element", "attribute", "default", "captured",
        "argument", "self" or "function", the one inside a wrapper; the key of an item, the name
        or the number of anything else; and it.
    """
    match value:
        case dict() | types.MappingProxyType():
            pairs = list(dict.items(value) if isinstance(value, dict) else value.items())
            yield from (("item", key, one) for key, one in pairs)
            yield from (("key", key, key) for key, _ in pairs)
        case list() | tuple() | deque():
            yield from (("item", at, one) for at, one in enumerate(_elements_of(value)))
        case set() | frozenset():
            yield from (("element", at, one) for at, one in enumerate(_elements_of(value)))
        case FunctionType():
            yield from (("default", *pair) for pair in defaults_of(value))
            yield from (("captured", *pair) for pair in captured_by(value))
            yield from (("attribute", *pair) for pair in vars(value).items())
        case type():
            own = (pair for pair in vars(value).items() if pair[0] not in _GENERATED)
            yield from (("attribute", *pair) for pair in own)
        case MethodType():
            yield from (("self", "", value.__self__), ("function", "", value.__func__))
        case functools.partial():
            yield ("function", "func", value.func)
            named = dict(enumerate(value.args)) | value.keywords
            yield from (("argument", *pair) for pair in named.items())
        case _:
            yield from (("function", "", getattr(value, name)) for name in names_of_wrapped(value))


def names_of_wrapped(value: Any) -> Sequence[str]:
    """Return the attributes by which a wrapper of Python's own holds what it was given."""
    return next((names for kind, names in _WRAPPERS if isinstance(value, kind)), ())


def has_recipe(kind: type) -> bool:
    """Return whether a class says how its instances are pickled."""
    return any(getattr(kind, hook, None) is not getattr(object, hook, None) for hook in _HOOKS)


# -- Handles: what belongs to one process, wherever in a value it is -------------------------------
_LONGEST_KEY = 40
_SKIPPED = (types.ModuleType, types.CodeType, logging.Logger, threading.local, np.generic, np.dtype)
_EXACT = {dict, list, tuple, set, frozenset}
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


def handle_in(name: str, value: object) -> Handle | None:
    """Look for something that lives in one process: an open file, a connection, a thread.

    Containers, attributes, captured variables, defaults and attributes of classes are looked
    through; what an object leaves out when it is pickled does not count.
    """
    found = _walk(_Step(value, name, name), _handle_at, _inside_handle, most=50_000, deepest=32)
    return next(found, None)


# Steps of handles have the name of the whole, and are marked in a library's object, where only
# what the system opened counts. Numbers, texts and their like do not count as looked at.
def _handle_at(step: _Step) -> Iterator[Handle]:
    value = step.value
    if type(value) in _EXACT or (step.depth and (is_tensor(value) or _is_standard(value))):
        return
    way_out = None if step.is_marked and not _is_handle(value) else _way_out_of(value)
    if way_out is not None:
        place = step.place + (f" ({step.of})" if step.of else "")
        attribute = step.place.removeprefix(f"{step.name}.")
        attribute = re.split(r"[.\[]", attribute)[0] if attribute != step.place else ""
        more = _KEPT if step.depth and "open it" in way_out else ""
        yield Handle(place, value, way_out + more, attribute)


def _inside_handle(step: _Step) -> Iterator[_Step]:
    """Return what a value consists of, without what holds nothing."""
    value = step.value
    if isinstance(value, _SKIPPED) or is_tensor(value) or _is_standard(value):
        return
    if isinstance(value, FunctionType | type) and _is_of_library(value):
        return
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield step._replace(place=f"{step.place}[...]", value=value.tolist())
        return
    for how, key, part in _parts_of(value):
        if not _is_empty(part):
            place, of = _placed(step, how, key)
            inside = step.is_marked and how in _ENTRIES
            yield step._replace(value=part, place=place, of=of, is_marked=inside)
    if type(value) not in _EXACT and not isinstance(value, FunctionType | type):
        yield from _kept_by(step)


def _kept_by(step: _Step) -> Iterator[_Step]:
    """Return the attributes of an object: those that it keeps when it is pickled."""
    kind = type(step.value)
    inside = step.is_marked or is_library(kind.__module__)
    if isinstance(step.value, types.SimpleNamespace):
        values, inside = vars(step.value), step.is_marked
    elif not has_recipe(kind):
        values = attributes_of(step.value)
    else:
        values = {} if inside else _reduced(step.value)
    for name, one in values.items():
        yield step._replace(place=f"{step.place}.{name}", value=one, is_marked=inside)


def _is_empty(value: Any) -> bool:
    """Return whether a value is plain, or a container of plain values alone."""
    if type(value) in _EXACT:
        parts = (*value, *value.values()) if type(value) is dict else value
        return all(type(part) in _PLAIN for part in parts)
    return type(value) in _PLAIN


def _is_of_library(value: Any) -> bool:
    return by_reference(value) or (isinstance(value, type) and is_library(value.__module__))


def _is_standard(value: object) -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(value is one for one in streams)


def _placed(step: _Step, how: str, key: Any) -> tuple[str, str]:
    """Return where a part is, and which function it belongs to, in words."""
    match how:
        case "item":
            words = shortened(repr(key), _LONGEST_KEY) if type(key) in _PLAIN else "..."
            words = HIDDEN if isinstance(key, str) and looks_secret(key) else words
            return f"{step.place}[{words}]", step.of
        case "key" | "element":
            return f"{'a key' if how == 'key' else 'an element'} of {step.place}", step.of
        case "argument":
            return str(key), f"an argument of {step.place}"
        case "self":
            return f"{step.place}.__self__", step.of
        case "function":
            return step.place, step.of
    name = getattr(step.value, "__name__", "")
    called = "the lambda" if name == "<lambda>" else f"{name}()"
    if how == "default":
        return key, f"a default of {called}"
    if how == "captured":
        return key, f"captured by {called}"
    return f"{name if isinstance(step.value, FunctionType) else step.place}.{key}", step.of


def _reduced(value: Any) -> dict[str, Any]:
    try:
        state = value.__reduce_ex__(_PROTOCOL)[_STATE]
    except Exception:  # noqa: BLE001  a class of the user's, or one that cannot be pickled
        return {}
    return state if isinstance(state, dict) else {}


# -- Secrets in live values ------------------------------------------------------------------------
_PAIR = 2  # a name and its value
_HEAD = 100_000  # characters of a text that are looked at
_FEW = 64  # numbers of a list, one of which may be a PIN
_CHUNK = 50_000  # texts of an array that are looked at together
_BYTE = 255
# Written by their names, or not at all: what they hold belongs to the process.
_NAMED_ONLY = (logging.Logger, logging.Handler, threading.Thread, io.IOBase)
_SECRET_TYPES = ("SecretStr", "SecretBytes", "Secret")


def secret_in(name: str, value: object) -> str | None:
    """Return what looks like a secret in a variable: "API_KEY", "CONFIG['token']"; else None.

    A text counts by the name of the variable, key, attribute, parameter or field that holds it,
    by its look, and where it holds what is known to be a secret, as one of the environment. At
    most 20,000 values are looked at one by one; arrays whole.
    """
    with knowing():
        return next(_secrets_of(name, value), (None, ""))[0]


def texts_named_as_secrets(name: str, value: object) -> Iterator[str]:
    """Return the texts in a variable that are secrets."""
    return (text for _, text in _secrets_of(name, value) if text)


_SECRET_MOST = 20_000  # values that are looked at
_Secrets = Iterator[tuple[str, str]]  # the place of each, and its text


def _secrets_of(name: str, value: object) -> _Secrets:
    start = _Step(value, name, name)
    return _walk(start, _secrets_at, _inside_secret, most=_SECRET_MOST, deepest=24)


# Steps of secrets are marked in what is named as a secret.
def _secrets_at(step: _Step) -> _Secrets:
    """Return the place of a secret and its text, where a value is one."""
    value, place, name = step.value, step.place, step.name
    if isinstance(value, str | bytes | bytearray):
        text = as_text(value)
        if is_secret("password" if step.is_marked else name, text[:_HEAD]):
            yield place, text
    elif isinstance(value, int | float | complex | None):
        if is_secret_number(name, value):
            yield place, str(value)
    elif type(value).__name__ in _SECRET_TYPES:
        yield place, ""
    else:
        named = _is_named(step)
        is_array = isinstance(value, np.ndarray | np.generic) or is_tensor(value)
        numbers = _as_array(value).ravel()[:_HEAD].tolist() if is_array and named else value
        if named and isinstance(numbers, list | tuple) and is_letters(numbers):
            yield place, bytes(numbers[:_HEAD]).decode("latin-1")
        if is_array:
            yield from _secrets_in_array(step)


def _secrets_in_array(step: _Step) -> _Secrets:
    """Search an array or tensor of texts all at once, and bytes as a text."""
    array = _as_array(step.value)
    if array.dtype.kind in "SU":
        texts = [as_text(one) for one in np.unique(array).tolist()]
        label = "password" if _is_named(step) else step.name
        for at in range(0, len(texts), _CHUNK):
            chunk = texts[at : at + _CHUNK]
            if looks_secret("\n".join(chunk), dense=False):
                yield step.place, ""
            yield from ((step.place, text) for text in chunk if is_secret(label, text[:_HEAD]))
    elif array.dtype.kind != "O" and not array.dtype.names and holds_token(_as_bytes(array)):
        yield step.place, ""


def _is_named(step: _Step) -> bool:
    return step.is_marked or is_secret_name(step.name) or words_of(step.name)[-1:] == ["auth"]


def _as_array(value: Any) -> Any:
    return np.asarray(value.detach().cpu() if is_tensor(value) else value)


def _as_bytes(array: Any) -> bytes:
    """Return the bytes that an array may be made of: its own, or one for each small number."""
    if array.dtype.itemsize == 1 or array.dtype.kind == "V":
        return bytes(array.tobytes())
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > _BYTE:
        return b""
    return bytes(array.astype("uint8").tobytes())


def _inside_secret(step: _Step) -> Iterator[_Step]:
    """Return what a value holds; what has no name there has that of what holds it."""
    if hasattr(type(step.value), "_export_goal_"):  # the stages of a pipeline are looked at apart
        return
    value = step.value
    if isinstance(value, (*_PLAIN, np.generic)):
        return
    named = _is_named(step) or type(value).__name__ in _SECRET_TYPES
    for how, key, part in islice(_named_parts(value), _SECRET_MOST):
        last = key[-1] if isinstance(key, tuple) and key else key  # `{("db", "password"): ...}`
        name = as_text(last) if isinstance(last, str | bytes) and how != "key" else ""
        place, of = (step.place, "") if how == "word" else _placed(step, how, key)
        place += f" ({of})" if of else ""
        yield _Step(part, place, name or step.name, is_marked=named)


def _named_parts(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return what a value holds that may be a secret, as `_parts_of` does."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        array = _as_array(value)
        yield from (("item", field, array[field]) for field in array.dtype.names or ())
        if array.dtype.kind == "O":
            yield from (("item", at, one) for at, one in enumerate(array.ravel()))
    elif _is_pair(value):
        yield from (("word", "", value[0]), ("word", value[0], value[1]))
    elif isinstance(value, list | tuple):
        yield from _said_by(_elements_of(value))
    elif isinstance(value, re.Pattern | pathlib.PurePath):
        yield "word", "", getattr(value, "pattern", str(value))
    elif isinstance(value, BuiltinFunctionType):
        yield "word", "", value.__self__
    else:
        table = isinstance(value, dict) and len(value) > 1 and is_table(dict.values(value))
        names = argument_names(value.func) if isinstance(value, functools.partial) else []
        for how, key, part in _parts_of(value):
            given = isinstance(key, int) and how == "argument" and key < len(names)
            hidden = (table and how == "item") or (how == "attribute" and key.startswith("__"))
            if not (hidden and how == "attribute"):
                yield how, names[key] if given else "" if hidden else key, part
    if not isinstance(value, FunctionType | type | re.Pattern):
        yield from (("attribute", *pair) for pair in _attributes_that_count(value))


def _is_pair(value: Any) -> bool:
    """Return whether a tuple, or a list, is a name and what it stands for."""
    if type(value) not in (tuple, list) or len(value) != _PAIR or not isinstance(value[0], str):
        return False
    return isinstance(value, tuple) or is_secret_name(value[0])


def _said_by(values: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Return the items of a sequence, and what they say as the words of a command."""
    numbers = (int, float, complex, type(None)) if len(values) > _FEW else ()
    yield from (("item", at, one) for at, one in enumerate(values) if type(one) not in numbers)
    texts = [one for one in values if isinstance(one, str)]
    if any(one[:1] == "-" for one in texts):  # as in `["curl", "-u", "me:..."]`
        yield "word", "", " ".join(texts[: 2 * _FEW])


def _attributes_that_count(value: Any) -> Iterator[tuple[str, Any]]:
    """Return attributes as they are stored, of a table of pandas its columns: no property runs."""
    kind = type(value)
    library = hasattr(kind, "__self__") or kind.__module__ in ("builtins", "numpy", "functools")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, tuple.__iter__(value), strict=False)
    if library or isinstance(value, _NAMED_ONLY):
        return
    if kind.__module__.partition(".")[0] == "pandas":
        if hasattr(value, "columns"):
            yield from ((str(name), value[name].to_numpy()) for name in value)
        elif hasattr(value, "to_numpy"):
            yield str(getattr(value, "name", None) or ""), value.to_numpy()
    yield from attributes_of(value).items()
