"""Functions and classes in a portrait: the user's by their code, a library's by name."""

from __future__ import annotations

import bisect
import dataclasses
import dis
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from .nodes import Node, branch, digest_of, leaf
from .objects import is_library, name_of

Paint = Callable[..., Node]

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
_BUILTINS = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
    types.MethodWrapperType,
)


def painted(value: Any, paint: Paint) -> Node | None:
    """Paint a module, class, function or another callable; None for what is none of them."""
    if isinstance(value, types.ModuleType):
        return leaf("module", value.__name__ if is_library(value.__name__) else "the user's module")
    if isinstance(value, FunctionType | type):
        if _is_found(value):
            return leaf("name", name_of(value))
        return _class(value, paint) if isinstance(value, type) else _function(value, paint)
    if isinstance(value, types.MethodType):
        parts = [("function", paint(value.__func__)), ("object", paint(value.__self__))]
        return branch("method", f"method {value.__func__.__qualname__!r}", parts)
    if isinstance(value, _BUILTINS):
        return _builtin(value, paint)
    if isinstance(value, functools.partial):
        return _partial(value, paint)
    if isinstance(value, CodeType):
        return leaf("code", f"code of {value.co_name!r}", digest=_digest(value, paint))
    return _wrapper(value, paint)


def _is_found(value: Any) -> bool:
    """Say whether a library holds a function or class under its name."""
    if not is_library(value.__module__):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value or not (isinstance(value, FunctionType) or found is None)


def _builtin(value: Any, paint: Paint) -> Node:
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        return leaf("name", name_of(value))
    return branch("method", f"method {value.__name__!r}", [("object", paint(owner))])


def _partial(value: functools.partial[Any], paint: Paint) -> Node:
    parts = [("function", paint(value.func))]
    parts += [(f"argument {at}", paint(part)) for at, part in enumerate(value.args)]
    parts += [(f"argument {n!r}", paint(v, n)) for n, v in sorted(value.keywords.items())]
    return branch("partial", "a partial", parts)


def _wrapper(value: Any, paint: Paint) -> Node | None:
    if isinstance(value, property):
        accessors = [(name, paint(getattr(value, name))) for name in ("fget", "fset", "fdel")]
        return branch("property", "a property", accessors)
    if isinstance(value, classmethod | staticmethod):
        kind = type(value).__name__
        return branch(kind, f"a {kind}", [("function", paint(value.__func__))])
    if isinstance(value, functools.cached_property):
        return branch("cached_property", "a cached property", [("function", paint(value.func))])
    if typing.get_origin(value) is not None:
        parts = [(f"argument {at}", paint(arg)) for at, arg in enumerate(typing.get_args(value))]
        return branch("type", "a type", [("origin", paint(typing.get_origin(value))), *parts])
    if isinstance(value, typing.TypeVar | typing.ParamSpec | typing.ForwardRef):
        return leaf("type", str(getattr(value, "__name__", value.__class__.__name__)))
    wrapped = inspect.getattr_static(value, "__wrapped__", None) if callable(value) else None
    if wrapped is None:
        return None
    options = getattr(value, "cache_parameters", dict)
    parts = [("function", paint(wrapped)), ("options", paint(options()))]
    return branch(name_of(type(value)), f"a {type(value).__name__}", parts)


def _function(value: FunctionType, paint: Paint) -> Node:
    parts = [(f"default {n!r}", paint(v, n)) for n, v in _defaults(value)]
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            parts.append((f"closure {name!r}", paint(_unordered(value, cell.cell_contents), name)))
        except ValueError:  # not bound yet
            parts.append((f"closure {name!r}", leaf("unbound", "unbound")))
    for name, attribute in sorted(vars(value).items()):
        if not name.startswith("__"):
            parts.append((f"attribute {name!r}", paint(_unordered(value, attribute), name)))
    code = _digest(value.__code__, paint)
    parts.append(("code", leaf("code", "its code", digest=code, words="it")))
    return branch("function", f"function {value.__qualname__!r}", parts)


def _unordered(function: FunctionType, value: Any) -> Any:
    """Sort the implementations that `singledispatch` holds: none of them comes first."""
    inside = function.__code__.co_filename == functools.singledispatch.__code__.co_filename
    if not inside or not isinstance(value, dict | types.MappingProxyType):
        return value
    return dict(sorted(value.items(), key=lambda pair: name_of(pair[0])))


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    defaults, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from zip(names, defaults, strict=False)
    yield from sorted((function.__kwdefaults__ or {}).items())


def _digest(code: CodeType, paint: Paint) -> str:
    """Digest what code does, without its name and its positions in a file."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    head = [counts, code.co_flags & _FLAGS, [list(group) for group in names]]
    return digest_of(json.dumps([head, list(_instructions(code, paint))]))


def _instructions(code: CodeType, paint: Paint) -> Iterator[Any]:
    """Give what the interpreter does, however it looks up methods.

    `module.function()` is compiled in another way where the module is imported in the same text.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _LOOKING_UP]
    offsets = [step.offset for step in steps]
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        if step.opcode in dis.hasconst:
            if following.argval not in _POSITIONS:
                constant = step.argval
                inner = isinstance(constant, CodeType)
                yield step.opname, _digest(constant, paint) if inner else paint(constant)
        elif step.opcode in _JUMPS:
            yield step.opname, bisect.bisect_left(offsets, step.argval)
        else:
            name = "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname
            yield name, step.argval if step.opcode in dis.hasname else step.arg


def _class(value: type, paint: Paint) -> Node:
    parts = [(f"base {at}", paint(base)) for at, base in enumerate(value.__bases__)]
    if type(value) is not type:
        parts.append(("metaclass", paint(type(value))))
    for name, attribute in sorted(vars(value).items()):
        if name not in _SKIPPED and not isinstance(attribute, types.GetSetDescriptorType):
            parts.append((f"attribute {name!r}", paint(attribute, name)))
    if dataclasses.is_dataclass(value):
        parts += [(f"field {f.name!r}", _field(f, paint)) for f in dataclasses.fields(value)]
    return branch("class", f"class {value.__qualname__!r}", parts)


def _field(field: dataclasses.Field[Any], paint: Paint) -> Node:
    names = ("default", "default_factory", "init", "repr", "compare", "kw_only")
    return branch("field", "a field", [(name, paint(getattr(field, name))) for name in names])
