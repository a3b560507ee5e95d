"""Source: text as Python and IPython read it: lines, magics, names that code binds and reads."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

# -- Lines as Python's tokenizer counts them; U+2028 and form feeds end no line --------------------
_NEWLINE = re.compile(r"\r\n|\r|\n")
# Comments for a program: of the shell, of the encoding, of cells.
_MARK = re.compile(r"#!|#\||# ?%%|#.*?coding[:=][ \t]*[-\w.]+")
_OPENS = frozenset({"FSTRING_START", "TSTRING_START"})  # from Python 3.12, and 3.14
_CLOSES = frozenset({"FSTRING_END", "TSTRING_END"})


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    return _NEWLINE.split(text)


def column(line: str, offset: int) -> int:
    """Return the index of a character from its offset in UTF-8 [bytes], as trees count."""
    if line.isascii():
        return offset
    return len(line.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "surrogatepass"))


def indent_of(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


class Lines:
    """A text, its lines, and what its tokens say of them. Lines are counted from 1.

    Args:
        text: source that Python can parse.
    """

    def __init__(self, text: str) -> None:
        self.lines = _split_lines(text)
        self.tokens = tuple(_tokens(self.lines))
        self.comments = frozenset(self._comments())
        self.in_string = frozenset(self._in_string())

    def __getitem__(self, number: int) -> str:
        return self.lines[number - 1]

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, number: int, offset: int) -> int:
        """Return the index of a character in a line from its offset in UTF-8 [bytes]."""
        return column(self[number], offset)

    def block_above(self, number: int, indent: str) -> int:
        """Return the first line of the comments that stand directly above a line, or the line."""
        while number - 1 in self.comments and indent_of(self[number - 1]) == indent:
            number -= 1
        return number

    def tail(self, number: int, indent: str) -> int:
        """Return the last line of the comments after a block that are indented deeper than it."""
        last = number
        for below in range(number + 1, len(self) + 1):
            line = self[below]
            if below in self.comments and len(indent_of(line)) > len(indent):
                last = below
            elif line.strip():
                break
        return last

    def _comments(self) -> Iterator[int]:
        for token in self.tokens:
            row, start = token.start
            alone = token.type == tokenize.COMMENT and not self[row][:start].strip()
            if alone and not _MARK.match(token.string):
                yield row

    def _in_string(self) -> Iterator[int]:
        opened: list[int] = []
        for token in self.tokens:
            name = tokenize.tok_name[token.type]
            if name in _OPENS:
                opened.append(token.start[0])
            elif name in _CLOSES:
                yield from range(opened.pop() + 1, token.end[0] + 1)
            elif name == "STRING":
                yield from range(token.start[0] + 1, token.end[0] + 1)


@lru_cache(maxsize=256)
def lines_of(text: str) -> Lines:
    """Return the lines of a text; those of recent ones are kept."""
    return Lines(text)


def _tokens(lines: list[str]) -> Iterator[tokenize.TokenInfo]:
    source = io.StringIO("\n".join(lines) + "\n", newline="\n")
    try:
        yield from tokenize.generate_tokens(source.readline)
    except (tokenize.TokenError, SyntaxError):  # what came before is true all the same
        return


# -- Trees, and the places of expressions in a text ------------------------------------------------
_ENDED = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # what the parser counts as lines


def tree_of(text: str) -> ast.Module | None:
    """Return the tree of a text, without warnings of what is in it; None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def last_name(node: ast.AST | None) -> str:
    """Return the name of a variable, or the one behind the last dot; empty for anything else."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def root_of(node: ast.AST) -> ast.AST:
    """Return what an expression with dots and brackets begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node


def names_in(code: ast.AST | str) -> set[str]:
    """Return the variables of an expression, or of arguments as they stand in a call."""
    if isinstance(code, str):
        call: Any = ast.parse(f"f({code}\n)", mode="eval").body
        return {name for one in (*call.args, *call.keywords) for name in names_in(one)}
    return {one.id for one in ast.walk(code) if isinstance(one, ast.Name)}


def span_of(data: bytes, node: ast.expr) -> tuple[int, int]:
    """Return where an expression begins and ends in a source text [bytes].

    Args:
        data: the text in UTF-8.
        node: a part of its tree.
    """
    starts = list(accumulate(map(len, _ENDED.findall(data)), initial=0))
    last = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, last


