"""Secrets: what must never be written to a file, in live values and in source text."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FunctionType
from typing import Any

from .objects import stored
from .shapes import HIDDEN, is_secret, is_secret_name, looks_secret, scrubbed, words_of

__all__ = ["reads_environment", "scrubbed", "secret_in", "secret_in_text"]

_MOST = 5_000  # values that are looked at
_DEPTH = 8  # levels of nesting
_HEAD = 100_000  # characters of a text that are looked at
_NUMBERS = frozenset(("password", "passwd", "passphrase", "pin"))
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
            number = type(value) is int and _NUMBERS.intersection(words_of(name)[-1:])
            return path if number else None
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


def _is_secret_text(name: str, value: str | bytes | bytearray, *, named: bool) -> bool:
    text = value[:_HEAD]
    text = text if isinstance(text, str) else text.decode("latin-1")
    return is_secret("password" if named else name, text)


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Give what a value holds: how it is reached, the name it has there, the part."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"[{_key(key)}]", key if isinstance(key, str) else "", part
            if isinstance(key, str | bytes):
                yield " (a key)", "", key
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from _attributes(zip(value._fields, value, strict=False))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{at}]", "", part) for at, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((f"({name})", name, part) for name, part in value.keywords.items())
        yield from ((f"({at})", "", part) for at, part in enumerate(value.args))
        yield "", "", value.func
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    else:
        yield from _parts_of_object(value)


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
    yield from _attributes(stored(value).items())


# -- source text ------------------------------------------------------------------------


def secret_in_text(text: str) -> bool:
    """Say whether source text holds a secret as a literal or in a comment.

    A look-up as `os.environ.get("HF_TOKEN")` is none: it gives a name, not the value.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return scrubbed(text) != text
    nodes = list(ast.walk(tree))
    found = any(is_secret(name, value) for node in nodes for name, value in _literals(node))
    return found or any(map(_is_secret_comment, _comments(text)))


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
        for key, value in zip(node.keys, node.values, strict=True):
            yield from _given(key, value)
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
    if isinstance(value, ast.Constant) and type(value.value) is int:
        yield from [("password", "1")] if _NUMBERS.intersection(words_of(name)[-1:]) else []
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
    try:
        nodes = ast.walk(ast.parse(comment))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(is_secret(name, value) for node in nodes for name, value in _literals(node))


def reads_environment(node: ast.AST) -> bool:
    """Say whether code looks something up in the environment, or in a store of secrets.

    Known: `os.environ`, `os.getenv`, getpass, dotenv, keyring, and those of Colab and Kaggle.
    """
    return any(
        getattr(part, "id", getattr(part, "attr", None)) in _LOOKUPS for part in ast.walk(node)
    )
