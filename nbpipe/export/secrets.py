"""Secrets: what must never be written to a file, in live values and in source text."""

from __future__ import annotations

import ast
import functools
import io
import logging
import re
import threading
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile, zip_longest
from types import CodeType, FunctionType
from typing import Any

from .objects import stored
from .shapes import HIDDEN, is_of_hash, is_secret, is_secret_name, looks_secret, scrubbed, words_of

__all__ = ["reads_environment", "scrubbed", "secret_in", "secret_in_text"]

_MOST = 5_000  # values that are looked at
_DEPTH = 8  # levels of nesting
_HEAD = 100_000  # characters of a text that are looked at
_PAIR = 2  # a name and its value
_LEAST_PIN = 1000
_NUMBERS = frozenset(("password", "passwd", "passphrase", "pin"))
# What a comment gives away, as "password: hunter2"; a word alone tells where to find it.
_TOLD = re.compile(
    r"(?<!\w)([A-Za-z_]\w{0,60})(?:\s{0,3}[:=]\s{0,3}|\sis\s)(?=[^\s\d]{0,60}\d)(?=\S{0,60}[A-Za-z])"
    r"[^\s()\[\]{},]{6,60}(?!\S)"
)
# Written by their names, or not at all: what they hold belongs to the process.
_NAMED_ONLY = (logging.Logger, logging.Handler, threading.Thread, io.IOBase)
_SECRET_TYPES = ("SecretStr", "SecretBytes", "Secret")
_LOOKUPS = frozenset(  # names that stand for the environment, or for a store of secrets
    (
        *("environ", "environb", "getenv", "getenvb", "getpass", "dotenv", "dotenv_values"),
        *("load_dotenv", "keyring", "userdata", "UserSecretsClient", "get_secret"),
    )
)


def secret_in(name: str, value: object) -> str | None:
    """Say what looks like a secret in a variable: "API_KEY", "CONFIG['token']"; None if nothing.

    A text counts by the name of the variable, key, attribute, parameter or field that holds it,
    by its look, and where it holds the value of a secret of the environment. At most 5,000
    values are looked at.

    Args:
        name: of the variable.
        value: what it holds.
    """
    try:
        return _Search().search(name, name, value, 0, named=False)
    except Exception:  # noqa: BLE001 - an object that cannot be looked at
        return None


class _Search:
    """One search; each object is looked at once."""

    def __init__(self) -> None:
        self._left = _MOST
        self._seen: dict[int, object] = {}

    def search(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> str | None:
        """Search a value that stands at `path`; `named`: what holds it is named as a secret."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            return None
        if isinstance(value, str | bytes | bytearray):
            return path if _is_secret_text(name, value, named=named) else None
        if isinstance(value, int | float | complex | None):
            return path if _is_secret_number(name, value) else None
        if type(value).__name__ in _SECRET_TYPES:
            return path
        if id(value) in self._seen and not named:
            return None
        self._seen[id(value)] = value  # kept alive: its id stays its own
        return self._search_parts(path, name, value, depth, named=named)

    def _search_parts(
        self, path: str, name: str, value: Any, depth: int, *, named: bool
    ) -> str | None:
        named = named or is_secret_name(name) or words_of(name) == ["auth"]
        for step, inner, part in islice(_parts(value), _MOST):
            found = self.search(f"{path}{step}", inner or name, part, depth + 1, named=named)
            if found is not None:
                return found
            if self._left < 0:
                break
        return None


def _is_secret_number(name: str, value: object) -> bool:
    """Say whether a number is one that somebody types, as a PIN of four digits."""
    many = type(value) is int and value >= _LEAST_PIN
    return many and bool(_NUMBERS.intersection(words_of(name)[-1:]))


def _is_table(values: Iterable[object]) -> bool:
    """Say whether texts are given numbers, as in the vocabulary of a tokenizer."""
    kinds = {type(value) for value in values}
    return kinds == {int}


def _is_secret_text(name: str, value: str | bytes | bytearray, *, named: bool) -> bool:
    text = value[:_HEAD]
    text = text if isinstance(text, str) else text.decode("latin-1")
    return is_secret("password" if named else name, text)


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Give what a value holds: how it is reached, the name it has there, the part."""
    if isinstance(value, Mapping):
        table = len(value) > 1 and _is_table(value.values())
        for key, part in value.items():
            yield f"[{_key(key)}]", key if isinstance(key, str) and not table else "", part
            if isinstance(key, str | bytes):
                yield " (a key)", "", key
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from _attributes(zip(value._fields, value, strict=False))
    elif isinstance(value, tuple) and len(value) == _PAIR and isinstance(value[0], str):
        yield from (("[0]", "", value[0]), ("[1]", value[0], value[1]))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{at}]", "", part) for at, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((f"({name})", name, part) for name, part in value.keywords.items())
        yield from _parts_given(value)
        yield "", "", value.func
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    else:
        yield from _parts_of_object(value)