def replaced(text: str, parts: Iterable[tuple[ast.expr, str]], *, within: Any = None) -> str:
    """Return a source text with expressions of it replaced, none of them inside another.

    Args:
        text: it.
        parts: each expression, and what takes its place.
        within: the expression that is returned; None: all of the text.
    """
    data = text.encode("utf-8")
    first, end = (0, len(data)) if within is None else span_of(data, within)
    spans = sorted((span_of(data, node), new) for node, new in parts)
    found = b""
    for (begin, last), new in spans:
        found += data[first:begin] + new.encode("utf-8")
        first = last
    return (found + data[first:end]).decode("utf-8")


# -- What IPython makes of magic and shell lines, and the Python that stands in them ---------------
# They execute their body in the user's namespace.
_EXECUTING = frozenset({"time", "capture", "prun"})
_CALLS = frozenset({"system", "getoutput", "run_line_magic", "run_cell_magic", "magic"})
_OPTIONS = ("--no-raise-error",)  # of `%time`


@dataclass(frozen=True, slots=True)
class Body:
    """What stands in a cell below a line such as `%%time`.

    Attributes:
        text: it, as IPython compiles it.
        binds: it is executed in the user's namespace.
    """

    text: str
    binds: bool


def body_of(tree: ast.Module) -> Body | None:
    """Return the body of a cell that is one cell magic; None for other cells."""
    if len(tree.body) != 1:
        return None
    found = _arguments(tree.body[0], "run_cell_magic")
    if found is None or len(found) != 3:  # noqa: PLR2004  name, line, body
        return None
    return Body(transformed(found[2]), found[0] in _EXECUTING)


def line_of(node: ast.stmt) -> str | None:
    """Return the statement that `%time statement` executes; None for other statements."""
    found = _arguments(node, "run_line_magic")
    if found is None or len(found) < 2 or found[0] not in _EXECUTING:  # noqa: PLR2004
        return None
    line = found[1].strip()
    for option in _OPTIONS:
        line = line.removeprefix(option).strip()
    return transformed(line)


def shell_calls(tree: ast.AST) -> frozenset[int]:
    """Return the lines that call IPython for a `!` or `%` line."""
    return frozenset(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _method(node) in _CALLS
    )


def shell() -> Any:
    """Return IPython's shell, or None where there is none; IPython is not imported."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def transformed(text: str) -> str:
    """Return what IPython makes of a text."""
    ip = shell()
    if ip is None:
        return text
    try:
        return str(ip.transform_cell(text))
    except Exception:  # noqa: BLE001  transformers of the user's may raise anything
        return text


def _arguments(node: ast.stmt, method: str) -> list[str] | None:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or _method(call) != method:
        return None
    values = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def _method(call: ast.Call) -> str | None:
    """Return `m` of `get_ipython().m(...)`."""
    match call.func:
        case ast.Attribute(ast.Call(ast.Name("get_ipython")), attr):
            return attr
    return None


# -- Names that code binds in its own scope, and scopes --------------------------------------------
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
CLOSED = frozenset({"function", "comprehension"})  # what is local there is known beforehand
_Capture = ast.MatchAs | ast.MatchStar


@dataclass(slots=True)
class _NameScope:
    """A scope of names.

    Attributes:
        kind: "module", "class", "function" or "comprehension".
        names: what is local; of a module or a class, what has been bound so far.
        globals: names that `global` makes global.
        outer: the scope around it; None for a module.
        is_later: its code is executed when a function is called.
        owner: name of the class whose private names are _mangled here.
    """

    kind: str
    names: set[str] = field(default_factory=set)
    globals: frozenset[str] = frozenset()
    outer: _NameScope | None = None
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
    """Return the names that nodes bind where they stand, not in the functions and classes inside.

    `del x` counts, as it makes `x` local; a star import binds nothing that could be named.
    """
    for node in nodes:
        yield from _bound_by(node)
        yield from bound_names(_inside(node))


def _alias_name(alias: ast.alias) -> str:
    """Return the name that an import binds: `a` for `import a.b`."""
    return alias.asname or alias.name.partition(".")[0]


def _declared(nodes: Iterable[ast.AST], kind: type[ast.Global | ast.Nonlocal]) -> Iterator[str]:
    """Return the names that `global` or `nonlocal` statements declare."""
    for node in nodes:
        if isinstance(node, kind):
            yield from node.names
        yield from _declared(_inside(node), kind)


def arguments(args: ast.arguments) -> list[ast.arg]:
    """List the parameters of a function in order."""
    many = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg for arg in many if arg is not None]


def defaults(args: ast.arguments) -> list[ast.expr]:
    """List the defaults of a function's parameters."""
    return [value for value in (*args.defaults, *args.kw_defaults) if value is not None]


