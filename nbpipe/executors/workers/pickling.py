"""Pickling for other processes: what goes by name, what by value, and what beside the bytes."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from multiprocessing import resource_tracker
from pickle import PickleBuffer
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast, final
from weakref import WeakKeyDictionary, WeakSet

import cloudpickle
import numpy as np
from cloudpickle import cloudpickle as names

from ...errors import ArgumentTypeError, UnpicklableError

PROTOCOL = 5
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a `class` statement, not in C
CACHED: Any = type(functools.lru_cache(len))

_EVERYWHERE = sys.stdlib_module_names | {__name__.partition(".")[0]}
_FINDERS = (BuiltinImporter, FrozenImporter, PathFinder)
_REGISTRY = threading.RLock()  # cloudpickle's list of modules is the process's
_NAMED = (FunctionType, type)
_importable: set[tuple[object, ...]] = set()  # modules found so far, and what was true then
_AT_HOME: WeakSet[type] = WeakSet()  # classes of this process that others know
_RECEIVED: WeakSet[type] = WeakSet()  # classes of other processes
_FULL = 6  # parts that a reducer may return
SMALL_BYTES = 2048  # buffers below this are pickled with the rest
_MAIN = b"__main__"
_FRAME_BYTES = 1 << 16  # a pickler writes what is longer apart from its frames
_FRAME_STARTS = (b"\x80", b"\x95")

_Parts = list[bytes | memoryview]
_Reduced = str | tuple[Any, ...]
_Definition = tuple[str, bytes]


# -- Pickling for other processes: cloudpickle, and what it leaves to be decided -------------------
# Functions and classes go by name where a fresh process would find the same module, and by value
# where it would not: in a notebook's cells, in a script, in a file that was loaded by its path.
def dumps(value: object, pickler: Callable[..., Pickler] | None = None) -> bytes:
    """Pickle `value`, with all its data in it; by `Pickler`, if no other is given.

    Raises:
        Exception: whatever the pickling of one of its parts raises.
    """
    kept = io.BytesIO()
    (pickler or Pickler)(kept).dump(value)
    return kept.getvalue()


def pickled_bytes(
    value: object, limit_bytes: int | None = None, pickler: Callable[..., Pickler] | None = None
) -> int:
    """Count the bytes of `value` pickled, without keeping them.

    Raises:
        TooLargeError: it takes more than `limit_bytes`.
        Exception: as of `dumps`.
    """
    sink = _CountingSink(limit_bytes)
    (pickler or Pickler)(sink).dump(value)
    return sink.size_bytes


class TooLargeError(Exception):
    """More bytes than allowed; it never leaves this package."""


class _CountingSink:
    """Takes pickled bytes, counts them, and refuses more than allowed."""

    __slots__ = ("_limit_bytes", "size_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self.size_bytes = 0

    def write(self, data: Any, /) -> None:
        """Take the next bytes."""
        self.size_bytes += memoryview(data).nbytes
        if self._limit_bytes is not None and self.size_bytes > self._limit_bytes:
            raise TooLargeError


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no annotations
    """cloudpickle, with modules that another process cannot import sent by value.

    A class that is sent by value and comes back is the class that it was, and is left as it is.
    """

    def __init__(self, file: object, protocol: int = PROTOCOL, buffer_callback: Any = None) -> None:
        super().__init__(file, protocol=protocol, buffer_callback=buffer_callback)
        self._seen: set[str] = set()
        self._registered: list[ModuleType] = []

    def dump(self, obj: object) -> None:
        """Pickle an object, one at a time in this process."""
        with _REGISTRY:
            try:
                super().dump(obj)
            finally:
                for module in self._registered:
                    cloudpickle.unregister_pickle_by_value(module)
                self._registered.clear()
                self._seen.clear()

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled; called for all but the plainest ones."""
        if isinstance(obj, _NAMED):
            self._note(getattr(obj, "__module__", None))
        elif isinstance(obj, ModuleType):
            self._note(obj.__name__)
        elif type(obj) is CACHED and not by_reference(obj):
            return _cached, (obj.__wrapped__, *obj.cache_parameters().values())
        elif type(obj) is functools.cached_property:
            return _cached_property, (obj.func, obj.attrname)
        elif isinstance(obj, CodeType):
            return _reduce_code(obj)
        elif isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdin, sys.stdout, sys.stderr):
            raise pickle.PicklingError("cannot pickle an open file")  # cloudpickle would read it
        elif _on_gpu(obj):
            raise pickle.PicklingError(f"cannot pickle a tensor on {obj.device}")
        elif _is_torchs(obj, "Tensor"):
            return _reduce_any_tensor(obj)
        elif _is_torchs(obj, "UntypedStorage"):
            return _reduce_storage(obj)
        elif _delegates(type(obj)):
            return _with_plain_state(obj)
        reduced = super().reducer_override(obj)
        by_value = isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == _FULL
        return _with_our_setter(obj, reduced) if by_value else reduced

    def _note(self, name: object) -> None:
        if not isinstance(name, str) or name in self._seen:
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        if module is None or name == "__main__" or importable(name) or _is_registered(name):
            return
        with contextlib.suppress(ValueError):  # registered under another name
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def _with_our_setter(kind: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    if kind not in _RECEIVED:
        _AT_HOME.add(kind)
    make, how, state, _, _, setter = reduced
    if "__slots__" in vars(kind) and make is names._make_skeleton_class:
        how = _with_slots(kind, *how)
    return make, how, (setter, state), None, None, _set_class


def _with_slots(kind: type, *how: Any) -> tuple[Any, ...]:
    """Have a class made with its slots; cloudpickle names them afterwards, which makes none.

    Its instances would have a `__dict__` there, and those that come home would fit no slot.
    """
    constructor, name, bases, body, *others = how
    if NamedTuple in bases:  # it names its slots itself
        return how
    return (constructor, name, bases, {**body, "__slots__": vars(kind)["__slots__"]}, *others)


def _set_class(kind: type, how: tuple[Callable[[type, Any], object], Any]) -> None:
    """Fill a class that arrived; cloudpickle would also put copies into one that came home."""
    setter, state = how
    if kind not in _AT_HOME:
        _RECEIVED.add(kind)
        setter(kind, state)


def _on_gpu(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor) and bool(obj.is_cuda)


def _is_torchs(obj: object, name: str) -> bool:
    return type(obj) is getattr(sys.modules.get("torch"), name, None)


def _reduce_any_tensor(tensor: Any) -> _Reduced:
    """Take a tensor apart as torch does; what it gives for uint16 or float8 cannot be loaded."""
    make, *rest = tensor.__reduce_ex__(PROTOCOL)
    ours = getattr(make, "__name__", "") == "_rebuild_tensor_v3"
    return (_restore_untyped if ours else make, *rest)


def _restore_untyped(storage: Any, *rest: Any) -> Any:
    """Build a tensor of a type for which torch has no class of storage."""
    offset, size, stride, requires_grad, hooks, dtype, *_ = rest
    torch: Any = sys.modules["torch"]  # loaded: the pickle names its dtype
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    tensor.requires_grad_(requires_grad)
    tensor._backward_hooks = hooks
    return tensor


def _reduce_storage(storage: Any) -> _Reduced:
    torch: Any = sys.modules["torch"]
    raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _restore_storage, (PickleBuffer(raw), torch.uint8)


def _restore_storage(raw: Any, dtype: Any) -> Any:
    torch: Any = sys.modules["torch"]
    flat = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype)
    return flat.untyped_storage()


