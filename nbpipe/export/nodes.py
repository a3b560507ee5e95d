"""Nodes: what a portrait consists of, and words for where two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from .shapes import HIDDEN, is_plain, scrubbed

Node = dict[str, Any]  # "kind", "shown", and where it has them "parts", "count", "digest"

FIRST = 8  # parts that are kept of a large container
MOST = 64  # parts of a container that are all kept
_SIZE = 2_000  # nodes inside one that are kept
_LONGEST = 60  # characters of a value in a message
_TEXTS = ("str", "bytes")
_QUOTES = 2  # of a text that is shown


def digest_of(*parts: Any) -> str:
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
    kept = every if len(every) <= MOST else every[:FIRST]
    size, fitting = 1, 0
    for _, node in kept:
        size += node.get("size", 1)
        if size > _SIZE:
            break
        fitting += 1
    if fitting < len(every):
        more["digest"] = digest_of(json.dumps(every, sort_keys=True))
    return leaf(
        kind,
        shown,
        parts=[list(part) for part in kept[:fitting]],
        count=len(every),
        size=min(size, _SIZE),
        **more,
    )


def difference(notebook: Any, module: Any) -> str | None:
    """Say where two portraits differ, in words; None if they are equal.

    Args:
        notebook: portrait of the live value.
        module: portrait of the value in a fresh process.
    """
    loose = frozenset(notebook.get("loose", ()))
    if loose:
        notebook, module = _without(notebook, loose), _without(module, loose)
    if notebook == module:
        return None
    return scrubbed(_difference("", notebook, module))


def loosened(node: Node, labels: Iterable[str]) -> Node:
    """Have `difference` overlook some parts of a portrait, as "attribute 'count'"."""
    names = sorted(set(labels))
    return {**node, "loose": names} if names else node


def _without(node: Node, labels: frozenset[str]) -> Node:
    parts = [part for part in node.get("parts", ()) if part[0] not in labels]
    kept = {key: value for key, value in node.items() if key not in ("loose", "size")}
    return {**kept, "parts": parts, "count": len(parts)}


def _difference(where: str, one: Node, other: Node) -> str:
    place = f"{where}: " if where else ""
    if one["kind"] == other["kind"]:
        inner = None if _is_whole(one, other) else _inner_difference(where, one, other)
        if inner is not None:
            return inner
        if one.get("count") != other.get("count"):
            return f"{place}{_anew(_count(one), _count(other))}"
        if one["shown"] == other["shown"]:
            return f"{place}{_unseen(one, other)}"
    return f"{place}{_anew(_shown(one), _shown(other))}"


def _is_whole(one: Node, other: Node) -> bool:
    """Say whether the names of two values say all, as those of members of an enum."""
    return bool(one["kind"] == "enum" and one["shown"] != other["shown"])


def _anew(one: str, other: str) -> str:
    if one == other:
        return f"{one} in the notebook, another when its text runs anew"
    return f"{one} in the notebook, {other} when its text runs anew"


def _inner_difference(where: str, one: Node, other: Node) -> str | None:
    left, right = dict(one.get("parts", ())), dict(other.get("parts", ()))
    for label, node in left.items():
        if label in right and node != right[label]:
            return _difference(_joined(where, label), node, right[label])
    whole = one.get("count") == len(left) and other.get("count") == len(right)
    if not whole or not (left.keys() ^ right.keys()):
        return None
    label = next(iter([key for key in (*left, *right) if key not in left or key not in right]))
    words = [_shown(side[label]) if label in side else "missing" for side in (left, right)]
    return f"{_joined(where, label)}: {_anew(*words)}"


def _joined(where: str, label: str) -> str:
    if label.startswith(("['", '["', "[b'", '[b"')) and not is_plain(label):
        label = "[...]"  # a key may be a secret, too
    return f"{where}{label}" if label.startswith("[") or not where else f"{where} {label}"


def _count(node: Node) -> str:
    if node["kind"] in _TEXTS:
        return _shown(node)
    return f"{node['shown']} of {node.get('count', 0):,}"


def _shown(node: Node) -> str:
    """Give a value in short; of a text that may be a secret, only how long it is."""
    text = str(node["shown"])
    if node["kind"] in _TEXTS and HIDDEN not in text and not is_plain(text):
        return f"a {node['kind']} of {node.get('count', len(text) - _QUOTES)} characters"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _unseen(one: Node, other: Node) -> str:
    if one.get("words"):
        return f"{one['words']} differs"
    if HIDDEN in one["shown"]:
        return "texts that are not shown differ"
    if list(dict(one.get("parts", ()))) != list(dict(other.get("parts", ()))):
        return "the order differs"
    return f"{_shown(one)}, which differs past its first elements"