def _mangled(name: str, owner: str) -> str:
    """Return a private name of a class as Python stores it."""
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
        yield from (_alias_name(alias) for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.ExceptHandler | _Capture):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Return what of a node is in its scope; of a comprehension, the walruses alone."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (*node.decorator_list, *defaults(node.args))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
    elif isinstance(node, ast.Lambda):
        yield from defaults(node.args)
    elif isinstance(node, _Comprehension):
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


# -- Names that code reads: while it is executed, and later, when its functions are called ---------
Reads = tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]
_ALIKE = {
    "AsyncFor": "For",
    "AsyncFunctionDef": "FunctionDef",
    "DictComp": "ListComp",
    "GeneratorExp": "ListComp",
    "ImportFrom": "Import",
    "MatchAs": "Import",
    "MatchMapping": "Import",
    "MatchStar": "Import",
    "SetComp": "ListComp",
    "TryStar": "Try",
}
CHANGING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "intersection_update",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "put",
        "put_nowait",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "subtract",
        "symmetric_difference_update",
        "update",
    ]
)


def names_read(node: ast.AST, *, future: bool) -> Reads:
    """Return the global names that code uses, builtins among them.

    A name that the code itself has bound before, on all ways that lead there, is none of those
    read now.

    Args:
        node: a statement, an expression or a module.
        future: annotations are not evaluated, as `from __future__ import annotations` says.

    Returns:
        Names read now; read later, in function bodies and in annotations that are not evaluated;
        rebound by `global` in functions; changed in place in functions.
    """
    reader = _Reader(future=future)
    reader.visit(node, _NameScope("module"))
    return (
        frozenset(reader.now),
        frozenset(reader.later),
        frozenset(reader.rebound),
        frozenset(reader.mutated),
    )


def names_unbound(text: str, *, future: bool) -> frozenset[str]:
    """Return the names that a module reads, and that nothing in it binds; builtins among them.

    Args:
        text: the module, or a part of one.
        future: annotations are not evaluated.
    """
    tree = ast.parse(text)
    now, later, rebound, _ = names_read(tree, future=future)
    return (now | later) - rebound - frozenset(bound_names(tree.body))