def _delegates(kind: Any) -> bool:
    """Return whether objects of a class have a `__getattr__`, and are pickled by their attributes.

    Pickle would ask for `__setstate__` before the attributes are there that `__getattr__` needs.
    """
    return (
        hasattr(kind, "__getattr__")
        and not hasattr(kind, "__setstate__")
        and not issubclass(kind, type)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind not in copyreg.dispatch_table
    )


def _with_plain_state(obj: Any) -> _Reduced:
    make, arguments, state, *rest = obj.__reduce_ex__(PROTOCOL)
    items = (*rest, None, None)[:2]
    setter = None if state is None else set_plain_state
    return (make, arguments, state, *items, setter)


def set_plain_state(obj: object, state: Any) -> None:
    """Set attributes without asking the class; those of slots stand in a second dict."""
    plain, slots = state if isinstance(state, tuple) else (state, None)
    if plain:
        vars(obj).update(plain)
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


def _reduce_code(code: CodeType) -> _Reduced:
    """Take the code of a function apart; cloudpickle leaves out its file, which tracebacks tell."""
    make, parts, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_in, (code.co_filename, make, parts)


def _code_in(filename: str, make: Callable[..., CodeType], parts: Sequence[Any]) -> CodeType:
    return make(*parts).replace(co_filename=filename)


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:  # noqa: FBT001
    """Return `function` an empty cache: pickle would look for the cached one by its name."""
    return functools.lru_cache(maxsize, typed)(function)


