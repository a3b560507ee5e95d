"""Source: text as Python, IPython and ruff read it: lines, magics, names, what ruff makes of it."""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import io
import re
import shutil
import subprocess
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any, NamedTuple

# -- Lines as Python's tokenizer counts them; U+2028 and form feeds end no line --------------------
# Comments for a program: of the shell, of the encoding, of cells.
_MARK = re.compile(r"#!|#\||# ?%%|#.*?coding[:=][ \t]*[-\w.]+")
_OPENS = frozenset({"FSTRING_START", "TSTRING_START"})  # from Python 3.12, and 3.14
_CLOSES = frozenset({"FSTRING_END", "TSTRING_END"})


def indent_of(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


class Lines:
    """A text, its lines, and what its tokens say of them. Lines are counted from 1.

    Args:
        text: source that Python can parse, its lines ended by line feeds.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.tokens = tuple(_tokens(self.lines))
        self.comments = frozenset(self._comments())
        self.in_string = frozenset(self._in_string())

    def __getitem__(self, number: int) -> str:
        return self.lines[number - 1]

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, number: int, offset: int) -> int:
        """Return the index of a character in a line from its offset in UTF-8 [bytes]."""
        data = self[number].encode("utf-8", "surrogatepass")
        return len(data[:offset].decode("utf-8", "surrogatepass"))

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
Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def names_in(code: ast.AST | str, use: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the variables of code, or of arguments as they stand in a call; those of one use."""
    if isinstance(code, str):
        call: Any = ast.parse(f"f({code}\n)", mode="eval").body
        return {name for one in (*call.args, *call.keywords) for name in names_in(one, use)}
    names = (one for one in ast.walk(code) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, use)}


def defaults_in(node: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """Return the parameters of a function that have a default, each with it."""
    plain = [*node.posonlyargs, *node.args]
    pairs = zip(plain[len(plain) - len(node.defaults) :], node.defaults, strict=True)
    named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
    return ((one.arg, value) for one, value in (*pairs, *named) if value is not None)


def parameters_in(nodes: list[ast.AST]) -> dict[str, list[str]]:
    """Return what the functions, methods and classes of a text call their arguments, by place."""
    takes: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, Function):
            takes[node.name] = _taken(node)
        elif isinstance(node, ast.ClassDef):  # those of its `__init__`, or its fields
            targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            takes[node.name] = [one.id for one in targets if isinstance(one, ast.Name)]
            for one in node.body:
                if isinstance(one, Function) and one.name == "__init__":
                    takes[node.name] = _taken(one)
    return takes


def _taken(node: Function) -> list[str]:
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def span_of(data: bytes, node: ast.expr | ast.keyword) -> tuple[int, int]:
    """Return where an expression, or an argument, begins and ends in a source text [bytes].

    Args:
        data: the text in UTF-8.
        node: a part of its tree.
    """
    starts = list(accumulate(map(len, data.splitlines(keepends=True)), initial=0))
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


def body_of(tree: ast.Module) -> tuple[str, bool] | None:
    """Return what stands in a cell below a line such as `%%time`, as IPython compiles it.

    Returns:
        It, and whether it is executed in the user's namespace; None for other cells.
    """
    if len(tree.body) != 1:
        return None
    found = _arguments(tree.body[0], "run_cell_magic")
    if found is None or len(found) != 3:  # noqa: PLR2004  name, line, body
        return None
    return transformed(found[2]), found[0] in _EXECUTING


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


# -- Names that code reads and binds: while it is executed, and later, when its functions are called
CHANGING = frozenset(
    (
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("extendleft", "insert", "intersection_update", "move_to_end", "pop", "popitem"),
        *("popleft", "put", "put_nowait", "remove", "reverse", "rotate", "setdefault", "sort"),
        *("subtract", "symmetric_difference_update", "update"),
    )
)
_READING = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
LAZY = sys.version_info >= (3, 14)
_IMPLICIT = frozenset(("__annotations__", "__conditional_annotations__"))
_NO_TYPES = frozenset(("Annotated", "Literal"))  # text in their brackets names no type


class Names(NamedTuple):
    """The global names that code uses, builtins among them.

    Attributes:
        now: read while it is executed, and not bound by itself before.
        later: read in function bodies, and in annotations that are not evaluated.
        rebound: bound by `global` in functions.
        changed: changed in place in functions.
        noted: those of `later` that stand in annotations alone, which nobody evaluates.
        bound: bound by the code where it stands; a star import binds nothing with a name.
    """

    now: frozenset[str]
    later: frozenset[str]
    rebound: frozenset[str]
    changed: frozenset[str]
    noted: frozenset[str]
    bound: frozenset[str]


