"""Names that code binds in its own scope, and scopes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
CLOSED = frozenset({"function", "comprehension"})  # what is local there is known beforehand
_Capture = ast.MatchAs | ast.MatchStar


@dataclass(slots=True)
class Scope:
    """A scope of names.

    Attributes:
        kind: "module", "class", "function" or "comprehension".
        names: what is local; of a module or a class, what has been bound so far.
        globals: names that `global` makes global.
        outer: the scope around it; None for a module.
        is_later: its code is executed when a function is called.
        owner: name of the class whose private names are mangled here.
    """

    kind: str
    names: set[str] = field(default_factory=set)
    globals: frozenset[str] = frozenset()
    outer: Scope | None = None
    is_later: bool = False
    owner: str = ""

    def is_global(self, name: str) -> bool:
        """Tell whether a name that is read here may be a global one."""
        if name in self.globals:
            return True
        if name in self.names:
            return False
        scope = self.outer
        while scope is not None:
            if name in scope.globals:
                return True
            if scope.kind in CLOSED and name in scope.names:
                return False
            if scope.outer is None:
                return self.is_later or name not in scope.names
            scope = scope.outer
        return True

    def binds(self, name: str) -> None:
        """Take note that a name is bound here."""
        if self.kind not in CLOSED:
            self.names.add(name)


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Give the names that nodes bind where they stand, not in the functions and classes inside.

    `del x` counts, as it makes `x` local; a star import binds nothing that could be named.
    """
    for node in nodes:
        yield from _bound_by(node)
        yield from bound_names(_inside(node))


def alias_name(alias: ast.alias) -> str:
    """Give the name that an import binds: `a` for `import a.b`."""
    return alias.asname or alias.name.partition(".")[0]


def declared(nodes: Iterable[ast.AST], kind: type[ast.Global | ast.Nonlocal]) -> Iterator[str]:
    """Give the names that `global` or `nonlocal` statements declare."""
    for node in nodes:
        if isinstance(node, kind):
            yield from node.names
        yield from declared(_inside(node), kind)


def arguments(args: ast.arguments) -> list[ast.arg]:
    """List the parameters of a function in order."""
    many = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg for arg in many if arg is not None]


def defaults(args: ast.arguments) -> list[ast.expr]:
    """List the defaults of a function's parameters."""
    return [value for value in (*args.defaults, *args.kw_defaults) if value is not None]


def mangled(name: str, owner: str) -> str:
    """Give a private name of a class as Python stores it."""
    if not owner.strip("_") or not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{owner.lstrip('_')}{name}"


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias_name(alias) for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.ExceptHandler | _Capture):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Give what of a node is in its scope; of a comprehension, the walruses alone."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (*node.decorator_list, *defaults(node.args))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
    elif isinstance(node, ast.Lambda):
        yield from defaults(node.args)
    elif isinstance(node, Comprehension):
        yield from _walruses(node)
    elif isinstance(node, ast.AnnAssign) and node.value is None and _is_name(node.target):
        return  # `x: int` alone binds nothing
    else:
        yield from ast.iter_child_nodes(node)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _walruses(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.NamedExpr):
            yield child.target
        if not isinstance(child, ast.Lambda):
            yield from _walruses(child)