def _cached_property(function: Callable[[Any], Any], name: str) -> Any:
    """Build a cached property again: in Python 3.11 it holds a lock."""
    cached = functools.cached_property(function)
    cached.__set_name__(object, name)
    return cached


def by_reference(obj: Any) -> bool:
    """Return whether a function or class is sent by its name alone."""
    name = getattr(obj, "__module__", None)
    if not isinstance(name, str) or name == "__main__" or _is_registered(name):
        return False
    return _stands_in_its_module(obj) and importable(name)


def _stands_in_its_module(obj: Any) -> bool:
    """Return whether a function or class is found under its name."""
    try:
        names = obj.__qualname__.split(".")
        return functools.reduce(getattr, names, cast(Any, sys.modules[obj.__module__])) is obj
    except (AttributeError, KeyError):
        return False


def _is_registered(name: str) -> bool:
    """Return whether the user told cloudpickle to send this module by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    return any(f"{name}.".startswith(f"{other}.") for other in known)


def importable(name: str) -> bool:
    """Return whether a fresh process with this import path would load the same module by `name`."""
    if name.partition(".")[0] in _EVERYWHERE:
        return True
    origin = getattr(sys.modules.get(name), "__file__", None)
    key = (name, origin, working_folder(), *sys.path)
    if key not in _importable:
        if not _is_importable(name, origin):
            return False
        _importable.add(key)
    return True


def working_folder() -> str:
    """Return the folder of this process; nothing where that was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109  as text, and often
    except OSError:
        return ""


def _is_importable(name: str, origin: str | None) -> bool:
    parent = name.rpartition(".")[0]
    if parent and not importable(parent):
        return False
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    found = _find(name, path)
    if found is None:
        return bool(parent) and origin is None  # its package makes it
    return _same_file(origin, found.origin)


def _find(name: str, path: Any) -> ModuleSpec | None:
    """Look for a module as a fresh process would, without the ones that this process loaded."""
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)  # some are classes themselves
        if finder in _FINDERS or "editable" in kind.__module__:
            with contextlib.suppress(Exception):  # a finder of another library
                found = finder.find_spec(name, path)
                if found is not None:
                    return found
    return None


