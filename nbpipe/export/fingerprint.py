"""Fingerprint: a value as plain words and digests, equal in any process; where two differ."""

from __future__ import annotations

import bisect
import copyreg
import dataclasses
import datetime as dt
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import io
import json
import logging
import pathlib
import re
import sys
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ..base.tree import is_tensor
from .reachable import (
    IN_PYTHON,
    attributes_of,
    captured_by,
    defaults_of,
    has_recipe,
    is_generator,
    is_library,
    names_of_wrapped,
    of_shell,
)
from .secrets import HIDDEN, is_secret, knowing, redacted

# -- Nodes: what a fingerprint consists of, and words for where two of them differ -----------------
Node = dict[str, Any]  # "kind", "shown", and where it has them "parts", "count", "digest"
_FIRST = 8  # parts that are kept of a large container
MOST = 64  # parts of a container that are all kept
_SIZE = 2_000  # nodes inside one that are kept
_LONGEST = 60  # characters of a value in a message
_TEXTS = ("str", "bytes")
_QUOTES = 2  # of a text that is shown
_WORD = re.compile(r"(?:[A-Z]*[a-z]*|[a-z]*(?:[A-Z][a-z]+)*|[^\W\d_]*[^\x00-\x7f][^\W\d_]*)\d{0,8}")


