"""Shipping: what a function takes along to another process.

As bytes that are known by their digest; by name, where it is large or cannot be pickled.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import logging
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice, takewhile
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from cloudpickle import cloudpickle as names

from ...base.format import format_bytes, shortened
from ...base.names import own_kind
from ...base.tree import is_tensor
from ...errors import UnpicklableError
from ..interface import Program
from .memory import SharingPickler, is_mapped, is_shared
from .pickling import CACHED, PROTOCOL, TooLargeError, by_reference, pickled_bytes
from .reloads import Versions, reloaded, versions_in
from .settings import Modules, current_settings, modules_in

LOG = logging.getLogger("nbpipe")
LARGE_BYTES = 1 << 20  # captured data above this is worth a word
_MEASURED_BYTES = 1 << 28  # a value that takes more is not pickled to its end to be measured
_NAMED = 3  # variables in one warning
_DEPTH = 8  # helpers that call helpers
_SEARCH_DEPTH = 12  # levels that a search goes down
_MOST_ITEMS = 10_000  # items of one container that are looked at
_LONGEST = 200  # characters of an error's text

_OWN = __name__.partition(".")[0]
_CODE = (FunctionType, MethodType, functools.partial, type, CACHED)
_CALLABLES = (FunctionType, MethodType, functools.partial, CACHED)
_CONTAINERS = (list, tuple, set, frozenset)
_LOOKED_INTO = ("builtins", "collections", "types")
_ALIVE = ("pipeline", "run")
_INSIDE = ("attribute", "item", "state")

_OTHERWISE = "create it inside the function, or per worker with worker_init"
_CONNECTION = "open it per worker with worker_init; a connection cannot be shared by processes"
_GPU = "capture tensor.cpu(), and let to_device() move batches"
_SHARED = "share a copy of it: tensor.clone().share_memory_()"
_NOTEBOOK = "a worker has no notebook: take what the function needs out of it before"
_WAYS_OUT = {  # by module and class; the first that fits
    "_io.": "open it inside the function, or per worker with worker_init",
    "builtins.generator": "make it inside the function, or use a list: it lives in one process",
    "_thread.": f"{_OTHERWISE}; between processes it would guard nothing",
    "threading.": f"{_OTHERWISE}; between processes it would guard nothing",
    "multiprocessing.": "make it with manager = multiprocessing.Manager(): manager.Value('i', 0), "
    "manager.Lock() or manager.Queue() can be shared",
    "socket.": _CONNECTION,
    "logging.": "use logging.getLogger(name) in the function, and set handlers in worker_init",
    "IPython.": _NOTEBOOK,
    "ipykernel.": _NOTEBOOK,
    f"{_OWN}.": "let the function take what it needs as values: a pipeline lives in its process",
}
_CONNECTIONS = ("Connection", "Engine", "Session", "Client", "Cursor", "Redis")

_warned: set[tuple[str, tuple[_Captured, ...]]] = set()


# -- Programs as bytes -----------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, slots=True)
class SerializedFunction:
    """A program as it is sent to workers.

    Attributes:
        digest: the same for the same functions with the same data, in one process.
        data: for `load`.
        size_bytes: length of `data` [bytes].
        versions: of the user's modules that it needs.
        modules: these, and installed ones whose settings it may depend on.
        settings: of this process, as `current_settings` gives them.
        storages: shared memory of torch that `data` only names; held until it was loaded.
    """

    digest: str
    data: bytes
    size_bytes: int
    versions: Versions = ()
    modules: Modules = dataclasses.field(default_factory=Modules)
    settings: bytes = b""
    storages: tuple[Any, ...] = dataclasses.field(default=(), repr=False, compare=False)


def serialize(value: object, *, stage: str, afar: bool = False) -> SerializedFunction:
    """Pickle a program for other processes.

    Args:
        value: an object that holds the functions.
        stage: address of the stage, for errors.
        afar: they may be on other machines, which share no memory: tensors go as copies.

    Raises:
        UnpicklableError: part of it cannot be pickled; the message names it.
    """
    kept = io.BytesIO()
    pickler = SharingPickler(kept, by_place=not afar)
    try:
        pickler.dump(value)
    except Exception as error:
        raise _refusal(value, stage, error) from error
    data, storages = kept.getvalue(), tuple(pickler.storages.values())
    versions = versions_in(data)
    digest = blake2b(data, digest_size=16)
    digest.update(repr(versions).encode())
    modules = modules_in(data, dict(versions))
    settings = b"" if afar else current_settings(modules)
    return SerializedFunction(
        digest.hexdigest(), data, len(data), versions, modules, settings, storages
    )


def can_be_sent(function: object) -> bool:
    """Return whether other processes can be given a function."""
    if function is None:
        return True
    try:
        SharingPickler(io.BytesIO()).dump(function)
    except Exception:
        return False
    return True


def load(data: bytes) -> Any:
    """Build the program again, in the other process.

    Raises:
        Exception: whatever the unpickling raises: a module is missing there, say.
    """
    return pickle.loads(data)  # noqa: S301  of the process that started this one


def _refusal(value: object, stage: str, error: Exception) -> UnpicklableError:
    """Return what cannot be pickled; a value that cannot even be looked at gets fewer words."""
    try:
        culprit = _find_culprit(value, error)
        stage, what = culprit.stage or stage, _described(culprit)
    except Exception:
        what = f"pickling it failed with {type(error).__name__}"
    return UnpicklableError(f"stage {stage!r} cannot be sent to a process: {what}")


class FunctionSerializer:
    """The program of a caller as bytes: pickled once, and again when it may have changed.

    Args:
        afar: as of `serialize`.
        measures: name once what makes a program large.

    Attributes:
        program: the one that was wanted last, or None.
    """

    def __init__(self, *, afar: bool = False, measures: bool = False) -> None:
        self.program: Program | None = None
        self._afar = afar
        self._measures = measures
        self._versions: Versions = ()  # of modules, as the workers have them
        self._measured = ""  # digest: measuring takes as long as pickling
        self._shipped: SerializedFunction | None = None
        self._lock = threading.Lock()

    def of(self, program: Program) -> SerializedFunction:
        """Return a program as it is sent.

        Raises:
            UnpicklableError: something that it captures cannot be pickled.
        """
        with self._lock:
            if self._shipped is None or self.program is not program:
                self.program = program
                self._shipped = serialize(program, stage=program.label, afar=self._afar)
                if self._afar:
                    self._warn_of_reloads(program.label, self._shipped.versions)
                large = self._measures and self._shipped.size_bytes > LARGE_BYTES
                if large and self._shipped.digest != self._measured:
                    self._measured = self._shipped.digest
                    for stage, fn in program.functions:
                        warn_if_large(fn, stage)
            return self._shipped

    def _warn_of_reloads(self, stage: str, versions: Versions) -> None:
        """Return which modules have been reloaded here, but not in workers that others started."""
        names = reloaded(self._versions, versions)
        if names:
            LOG.warning(
                "stage %r: %s was reloaded here; workers that have imported it keep the old code: "
                "restart them, with client.restart() in Dask, or make a new executor",
                stage,
                ", ".join(names),
            )
        self._versions = versions

    def renew(self) -> None:
        """Pickle the program again when it is needed next: its functions may have changed."""
        with self._lock:
            self._shipped = None


# -- What is large ---------------------------------------------------------------------------------
class _Captured(NamedTuple):
    """A variable that goes along with a function.

    Attributes:
        name: name of the variable.
        kind: "global", "closure", "default", "attribute", "argument", "item", "object" or "state".
        size_bytes: memory it takes when it is sent [bytes].
        type_name: name of its type.
    """

    name: str
    kind: str
    size_bytes: int
    type_name: str


def warn_if_large(fn: object, stage: str) -> None:
    """Tell once which variables make a function large, where they are above 1 MiB together."""
    found = captured(fn)
    total_bytes = sum(one.size_bytes for one in found)
    key = (stage, tuple(found))
    if total_bytes <= LARGE_BYTES or key in _warned:
        return
    _warned.add(key)
    large = [one for one in found[:_NAMED] if one.size_bytes * 10 > total_bytes]
    named = ", ".join(
        f"{one.kind} {one.name!r} ({one.type_name}, {format_bytes(one.size_bytes)})"
        for one in large
    )
    LOG.warning(
        "stage %r sends %s with its function to each worker, once: %s; %s, if that is too much",
        stage,
        format_bytes(total_bytes),
        named,
        getattr(fn, "if_large", "load it in worker_init, or memory-map it"),
    )


def captured(fn: object) -> list[_Captured]:
    """List the variables that are sent with a function, largest first; helpers' included."""
    found = [
        _Captured(part.name, part.kind, _size_bytes(part.value), type(part.value).__name__)
        for part in _data_parts(fn, {id(fn): fn}, 0)
    ]
    return sorted(found, key=lambda one: -one.size_bytes)


