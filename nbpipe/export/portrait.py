"""Portrait: a value as plain words and digests, equal in another process for an equal value.

It answers one question: is what a fresh process made the value that the notebook holds? So it
holds no addresses, no positions in a file, and no name of the user's own module. It is bounded:
large arrays, texts and containers are a digest and their first few elements.
"""

from __future__ import annotations

import enum
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from . import codes, foreign, objects
from .nodes import FIRST, MOST, Node, branch, difference, digest_of, leaf
from .shapes import HIDDEN, is_secret

__all__ = ["difference", "portrait"]

_BUDGET = 100_000  # values that are looked at one by one
_DEPTH = 32  # levels
_LONG_TEXT = 200  # characters or bytes
_LONG_INT_BITS = 4_000  # Python refuses to write longer ones
_CHUNK = 10_000  # elements
_MOST_PLAIN = 5_000_000  # numbers and texts of one container that are looked at
_PLAIN = {type(None), bool, int, float, complex, str, bytes, pathlib.PosixPath, pathlib.WindowsPath}
_EMPTY: dict[str, str] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))


def portrait(value: object) -> Any:
    """Give a value as JSON: equal for equal values, also in another process; never raises.

    Numbers count to the last bit; dicts by their order, sets without; functions and classes of
    the user by their code, those of libraries by name; other objects by their class and by the
    state that they give to pickle. Of what cannot be looked at (locks, files, generators) only
    the type counts. At most 100,000 values are looked at one by one.
    """
    try:
        return _Painter().paint(value)
    except Exception:  # noqa: BLE001 - a value that cannot be looked at still has a type
        return leaf(type(value).__qualname__, type(value).__qualname__)


class _Painter:
    """Paints one value and what is in it."""

    def __init__(self) -> None:
        self._left = _BUDGET
        self._around: dict[int, int] = {}  # objects that are being painted: their levels

    def paint(self, value: Any, name: str = "") -> Node:
        """Paint a value.

        Args:
            value: anything.
            name: what it is called where it stands: a secret is not shown.
        """
        self._left -= 1
        if type(value) in _PLAIN:
            return _plain(value, name)
        depth = len(self._around)
        if id(value) in self._around:
            return leaf("again", f"itself, {depth - self._around[id(value)]} levels up")
        if self._left < 0 or depth > _DEPTH:
            return leaf("more", objects.kind_of(value))
        self._around[id(value)] = depth
        try:
            return self._paint_object(value)
        except Exception:  # noqa: BLE001 - as above; its type still counts
            return leaf(objects.kind_of(value), objects.kind_of(value))
        finally:
            del self._around[id(value)]

    def _paint_object(self, value: Any) -> Node:
        if isinstance(value, enum.Enum):
            words = f"{type(value).__qualname__}.{value.name}"
            return branch("enum", words, [("value", self.paint(value.value))])
        node = codes.painted(value, self.paint) or foreign.painted(value, self.paint)
        return node or self._container(value) or objects.painted(value, self.paint)

    def _container(self, value: Any) -> Node | None:
        kind = type(value)
        if kind in (list, tuple):
            return self._sequence(kind.__name__, value)
        if kind is dict:
            return self._mapping(value)
        if kind in (set, frozenset):
            return self._set(kind.__name__, value)
        if kind in _VIEWS:
            return self._sequence(kind.__name__, list(value))
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            fields = zip(kind._fields, value, strict=False)
            parts = [(f"attribute {n!r}", self.paint(v, n)) for n, v in fields]
            return branch(f"{objects.kind_of(value)}", kind.__name__, parts)
        return None

    def _sequence(self, kind: str, values: Any) -> Node:
        shown = f"a {kind}"
        if len(values) > MOST:
            text = _plain_digest(values)
            if text is not None:
                first = [(f"[{at}]", self.paint(v)) for at, v in enumerate(values[:FIRST])]
                node = branch(kind, shown, first)
                return {**node, "digest": text, "count": len(values)}
        return branch(kind, shown, ((f"[{at}]", self.paint(v)) for at, v in self._some(values)))

    def _some(self, values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        return enumerate(islice(values, max(FIRST, self._left)))

    def _mapping(self, value: Mapping[Any, Any]) -> Node:
        if len(value) > MOST:
            every = list(value.items())
            text = _plain_digest(every)
            if text is not None:
                node = self._pairs(every[:FIRST])
                return {**node, "digest": text, "count": len(value)}
        return self._pairs([pair for _, pair in self._some(value.items())])

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> Node:
        parts = []
        for key, value in pairs:
            painted = self.paint(key)
            same = (
                f" {digest_of(json.dumps(painted))}"
                if "parts" in painted or "digest" in painted
                else ""
            )
            parts.append((f"[{painted['shown']}{same}]", self.paint(value, str(key)[:MOST])))
        return branch("dict", "a dict", parts)

    def _set(self, kind: str, values: Any) -> Node:
        if len(values) > self._left:
            return leaf(kind, f"a {kind}", count=len(values))
        if len(values) > MOST and set(map(type, values)) <= _PLAIN:
            text = digest_of(*(f"{text}\0" for text in sorted(map(repr, values))))
            return leaf(kind, f"a {kind}", count=len(values), digest=text)
        painted = sorted((self.paint(value) for value in values), key=json.dumps)
        return branch(kind, f"a {kind}", ((f"[{node['shown']}]", node) for node in painted))


def _label(key: Node) -> str:
    """Give the place of a value in a dict; keys that look alike have a digest each."""
    whole = "parts" not in key and "digest" not in key
    return f"[{key['shown']}]" if whole else f"[{key['shown']} {digest_of(json.dumps(key))}]"


def _plain(value: Any, name: str) -> Node:
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        return _text(kind, value, name)
    if kind == "int" and value.bit_length() > _LONG_INT_BITS:
        return leaf(kind, f"an int of {value.bit_length()} bits", digest=digest_of(hex(value)))
    if kind == "complex":
        return leaf(kind, f"complex({value.real!r}, {value.imag!r})")
    if isinstance(value, pathlib.PurePath):
        return {**_text(kind, str(value), name), "kind": kind}
    return leaf(kind, repr(value))


def _text(kind: str, value: str | bytes, name: str) -> Node:
    head = value[: 4 * _LONG_TEXT]
    text = head if isinstance(head, str) else head.decode("latin-1")
    if is_secret(name, text, known=False):  # a fresh process is to find the same
        return leaf(kind, repr(HIDDEN), digest=digest_of(value))
    if len(value) <= _LONG_TEXT:
        return leaf(kind, repr(value))
    return leaf(kind, f"{value[: FIRST * FIRST]!r}...", count=len(value), digest=digest_of(value))


def _plain_digest(values: Any) -> str | None:
    """Digest a long list of plain values, or of short tuples of them; None for any other."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN | {tuple, list}:
        inner = (value for value in values if type(value) in (tuple, list))
        if not kinds & {tuple, list} or set(map(type, chain.from_iterable(inner))) <= _PLAIN:
            first = islice(values, _MOST_PLAIN)
            texts = iter(lambda: list(islice(first, _CHUNK)), [])
            return digest_of(str(len(values)), *map(repr, texts))
    return None