class _Reader(ast.NodeVisitor):
    """Walks code in the order of execution, and notes what it does with global names."""

    def __init__(self, *, future: bool) -> None:
        self.now: set[str] = set()
        self.later: set[str] = set()
        self.rebound: set[str] = set()
        self.mutated: set[str] = set()
        self._future = future
        self._scope = _NameScope("module")

    def visit(self, node: ast.AST, scope: _NameScope | None = None) -> None:
        """Walk a node, in a scope of its own if one is given."""
        outer, self._scope = self._scope, scope or self._scope
        kind = type(node).__name__
        getattr(self, f"visit_{_ALIKE.get(kind, kind)}", self.generic_visit)(node)
        self._scope = outer

    def _all(self, nodes: Iterable[ast.AST], scope: _NameScope | None = None) -> None:
        for node in nodes:
            self.visit(node, scope)

    # -- names ----------------------------------------------------------------------------
    def visit_Name(self, node: ast.Name) -> None:
        """Note what is done with a name."""
        name = _mangled(node.id, self._scope.owner)
        if isinstance(node.ctx, ast.Load):
            self._read(name)
        elif isinstance(node.ctx, ast.Store):
            self._bind(name)
        else:
            self._unbind(name)

    def _read(self, name: str) -> None:
        if self._scope.is_global(name):
            (self.later if self._scope.is_later else self.now).add(name)

    def _bind(self, name: str) -> None:
        if name in self._scope.globals and self._scope.is_later:
            self.rebound.add(name)
        self._scope.binds(name)

    def _unbind(self, name: str) -> None:
        self._bind(name)
        if self._scope.kind not in CLOSED:
            self._scope.names.discard(name)

    def _bind_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._bind(_mangled(name, self._scope.owner))

    def _mutate(self, node: ast.AST | None) -> None:
        """Note that what an expression gives is changed in place."""
        node = None if node is None else root_of(node)
        if isinstance(node, ast.Name) and self._scope.is_later:
            name = _mangled(node.id, self._scope.owner)
            if self._scope.is_global(name):
                self.mutated.add(name)

    def generic_visit(self, node: ast.AST) -> None:
        """Note what is changed in place, as by `x[...] = ` or `x.append(...)`."""
        self._mutate(changed_by(node))
        super().generic_visit(node)

    # -- statements -----------------------------------------------------------------------
    def visit_Assign(self, node: ast.Assign) -> None:
        """Read the value first."""
        self._all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Read the target, too."""
        if isinstance(node.target, ast.Name):
            name = _mangled(node.target.id, self._scope.owner)
            self._read(name)
            self._mutate(node.target)
        self._all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Read the annotation; that of a function's variable is never evaluated."""
        if node.value is not None:
            self.visit(node.value)
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)
        is_local = self._scope.kind == "function" and self._scope.is_later
        self._annotations([node.annotation], evaluated=not is_local and not self._future)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Bind the target before the body."""
        self._all([node.iter, node.target])
        self._branches(node.body, [])
        self._branches(node.orelse, [])

    def visit_While(self, node: ast.While) -> None:
        """Trust in nothing that the body binds."""
        self.visit(node.test)
        self._branches(node.body, [])
        self._branches(node.orelse, [])

    def visit_If(self, node: ast.If) -> None:
        """Trust in what both branches bind."""
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        """Trust in what the body binds if all handlers bind it, too."""
        handlers: list[Sequence[ast.AST]] = [[one] for one in node.handlers]
        self._branches([*node.body, *node.orelse], *handlers)
        self._all(node.finalbody)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Bind the error's name for the time of the handler."""
        if node.type is not None:
            self.visit(node.type)
        self._bind_all([node.name] if node.name else [])
        self._all(node.body)
        if node.name and self._scope.kind != "function":
            self._scope.names.discard(node.name)

    def visit_Match(self, node: ast.Match) -> None:
        """Trust in nothing that a case binds."""
        self.visit(node.subject)
        for case in node.cases:
            self._branches([case], [])

    def visit_Import(self, node: ast.AST) -> None:
        """Bind the names of an import, or what a pattern captures."""
        self.generic_visit(node)
        self._bind_all(_bound_by(node))

    def _branches(self, *bodies: Sequence[ast.AST]) -> None:
        """Walk ways of which one is taken; what all of them bind is bound."""
        before = set(self._scope.names)
        after: list[set[str]] = []
        for body in bodies:
            if self._scope.kind not in CLOSED:
                self._scope.names = set(before)
            self._all(body)
            after.append(self._scope.names)
        if self._scope.kind not in CLOSED:
            self._scope.names = set.intersection(*after)

    # -- scopes ---------------------------------------------------------------------------
    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read decorators, defaults and annotations now, the body later."""
        self._all([*node.decorator_list, *defaults(node.args)])
        typed = self._typed(node)
        notes = [arg.annotation for arg in arguments(node.args)] + [node.returns]
        outer, self._scope = self._scope, typed
        self._annotations(notes, evaluated=not self._future)
        self._scope = outer
        self._function(node.args, node.body, typed)
        self._bind_all([node.name])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Read defaults now, the body later."""
        self._all(defaults(node.args))
        self._function(node.args, [node.body], self._scope)

    def _function(self, args: ast.arguments, body: Sequence[ast.AST], outer: _NameScope) -> None:
        named = frozenset(_declared(body, ast.Global))
        free = frozenset(_declared(body, ast.Nonlocal))
        own = {arg.arg for arg in arguments(args)} | set(bound_names(body)) | {"__class__"}
        names = {_mangled(name, outer.owner) for name in own - named - free}
        if not outer.owner:
            names.discard("__class__")
        scope = _NameScope("function", names, named, outer, is_later=True, owner=outer.owner)
        self._all(body, scope)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Read the body at once; what it has bound before is its own."""
        self._all(node.decorator_list)
        typed = self._typed(node)
        self._all([*node.bases, *node.keywords], typed)
        named = frozenset(_declared(node.body, ast.Global))
        own = {"__module__", "__qualname__"}
        scope = _NameScope("class", own, named, typed, typed.is_later, node.name)
        self._all(node.body, scope)
        self._bind_all([node.name])

    def _typed(self, node: ast.AST) -> _NameScope:
        """Return the scope of the parameters of types, `T` in `def f[T](x)`, if there are any."""
        here = self._scope
        parameters = getattr(node, "type_params", [])
        if not parameters:
            return here
        names = {one.name for one in parameters}
        typed = _NameScope("function", names, frozenset(), here, here.is_later, here.owner)
        later = _NameScope("function", set(), frozenset(), typed, is_later=True, owner=here.owner)
        for one in parameters:
            self._all(ast.iter_child_nodes(one), later)
        return typed

    def visit_TypeAlias(self, node: ast.AST) -> None:
        """Read the value of `type X = ...` later."""
        typed = self._typed(node)
        later = _NameScope("function", set(), frozenset(), typed, is_later=True, owner=typed.owner)
        self.visit(node.value, later)  # type: ignore[attr-defined]
        self.visit(node.name)  # type: ignore[attr-defined]

    def visit_ListComp(self, node: _Comprehension) -> None:
        """Read all of it at once; only the first iterable belongs to the scope around it."""
        first = node.generators[0]
        self.visit(first.iter)
        here = self._scope
        names = set(bound_names(one.target for one in node.generators))
        scope = _NameScope("comprehension", names, frozenset(), here, here.is_later, here.owner)
        for number, one in enumerate(node.generators):
            self._all([*([one.iter] if number else []), *one.ifs], scope)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._all(values, scope)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Bind in the function or module around the comprehensions."""
        self.visit(node.value)
        scope = self._scope
        while scope.kind == "comprehension" and scope.outer is not None:
            scope = scope.outer
        self.visit(node.target, scope)

    # -- annotations ----------------------------------------------------------------------
    def _annotations(self, notes: Iterable[ast.expr | None], *, evaluated: bool) -> None:
        here = self._scope
        later = _NameScope("function", set(), frozenset(), here, is_later=True, owner=here.owner)
        for note in notes:
            if note is None:
                continue
            self.visit(note, here if evaluated else later)
            self._all(_quoted(note), later)