def _data_parts(value: object, seen: dict[int, object], depth: int) -> Iterator[_Part]:
    """Return data as it is, and the parts of code."""
    for part in _parts_of(value):
        if id(part.value) in seen:
            continue
        seen[id(part.value)] = part.value
        if depth < _DEPTH and (part.kind == "object" or isinstance(part.value, _CODE)):
            yield from _data_parts(part.value, seen, depth + 1)
        elif not isinstance(part.value, ModuleType):
            yield part


def _size_bytes(value: Any) -> int:
    if is_mapped(value):
        return 0  # the workers map it
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return int(value.nbytes)
    if is_tensor(value) and is_shared(value):
        return 0  # it stays where it is
    if is_tensor(value) and hasattr(value, "untyped_storage"):
        return int(value.untyped_storage().nbytes())  # a view takes all of it along
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    try:
        return pickled_bytes(value, _MEASURED_BYTES)
    except TooLargeError:
        return _MEASURED_BYTES
    except Exception:  # it is not sent at all
        return 0


# -- Which part cannot be pickled ------------------------------------------------------------------
class _Culprit(NamedTuple):
    """What cannot be pickled.

    Attributes:
        stage: address of the stage it belongs to; empty where none is known.
        trail: the parts from the stage's function to it; none where it is the function.
        function: the function or object that the trail starts at.
        role: what it is to the stage.
        error: what pickling it raised.
    """

    stage: str
    trail: Sequence[_Part]
    function: Any
    role: str
    error: BaseException

    @property
    def value(self) -> Any:
        """The thing itself."""
        return self.trail[-1].value if self.trail else self.function