def _digest_of(*parts: Any) -> str:
    """Digest bytes-like objects, or texts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return digest.hexdigest()


def leaf(kind: str, shown: str, **more: Any) -> Node:
    """Make a node without parts."""
    return {"kind": kind, "shown": shown, **more}


def branch(kind: str, shown: str, parts: Iterable[tuple[str, Node]], **more: Any) -> Node:
    """Make a node with parts; of too many, the first are kept, and a digest of all."""
    every = list(parts)
    kept = every if len(every) <= MOST else every[:_FIRST]
    size, fitting = 1, 0
    for _, node in kept:
        size += node.get("size", 1)
        if size > _SIZE:
            break
        fitting += 1
    if fitting < len(every):
        more["digest"] = _digest_of(json.dumps(every, sort_keys=True))
    return leaf(
        kind,
        shown,
        parts=[list(part) for part in kept[:fitting]],
        count=len(every),
        size=min(size, _SIZE),
        **more,
    )


def difference(notebook: Node, other: Node, where: str) -> str | None:
    """Return where two fingerprints differ, in words; None if they are equal."""
    if notebook == other:
        return None
    return redacted(_difference("", notebook, other, where))


def steady(node: Node, before: Node, after: Node) -> Node | None:
    """Return a fingerprint without the parts that differ between two others; None: all of it."""
    if before == after:
        return node
    if before["kind"] != after["kind"] or "parts" not in before:
        return None
    old, new = dict(before["parts"]), dict(after.get("parts", ()))
    parts = [
        [label, kept]
        for label, part in node.get("parts", ())
        if label in old and label in new
        for kept in [steady(part, old[label], new[label])]
        if kept is not None
    ]
    return {"kind": node["kind"], "shown": "", "parts": parts, "count": len(parts)}


def without(node: Node, labels: Collection[str], *, deep: bool = True) -> Node:
    """Return a fingerprint without some parts, for example "attribute 'count'"."""
    if not labels or "parts" not in node:
        return node
    parts = [
        [label, without(part, labels) if deep else part]
        for label, part in node["parts"]
        if label not in labels
    ]
    kept = {key: node[key] for key in node if key not in ("size", "count", "digest", "parts")}
    return {**kept, "parts": parts, "count": len(parts)}


def _difference(at: str, one: Node, other: Node, where: str) -> str:
    def both(one: str, other: str) -> str:
        return f"{one} in the notebook, {'another' if one == other else other} {where}"

    place = f"{at}: " if at else ""
    named = one["kind"] == "enum" and one["shown"] != other["shown"]  # their names say all
    if one["kind"] != other["kind"] or named:
        return f"{place}{both(_shown(one), _shown(other))}"
    left, right = dict(one.get("parts", ())), dict(other.get("parts", ()))
    for label, node in left.items():
        if label in right and node != right[label]:
            return _difference(_joined(at, label), node, right[label], where)
    alone = [label for label in (*left, *right) if (label in left) != (label in right)]
    if alone and one.get("count") == len(left) and other.get("count") == len(right):
        words = [
            _shown(side[alone[0]]) if alone[0] in side else "missing" for side in (left, right)
        ]
        return f"{_joined(at, alone[0])}: {both(*words)}"
    if one.get("count") != other.get("count"):
        return f"{place}{both(_count(one), _count(other))}"
    if one["shown"] != other["shown"]:
        return f"{place}{both(_shown(one), _shown(other))}"
    if HIDDEN in one["shown"]:
        return f"{place}hidden texts differ"
    if list(left) != list(right):
        return f"{place}the order differs"
    differs = "it differs" if one["kind"] == "code" else ""
    return f"{place}{differs or f'{_shown(one)}, which differs after its first elements'}"


def _joined(at: str, label: str) -> str:
    if label.startswith(("['", '["', "[b'", '[b"')) and not _is_plain(label):
        label = "[...]"  # a key may be a secret, too
    return f"{at}{label}" if label.startswith("[") or not at else f"{at} {label}"


def _count(node: Node) -> str:
    if node["kind"] in _TEXTS:
        return _shown(node)
    return f"{node['shown']} of {node.get('count', 0):,}"


def _is_plain(text: str) -> bool:
    """Return whether a text is made of words and numbers, as names of files are."""
    return all(map(_WORD.fullmatch, re.findall(r"[^\W_]+", text)))


def _shown(node: Node) -> str:
    """Return a value in short; of a text that may be a secret, only how long it is."""
    text = str(node["shown"])
    if node["kind"] in _TEXTS and HIDDEN not in text and not _is_plain(text):
        return f"a {node['kind']} of {node.get('count', len(text) - _QUOTES)} characters"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# -- Functions and classes in a fingerprint: the user's by their code, a library's by name ---------
_NodeOf = Callable[..., Node]
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
_LOOKING_UP = ("PUSH_NULL", "EXTENDED_ARG", "CACHE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_POSITIONS = ("__firstlineno__", "__static_attributes__")
_SKIPPED = frozenset(
    (
        *("__module__", "__doc__", "__dict__", "__weakref__", *_POSITIONS),
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__orig_bases__", "__parameters__", "__type_params__", "__qualname__"),
        "__slotnames__",  # `copyreg` puts it there when an instance is pickled
        *("__dataclass_fields__", "__abstractmethods__", "_abc_impl"),
        *("_member_map_", "_value2member_map_", "_member_names_", "_hashable_values_"),
        *("_unhashable_values_", "_unhashable_values_map_"),
    )
)


def _code_node(value: Any, node_of: _NodeOf) -> Node | None:
    """Return the node of a module, class, function or another callable; None for other values."""
    if isinstance(value, types.ModuleType):
        return leaf("module", value.__name__ if is_library(value.__name__) else "the user's module")
    if isinstance(value, FunctionType | type):
        if _is_found(value):
            return leaf("name", name_of(value))
        return _class(value, node_of) if isinstance(value, type) else _function(value, node_of)
    if isinstance(value, types.MethodType):
        parts = [("function", node_of(value.__func__)), ("object", node_of(value.__self__))]
        return branch("method", f"method {qualname(value.__func__)!r}", parts)
    if isinstance(value, functools.partial):  # its `__dict__` comes and goes
        parts = [("function", node_of(value.func))]
        given = [*enumerate(value.args), *sorted(value.keywords.items())]
        parts += [(f"argument {n!r}", node_of(one, str(n))) for n, one in given]
        return branch("partial", "a partial", parts)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(
        value.__self__, types.ModuleType | None
    ):
        return leaf("name", name_of(value))
    if isinstance(value, CodeType):
        return leaf("code", f"code of {value.co_name!r}", digest=_digest(value, node_of))
    return _wrapper(value, node_of)


def _is_found(value: Any) -> bool:
    """Return whether a library holds a function or class under its name."""
    if not is_library(value.__module__):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value or not (isinstance(value, FunctionType) or found is None)


def _wrapper(value: Any, node_of: _NodeOf) -> Node | None:
    """Return the node of what a decorator of a library made; None for other values."""
    kind, names = type(value), names_of_wrapped(value)
    if not names and callable(value) and is_library(kind.__module__):
        names = [name for name in ("__wrapped__",) if inspect.getattr_static(value, name, None)]
    if not names:
        return None
    options = getattr(value, "cache_parameters", dict)
    parts = [(name, node_of(getattr(value, name))) for name in names]
    return branch(name_of(kind), f"a {kind.__name__}", [*parts, ("options", node_of(options()))])


def _function(value: FunctionType, node_of: _NodeOf) -> Node:
    parts = [(f"default {n!r}", node_of(v, n)) for n, v in defaults_of(value)]
    captured = dict(captured_by(value))
    for name in value.__code__.co_freevars:
        if name in captured:
            inner = node_of(_unordered(value, captured[name]), name)
        else:
            inner = leaf("unbound", "unbound")
        parts.append((f"closure {name!r}", inner))
    for name, attribute in sorted(vars(value).items()):
        if not name.startswith("__"):
            parts.append((f"attribute {name!r}", node_of(_unordered(value, attribute), name)))
    code = _digest(value.__code__, node_of)
    parts.append(("code", leaf("code", "its code", digest=code)))
    return branch("function", f"function {qualname(value)!r}", parts)


def _unordered(function: FunctionType, value: Any) -> Any:
    """Sort the implementations that `singledispatch` holds: none of them comes first."""
    inside = function.__code__.co_filename == functools.singledispatch.__code__.co_filename
    if not inside or not isinstance(value, dict | types.MappingProxyType):
        return value
    return dict(sorted(value.items(), key=lambda pair: name_of(pair[0])))


def _digest(code: CodeType, node_of: _NodeOf) -> str:
    """Digest what code does, without its name and its positions in a file."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    head = [counts, code.co_flags & _FLAGS, [list(map(_own_name, group)) for group in names]]
    return _digest_of(json.dumps([head, list(_instructions(code, node_of))]))


