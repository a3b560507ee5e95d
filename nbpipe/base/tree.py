"""Nested batches: dicts, lists, tuples, named tuples and dataclasses of leaves."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError

MAX_DEPTH = 64  # levels; deeper is taken for a container that contains itself

_SAMPLE = 32  # elements measured of a long container
_DEEP_SAMPLE = 8  # the same, inside two others
_MEASURED_DEPTH = 12  # levels; a container that contains itself stays a finite size
_BUDGET = 400  # values measured in all, numbers not counted
_WORD_BYTES = 8
_NUMBER_BYTES = 32  # a Python number is an object of its own


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Build the same nesting with `fn(leaf)` in place of each leaf.

    Mappings, lists, tuples, named tuples and dataclasses are nodes and are rebuilt as their
    own types where those allow it (else as dict, list, tuple); `tree` itself is not changed.
    A dataclass is copied field by field: neither `__init__` nor `__post_init__` runs again.
    Every other object is a leaf.

    Raises:
        ArgumentError: the nesting is deeper than 64 levels, or contains itself.
    """
    return _map(fn, tree, 0)


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over the leaves, depth first, in the order of `map_leaves`.

    Raises:
        ArgumentError: the nesting is deeper than 64 levels, or contains itself.
    """
    return _leaves(tree, 0)


def children(node: Any) -> list[tuple[Any, Any]] | None:
    """Return what a node holds as pairs (key, index or field name; value); None for a leaf."""
    if isinstance(node, Mapping):
        return list(node.items())
    if isinstance(node, list | tuple):
        fields = getattr(node, "_fields", None) if isinstance(node, tuple) else None
        return list(zip(fields or itertools.count(), node, strict=False))
    kind: Any = type(node)
    names = _field_names(kind)
    return None if names is None else [(n, getattr(node, n)) for n in names if hasattr(node, n)]


def rebuild(node: Any, values: list[Any]) -> Any:
    """Build a node like `node` around new `values`, in the order of `children(node)`."""
    kind: Any = type(node)
    plain: Any = values
    if is_tensor_collection(node) or isinstance(node, Mapping):
        plain = dict(zip((key for key, _ in children(node) or ()), values, strict=True))
    elif isinstance(node, tuple):
        plain = tuple(values)
    elif not isinstance(node, list):
        names = [name for name in _field_names(kind) or () if hasattr(node, name)]
        return _like_dataclass(node, dict(zip(names, values, strict=True)))
    if type(plain) is kind:
        return plain
    try:
        return _like(node, plain)
    except Exception:  # noqa: BLE001 - the contents matter more than the type
        return plain


def copy_leaves(tree: Any) -> Any:
    """Copy what changes in place and is known: arrays, tensors, images, tables, sets, bytearrays.

    Objects of other classes are shared, and images of several frames. A memory-mapped array
    becomes an ordinary one; the copy of an object array, of a table or of a set holds the same
    objects.

    Raises:
        ArgumentError: the nesting is deeper than 64 levels, or contains itself.
    """
    return _map(_copied, tree, 0)


def size_bytes(value: Any) -> int:
    """Estimate the memory that `value` holds [bytes], at a bounded cost; never raises.

    Arrays and tensors count their elements, strings and bytes their length, images their pixels,
    tables their columns, containers (lists, tuples, sets, dicts, dataclasses) the sum of their
    values. Long or large nestings are sampled evenly and scaled up. Every other object counts as
    one word: nothing of it is looked at, since that may do work, or run the user's own code.
    """
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind != "O":
        return int(value.nbytes)
    known = _SIZES.get(kind)
    if known is not None:
        return known
    try:
        return _size(value, [_BUDGET], 0)
    except Exception:  # noqa: BLE001 - a size is only an estimate, it must not end an epoch
        return _WORD_BYTES


def _map(fn: Callable[[Any], Any], tree: Any, depth: int) -> Any:
    kind = type(tree)
    if kind in _PLAIN_LEAVES:
        return fn(tree)
    if depth > MAX_DEPTH:
        raise _too_deep(tree)
    if kind is tuple:
        return tuple([_map(fn, value, depth + 1) for value in tree])
    if kind is dict:
        return {key: _map(fn, value, depth + 1) for key, value in tree.items()}
    if kind is list:
        return [_map(fn, value, depth + 1) for value in tree]
    held = children(tree)
    if held is None:
        return fn(tree)
    return rebuild(tree, [_map(fn, value, depth + 1) for _, value in held])


def _leaves(tree: Any, depth: int) -> Iterator[Any]:
    held = None if type(tree) in _PLAIN_LEAVES else children(tree)
    if held is None:
        yield tree
        return
    if depth > MAX_DEPTH:
        raise _too_deep(tree)
    for _, value in held:
        yield from _leaves(value, depth + 1)


def _too_deep(tree: Any) -> ArgumentError:
    return ArgumentError(
        f"a batch must be nested at most {MAX_DEPTH} levels deep, got a {type(tree).__name__} "
        "below that; does a container contain itself? Wrap it in a class of your own, which "
        "counts as one leaf"
    )


def _like(node: Any, plain: Any) -> Any:
    """Build a mapping, list or tuple of a class of its own around what a plain one holds."""
    if is_tensor_collection(node):
        clone = node.clone(recurse=False)
        for key, value in plain.items():
            clone.set(key, value)
        return clone
    if isinstance(node, MutableMapping | list):
        clone = copy.copy(node)
        if isinstance(node, list):
            clone[:] = plain
        else:
            for key, value in plain.items():  # `update` of a Counter would add
                clone[key] = value
        return clone
    make = getattr(type(node), "_make", type(node))  # of a named tuple
    return make(plain)


def _like_dataclass(node: Any, values: dict[str, Any]) -> Any:
    kind: Any = type(node)
    clone = kind.__new__(kind)
    held = getattr(node, "__dict__", None)
    if held:
        stale = _computed_names(kind)  # a cached property belongs to the old fields
        clone.__dict__.update((name, held[name]) for name in held if name not in stale)
    for name, value in values.items():
        object.__setattr__(clone, name, value)  # a frozen one refuses plain assignment
    return clone


# By class; a class that a cell defines again must go, with all that its functions refer to.
_FIELDS: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()
_COMPUTED: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataclass; None for other types."""
    if getattr(kind, "__dataclass_fields__", None) is None:
        return None
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(f.name for f in dataclasses.fields(kind))
    return names