def _find_culprit(program: object, error: BaseException) -> _Culprit:
    """Look for the part of a program that cannot be pickled.

    Args:
        program: what was to be pickled.
        error: what was raised.
    """
    trail = _trail(program, {}, 0) or []
    owners = [program, *(part.value for part in trail)]
    ours = len(list(takewhile(_is_ours, owners)))
    stage = next(filter(None, map(_stage_of, reversed(owners[:ours]))), "")
    function = owners[ours] if ours < len(owners) else owners[-1]
    starts = any(part.name.strip("_") in ("inits", "worker_init") for part in trail[:ours])
    trail = trail[ours:]
    role = "worker_init" if starts else "function"
    return _Culprit(stage, trail, function, role, _error(owners[-1]) or error)


def _stage_of(owner: object) -> str:
    """Return the address that a part of a program, or a pair of address and function, bears."""
    pair = type(owner) is tuple and len(owner) == len(("stage", "function"))
    stage = owner[0] if pair else getattr(owner, "stage", "")  # type: ignore[index]
    return stage if isinstance(stage, str) else ""


def _is_ours(owner: object) -> bool:
    """Return what nbpipe put around the functions from what users brought."""
    module = type(owner).__module__
    return type(owner) in (list, tuple, dict) or module.startswith(f"{_OWN}.")


def _trail(value: object, seen: dict[int, object], depth: int) -> list[_Part] | None:
    """Go down to what has no part that fails; None where all such parts were seen before."""
    seen[id(value)] = value
    if depth == _SEARCH_DEPTH or _is_whole(value):
        return []
    ends = True
    for part in _parts_of(value):
        if _error(part.value) is None:
            continue
        ends = False
        if id(part.value) in seen:
            continue
        rest = _trail(part.value, seen, depth + 1)
        if rest is not None:
            return [part, *rest]
    return [] if ends else None


def _is_whole(value: object) -> bool:
    """Return whether naming a part of this object would not help."""
    module = type(value).__module__
    if module in _LOOKED_INTO or isinstance(value, _CALLABLES):
        return False
    if is_tensor(value):
        return True
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or own_kind(type(value)) in _ALIVE


def _error(value: object) -> BaseException | None:
    try:
        pickled_bytes(value, pickler=SharingPickler)
    except Exception as error:
        return error
    return None


# -- that in words, and the way out ----------------------------------------------------------------
def _described(culprit: _Culprit) -> str:
    """Return what cannot be pickled, and the way out."""
    steps = list(_steps(culprit.trail))
    kind = _kind(culprit.function)
    head = culprit.role if isinstance(culprit.function, _CALLABLES) else f"{culprit.role} ({kind})"
    what = ", which ".join([*steps, "cannot be pickled"])
    return f"its {head} {what}{_reason(culprit.error)}; {_way_out(culprit.value)}"


def _steps(trail: Sequence[_Part]) -> Iterator[str]:
    """Put parts in words; a path inside an object is one step."""
    path = ""
    for at, part in enumerate(trail):
        if part.kind in _INSIDE:
            path += {"attribute": f".{part.name}", "state": ".__getstate__()"}.get(
                part.kind, f"[{part.name}]"
            )
            if at + 1 == len(trail) or trail[at + 1].kind not in _INSIDE:
                yield f"holds {path.removeprefix('.')!r} ({_kind(part.value)})"
                path = ""
        else:
            yield _step(part)


def _step(part: _Part) -> str:
    name, kind = part.name, _kind(part.value)
    words = {
        "global": f"uses the global variable {name!r} ({kind})",
        "closure": f"uses the variable {name!r} ({kind}) of the function around it",
        "default": f"has a default for {name!r} ({kind})",
        "argument": f"was given the argument {name!r} ({kind})",
        "object": f"is the method {name!r} of an object ({kind})",
        "function": f"wraps {name!r} ({kind})",
    }
    return words.get(part.kind, f"holds {name!r} ({kind})")