def _instructions(code: CodeType, node_of: _NodeOf) -> Iterator[Any]:
    """Return what the interpreter does, however it looks up methods.

    `module.function()` is compiled in another way where the module is imported in the same text.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _LOOKING_UP]
    offsets = [step.offset for step in steps]
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        if step.opcode in dis.hasconst:
            if following.argval not in _POSITIONS:
                constant = step.argval
                inner = isinstance(constant, CodeType)
                yield step.opname, _digest(constant, node_of) if inner else node_of(constant)
        elif step.opcode in _JUMPS:
            yield step.opname, bisect.bisect_left(offsets, step.argval)
        else:
            name = "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname
            yield name, _own_name(step.argval) if step.opcode in dis.hasname else step.arg


def _class(value: type, node_of: _NodeOf) -> Node:
    parts = [(f"base {at}", node_of(base)) for at, base in enumerate(value.__bases__)]
    if type(value) is not type:
        parts.append(("metaclass", node_of(type(value))))
    for name, attribute in sorted(vars(value).items()):
        kept = name not in _SKIPPED and not _is_hash_of_attrs(attribute)
        if kept and not isinstance(attribute, types.GetSetDescriptorType):
            parts.append((f"attribute {name!r}", node_of(attribute, name)))
    if dataclasses.is_dataclass(value):
        parts += [(f"field {f.name!r}", _field(f, node_of)) for f in dataclasses.fields(value)]
    return branch("class", f"class {qualname(value)!r}", parts)


def _is_hash_of_attrs(value: Any) -> bool:
    """Return whether attrs made a `__hash__`: it begins with a text's hash, new in each process."""
    code = getattr(value, "__code__", None)
    made = isinstance(code, CodeType) and code.co_filename.startswith("<attrs generated")
    return made and value.__code__.co_name == "__hash__"


def _field(field: dataclasses.Field[Any], node_of: _NodeOf) -> Node:
    names = ("default", "default_factory", "init", "repr", "compare", "kw_only")
    return branch("field", "a field", [(name, node_of(getattr(field, name))) for name in names])


# -- Arrays, tensors, images and tables in a fingerprint; their libraries are never loaded for it --
_WHOLE_BYTES = 1 << 28  # of larger arrays the two ends and a sample of the rest are looked at
_END_BYTES = 1 << 26
_SAMPLE = 1_000_000  # elements
_EXACT_BYTES = 8  # of a number that Python holds as well