def _parts_given(value: functools.partial[Any]) -> Iterator[tuple[str, str, Any]]:
    """Give the arguments of a partial that have no name in it, as its function calls them."""
    code = getattr(value.func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
    for at, (part, name) in enumerate(zip_longest(value.args, names[: len(value.args)])):
        yield f"({name or at})", name or "", part


def _key(key: object) -> str:
    shown = repr(key) if isinstance(key, str | int | float | bytes) else type(key).__name__
    return HIDDEN if isinstance(key, str) and looks_secret(key) else shown[:60]


def _attributes(pairs: Any) -> Iterator[tuple[str, str, Any]]:
    return ((f".{name}", str(name), part) for name, part in pairs)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    yield from ((f"({name})", name, part) for name, part in zip(names, defaults, strict=False))
    yield from ((f"({n})", n, part) for n, part in (function.__kwdefaults__ or {}).items())
    for name, cell in cells:
        try:
            yield f" ({name})", name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _parts_of_object(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Give attributes as they are stored: no property runs."""
    if isinstance(value, type):
        public = [pair for pair in vars(value).items() if not pair[0].startswith("__")]
        yield from _attributes(public)
        return
    if hasattr(type(value), "__self__") or type(value).__module__ in ("builtins", "numpy"):
        return
    if isinstance(value, _NAMED_ONLY):
        return
    yield from _attributes(stored(value).items())


# -- source text ------------------------------------------------------------------------


def secret_in_text(text: str) -> bool:
    """Say whether source text holds a secret as a literal or in a comment.

    A look-up as `os.environ.get("HF_TOKEN")` is none: it gives a name, not the value.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return scrubbed(text) != text
    nodes = list(ast.walk(tree))
    takes, public = _parameters(nodes), _public(nodes)
    nodes = [node for node in nodes if id(node) not in public]
    pairs = (pair for node in nodes for pair in (*_literals(node), *_arguments(node, takes)))
    found = any(is_secret(name, value) for name, value in pairs)
    return found or any(map(_is_secret_comment, _comments(text)))


def _public(nodes: list[ast.AST]) -> set[int]:
    """Give the ids of the literals that are named as hashes, or as ids of something public."""
    pairs = [
        (node.targets[0], node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    return {id(value) for name, value in pairs if is_of_hash(words_of(_last_name(name)))}


def _parameters(nodes: list[ast.AST]) -> dict[str, list[str]]:
    """Give what the functions, methods and classes of a text call their arguments, by place."""
    takes: dict[str, list[str]] = {}
    methods: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            methods.update(node.body)
            takes[node.name] = _fields(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            takes[node.name] = names[1:] if node in methods and _is_bound(node) else names
    return takes


def _is_bound(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(getattr(mark, "id", None) != "staticmethod" for mark in node.decorator_list)


def _fields(node: ast.ClassDef) -> list[str]:
    """Give what a class is called with: the arguments of its `__init__`, or its fields."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return [each.arg for each in (*one.args.posonlyargs, *one.args.args)][1:]
    targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _arguments(node: ast.AST, takes: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Give the literals in a call, each with the name of the parameter that it is for."""
    if not isinstance(node, ast.Call):
        return
    function, given = node.func, node.args
    if _last_name(function) == "partial" and given:
        function, given = given[0], given[1:]
    plain = takewhile(lambda one: not isinstance(one, ast.Starred), given)
    for name, value in zip(takes.get(_last_name(function), ()), plain, strict=False):
        yield from _named(name, value)


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _literals(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Give the texts that stand in a node, each with the name it is given there."""
    if isinstance(node, ast.Constant | ast.BinOp):
        yield from (("", text) for text in _texts(node) if isinstance(node, ast.Constant) or text)
    elif isinstance(node, ast.Assign):
        yield from (pair for target in node.targets for pair in _given(target, node.value))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
        yield from _given(node.target, node.value)
    elif isinstance(node, ast.keyword):
        yield from _named(node.arg or "", node.value)
    elif isinstance(node, ast.Dict):
        table = len(node.values) > 1 and _is_table(
            getattr(one, "value", one) for one in node.values
        )
        for key, value in zip(node.keys, node.values, strict=True):
            yield from () if table else _given(key, value)
    elif isinstance(node, ast.Tuple) and len(node.elts) == _PAIR:
        yield from _given(*node.elts)
    elif isinstance(node, ast.Compare):
        yield from _given(node.left, node.comparators[0])
    elif isinstance(node, ast.Call):
        yield from _given(*node.args[-2:]) if len(node.args) > 1 else ()
    elif isinstance(node, ast.arguments):
        yield from _defaults(node)


def _given(target: ast.expr | None, value: ast.expr | None) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _given(one, other)
    elif isinstance(target, ast.Name):
        yield from _named(target.id, value)
    elif isinstance(target, ast.Attribute):
        yield from _named(target.attr, value)
    elif isinstance(target, ast.Subscript):
        yield from _given(target.slice, value)
    elif isinstance(target, ast.Constant) and isinstance(target.value, str):
        yield from _named(target.value, value)


def _named(name: str, value: ast.expr | None) -> Iterator[tuple[str, str]]:
    yield from ((name, text) for text in _texts(value))
    if isinstance(value, ast.Constant) and _is_secret_number(name, value.value):
        yield "password", "1"
    if is_secret_name(name) and isinstance(value, ast.List | ast.Tuple | ast.Set):
        yield from ((name, text) for part in value.elts for text in _texts(part))
    elif is_secret_name(name) and isinstance(value, ast.Dict):
        yield from ((name, text) for part in value.values for text in _texts(part))


def _texts(node: ast.expr | None) -> list[str]:
    """Give the text that an expression is: a literal, or literals added up."""
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bytes):
            return [value.decode("latin-1")]
        return [value] if isinstance(value, str) else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            "".join(left + right) for left in [_texts(node.left)] for right in [_texts(node.right)]
        ]
    if isinstance(node, ast.JoinedStr):
        return ["".join(text for part in node.values for text in _texts(part))]
    return (
        [text for part in node.values for text in _texts(part)]
        if isinstance(node, ast.BoolOp)
        else []
    )


def _defaults(node: ast.arguments) -> Iterator[tuple[str, str]]:
    names = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
    pairs = [*zip(names, node.defaults, strict=False)]
    for name, value in (*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
        yield from _named(name.arg, value)


def _comments(text: str) -> Iterator[str]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("#!: ")
    except (tokenize.TokenError, SyntaxError):
        return


def _is_secret_comment(comment: str) -> bool:
    if scrubbed(comment) != comment:
        return True
    if any(is_secret_name(match[1]) for match in _TOLD.finditer(comment)):
        return True
    try:
        nodes = ast.walk(ast.parse(comment))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(is_secret(name, value) for node in nodes for name, value in _literals(node))


def reads_environment(node: ast.AST) -> bool:
    """Say whether code looks something up in the environment, or in a store of secrets.

    Known: `os.environ`, `os.getenv`, getpass, dotenv, keyring, and those of Colab and Kaggle.
    """
    return any(
        getattr(part, "id", getattr(part, "attr", None)) in _LOOKUPS for part in ast.walk(node)
    )
