"""Secrets: what must never leave an export, as a file, a note or an error."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import logging
import pathlib
import re
import threading
import tokenize
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice, pairwise, takewhile, zip_longest
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..base.tree import is_tensor
from ..errors import ExportError, NbpipeError
from .cells import Statement
from .difference import stored
from .model import Piece
from .scope import Scope, is_local
from .shapes import (
    HIDDEN,
    holds_token,
    is_of_hash,
    is_rare,
    is_secret,
    is_secret_name,
    is_suspicious_name,
    knowing,
    looks_secret,
    scrubbed,
    secrets_held,
    words_of,
)

# -- Secrets: what must never be written to a file, in live values and in source text --------------
__all__ = [
    "advice",
    "as_text",
    "is_text_of_texts",
    "masked",
    "reads_environment",
    "reads_secret",
    "scrubbed",
    "secret_in",
    "secret_in_text",
    "secrets_in_text",
    "texts_named_as_secrets",
    "told_in",
]

_MOST = 20_000  # values that are looked at
_DEPTH = 24  # levels of nesting
_FEW = 64  # numbers of a list, one of which may be a PIN
_HEAD = 100_000  # characters of a text that are looked at
_CHUNK = 50_000  # texts of an array that are looked at together
_PAIR = 2  # a name and its value
_LEAST_PIN = 1000
_SHORTEST_LETTERS = 6  # numbers that may be the letters of a password
_LETTERS = range(32, 127)
_BYTE = 255
_SEQUENCES = (list, tuple, set, frozenset, deque)
_NUMBERS = frozenset(("password", "passwd", "passphrase", "passcode", "pin"))
# Written by their names, or not at all: what they hold belongs to the process.
_NAMED_ONLY = (logging.Logger, logging.Handler, threading.Thread, io.IOBase)
_SECRET_TYPES = ("SecretStr", "SecretBytes", "Secret")
_STORES = frozenset(  # what gives secrets and nothing else
    ("getpass", "keyring", "userdata", "UserSecretsClient", "get_secret", "get_password")
)
_LOOKUPS = _STORES | frozenset(  # names that stand for the environment, or for a store of secrets
    ("environ", "environb", "getenv", "getenvb", "dotenv", "dotenv_values", "load_dotenv")
)
_ASKS = frozenset(("get", "getenv", "getenvb", "pop", "setdefault"))  # for a name, else a default
_KEPT = frozenset(  # calls that give what they are given, in another form
    (
        *("array", "asarray", "frombuffer", "fromstring", "str_", "bytes_", "Series", "tensor"),
        *("str", "bytes", "bytearray", "list", "tuple", "set", "frozenset", "SecretStr", "Secret"),
        *("b64decode", "b64encode", "fromhex", "join", "encode", "decode", "strip", "format"),
        *("replace", "lower", "upper", "quote", "unquote", "reversed", "dict", "cast"),
        *("field", "Field", "attrib", "ib", "Parameter"),
    )
)
_FORMS = _KEPT | frozenset(  # calls that give a text of texts
    (
        *("hexdigest", "digest", "sha1", "sha256", "sha512", "md5", "blake2b", "new", "hex"),
        *("urlsafe_b64encode", "standard_b64encode", "b16encode", "b32encode", "hexlify"),
        *("quote_plus", "removeprefix", "removesuffix", "rstrip", "lstrip", "title", "urlencode"),
    )
)
_AUTHS = re.compile(r"(?i)\w*(?:basic|digest|proxy|ntlm)\w*auth|auth")
_SECOND = frozenset(("login", "set_password", "authenticate"))  # whose second argument is one
_FIRST = frozenset(("Fernet", "hmac.new", "URLSafeSerializer", "URLSafeTimedSerializer"))
_HOLES = re.compile(r"\{[^{}]*\}|%[sdr]")  # of a template
_SHORTEST_PART = 4  # characters of a literal that is a part of a secret


def secret_in(name: str, value: object) -> str | None:
    """Tell what looks like a secret in a variable: "API_KEY", "CONFIG['token']"; None if nothing.

    A text counts by the name of the variable, key, attribute, parameter or field that holds it,
    by its look, and where it holds what is known to be a secret, as one of the environment. At
    most 20,000 values are looked at one by one; arrays whole.

    Args:
        name: of the variable.
        value: what it holds.
    """
    with knowing():
        return next(_Search().search(name, name, value, 0, named=False), (None, ""))[0]


def texts_named_as_secrets(name: str, value: object) -> Iterator[str]:
    """Return the texts in a variable that are secrets.

    Args:
        name: of the variable.
        value: what it holds.
    """
    return (text for _, text in _Search().search(name, name, value, 0, named=False) if text)


Found = Iterator[tuple[str, str]]  # where a secret stands, and the text


class _Search:
    """One search; each object is looked at once."""

    def __init__(self) -> None:
        self._left = _MOST
        self._seen: dict[int, object] = {}

    def search(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> Found:
        """Search a value that stands at `path`; `named`: what holds it is named as a secret."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            return
        try:
            yield from self._search(path, name, value, depth, named=named)
        except Exception:  # noqa: BLE001 - one that cannot be looked at hides no other
            return

    def _search(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> Found:
        if isinstance(value, str | bytes | bytearray):
            text = as_text(value)
            if is_secret("password" if named else name, text[:_HEAD]):
                yield path, text
        elif isinstance(value, int | float | complex | None):
            if _is_secret_number(name, value):
                yield path, str(value)
        elif type(value).__name__ in _SECRET_TYPES:
            yield path, ""
        elif id(value) not in self._seen or named:
            self._seen[id(value)] = value  # kept alive: its id stays its own
            yield from self._search_parts(path, name, value, depth, named=named)

    def _search_parts(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> Found:
        named = named or is_secret_name(name) or words_of(name) == ["auth"]
        if named and _is_letters(value):
            yield path, bytes(np.asarray(value).ravel().tolist()).decode("latin-1")
        if isinstance(value, np.ndarray | np.generic) or is_tensor(value):
            yield from self._search_array(path, name, value, depth, named=named)
            return
        parts = _parts(value)
        while True:
            try:
                step, inner, part = next(parts)
            except StopIteration:
                return
            if self._left < 0:
                return
            yield from self.search(f"{path}{step}", inner or name, part, depth + 1, named=named)

    def _search_array(self, path: str, name: str, value: Any, depth: int, *, named: bool) -> Found:
        """Search an array or tensor: texts all at once, objects one by one, bytes as a text."""
        array = np.asarray(value.detach().cpu() if is_tensor(value) else value)
        fields = array.dtype.names or ()
        for field in fields:
            yield from self.search(f"{path}[{field!r}]", field, array[field], depth, named=named)
        if array.dtype.kind == "O":
            for at, part in enumerate(array.ravel()):
                yield from self.search(f"{path}[{at}]", name, part, depth + 1, named=named)
        elif array.dtype.kind in "SU":
            texts = [as_text(one) for one in np.unique(array).tolist()]
            label = "password" if named else name
            for at in range(0, len(texts), _CHUNK):
                chunk = texts[at : at + _CHUNK]
                if looks_secret("\n".join(chunk), dense=False):
                    yield path, ""
                yield from ((path, text) for text in chunk if is_secret(label, text[:_HEAD]))
        elif not fields and holds_token(_as_bytes(array)):
            yield path, ""


def as_text(value: str | bytes | bytearray) -> str:
    """Return a text, or bytes letter by letter."""
    return str(value) if isinstance(value, str) else bytes(value).decode("latin-1")


def _as_bytes(array: Any) -> bytes:
    """Return the bytes that an array may be made of: its own, or one for each small number."""
    if array.dtype.itemsize == 1 or array.dtype.kind == "V":
        return bytes(array.tobytes())
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > _BYTE:
        return b""
    return bytes(array.astype("uint8").tobytes())


def _is_letters(value: Any) -> bool:
    """Tell whether numbers may be the letters of a text, as those of `list(b"...")` are."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        array = np.asarray(value.detach().cpu() if is_tensor(value) else value)
        if array.dtype.kind not in "iu" or array.size < _SHORTEST_LETTERS:
            return False
        return bool(array.min() >= _LETTERS[0] and array.max() <= _LETTERS[-1])
    if not isinstance(value, list | tuple) or len(value) < _SHORTEST_LETTERS:
        return False
    return all(type(one) is int and one in _LETTERS for one in islice(value, _HEAD))


def _is_secret_number(name: str, value: object) -> bool:
    """Tell whether a number is one that somebody types, as a PIN of four digits."""
    many = type(value) is int and value >= _LEAST_PIN
    return many and bool(_NUMBERS.intersection(words_of(name)[-1:]))


def _is_table(values: Iterable[object]) -> bool:
    """Tell whether texts are given numbers, as in the vocabulary of a tokenizer."""
    kinds = {type(value) for value in values}
    return kinds == {int}


def _parts(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Return what a value holds: how it is reached, the name it has there, the part."""
    if isinstance(value, dict):  # as it is stored: the methods of a subclass may do anything
        yield from _parts_of_mapping(list(dict.items(value)))
    elif isinstance(value, Mapping):
        yield from _parts_of_foreign_mapping(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from _attributes(zip(value._fields, tuple.__iter__(value), strict=False))
    elif _is_pair(value):
        yield from (("[0]", "", value[0]), ("[1]", value[0], value[1]))
    elif isinstance(value, _SEQUENCES):
        kind: Any = next(one for one in _SEQUENCES if isinstance(value, one))
        yield from _parts_of_sequence(list(kind.__iter__(value)))
    elif isinstance(value, functools.partial):
        yield from ((f"({name})", name, part) for name, part in value.keywords.items())
        yield from _parts_given(value)
        yield "", "", value.func
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType | BuiltinFunctionType):
        yield "", "", value.__self__
    elif isinstance(value, re.Pattern):
        yield "", "", value.pattern
    elif isinstance(value, pathlib.PurePath):
        yield "", "", str(value)
    else:
        yield from _parts_of_object(value)
    if isinstance(value, dict | list | tuple | set | frozenset | Mapping):
        yield from _attributes(stored(value).items())


def _is_pair(value: Any) -> bool:
    """Tell whether a tuple, or a list, is a name and what it stands for."""
    if type(value) not in (tuple, list) or len(value) != _PAIR or not isinstance(value[0], str):
        return False
    return isinstance(value, tuple) or is_secret_name(value[0])


def _parts_of_mapping(pairs: list[tuple[Any, Any]]) -> Iterator[tuple[str, str, Any]]:
    table = len(pairs) > 1 and _is_table(part for _, part in pairs)
    for key, part in pairs:
        last = (
            key[-1] if isinstance(key, tuple) and key else key
        )  # as in `{("db", "password"): ...}`
        text = as_text(last) if isinstance(last, str | bytes) else ""
        yield f"[{_key(key)}]", "" if table else text, part
        if isinstance(key, str | bytes | tuple):
            yield " (a key)", "", key


def _parts_of_foreign_mapping(value: Mapping[Any, Any]) -> Iterator[tuple[str, str, Any]]:
    try:
        pairs = list(islice(value.items(), _MOST))
    except Exception:  # noqa: BLE001 - what it holds is looked at as it is stored
        return
    yield from _parts_of_mapping(pairs)


def _parts_of_sequence(values: list[Any]) -> Iterator[tuple[str, str, Any]]:
    numbers = (int, float, complex, type(None)) if len(values) > _FEW else ()
    yield from ((f"[{at}]", "", one) for at, one in enumerate(values) if type(one) not in numbers)
    for at, (flag, part) in enumerate(pairwise(values)):
        if isinstance(flag, str) and flag[:1] == "-" and isinstance(part, str):
            yield f"[{at + 1}]", "", f"{flag} {part}"  # as in `["curl", "-u", "me:..."]`
    texts = [one for one in values[:_FEW] if isinstance(one, str)]
    if any(one[:1] == "-" for one in texts):
        yield "", "", " ".join(texts)


def _parts_given(value: functools.partial[Any]) -> Iterator[tuple[str, str, Any]]:
    """Return the arguments of a partial that have no name in it, as its function calls them."""
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
    """Return attributes as they are stored: no property runs."""
    if isinstance(value, type):
        public = [pair for pair in vars(value).items() if not pair[0].startswith("__")]
        yield from _attributes(public)
        return
    if hasattr(type(value), "__self__") or type(value).__module__ in ("builtins", "numpy"):
        return
    if isinstance(value, _NAMED_ONLY):
        return
    if type(value).__module__.partition(".")[0] == "pandas":
        yield from _parts_of_frame(value)
    yield from _attributes(stored(value).items())


def _parts_of_frame(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Return the columns of a table of pandas, or the values of one."""
    if hasattr(value, "columns"):
        yield from ((f"[{_key(name)}]", str(name), value[name].to_numpy()) for name in value)
    elif hasattr(value, "to_numpy"):
        yield "", str(getattr(value, "name", None) or ""), value.to_numpy()


def advice(name: str) -> str:
    """Tell of something that it holds a secret, and what to do."""
    known = "".join(c if c.isalnum() else "_" for c in name).strip("_").upper()
    return (
        "holds what looks like a secret; it is never written to a file. Read it at run time, e.g. "
        f'os.environ["{known if is_secret_name(name) else "TOKEN"}"]'
    )


# -- source text ------------------------------------------------------------------------
Pairs = Iterator[tuple[str, str]]  # the name that a text is given, and the text


def secret_in_text(text: str) -> bool:
    """Tell whether source text holds a secret as a literal or in a comment.

    A look-up as `os.environ.get("HF_TOKEN")` is none: it gives a name, not the value.
    """
    return next(secrets_in_text(text), None) is not None


def secrets_in_text(text: str) -> Pairs:
    """Return the secrets in source text, each with the name of what holds it, where it has one."""
    tree = _tree(text)
    if tree is None:
        if scrubbed(text) != text:
            yield "", ""
        return
    yield from _secrets_in(tree)
    yield from (("", comment) for comment in _comments(text) if _is_secret_comment(comment))


def told_in(text: str) -> Iterator[str]:
    """Return what nobody may read elsewhere of a source text: its secrets, where they are rare."""
    for _, secret in secrets_in_text(text):
        yield from filter(is_rare, secrets_held(secret) or (secret,))
    if _tree(text) is None:
        yield from filter(is_rare, secrets_held(text))


def masked(text: str) -> str:
    """Replace the secrets in source text by three asterisks; other text is `scrubbed`."""
    tree = _tree(text)
    if tree is None:
        return scrubbed(text)
    found = {secret for _, secret in _secrets_in(tree)}
    if found:
        text = _without(text, tree, found)
    for comment in _comments(text):
        if _is_secret_comment(comment):
            text = text.replace(comment, HIDDEN)
    return scrubbed(text)


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _secrets_in(tree: ast.Module) -> Pairs:
    nodes = list(ast.walk(tree))
    takes, public = _parameters(nodes), _public(nodes)
    for node in nodes:
        for name, value in (*_literals(node), *_arguments(node, takes)):
            if is_secret(name or public.get(id(node), ""), value):
                yield name, value


def _without(text: str, tree: ast.Module, found: set[str]) -> str:
    """Replace the literals that are secrets, or parts of one."""
    lines = [line.encode("utf-8") for line in text.splitlines(keepends=True)]
    starts = [0, *accumulate(map(len, lines))]
    data = b"".join(lines)
    for node in sorted(_outer_literals(tree), key=lambda one: (-one.lineno, -one.col_offset)):
        if _holds(node, found) and node.end_lineno is not None and node.end_col_offset is not None:
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            data = data[:first] + repr(HIDDEN).encode() + data[last:]
    return data.decode("utf-8")


def _outer_literals(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Return the literals of a tree; those in an f-string are a part of it."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Constant | ast.JoinedStr):
            yield one
        else:
            yield from _outer_literals(one)


def _holds(node: ast.Constant | ast.JoinedStr, found: set[str]) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(one, ast.Constant) and _holds(one, found) for one in node.values)
    value = node.value
    text = as_text(value) if isinstance(value, str | bytes) else str(value)
    return text in found or (
        len(text) >= _SHORTEST_PART and any(text in secret for secret in found)
    )


def _public(nodes: list[ast.AST]) -> dict[int, str]:
    """Return the names of the literals that are hashes, or ids of something public, by id."""
    pairs: list[tuple[str, ast.expr | None]] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            pairs += [(_last_name(target), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs.append((_last_name(node.target), node.value))
        elif isinstance(node, ast.keyword):
            pairs.append((node.arg or "", node.value))
        elif isinstance(node, ast.Dict):
            pairs += [
                (key.value, value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
    return {
        id(value): name
        for name, value in pairs
        if isinstance(value, ast.Constant) and is_of_hash(words_of(name))
    }


def _parameters(nodes: list[ast.AST]) -> dict[str, list[str]]:
    """Return what the functions, methods and classes of a text call their arguments, by place."""
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
    """Return what a class is called with: the arguments of its `__init__`, or its fields."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return [each.arg for each in (*one.args.posonlyargs, *one.args.args)][1:]
    targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _arguments(node: ast.AST, takes: dict[str, list[str]]) -> Pairs:
    """Return the literals in a call, each with the name of the parameter that it is for."""
    if not isinstance(node, ast.Call):
        return
    function, given = node.func, node.args
    if _last_name(function) == "partial" and given:
        function, given = given[0], given[1:]
    plain = list(takewhile(lambda one: not isinstance(one, ast.Starred), given))
    for name, value in zip(takes.get(_last_name(function), ()), plain, strict=False):
        yield from _named(name, value)
    for value in _credentials(function, plain):
        yield from (("password", text) for text in _within(value))


def _credentials(function: ast.expr, given: list[ast.expr]) -> list[ast.expr]:
    """Return the arguments of a library's function that are secrets by what it does."""
    name, owner = _last_name(function), _last_name(getattr(function, "value", function))
    if name in _FIRST or f"{owner}.{name}" in _FIRST:
        return given[:1]
    if len(given) < _PAIR:
        return []
    if f"{owner}.{name}" in ("jwt.encode", "jwt.decode"):
        return given[1:2]
    if _AUTHS.fullmatch(name) or name in _SECOND:
        return given[2:3] or given[1:2] if name == "set_password" else given[1:2]
    return []


def _last_name(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _literals(node: ast.AST) -> Pairs:
    """Return the texts that stand in a node, each with the name it is given there."""
    if isinstance(node, ast.Constant | ast.BinOp):
        yield from (("", text) for text in _texts(node) if isinstance(node, ast.Constant) or text)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            yield from (("", text) for text in _filled(node.left, given))
    elif isinstance(node, ast.JoinedStr):
        yield from (("", text) for text in _texts(node))
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
    elif isinstance(node, ast.Tuple | ast.List):
        yield from _listed(node)
    elif isinstance(node, ast.Compare):
        yield from _given(node.left, node.comparators[0])
        yield from _given(node.comparators[0], node.left)
    elif isinstance(node, ast.Call):
        yield from _given(*node.args[-2:]) if len(node.args) > 1 else ()
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            yield from (("", text) for text in _filled(node.func.value, node.args))
    elif isinstance(node, ast.arguments):
        yield from _defaults(node)


def _filled(template: ast.expr, given: list[ast.expr]) -> list[str]:
    """Return a template with the literals that are put into it."""
    texts = _texts(template) if isinstance(template, ast.Constant) else []
    if not texts or not any(map(_texts, given)):
        return []
    gaps = iter([*map(_texts, given)])
    return [_HOLES.sub(lambda match: "".join(next(gaps, [match[0]])) or match[0], texts[0])]


def _listed(node: ast.Tuple | ast.List) -> Pairs:
    """Return what stands in a list: the second of a pair, and what follows an option."""
    if len(node.elts) == _PAIR:
        names = [] if isinstance(node, ast.Tuple) else _texts(node.elts[0])
        if isinstance(node, ast.Tuple) or any(map(is_secret_name, names)):
            yield from _given(*node.elts)
    for flag, value in pairwise(node.elts):
        for option in _texts(flag) if isinstance(flag, ast.Constant) else ():
            if option.startswith("-"):
                yield from (("", f"{option} {text}") for text in _texts(value))
    texts = [text for one in node.elts if isinstance(one, ast.Constant) for text in _texts(one)]
    if any(one[:1] == "-" for one in texts):
        yield "", " ".join(texts)


def _given(target: ast.expr | None, value: ast.expr | None) -> Pairs:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _given(one, other)
    elif isinstance(target, ast.Name):
        yield from _named(target.id, value)
    elif isinstance(target, ast.Attribute):
        yield from _named(target.attr, value)
    elif isinstance(target, ast.Subscript):
        yield from _given(target.slice, value)
    elif isinstance(target, ast.Tuple) and _ends_in_a_text(target):
        yield from _given(target.elts[-1], value)
    elif isinstance(target, ast.Constant) and isinstance(target.value, str | bytes):
        yield from _named(as_text(target.value), value)


def _ends_in_a_text(node: ast.Tuple) -> bool:
    """Tell whether a key of several parts ends in a text."""
    return bool(node.elts) and isinstance(node.elts[-1], ast.Constant)


def _named(name: str, value: ast.expr | None) -> Pairs:
    yield from ((name, text) for text in _texts(value))
    if isinstance(value, ast.Constant) and _is_secret_number(name, value.value):
        yield "password", str(value.value)
    if words_of(name)[-1:] == ["auth"] and isinstance(value, ast.Tuple | ast.List):
        yield from (("password", text) for part in value.elts[1:] for text in _within(part))
    elif value is not None and is_suspicious_name(name):
        yield from ((name, text) for text in _within(value))


def _within(node: ast.expr) -> Iterator[str]:
    """Return the texts that an expression gives in some form: joined, encoded, in a container."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        yield from _texts(node)
    elif isinstance(node, ast.IfExp):
        yield from (*_within(node.body), *_within(node.orelse))
    elif isinstance(node, ast.Call):
        yield from (text for part in _kept(node) for text in _within(part))
    elif isinstance(node, ast.Lambda):
        yield from _within(node.body)
    else:
        letters: list[Any] = [getattr(one, "value", None) for one in getattr(node, "elts", ())]
        if _is_letters(letters):
            yield bytes(letters).decode("ascii")
        kinds = {ast.BinOp: ("left", "right"), ast.Dict: ("values",), ast.BoolOp: ("values",)}
        kinds |= dict.fromkeys((ast.List, ast.Tuple, ast.Set), ("elts",))
        kinds |= dict.fromkeys((ast.Starred, ast.Await, ast.NamedExpr, ast.Subscript), ("value",))
        for field in kinds.get(type(node), ()):
            parts = getattr(node, field)
            for part in parts if isinstance(parts, list) else [parts]:
                yield from _within(part)


def _kept(call: ast.Call) -> Iterator[ast.expr]:
    """Return the arguments of a call that are in what it gives."""
    name = _last_name(call.func)
    if name in _ASKS:
        yield from call.args[1:]
    elif name in _KEPT:
        if name == "format" and isinstance(call.func, ast.Attribute):
            texts = (_HOLES.sub("", text) for text in _texts(call.func.value))
            yield from (ast.Constant(text) for text in texts)
        elif isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Name):
            yield call.func.value
        yield from (*call.args, *(one.value for one in call.keywords))


def _texts(node: ast.expr | None) -> list[str]:
    """Return the text that an expression is: a literal, or literals added up."""
    if isinstance(node, ast.Constant):
        value = node.value
        return [as_text(value)] if isinstance(value, str | bytes) else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            "".join(left + right) for left in [_texts(node.left)] for right in [_texts(node.right)]
        ]
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value)
    if isinstance(node, ast.JoinedStr):
        return ["".join(text for part in node.values for text in _texts(part))]
    return (
        [text for part in node.values for text in _texts(part)]
        if isinstance(node, ast.BoolOp)
        else []
    )


def _defaults(node: ast.arguments) -> Pairs:
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
    tree = _tree(comment)
    return tree is not None and next(_secrets_in(tree), None) is not None


def reads_environment(node: ast.AST) -> bool:
    """Tell whether code looks something up in the environment, or in a store of secrets.

    Known: `os.environ`, `os.getenv`, getpass, dotenv, keyring, and those of Colab and Kaggle.
    """
    return any(_last_name(part) in _LOOKUPS for part in ast.walk(node))


def reads_secret(node: ast.AST) -> bool:
    """Tell whether code looks up what is a secret, by where it is, or by the name it has there."""
    parts = list(ast.walk(node))
    calls = [one.func for one in parts if isinstance(one, ast.Call)]
    if any(_last_name(part) in _STORES for call in calls for part in ast.walk(call)):
        return True
    texts = [text for one in parts if isinstance(one, ast.Constant) for text in _texts(one)]
    return reads_environment(node) and any(map(is_suspicious_name, texts))


def is_text_of_texts(node: ast.expr) -> bool:
    """Tell whether an expression only puts texts together, or gives one another form."""
    if isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp):
        return is_text_of_texts(node.left) and is_text_of_texts(node.right)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice) and is_text_of_texts(node.value)
    if not isinstance(node, ast.Call) or _last_name(node.func) not in _FORMS:
        return False
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return all(map(is_text_of_texts, (*owner, *node.args)))


# -- Gate: nothing leaves an export, as a file, a note or an error, but through here ---------------
_CAUSES = 20  # errors behind an error
_READ = 100_000  # characters


@contextlib.contextmanager
def gate(scope: Scope) -> Iterator[None]:
    """Let nothing out that is a secret of a notebook: errors that leave are `cleared`.

    What is a secret is looked for once, in the environment, in variables with the name of a
    secret, in what cells say, and in what was computed from these; as long as this lasts, a
    text that holds one of them is a secret wherever it stands.

    Args:
        scope: the notebook.

    Raises:
        NbpipeError: those that leave, without secrets.
    """
    with knowing(_secrets_of(scope)):
        try:
            yield
        except NbpipeError as error:
            cleared(error)
            raise


def cleared(error: BaseException) -> None:
    """Take the secrets out of what an error says; a cause that tells one is forgotten."""
    error.args = tuple(scrubbed(one) if isinstance(one, str) else one for one in error.args)
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [scrubbed(str(note)) for note in notes]
    behind = [error.__cause__, error.__context__]
    if any(map(_tells, behind)):
        error.__cause__ = error.__context__ = None


def _tells(error: BaseException | None) -> bool:
    """Tell whether an error, or one behind it, says what is a secret."""
    for _ in range(_CAUSES):
        if error is None:
            return False
        words = (*error.args, *getattr(error, "__notes__", ()), _said(error))
        texts = [one if isinstance(one, str) else repr(one)[:_READ] for one in words]
        if any(scrubbed(text) != text for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return error is not None


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own class
        return ""


def check_text(text: str, pieces: Iterable[Piece]) -> None:
    """Refuse a module with a secret in it.

    Args:
        text: the module.
        pieces: what it is made of, by which the secret's place is told.

    Raises:
        ExportError: it holds one.
    """
    if not secret_in_text(text):
        return
    texts = [(piece.words or " and ".join(map(repr, piece.names)), piece.text) for piece in pieces]
    held = [words for words, one in texts if secret_in_text(one)]
    names = [name for name, _ in secrets_in_text(text) if name]
    raise ExportError(f"{held[0] if held else 'the module'} {advice(names[0] if names else '')}")


def check_arrays(arrays: Mapping[str, Any]) -> None:
    """Refuse data with a secret in it.

    Raises:
        ExportError: an array holds one.
    """
    for name, array in arrays.items():
        if secret_in(name, np.asarray(array)) is not None:
            raise ExportError(f"variable {name!r} {advice(name)}")


# -- what is secret -----------------------------------------------------------------------
def _secrets_of(scope: Scope) -> Iterator[str]:
    """Return the secrets of a notebook, by name, by its text, and by where they come from."""
    for cell in scope.cells.cells:
        yield from told_in(cell.text)
    derived = _derived(scope)
    for name, value in tuple(scope.namespace.items()):
        if scope.is_foreign(name) or isinstance(value, type):
            continue
        if name in derived and isinstance(value, str | bytes | bytearray):
            yield as_text(value)
        elif isinstance(value, ModuleType):
            yield from _secrets_of_module(value)
        elif is_suspicious_name(name):
            yield from texts_named_as_secrets(name, value)


def _secrets_of_module(module: ModuleType) -> Iterator[str]:
    """Return the secrets in the variables of a module of the user's own."""
    if is_local(module.__name__):
        for name, value in tuple(vars(module).items()):
            if is_suspicious_name(name):
                yield from texts_named_as_secrets(name, value)


def _derived(scope: Scope) -> set[str]:
    """Return the variables that were looked up as secrets, or computed from such."""
    derived: set[str] = set()
    for cell in scope.cells.cells:
        for statement in cell.statements:
            if _is_derived(statement, derived):
                derived |= statement.binds
            else:
                derived -= statement.binds
    return derived


def _is_derived(statement: Statement, derived: set[str]) -> bool:
    node = statement.node
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node.value is None:
        return False
    if reads_secret(node):
        return True
    if reads_environment(node) and any(map(is_suspicious_name, statement.binds)):
        return True
    read = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    return not derived.isdisjoint(read) and is_text_of_texts(node.value)