@lru_cache(maxsize=1024)
def names_read(node: ast.AST, *, future: bool) -> Names:
    """Return the names that code uses; Python's own compiler tells the global from the local.

    Args:
        node: a statement, an expression or a module.
        future: annotations are not evaluated, as `from __future__ import annotations` says, and
            as from Python 3.14 on none is unless somebody asks for it.
    """
    reader = _Reader()
    reader.read(_compiled(node, future=future or LAZY), reader.bound, is_later=False)
    now = frozenset(reader.now - _IMPLICIT)
    annotated = set(_annotated(node)) - now - reader.local
    later = frozenset(reader.later | annotated)
    changed = later & frozenset(_changed_inside(node))
    noted = frozenset(annotated - reader.later)
    return Names(now, later, frozenset(reader.rebound), changed, noted, frozenset(reader.bound))


def names_unbound(text: str, *, future: bool) -> frozenset[str]:
    """Return the names that a module reads, and that nothing in it binds; builtins among them.

    Args:
        text: the module, or a part of one.
        future: annotations are not evaluated.
    """
    found = names_read(ast.parse(text), future=future)
    return (found.now | found.later) - found.rebound - found.bound


class _Reader:
    """Walks compiled code, and notes what it does with names; `local` ones are those of scopes."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.later: set[str] = set()
        self.rebound: set[str] = set()
        self.bound: set[str] = set()
        self.local: set[str] = set()

    def read(self, code: CodeType, own: set[str], *, is_later: bool) -> None:
        """Note what code does, in the order in which it stands, and what the code inside it does.

        Args:
            code: of a module, class, function or comprehension.
            own: takes what a module or class has bound so far.
            is_later: it is executed when a function is called.
        """
        self.local.update(code.co_varnames, code.co_cellvars)
        for step in dis.get_instructions(code):
            kind, name = step.opname, step.argval
            if isinstance(name, CodeType) and kind == "LOAD_CONST":
                inner = {"__name__"}  # what the body of a class reads by itself
                self.read(name, inner, is_later=is_later or _waits(name))
                self.local |= inner
            elif kind == "STORE_NAME":
                own.add(name)
            elif kind == "DELETE_NAME":
                own.discard(name)
            elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                (self.rebound if is_later else self.bound).add(name)
            elif kind in _READING and not (name in own and _sees(kind, name)):
                if is_later:
                    self.later.add(name)
                elif name not in self.bound:
                    self.now.add(name)


def _sees(kind: str, name: str) -> bool:
    """Tell whether a step sees what its class has bound, as no comprehension in one does."""
    return kind != "LOAD_GLOBAL" or name == "__name__"


def _waits(code: CodeType) -> bool:
    """Tell whether code is executed by calls: that of functions, not of classes and the like."""
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    return is_function and (code.co_name == "<lambda>" or not code.co_name.startswith("<"))


def _compiled(node: ast.AST, *, future: bool) -> CodeType:
    part: Any = ast.copy_location(ast.Expr(node), node) if isinstance(node, ast.expr) else node
    whole = node if isinstance(node, ast.Module) else ast.Module([part], [])
    flags = __future__.annotations.compiler_flag if future else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code: CodeType = compile(whole, "<cell>", "exec", flags, dont_inherit=True)
    return code


def _annotated(node: ast.AST) -> Iterator[str]:
    """Return the names in all annotations, of variables in functions too."""
    for one in ast.walk(node):
        for note in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            if isinstance(note, ast.expr):
                yield from _types(note)


def _types(note: ast.AST) -> Iterator[str]:
    """Return the names in an annotation, and in what stands in it as text."""
    match note:
        case ast.Name(name):
            yield name
        case ast.Constant(str(text)):
            yield from _types(tree_of(text.strip()) or ast.Pass())
        case ast.Subscript(value) if last_name(value) in _NO_TYPES:
            yield from names_in(note)
        case _:
            for child in ast.iter_child_nodes(note):
                yield from _types(child)


def _changed_inside(node: ast.AST) -> Iterator[str]:
    """Return the variables that functions change in place, local ones too."""
    for function in ast.walk(node):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = function.body if isinstance(function.body, list) else [function.body]
            for one in (inner for part in body for inner in ast.walk(part)):
                changed = changed_by(one)
                root = None if changed is None else root_of(changed)
                if isinstance(root, ast.Name):
                    yield root.id


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


# -- Hashes: text that gives another order in each process, as `list(set(labels))` -----------------
# What gives a set.
_GIVE_SETS = frozenset(
    ("set", "frozenset", "union", "intersection", "difference", "symmetric_difference")
)
# What takes the order of its argument over, or forgets it.
_KEEPS = frozenset(("list", "tuple", "enumerate", "zip", "map", "iter", "next", "fromkeys", "join"))
_FORGETS = frozenset(("sorted", "len", "min", "max", "sum", "any", "all"))


def shows_order_of_set(text: str) -> bool:
    """Tell whether text may turn a set into something that has an order."""
    nodes = list(_unless_forgotten(tree_of(text) or ast.Pass()))
    gives = any(
        isinstance(one, ast.Set | ast.SetComp)
        or (isinstance(one, ast.Call) and last_name(one.func) in _GIVE_SETS)
        for one in nodes
    )
    return gives and any(
        isinstance(one, ast.Starred | ast.comprehension | ast.For)
        or (isinstance(one, ast.Call) and last_name(one.func) in _KEEPS)
        for one in nodes
    )


def _unless_forgotten(node: ast.AST) -> Iterator[ast.AST]:
    """Return all parts of some code but those of calls that give the same in any order."""
    if not (isinstance(node, ast.Call) and last_name(node.func) in _FORGETS):
        yield node
        for one in ast.iter_child_nodes(node):
            yield from _unless_forgotten(one)


# -- Attributes that the methods of a class change -------------------------------------------------
_USING = (  # special methods that are called by whoever uses an object without changing it
    *("__call__", "__getitem__", "__iter__", "__next__", "__len__", "__contains__"),
    *("__aiter__", "__anext__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
)


def read_of(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """Return by each name the attributes that some code reads of it: methods that it may call.

    Of one that it sets, the setter of a property, too, as "size.setter".
    """
    found: dict[str, set[str]] = {}
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                found.setdefault(one.value.id, set()).update(_methods_of(one))
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
    methods = {_called_as(one): one for one in node.body if isinstance(one, Function)}
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
        own = {call for one in ast.walk(methods[name]) if _is_own(one) for call in _methods_of(one)}
        rest += sorted((own & methods.keys()) - found.keys())
    return list(found.values())


def _called_as(method: Any) -> str:
    """Return the name by which a method is called; of a property, that which changes it apart."""
    marks = (one.attr for one in method.decorator_list if isinstance(one, ast.Attribute))
    sets = not {"setter", "deleter"}.isdisjoint(marks)
    return f"{method.name}.setter" if sets else str(method.name)


def _methods_of(attribute: Any) -> tuple[str, ...]:
    """Return the methods that an attribute may stand for, as `_called_as` calls them."""
    name = attribute.attr
    return (name,) if isinstance(attribute.ctx, ast.Load) else (name, f"{name}.setter")


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "self"


def _changed(node: ast.AST, moving: frozenset[str]) -> Iterator[str]:
    """Return the attribute of `self` that a part of some code changes, if it does."""
    stored = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    target = node if stored else changed_by(node)
    if target is None and isinstance(node, ast.Call):  # as `self.numbers.random()`
        owner = getattr(node.func, "value", None)
        target = owner if getattr(owner, "attr", None) in moving else None
    while isinstance(target, ast.Attribute | ast.Subscript) and not _is_own(target):
        target = target.value  # as in `self.counts.seen += 1`
    if isinstance(target, ast.Attribute):
        yield target.attr


# -- ruff: lays out what export writes, and checks all of a module ---------------------------------
# No configuration changes what it does. Its own default selection of rules grew more than once; a
# module is not to fail by it.
_RULES = "E4,E7,E9,F"
_LIMIT_S = 30.0


def run_ruff(command: str, text: str, *options: str, file: str = "-") -> str | None:
    """Return what a command of ruff writes; None where ruff is not installed, or fails.

    Args:
        command: "check" or "format".
        text: the source.
        options: more of them.
        file: a file that takes the place of the text.
    """
    ruff = _find_ruff()
    if ruff is None:
        return None
    line = [ruff, command, "--isolated", "--no-cache", "--target-version", "py311", *options, file]
    try:
        done = subprocess.run(  # noqa: S603  ruff, with options that stand here
            line, input=text.encode("utf-8"), capture_output=True, timeout=_LIMIT_S, check=False
        )
        return done.stdout.decode("utf-8") or None
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):  # it does not work here
        return None


def _find_ruff() -> str | None:
    """Return ruff's program: that of its package, one beside Python, or any."""
    beside = str(Path(sys.executable).parent) if sys.executable else ""
    return shutil.which("ruff", path=beside) or shutil.which("ruff")


def with_noqa(text: str) -> str:
    """Have ruff excuse by comments what it does not like in a module; without ruff return it.

    The order of imports is not excused: export itself writes them.
    """
    with TemporaryDirectory(prefix="nbpipe-") as folder:
        file = Path(folder, "module.py")
        file.write_text(text, encoding="utf-8", newline="")
        run_ruff("check", "", "--select", _RULES, "--add-noqa", file=str(file))
        return file.read_bytes().decode("utf-8")
