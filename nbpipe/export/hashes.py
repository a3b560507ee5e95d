"""Hashes: text that gives another order in each process, as `list(set(labels))`."""

from __future__ import annotations

import ast

# What gives a set, and what hangs on hashes itself.
_OF_HASHES = frozenset(
    (
        *("set", "frozenset", "hash", "union", "intersection", "difference"),
        *("symmetric_difference", "keys", "__hash__"),
    )
)
# What takes the order of its argument over, or forgets it.
_KEEPS = frozenset(("list", "tuple", "enumerate", "zip", "map", "iter", "next", "fromkeys", "join"))
_FORGETS = frozenset(("sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset"))


def may_hang_on_hashes(text: str) -> bool:
    """Say whether text makes sets at all, other than to look something up in them."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    asked = {id(one) for node in nodes if isinstance(node, ast.Compare) for one in node.comparators}
    return any(
        (isinstance(node, ast.Set | ast.SetComp) and id(node) not in asked)
        or _name(node) in _OF_HASHES
        for node in nodes
    )


def shows_order_of_set(text: str) -> bool:
    """Say whether text turns a set straight into something that has an order."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _shows(tree)


def _shows(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _name(node.func) in _FORGETS:
        return False
    if isinstance(node, ast.SetComp):
        return False
    if any(map(_is_set, _ordered(node))):
        return True
    return any(map(_shows, ast.iter_child_nodes(node)))


def _ordered(node: ast.AST) -> list[ast.expr]:
    """Give what a node goes through in its order."""
    if isinstance(node, ast.Call) and _name(node.func) in _KEEPS:
        return node.args
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.comprehension | ast.For):
        return [node.iter]
    return []


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_set(node.left) or _is_set(node.right)
    if isinstance(node, ast.Call):
        return _name(node.func) in _OF_HASHES - {"hash", "__hash__", "keys"}
    return isinstance(node, ast.Set | ast.SetComp)


def _name(node: ast.AST) -> str | None:
    return getattr(node, "id", getattr(node, "attr", None))