def _same_file(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or os.path.realpath(one) == os.path.realpath(other)


# -- Messages as bytes: pickle protocol 5 with the memory of arrays and tensors beside it ----------
def dumps_message(message: object, classes: Classes) -> Pickled:
    """Pickle a message.

    What C `pickle` refuses, or would look up in `__main__`, which another process does not
    have, is pickled by value with cloudpickle.

    Raises:
        Exception: whatever the pickling of an object raised.
    """
    return MessagePickler(classes).dumps(message)


@final
class MessagePickler:
    """Pickles messages as `dumps_message` does; several cost less than with a pickler for each.

    A new one is needed where other reducers were registered, or torch was loaded.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._kept = Pickled()
        self._pickler = _ByName(self._kept, PROTOCOL, buffer_callback=self._kept.keep_inside)

    def dumps(self, message: object) -> Pickled:
        """Pickle a message by itself; what is returned holds until the next one."""
        kept = self._kept
        kept.parts, kept.buffers = [], []
        try:
            self._pickler.dump(message)
        except ArgumentTypeError:
            raise
        except Exception:  # cloudpickle names the cause, if there is one
            return _dumps_by_value(message, self._classes)
        finally:
            self._pickler.clear_memo()
        if _names_what_is_only_here(kept.parts):
            return _dumps_by_value(message, self._classes)
        return kept


class Pickled:
    """A message as bytes: takes what a pickler writes, large `bytes` without a copy.

    Args:
        from_bytes: smaller buffers are left to the pickler.

    Attributes:
        parts: the pickle, in pieces.
        buffers: the memory that belongs beside it.
        defines: there are definitions of classes in it.
    """

    def __init__(self, from_bytes: int = SMALL_BYTES) -> None:
        self.parts: _Parts = []
        self.buffers: list[memoryview] = []
        self.defines = False
        self._from_bytes = from_bytes

    def write(self, part: Any) -> None:
        """Take the next bytes."""
        # A pickler owns the memory of its own memoryview, not that of an object's bytes.
        inside = isinstance(part, bytes | memoryview)
        self.parts.append(bytes(part) if inside else memoryview(part).cast("B"))

    def keep_inside(self, buffer: PickleBuffer) -> bool:
        """Take a buffer, unless it is small."""
        raw = buffer.raw()
        if raw.nbytes < self._from_bytes:
            return True
        self.buffers.append(raw)
        return False


class _ByName(pickle.Pickler):
    """Names functions and classes; the other process imports them."""

    @property
    def dispatch_table(self) -> dict[Any, Any]:  # type: ignore[override]  # read once, at the start
        return _reducers(copyreg.dispatch_table)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no annotations
    """Sends functions and classes whole where the other process could not import them."""

    def __init__(self, pickled: Pickled, classes: Classes) -> None:
        super().__init__(pickled, PROTOCOL, pickled.keep_inside)
        self.pickled = pickled
        self.classes = classes

    def persistent_id(self, value: object) -> _Definition | None:
        """Return the definition of a class that the other process cannot import."""
        definition = self.classes.define(value) if isinstance(value, type) else None
        self.pickled.defines |= definition is not None
        return definition

    @property
    def dispatch_table(self) -> dict[Any, Any]:
        first, *others = cloudpickle.Pickler.dispatch_table.maps  # its own, the registered ones
        return _reducers({**(others[0] if others else {}), **first, CodeType: _reduce_code})


class MessageLoader(pickle.Unpickler):
    """Loads a message with definitions of classes in it."""

    def __init__(
        self, head: bytes | memoryview, buffers: Iterable[memoryview], classes: Classes
    ) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self.persistent_load = classes.find  # type: ignore[method-assign]


def _dumps_by_value(message: object, classes: Classes) -> Pickled:
    pickled = Pickled()
    _ByValue(pickled, classes).dump(message)
    return pickled


def _names_what_is_only_here(parts: _Parts) -> bool:
    """Return whether the parts name something that cannot be imported elsewhere."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    names = (_MAIN, *(name.encode() for name in by_value)) if by_value else (_MAIN,)
    for part in parts:
        if isinstance(part, bytes) and _is_code(part):
            for name in names:
                if name in part:
                    return True
    return False


def _is_code(part: bytes) -> bool:
    """Tell instructions from a long text or `bytes` of the message, which are none."""
    return len(part) < _FRAME_BYTES or part.startswith(_FRAME_STARTS)


# -- how arrays, memoryviews and tensors are taken apart -------------------------------------------
def _reducers(registered: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return how objects are taken apart: our way for a few types, else as registered."""
    reducers = _Reducers(registered)
    reducers |= {np.ndarray: _reduce_array, memoryview: _reduce_memoryview}
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # not while it is being imported
    if tensor is not None:
        reducers[tensor] = reduce_tensor
    return reducers


class _Reducers(dict[Any, Any]):
    """How objects are taken apart, by their class; asked for each object of a class of users."""

    def __missing__(self, kind: type) -> Callable[[Any], _Reduced]:
        if kind not in _DELEGATE:
            _DELEGATE[kind] = _delegates(kind)
        if _DELEGATE[kind]:
            return _with_plain_state
        raise KeyError(kind)


_DELEGATE: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def _axes(strides: Iterable[int]) -> tuple[int, ...]:
    """Order axes as they lie in memory, outermost first."""
    steps = [-abs(stride) for stride in strides]
    return tuple(sorted(range(len(steps)), key=steps.__getitem__))


def _back(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _reduce_array(array: np.ndarray[Any, Any]) -> _Reduced:
    """Take an array apart; one with gaps is made dense first, its axes as they lie."""
    if array.flags.forc or array.dtype.hasobject:
        if _is_plain(array):
            return restore_array, (PickleBuffer(cast(Any, array)), *_how(array))
        return array.__reduce_ex__(PROTOCOL)
    axes = _axes(array.strides)
    dense = np.ascontiguousarray(array.transpose(axes))
    if axes == tuple(range(array.ndim)):
        return dense.__reduce_ex__(PROTOCOL)
    return np.transpose, (dense, _back(axes))


def plain_array(value: object) -> tuple[memoryview, str, tuple[int, ...], str] | None:
    """Return the memory of a large plain array, and what else `restore_array` takes.

    Returns:
        None where the value is something else.
    """
    if type(value) is not np.ndarray or value.nbytes < SMALL_BYTES:
        return None
    if not (value.flags.forc and _is_plain(value)):
        return None
    return PickleBuffer(cast(Any, value)).raw(), *_how(value)


def _is_plain(array: np.ndarray[Any, Any]) -> bool:
    """Return whether the elements are numbers of numpy's own, with nothing beside them."""
    kind = array.dtype
    return kind.isbuiltin == 1 and kind.metadata is None and not kind.hasobject


def _how(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], str]:
    return array.dtype.char, array.shape, "C" if array.flags.c_contiguous else "F"


def restore_array(raw: Any, kind: str, shape: tuple[int, ...], order: Any) -> Any:
    """Build an array of numbers; numpy's own way costs twice as much for a small one."""
    return np.ndarray(shape, kind, raw, order=order)


def _reduce_memoryview(view: memoryview) -> _Reduced:
    raw = view if view.c_contiguous else memoryview(view.tobytes())
    flat = raw.cast("B") if view.nbytes else memoryview(b"")
    return _restore_memoryview, (PickleBuffer(flat), view.format, view.shape)


def _restore_memoryview(raw: Any, kind: str, shape: tuple[int, ...]) -> memoryview:
    if 0 in shape:
        return memoryview(raw).cast(cast(Any, kind))
    return memoryview(raw).cast("B").cast(cast(Any, kind), shape)


def reduce_tensor(tensor: Any) -> _Reduced:
    """Take a dense tensor on the CPU apart as its memory; others as torch does."""
    if tensor.device.type not in ("cpu", "meta"):
        raise ArgumentTypeError(
            f"a tensor that goes to or from another process must be on the cpu, got one on "
            f"{str(tensor.device)!r}; return tensor.cpu(), and let to_device() move batches"
        )
    if tensor.requires_grad and not tensor.is_leaf:
        raise ArgumentTypeError(
            "a tensor that goes to or from another process must not be part of a graph of "
            "gradients, which is not sent, got one that requires grad; return tensor.detach()"
        )
    if not is_plain(tensor):
        reduced: _Reduced = tensor.__reduce_ex__(PROTOCOL)
        return reduced
    grad, tensor = [True] * tensor.requires_grad, tensor.detach()
    axes = None
    if not tensor.is_contiguous():
        axes = _axes(tensor.stride())
        tensor, axes = tensor.permute(axes).contiguous(), _back(axes)
    raw = _tensor_bytes(tensor)
    return _restore_tensor, (raw, tensor.dtype, tuple(tensor.shape), axes, *grad)


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is its memory, type and shape, and nothing else."""
    torch: Any = sys.modules["torch"]
    return bool(
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_leaf
        and not tensor.__dict__
        and not tensor._backward_hooks
    )


def _tensor_bytes(tensor: Any) -> PickleBuffer:
    torch: Any = sys.modules["torch"]
    if not tensor.numel():
        return PickleBuffer(b"")
    flat = tensor.view(-1).as_strided((tensor.numel(),), (1,))  # a length of 1 has any stride
    return PickleBuffer(flat.view(torch.uint8).numpy())


def _restore_tensor(
    raw: Any, dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...] | None, *grad: bool
) -> Any:
    torch: Any = sys.modules["torch"]  # loaded: the pickle names its dtype
    flat = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype)
    tensor = flat.view(shape)
    if axes is not None:
        tensor = tensor.permute(axes)
    return tensor.requires_grad_() if grad else tensor


# -- Classes that another process cannot import: each is sent whole, and built once ----------------
# cloudpickle alone sends a class with every object of it, builds it again on arrival, and so sets
# the methods and attributes of the very class that it came from: an object that comes back from a
# worker would tear a notebook's class out of the notebook.
@final
class Classes:
    """What one end of a channel has sent and received of classes."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[type, tuple[tuple[Any, ...], bytes]] = WeakKeyDictionary()
        self._loaded: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()

    def renew(self) -> None:
        """Called when cells were run: what methods read from the notebook may have changed."""
        self._sent.clear()

    def define(self, kind: type) -> _Definition | None:
        """Return a class by its name in all processes and its pickle; None: it can be imported."""
        if not _is_sent_whole(kind):
            return None
        state = tuple((name, id(value)) for name, value in vars(kind).items())
        known = self._sent.get(kind)
        if known is None or known[0] != state:
            known = self._sent[kind] = (state, dumps(kind))
        return names._get_or_create_tracker_id(kind), known[1]

    def find(self, definition: _Definition) -> type:
        """Return the class of a definition: the one of this process if it comes from here."""
        name, pickled = definition
        kind: type | None = names._DYNAMIC_CLASS_TRACKER_BY_ID.get(name)
        if kind is None or not (_stands_in_its_module(kind) or self._loaded.get(kind) == pickled):
            kind = cast(type, pickle.loads(pickled))  # noqa: S301  of a process that we know
            self._loaded[kind] = pickled
        return kind


def _is_sent_whole(kind: type) -> bool:
    if not kind.__flags__ & HEAP_TYPE:
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    return kind.__module__ in {"__main__", *by_value} or not _stands_in_its_module(kind)


# -- Files that a process holds open ---------------------------------------------------------------
# A file without a name is found through this process, which holds it open for as long as the object
# lives: nothing is sent beside the pickle, so that any number of workers can read it.
class HeldFile(NamedTuple):
    """A file that a process of this machine holds open, or that has a name.

    Attributes:
        path: of the file; of one without a name that of the descriptor.
        device: where the file lies.
        inode: number of the file there: another one may have taken its place.
    """

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> HeldFile:
        """Return what another process opens.

        Raises:
            OSError: there is no such file.
        """
        found = os.stat(path)  # noqa: PTH116
        return cls(path, found.st_dev, found.st_ino)

    @classmethod
    def of_descriptor(cls, number: int) -> HeldFile:
        """Return where others find a descriptor of this process; Linux only."""
        return cls.of(f"/proc/{os.getpid()}/fd/{number}")

    def open(self, what: str, how: int = os.O_RDWR) -> int:
        """Open it in this process, to read and to write by default.

        Raises:
            UnpicklableError: `what` is gone where it came from.
        """
        reason = "another file has taken its place"
        try:
            own = os.open(self.path, how | os.O_CLOEXEC)
            found = os.fstat(own)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                return own
            os.close(own)
        except OSError as error:
            reason = str(error)
        raise UnpicklableError(
            f"{what} must stay open, and where it was when it was sent, got nothing at "
            f"{self.path}: {reason}; keep it for as long as workers run"
        )


def tracker() -> HeldFile | None:
    """Return how the process that removes shared memory in the end learns of it.

    None: there is none yet, or others cannot reach it.
    """
    known: Any = resource_tracker
    number = known._resource_tracker._fd
    if number is None or sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):  # it has ended
        return HeldFile.of_descriptor(number)
    return None


def share_tracker(handle: HeldFile | None) -> None:
    """Have this worker tell its parent's tracker; one of its own would end with the worker.

    And take away what the worker had only opened.
    """
    known: Any = resource_tracker
    if handle is not None and known._resource_tracker._fd is None:
        with contextlib.suppress(UnpicklableError):  # it has ended meanwhile
            known._resource_tracker._fd = handle.open("the tracker of shared memory")