def _kind(value: object) -> str:
    """Name a type; the standard library's with their module."""
    kind = value if isinstance(value, type) else type(value)
    module, name = kind.__module__, kind.__qualname__
    top = module.partition(".")[0]
    if module in ("builtins", "__main__"):
        return name
    return f"{module}.{name}" if top in sys.stdlib_module_names else f"{top}.{name}"


def _reason(error: BaseException) -> str:
    text = str(error)
    if text.startswith("cannot pickle") or not text:
        return ""
    return f" ({shortened(f'{type(error).__name__}: {text}', _LONGEST)})"


def _way_out(value: object) -> str:
    """Return what to do about a value that cannot be pickled."""
    if getattr(value, "is_cuda", False) is True:
        return _GPU
    if is_shared(value):
        return _SHARED
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    known = next((way for start, way in _WAYS_OUT.items() if name.startswith(start)), None)
    return known or (_CONNECTION if name.endswith(_CONNECTIONS) else _OTHERWISE)


# -- Parts of a function, an object or a container -------------------------------------------------
class _Part(NamedTuple):
    """One thing that another takes along.

    Attributes:
        kind: "global", "closure", "default", "attribute", "item", "argument", "object" (of a
            bound method), "state" (of an object, which is no dict) or "function" (inside
            another callable).
        name: the variable, attribute, key or parameter; of a state, the object's class.
        value: the thing.
    """

    kind: str
    name: str
    value: Any


def _parts_of(value: Any) -> Iterator[_Part]:
    """Return the parts of a value; none where it is sent by its name alone, or is plain."""
    if isinstance(value, FunctionType | type):
        if not by_reference(value):
            yield from _parts_of_code(value)
    elif isinstance(value, MethodType):
        yield _Part("object", value.__func__.__name__, value.__self__)
        yield _Part("function", value.__func__.__name__, value.__func__)
    elif isinstance(value, functools.partial):
        yield _Part("function", _name(value.func), value.func)
        yield from (_Part("argument", str(at), part) for at, part in enumerate(value.args))
        yield from (_Part("argument", name, part) for name, part in value.keywords.items())
    elif type(value) is CACHED:
        if not by_reference(value):
            yield _Part("function", _name(value), value.__wrapped__)
    elif type(value) is dict:
        yield from _pairs(value.items())
    elif type(value) in _CONTAINERS:
        yield from _items(value)
    else:
        yield from _parts_of_object(value)


def _parts_of_code(value: FunctionType | type) -> Iterator[_Part]:
    if isinstance(value, type):
        yield from _attributes(vars(value))
        return
    namespace = value.__globals__
    for name in sorted(names._extract_code_globals(value.__code__)):
        if name in namespace:
            yield _Part("global", name, namespace[name])
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            yield _Part("closure", name, cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    yield from _defaults(value)
    yield from _attributes(vars(value))


def _defaults(function: FunctionType) -> Iterator[_Part]:
    defaults = function.__defaults__ or ()
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    for name, value in (*named, *(function.__kwdefaults__ or {}).items()):
        yield _Part("default", name, value)


def _attributes(values: Any) -> Iterator[_Part]:
    for name, value in list(values.items()):
        if name not in ("__dict__", "__weakref__", "__builtins__"):
            yield _Part("attribute", str(name), value)


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> Iterator[_Part]:
    yield from (_Part("item", _shown(key), value) for key, value in islice(pairs, _MOST_ITEMS))


def _items(values: Iterable[Any]) -> Iterator[_Part]:
    yield from (
        _Part("item", str(at), value) for at, value in enumerate(islice(values, _MOST_ITEMS))
    )


def _parts_of_object(value: Any) -> Iterator[_Part]:
    """Return what the object itself hands to pickle: its state, its arguments, its items."""
    try:
        reduced = value.__reduce_ex__(PROTOCOL)
    except Exception:  # it cannot be pickled: that is where a search ends
        return
    if not isinstance(reduced, tuple):
        return
    arguments, state, items, pairs = (*reduced[1:], None, None, None)[:4]
    if isinstance(state, list) and dataclasses.is_dataclass(value):  # one with slots
        state = dict(zip((field.name for field in dataclasses.fields(value)), state, strict=False))
    for half in state if isinstance(state, tuple) else (state,):  # slots stand in a second dict
        if isinstance(half, dict):
            yield from _attributes(half)
        elif half is not None:
            yield _Part("state", type(value).__name__, half)
    yield from (_Part("argument", str(at), part) for at, part in enumerate(arguments))
    yield from _items(items or ())
    yield from _pairs(pairs or ())


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _shown(key: object) -> str:
    simple = isinstance(key, str | int | float | bool | tuple | type(None))
    return repr(key)[:40] if simple else type(key).__name__