def _array_node(value: Any, node_of: _NodeOf) -> Node | None:
    """Return the node of an array, a number of numpy or a tensor; None for other values."""
    if isinstance(value, np.ndarray):
        return _array(value, node_of)
    if isinstance(value, memoryview):
        return branch("memoryview", "a view", [("elements", node_of(np.asarray(value)))])
    if isinstance(value, np.generic):
        return leaf(
            f"numpy.{value.dtype}", repr(value), digest=_digest_of(_bytes(np.asarray(value)))
        )
    return _tensor(value, node_of) if is_tensor(value) else None


def _array(value: np.ndarray[Any, Any], node_of: _NodeOf) -> Node:
    kind, words = _kind_of(value), f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, np.ma.MaskedArray):
        parts = [("data", node_of(value.filled())), ("mask", node_of(np.ma.getmaskarray(value)))]
        return branch(kind, words, parts)
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind == "T":
        return branch(kind, words, [("elements", node_of(array.tolist()))])
    if array.dtype.names:
        parts = [(f"[{n!r}]", node_of(array[n])) for n in array.dtype.names]
        return branch(kind, words, [*parts, *_own(value, node_of)])
    kept = MOST if array.size <= MOST else _FIRST
    parts = [
        (_index_label(at, array.shape), node_of(_element(number)))
        for at, number in enumerate(array.flat[:kept])
    ]
    node = branch(kind, words, [*parts, *_own(value, node_of)])
    return {**node, "count": array.size, "digest": _digest_of(*_pieces(array))}


def _own(value: Any, node_of: _NodeOf) -> Iterator[tuple[str, Node]]:
    """Return what a value has besides what its class keeps, as the unit of an array."""
    if not isinstance(value, np.memmap):  # which keeps the name of its file
        yield from _attributes(getattr(value, "__dict__", {}), node_of)


def _index_label(at: int, shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, np.unravel_index(at, shape)))}]"


def _element(number: Any) -> Any:
    """Return a number of an array as one of Python, or its text where Python has none like it."""
    exact = number.dtype.kind in "biufcSU" and number.dtype.itemsize <= _EXACT_BYTES
    return number.item() if exact or number.dtype.kind in "SU" else str(number)


