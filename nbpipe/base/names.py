"""Names that users write: which of an object's are shown, and which is meant by an unknown one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from ..errors import ArgumentTypeError, near_match
from .format import shortened

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

# What other libraries, and other methods of ours, call the same thing.
_SAME = """
concurrency num_workers workers n_workers max_workers num_parallel_calls num_threads n_jobs
concurrency num_workers num_worker threads
prefetch prefetch_factor prefetch_size buffer_size queue_size
depth prefetch prefetch_factor
size batch_size n
n count size times num_samples
times tries attempts retries max_retries n
collate collate_fn
drop_last drop_remainder
timeout_s timeout
backoff_s backoff delay wait
worker_init worker_init_fn initializer
max_items_per_worker maxtasksperchild max_tasks_per_child
ordered in_order deterministic preserve_order
fn func function pred predicate
world_size num_replicas num_shards
stride step shift
key by
last window
path file filename folder
overwrite force exist_ok
""".strip().splitlines()
_IN_PROCESSES = ("num_workers", "num_worker", "n_workers", "workers", "max_workers", "n_jobs")
_PARALLEL = "concurrency"


def shown(one: object, hidden: Container[str]) -> list[str]:
    """Return the names that completion offers: all but those that only nbpipe itself uses."""
    return [name for name in object.__dir__(one) if name not in hidden]


# Classes of nbpipe that the rooms below theirs know by a kind: "pipeline", "run" or "loader".
own_classes: dict[type, str] = {}
own_class_made: list[Callable[[type, str], object]] = []  # called with each one, and its kind


def own(kind: str) -> Callable[[Class], Class]:
    """Return a decorator that registers a class under its kind."""

    def register(cls: Class) -> Class:
        own_classes[cls] = kind
        for function in own_class_made:
            function(cls, kind)
        return cls

    return register


def own_kind(cls: type) -> str:
    """Return the kind of nbpipe's objects that a class makes; "" for any other class."""
    return next((own_classes[one] for one in cls.__mro__ if one in own_classes), "")


def word_for(word: str, known: Iterable[str]) -> str | None:
    """Return which of the known names means the same as `word`, or None."""
    known = list(known)
    for group in _SAME:
        names = group.split()
        if word in names:
            for name in names:
                if name in known:
                    return name
    return None


def meant(word: str, known: Iterable[str]) -> str:
    """Return which known name is meant, by sense or by spelling, as `; did you mean 'decode'?`."""
    known = list(known)
    found = word_for(word, known)
    return near_match(word, known) if found is None else f"; did you mean {found!r}?"


def names_arguments(function: Function) -> Function:
    """Have a function refuse what it is not called with, and name the argument that is meant."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = tuple(name for name in names if name != "self")
    what = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # a traceback shows the call, and what was called
        for word, value in options.items():
            if word not in known:
                raise ArgumentTypeError(_unknown(what, word, value, known))
        try:
            return function(*args, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # inside the function
            given = len(args) - (len(names) - len(known)), options
            raise ArgumentTypeError(_misfit(what, function, *given, str(error))) from None

    return call  # type: ignore[return-value]


def methods_name_arguments(cls: Class) -> Class:
    """Have the public methods of a class, and its constructor, refuse what they have not."""
    for name, value in tuple(vars(cls).items()):
        if inspect.isfunction(value) and (name == "__init__" or name[0] != "_"):
            setattr(cls, name, names_arguments(value))
    return cls


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; what its annotations name need not be there.

    Raises:
        TypeError, ValueError: it does not tell them.
    """
    # Before 3.14 annotations were read when the function was made, or are text.
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING).parameters
    return inspect.signature(function).parameters


def _misfit(
    what: str, function: Callable[..., Any], given: int, options: Container[str], said: str
) -> str:
    """Say which arguments are missing, or how many too many are given without their names."""
    parameters = list(parameters_of(function).values())
    by_place = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    by_place = [one for one in by_place if one.name != "self"]
    names = ", ".join(one.name for one in by_place) or "nothing"
    if given > len(by_place):
        others = ", ".join(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        by_name = f"; write the others by name: {others}" if others else ""
        return f"{what} takes {names} without a name, got {given} arguments{by_name}"
    missing = [one.name for one in by_place[given:] if one.default is one.empty]
    missing = [name for name in missing if name not in options]
    return f"{what} needs {', '.join(missing)}, got none" if missing else said


def _unknown(what: str, word: str, value: object, known: tuple[str, ...]) -> str:
    """Name the one that is meant: a synonym, a near match, or another method."""
    same = word_for(word, known)
    way = near_match(word, known)
    if same is not None:
        way = f"; write {same}={_written(value)}"
        if same == _PARALLEL and word in _IN_PROCESSES and "executor" in known:
            way += ', executor="process" for worker processes, or without executor for threads'
    elif not way and word_for(word, (_PARALLEL,)):
        way = f"; calls are made in parallel by .map(fn, concurrency={_written(value)})"
    return f"{what} has no argument {word!r}{way} (arguments: {', '.join(known) or 'none'})"


def _written(value: object) -> str:
    name = getattr(value, "__name__", None)
    return shortened(name if isinstance(name, str) else repr(value), 40)
