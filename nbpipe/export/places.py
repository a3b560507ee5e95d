"""Places: where a chain uses a value, and the user's own words for it there."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from dataclasses import dataclass
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from .calls import Called
from .definitions import read
from .model import Piece, Spelling
from .portrait import portrait
from .scope import Scope
from .secrets import secret_in_text
from .uses import Use, refusal

if TYPE_CHECKING:
    from .collect import Collector

_NOTHING = object()
_LAST = 2**31  # a place behind all cells


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is used.

    Attributes:
        collector: takes what the expression needs.
        scope: whose names count.
        use: who uses it.
        name: what a function without a name is to be called.
        call: the call that it was given to, where that is known.
        keyword: which argument of the call it is; the first where it is empty.
    """

    collector: Collector
    scope: Scope
    use: Use
    name: str
    call: Called | None = None
    keyword: str = ""

    @property
    def node(self) -> ast.expr | None:
        """The argument in the text of the call, where its names are global."""
        if self.call is None or not self.call.is_global:
            return None
        return self.call.argument(self.keyword)

    @property
    def text(self) -> str:
        """Source of that argument."""
        return "" if self.call is None else self.call.text(self.keyword)


def as_called(place: Place, name: str) -> Spelling | None:
    """Write what a call in the user's text gives as the value of a new name.

    None where the text is not known, does not stand at the top level, or uses what cannot be
    exported.
    """
    call, node = place.call, place.node
    if call is None or not isinstance(node, ast.Call):
        return None
    text, flags = f"{name} = {place.text}", call.statement.cell.flags
    if any(isinstance(one, ast.Lambda) for one in ast.walk(node)) or secret_in_text(text):
        return None
    reads: list[tuple[frozenset[str], frozenset[str]]] = []

    def collect() -> None:
        reads.append(read(place.collector, place.scope, node, flags, place.use))

    if place.collector.attempt(collect) is not None:
        return None
    return Spelling(text, *reads[0])


def as_marked(value: Any, text: str, reads: frozenset[str], place: Place) -> str:
    """Let the trial decide between the user's words for a value and `text`.

    Returns:
        What stands for the expression until then; `text` itself where there is no choice.
    """
    mark = place.collector.free_name("_given")
    written = as_called(place, mark)
    if written is None:
        return text
    other = Spelling(f"{mark} = {text}", reads)
    words = f"the function of {place.use.words}"
    expected = {mark: portrait(value)}
    check = Piece((mark,), (written, other), expected, "constant", (_LAST, 0), words)
    place.collector.found.checks[mark] = check
    place.collector.found.owners[mark] = None
    called = place.collector.found.called
    if text in called:
        called[mark] = called[text]
    return mark


def as_given(value: Any, place: Place) -> str | None:
    """Give a library's function as the user gave it, as `json.loads` or `" ".join`."""
    node = place.node
    if not isinstance(node, ast.Attribute):
        return None
    owner: ast.expr = node
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    try:
        live = _followed(node, place.scope.namespace)
        if _is_dispatching(node, value, place.scope.namespace):
            live = value
    except (AttributeError, KeyError):
        return None
    if live is not value and not (_is_bound_builtin(value) and live == value):
        return None
    if isinstance(owner, ast.Name):
        place.collector.need(place.scope, owner.id, place.use)
    return place.text


def _followed(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """Give the live value of names and constants with dots."""
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        plain = isinstance(owner, type | ModuleType | str | bytes)
        return getattr(owner, node.attr) if plain else _NOTHING
    if isinstance(node, ast.Constant):
        return node.value
    return _found(node.id, namespace) if isinstance(node, ast.Name) else _NOTHING


def _is_dispatching(node: ast.Attribute, value: Any, namespace: dict[str, Any]) -> bool:
    """Tell whether a value is a method that `functools.singledispatchmethod` gives on each look."""
    owner = namespace.get(node.value.id) if isinstance(node.value, ast.Name) else None
    found = inspect.getattr_static(owner, node.attr, None)
    kinds = functools.singledispatchmethod
    return isinstance(found, kinds) and getattr(value, "__wrapped__", None) is found.func


def _found(name: str, namespace: dict[str, Any]) -> Any:
    return namespace[name] if name in namespace else getattr(builtins, name)


def _is_bound_builtin(value: Any) -> bool:
    return isinstance(value, BuiltinFunctionType | MethodType)


def older_error(name: str, at: str, use: Use) -> Exception:
    """Make the error for a function or class that was redefined, at a place like " (In[3])"."""
    return refusal(
        f"the pipeline still uses an older {name!r}{at}; it was redefined since: rebuild the "
        "pipeline, then export",
        use,
    )