def _computed_names(kind: Any) -> frozenset[str]:
    """Return the names of the properties that a class computes once and keeps."""
    names = _COMPUTED.get(kind)
    if names is None:
        names = _COMPUTED[kind] = frozenset(
            name
            for base in kind.__mro__
            for name, value in vars(base).items()
            if isinstance(value, functools.cached_property)
        )
    return names


def _copied(leaf: Any) -> Any:
    kind = type(leaf)
    if kind in _IMMUTABLE:
        return leaf
    if isinstance(leaf, np.ndarray):
        return leaf.copy(order="K") if kind is not np.memmap else np.array(leaf)
    if is_tensor(leaf):
        own = leaf.requires_grad and leaf.is_leaf  # a clone would hand gradients to this one
        return leaf.detach().clone().requires_grad_() if own else leaf.clone()
    if _is_of(leaf, "PIL.Image", "Image"):  # of several frames a copy would hold one
        return leaf if getattr(leaf, "is_animated", False) else copy.copy(leaf)
    known = isinstance(leaf, _MUTABLE) or _is_of(leaf, "pandas", "DataFrame", "Series")
    return copy.copy(leaf) if known else leaf


def is_tensor(value: object) -> bool:
    """Return whether `value` is a torch tensor, without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def words_of(tensor: Any) -> NDArray[Any]:
    """Return the memory of a dense tensor on the host as an array of the same shape.

    Numpy can copy it, whatever dtype it has in torch, and does so in the calling thread alone. For
    a large copy torch uses other threads too, which compete for cores with busy workers.
    """
    torch: Any = sys.modules["torch"]
    word = getattr(torch, _WORDS[tensor.element_size()])
    words: NDArray[Any] = tensor.detach().view(word).numpy()
    return words


_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}  # by their bytes


def is_tensor_collection(value: object) -> bool:
    """Return whether a value holds named tensors of one batch size: a TensorDict, a tensorclass.

    Torch's functions take one as they take a tensor. Its iterator gives rows, not names.
    """
    kind = type(value)  # the object itself may run code of its own
    return hasattr(kind, "__torch_function__") and hasattr(kind, "batch_size")


_NAN = object()  # stands for every NaN


def as_key(value: Any) -> Any:
    """Return what a dict finds a value by, so that equal ones have equal keys.

    A NaN does not equal itself, a tensor is found by itself alone, and an array not at all.

    Raises:
        TypeError: an array or a tensor with dimensions, or a tuple that holds one.
    """
    if type(value) is tuple:
        return tuple(map(as_key, value))
    tensor = is_tensor(value)
    if tensor or isinstance(value, np.ndarray):
        if value.ndim:
            raise TypeError(f"{type(value).__name__} of shape {tuple(value.shape)}")
        value = value.item() if tensor else value[()]
    is_number = isinstance(value, float | complex | np.generic)
    return _NAN if is_number and value != value else value  # noqa: PLR0124  NaN alone, and NaT


def _is_of(value: object, module: str, *names: str) -> bool:
    """Return whether `value` is of a class of a module, without loading that."""
    found = sys.modules.get(module)
    return found is not None and isinstance(value, tuple(getattr(found, n, ()) for n in names))


def _size(value: Any, budget: list[int], depth: int) -> int:
    kind = type(value)
    known = _SIZES.get(kind)
    if known is not None:
        return known
    budget[0] -= 1
    if kind is np.ndarray and value.dtype.kind != "O":
        return int(value.nbytes)
    if kind is tuple or kind is list:
        return _scaled(value, len(value), budget, depth)
    if kind is dict:
        some = list(itertools.islice(value.values(), _SAMPLE))
        return _scaled(some, len(value), budget, depth)
    return _object_size(value, kind, budget, depth)


def _object_size(value: Any, kind: Any, budget: list[int], depth: int) -> int:
    """Measure what is no plain container, by what its known base says: never by its own code."""
    if issubclass(kind, np.ndarray):
        elements = int(_NBYTES(value))
        if kind is np.ndarray:  # of objects
            return elements + _scaled(value.reshape(-1), value.size, budget, depth)
        return elements
    for text in _SEQUENCES:
        if issubclass(kind, text):
            return int(text.__len__(value))
    for base, values in _CONTAINERS:
        if issubclass(kind, base):
            some = list(itertools.islice(values(value), _SAMPLE))
            return _scaled(some, base.__len__(value), budget, depth)
    if issubclass(kind, _WRAPPED):  # from `collections`, around a plain container
        return _size(_stored(value).get("data"), budget, depth + 1)
    torch: Any = sys.modules.get("torch")
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        with torch._C.DisableTorchFunctionSubclass():  # whatever the class says of itself
            return int(torch.Tensor.nbytes.__get__(value))
    measured = _LIBRARIES.get(kind.__module__.partition(".")[0])
    if measured is not None:
        return int(measured(value))
    names = _field_names(kind)
    if names is None:
        return _WORD_BYTES
    held = _fields_held(value, kind, names)
    return _scaled(held, len(held), budget, depth)


def _fields_held(value: Any, kind: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the values of a dataclass that are stored; what its properties compute is not."""
    slots = _slots_of(kind)
    stored = _stored(value) if getattr(kind, "__dictoffset__", 0) else {}
    held = [stored[name] for name in names if name in stored]
    for name in names:
        if name in slots:
            with contextlib.suppress(AttributeError):  # not set
                held.append(slots[name].__get__(value))
    return held