def _pieces(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.nbytes <= _WHOLE_BYTES:
        return [_bytes(array)]
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    end, step = _END_BYTES // array.itemsize, -(-array.size // _SAMPLE)
    return [_bytes(part) for part in (flat[:end], flat[array.size - end :], flat[::step])]


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of an array, with one bit pattern for all that is not a number."""
    if array.dtype.kind not in "fc":
        return array.tobytes()
    numbers = np.ascontiguousarray(array).view(array.real.dtype)
    wrong = np.isnan(numbers)
    if wrong.any():
        numbers = np.where(wrong, numbers.dtype.type(np.nan), numbers)
    return numbers.tobytes()


def _tensor(value: Any, node_of: _NodeOf) -> Node:
    words = f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    kept = value.detach().cpu()
    parts = [
        ("device", leaf("device", str(value.device))),
        ("requires_grad", node_of(value.requires_grad)),
        *_own(value, node_of),
    ]
    if str(kept.layout) != "torch.strided" or kept.is_quantized:
        return branch(_kind_of(value), words, [*parts, ("text", node_of(kept.to_dense().tolist()))])
    torch = sys.modules["torch"]
    flat = kept.resolve_conj().resolve_neg().contiguous().reshape(-1)
    some = MOST if flat.numel() <= MOST else _FIRST
    for at, number in enumerate(flat[:some].tolist()):
        parts.append((_index_label(at, tuple(value.shape)), node_of(number)))
    node = branch(_kind_of(value), words, parts)
    digest = _digest_of(*_pieces(flat.view(torch.uint8).numpy()))
    return {**node, "count": flat.numel(), "digest": digest}


# -- Objects in a fingerprint: instances of any class by their state, and those with a text --------
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_SHOWN_WHOLE = (  # their repr says all
    *(dt.timedelta, dt.timezone, dt.date, dt.time, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PurePath, range, slice, type(Ellipsis), type(NotImplemented)),
)
_OPAQUE = (  # only their type counts, as that of all that pickle refuses
    *(threading.Thread, threading.Condition, threading.Event, threading.Semaphore),
    *(threading.Barrier, io.FileIO, io.TextIOWrapper),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),  # caches
)
_UNDRESSED: dict[type, Callable[[Any], object]] = {  # a value of a subclass as one of its base
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda text: str.__getitem__(text, slice(None)),
    bytes: lambda text: bytes.__getitem__(text, slice(None)),
}
_OF_WRAPPED = frozenset(functools.WRAPPER_ASSIGNMENTS)  # attributes that a wrapper takes over
_OWN = __name__.partition(".")[0]  # what runs of a pipeline note in its parts does not count
_STATE = 2  # place of the state in what `__reduce_ex__` gives
_PROTOCOL = 4
# In the notebook it is at the top level; the user's own function of this name is renamed.
_IN_FRAME = re.compile(r"^_?build_pipeline(?:_\d+)?\.<locals>\.")
_RENAMED = re.compile(r"^_+(?=build_pipeline(?:\.|$))")


def qualname(value: Any) -> str:
    """Return the qualified name of a class or function, without that of `build_pipeline`."""
    return _own_name(_IN_FRAME.sub("", str(value.__qualname__)))


def _own_name(name: str) -> str:
    """Return what the notebook calls something that a module has to rename."""
    return _RENAMED.sub("", name)


def name_of(value: Any) -> str:
    """Return the name of a class or function: with its module, if that is a library."""
    name = qualname(value if hasattr(value, "__qualname__") else type(value))
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if is_library(module) and module != "builtins" else name


def _kind_of(value: Any) -> str:
    """Return the name of the class of a value."""
    return name_of(type(value))


RANDOM_STATE = "random state"  # of a generator: how far it has been drawn from


def _generator(value: Any, node_of: _NodeOf) -> Node | None:
    """Return the node of a generator of random numbers that keeps its seed; None for others."""
    if isinstance(value, np.random.Generator):
        seeds: Any = value.bit_generator.seed_seq
        seed, state = (seeds.entropy, seeds.spawn_key), value.bit_generator.state
    elif is_generator(value) and hasattr(value, "initial_seed"):  # of torch
        seed, state = (value.initial_seed(), str(value.device)), value.get_state()
    else:
        return None
    parts = [("seed", node_of(seed)), (RANDOM_STATE, node_of(state))]
    return branch(_kind_of(value), qualname(type(value)), parts)


def _object_node(value: Any, node_of: _NodeOf) -> Node:
    """Return the node of an object."""
    if (drawing := _generator(value, node_of)) is not None:
        return drawing
    kind, shown = _kind_of(value), qualname(type(value))
    if isinstance(value, _OPAQUE):
        return leaf(kind, shown)
    if type(value).__module__ == "asyncio.locks":  # who waits, and in which loop, is not theirs
        kept = {name: one for name, one in attributes_of(value).items() if name.endswith("value")}
        return branch(kind, shown, list(_attributes(kept, node_of)))
    if isinstance(value, _SHOWN_WHOLE) or type(value).__module__ == "itertools":
        text = redacted(_ADDRESS.sub("", repr(value)))
        own = list(_own(value, node_of))
        return branch(kind, text, own) if own else leaf(kind, text)
    if isinstance(value, logging.Logger):
        is_own = value.name in sys.modules and not is_library(value.name)  # by `__name__`
        return leaf(kind, "the module's logger" if is_own else f"logger {value.name!r}")
    return branch(kind, shown, list(_parts(value, node_of)))


def _parts(value: Any, node_of: _NodeOf) -> Iterator[tuple[str, Node]]:
    """Return what an object is made of: attributes as they are stored, or what pickle would get."""
    plain = next((base for base in _UNDRESSED if isinstance(value, base)), None)
    if plain is not None:
        yield "value", node_of(_UNDRESSED[plain](value))
    if dataclasses.is_dataclass(value) and type(value).__module__.partition(".")[0] == _OWN:
        kept = [one.name for one in dataclasses.fields(value) if one.compare]
        yield from _attributes({name: getattr(value, name) for name in kept}, node_of)
        return
    if _is_plain_class(type(value)):
        yield from _attributes(attributes_of(value) or _texts_shown_by(value), node_of)
        return
    # Of exceptions other libraries put a recipe there, with the traceback: not in every process.
    own = isinstance(value, BaseException)
    reduce = None if own else copyreg.dispatch_table.get(type(value))
    reduced: Any = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
    if isinstance(reduced, str):
        yield "name", leaf("str", reduced)
        return
    how, arguments = reduced[:_STATE]
    state, items, pairs = (*reduced[_STATE:], None, None, None)[:3]
    yield "maker", leaf("callable", name_of(how))
    for at, part in enumerate(arguments):
        if part is not type(value):
            yield f"argument {at}", node_of(part)
    yield from _attributes(_flat(state), node_of)
    yield from ((f"[{at}]", node_of(part)) for at, part in enumerate(items or ()))
    if pairs is not None:
        yield "items", node_of(dict(pairs))


def _texts_shown_by(value: Any) -> dict[str, Any]:
    """Return the texts that a value shows whose class is not written in Python, as a `Struct`."""
    shown = (types.GetSetDescriptorType, types.MemberDescriptorType)
    names = [name for name in dir(value) if isinstance(getattr(type(value), name, None), shown)]
    found = {name: getattr(value, name, None) for name in names}
    return {name: one for name, one in found.items() if isinstance(one, str | bytes)}


def _is_plain_class(kind: type) -> bool:
    """Return whether instances of a class are what their attributes are."""
    python = all(base is object or base.__flags__ & IN_PYTHON for base in kind.__mro__)
    if issubclass(kind, (list, tuple, dict, set, frozenset)):
        return False
    if dataclasses.is_dataclass(kind):
        return True
    return python and not has_recipe(kind)


def _flat(state: Any) -> dict[Any, Any]:
    halves = state if isinstance(state, tuple) and len(state) == _STATE else (state,)
    if all(half is None or isinstance(half, dict) for half in halves):
        return {name: part for half in halves for name, part in (half or {}).items()}
    return {"": state}


def _attributes(values: dict[Any, Any], node_of: _NodeOf) -> Iterator[tuple[str, Node]]:
    for name in sorted(values.keys() - _OF_WRAPPED, key=str):
        yield f"attribute {str(name)!r}", node_of(values[name], str(name))


# -- Fingerprint: a value as plain words and digests, equal in another process for an equal value --
_BUDGET = 100_000  # values that are looked at one by one
_DEPTH = 32  # levels
_LONG_TEXT = 200  # characters or bytes
_LONG_INT_BITS = 4_000  # Python refuses to write longer ones
_CHUNK = 10_000  # elements
_MOST_PLAIN = 5_000_000  # numbers and texts of one container that are looked at
_PLAIN = {type(None), bool, int, float, complex, str, bytes, pathlib.PosixPath, pathlib.WindowsPath}
_EMPTY: dict[str, str] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))


def fingerprint_of(value: object) -> Any:
    """Return a value as JSON: equal for equal values, also in another process; never raises.

    Numbers count to the last bit; dicts by their order, sets without; functions and classes of
    the user by their code, those of libraries by name; other objects by their class and by the
    state that they give to pickle. Of what cannot be looked at (locks, files, generators) only
    the type counts. At most 100,000 values are looked at one by one.
    """
    try:
        with knowing(alone=True):  # what a fresh process knows, too
            return _NodeMaker().node_of(value)
    except Exception:  # noqa: BLE001 - a value that cannot be looked at still has a type
        return leaf(qualname(type(value)), qualname(type(value)))


def json_fingerprint(value: object) -> Any:
    """Return the fingerprint of a value as JSON gives it back, with lists for tuples."""
    return json.loads(json.dumps(fingerprint_of(value)))


class _NodeMaker:
    """Makes the node of one value, and of what is in it."""

    def __init__(self) -> None:
        self._left = _BUDGET
        self._around: dict[int, int] = {}  # objects that are under way: their levels

    def node_of(self, value: Any, name: str = "") -> Node:
        """Return the node of a value."""
        self._left -= 1
        value = of_shell(value)
        if type(value) in _PLAIN:
            return _plain(value, name)
        depth = len(self._around)
        if id(value) in self._around:
            return leaf("again", f"itself, {depth - self._around[id(value)]} levels up")
        if self._left < 0 or depth > _DEPTH:
            return leaf("more", _kind_of(value))
        self._around[id(value)] = depth
        try:
            return self._node_of_object(value)
        except Exception:  # noqa: BLE001 - as above; its type still counts
            return leaf(_kind_of(value), _kind_of(value))
        finally:
            del self._around[id(value)]

    def _node_of_object(self, value: Any) -> Node:
        if isinstance(value, enum.Enum):
            words = f"{qualname(type(value))}.{value.name}"
            return branch("enum", words, [("value", self.node_of(value.value))])
        node = _code_node(value, self.node_of) or _array_node(value, self.node_of)
        return node or self._container(value) or _object_node(value, self.node_of)

    def _container(self, value: Any) -> Node | None:
        kind = type(value)
        if kind in (list, tuple, *_VIEWS):
            return self._sequence(kind.__name__, list(value))
        if kind in (dict, types.MappingProxyType):
            return self._of_many(list(value.items()), self._pairs)
        if kind in (set, frozenset):
            return self._set(kind.__name__, value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            fields = zip(kind._fields, value, strict=False)
            parts = [(f"attribute {n!r}", self.node_of(v, n)) for n, v in fields]
            return branch(f"{_kind_of(value)}", kind.__name__, parts)
        return None

    def _sequence(self, kind: str, values: Sequence[Any]) -> Node:
        def made(some: Iterable[Any]) -> Node:
            parts = ((f"[{at}]", self.node_of(value)) for at, value in enumerate(some))
            return branch(kind, f"a {kind}", parts)

        return self._of_many(values, made)

    def _of_many(self, values: Sequence[Any], made: Callable[[Iterable[Any]], Node]) -> Node:
        """Make the node of a container; of a long one of plain values by the first and a digest."""
        digest = _plain_digest(values) if len(values) > MOST else None
        if digest is None:
            return made(islice(values, max(_FIRST, self._left)))
        return {**made(values[:_FIRST]), "digest": digest, "count": len(values)}

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> Node:
        parts = []
        for key, value in pairs:
            key_node = self.node_of(key)
            parts.append((_label(key_node), self.node_of(value, str(key)[:MOST])))
        return branch("dict", "a dict", parts)

    def _set(self, kind: str, values: Any) -> Node:
        if len(values) > self._left:
            return leaf(kind, f"a {kind}", count=len(values))
        if len(values) > MOST and set(map(type, values)) <= _PLAIN:
            text = _digest_of(*(f"{text}\0" for text in sorted(map(repr, values))))
            return leaf(kind, f"a {kind}", count=len(values), digest=text)
        nodes = sorted((self.node_of(value) for value in values), key=json.dumps)
        return branch(kind, f"a {kind}", ((f"[{node['shown']}]", node) for node in nodes))


def _label(key: Node) -> str:
    """Return the place of a value in a dict; keys that look alike have a digest each."""
    whole = "parts" not in key and "digest" not in key
    return f"[{key['shown']}]" if whole else f"[{key['shown']} {_digest_of(json.dumps(key))}]"


def _plain(value: Any, name: str) -> Node:
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        return _text(kind, value, name)
    if kind == "int" and value.bit_length() > _LONG_INT_BITS:
        return leaf(kind, f"an int of {value.bit_length()} bits", digest=_digest_of(hex(value)))
    if kind == "complex":
        return leaf(kind, f"complex({value.real!r}, {value.imag!r})")
    if isinstance(value, pathlib.PurePath):
        node = _text(kind, str(value), name)
        return {**node, "shown": f"Path({node['shown']})"}
    return leaf(kind, repr(value))


def _text(kind: str, value: str | bytes, name: str) -> Node:
    head = value[: 4 * _LONG_TEXT]
    text = head if isinstance(head, str) else head.decode("latin-1")
    if is_secret(name, text):
        return leaf(kind, repr(HIDDEN), digest=_digest_of(value))
    if len(value) <= _LONG_TEXT:
        return leaf(kind, repr(value))
    return leaf(
        kind, f"{value[: _FIRST * _FIRST]!r}...", count=len(value), digest=_digest_of(value)
    )


def _plain_digest(values: Sequence[Any]) -> str | None:
    """Digest a long list of plain values, or of short tuples of them; None for any other."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN | {tuple, list}:
        inner = (value for value in values if type(value) in (tuple, list))
        if not kinds & {tuple, list} or set(map(type, chain.from_iterable(inner))) <= _PLAIN:
            first = islice(values, _MOST_PLAIN)
            texts = iter(lambda: list(islice(first, _CHUNK)), [])
            return _digest_of(str(len(values)), *map(repr, texts))
    return None