def _quoted(note: ast.AST) -> Iterator[ast.expr]:
    """Return the annotations that stand in an annotation as text; what `Literal` holds is none."""
    match note:
        case ast.Constant(str(text)):
            try:
                yield ast.parse(text.strip(), mode="eval").body
            except SyntaxError:
                return
        case ast.Subscript(value, inside):
            name = last_name(value)
            parts = inside.elts[:1] if isinstance(inside, ast.Tuple) else [inside]
            if name == "Annotated":
                yield from (one for part in parts for one in _quoted(part))
            elif name != "Literal":
                yield from _quoted(inside)
        case _:
            for child in ast.iter_child_nodes(note):
                yield from _quoted(child)


def changed_by(node: ast.AST) -> ast.expr | None:
    """Return what a part of some code changes in place, by a method of torch as `x.add_` too."""
    match node:
        case ast.Attribute(value, _, ctx) | ast.Subscript(value, _, ctx):
            return None if isinstance(ctx, ast.Load) else value
        case ast.Call(ast.Attribute(value, name)):
            in_place = name.endswith("_") and not name.endswith("__")
            return value if name in CHANGING or in_place else None
        case ast.Call(ast.Name("next"), [given, *_]):
            return given
    return None


# -- Attributes that the methods of a class change -------------------------------------------------
_Method = ast.FunctionDef | ast.AsyncFunctionDef
_USING = (  # special methods that are called by whoever uses an object without changing it
    *("__call__", "__getitem__", "__iter__", "__next__", "__len__", "__contains__"),
    *("__aiter__", "__anext__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
)


def read_of(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """Return by each name the attributes that some code reads of it: methods that it may call."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                found.setdefault(one.value.id, set()).add(one.attr)
    return {name: frozenset(attributes) for name, attributes in found.items()}


def changed_attributes(
    node: ast.ClassDef, called: frozenset[str], moving: frozenset[str]
) -> frozenset[str]:
    """Return the attributes of instances that change while the pipeline runs.

    Args:
        node: the class.
        called: attributes that other code reads of the object: only what is certainly called
            may be overlooked.
        moving: attributes that change when they are used.
    """
    methods = {one.name: one for one in node.body if isinstance(one, _Method)}
    return frozenset(
        name
        for method in _running(methods, called)
        for one in ast.walk(method)
        for name in _changed(one, moving)
    )


def _running(methods: dict[str, Any], called: frozenset[str]) -> list[ast.AST]:
    """Return the methods that other code calls, and those that these call."""
    rest = sorted(called.union(_USING) & methods.keys())
    found: dict[str, ast.AST] = {}
    while rest:
        name = rest.pop()
        found[name] = methods[name]
        own = {one.attr for one in ast.walk(methods[name]) if _is_own(one)}  # type: ignore[attr-defined]
        rest += sorted((own & methods.keys()) - found.keys())
    return list(found.values())


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "self"


def _changed(node: ast.AST, moving: frozenset[str]) -> Iterator[str]:
    """Return the attribute of `self` that an expression changes, if it does."""
    target: ast.AST | None = None
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        target = node
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
        if node.func.attr not in CHANGING and getattr(target, "attr", None) not in moving:
            return
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute) and _is_own(target):
        yield target.attr