def _stored(value: Any) -> dict[str, Any]:
    held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return held


def _slots_of(kind: type) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of a class by their names."""
    return {
        name: slot
        for base in reversed(kind.__mro__)
        for name, slot in vars(base).items()
        if type(slot) is types.MemberDescriptorType
    }


def _nbytes(value: Any) -> int:
    return int(getattr(value, "nbytes", _WORD_BYTES))


def _image_bytes(image: Any) -> int:
    """Return the bytes of an image's pixels, which lie outside the object."""
    bands = getattr(image, "getbands", None)
    return _WORD_BYTES if bands is None else image.width * image.height * len(bands())


def _frame_bytes(table: Any) -> int:
    """Return the bytes of a table's columns; of objects in them, those of the references."""
    usage = getattr(table, "memory_usage", None)
    return _WORD_BYTES if usage is None else int(np.sum(usage(deep=False)))


def _scaled(values: Any, count: int, budget: list[int], depth: int) -> int:
    """Return the size of `count` values, of which `values` are all or some of the first.

    An even sample is measured, and less of it, but at least one, when the budget is used up.
    """
    if count == 0 or depth >= _MEASURED_DEPTH:
        return count * _WORD_BYTES
    given = len(values)
    taken = min(given, _SAMPLE if depth <= 1 else _DEEP_SAMPLE)
    total = measured = 0
    for value in values if taken == given else [values[i * given // taken] for i in range(taken)]:
        total += _size(value, budget, depth + 1)
        measured += 1
        if budget[0] <= 0:
            break
    return total if measured == count else total * count // measured


_SIZES: dict[type, int] = {
    type(None): _WORD_BYTES,
    bool: _WORD_BYTES,
    int: _NUMBER_BYTES,
    float: _NUMBER_BYTES,
    complex: _NUMBER_BYTES,
}
_IMMUTABLE = frozenset({str, bytes, *_SIZES})
_PLAIN_LEAVES = _IMMUTABLE | {np.ndarray}
_MUTABLE = (set, bytearray, collections.deque)  # what is no node of a tree
_NBYTES: Any = np.ndarray.nbytes.__get__
_SEQUENCES: tuple[Any, ...] = (str, bytes, bytearray)
_WRAPPED = (collections.UserDict, collections.UserList)
_CONTAINERS: tuple[tuple[Any, Any], ...] = (  # with what iterates over their values
    (tuple, tuple.__iter__),
    (list, list.__iter__),
    (dict, dict.values),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
)
_LIBRARIES: dict[str, Callable[[Any], int]] = {  # what their objects say, by the top package
    "builtins": lambda value: value.nbytes if type(value) is memoryview else _WORD_BYTES,
    "numpy": lambda value: value.nbytes if isinstance(value, np.generic) else _WORD_BYTES,
    "PIL": _image_bytes,
    "pandas": _frame_bytes,
    "pyarrow": _nbytes,
    __package__.partition(".")[0]: _nbytes,  # batches on their way to a device
}
