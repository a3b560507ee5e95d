"""Argument names: what functions call the arguments that a source text gives them by position."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, final

from ..base.names import parameters_of
from .source import Function, defaults_in, last_name

# -- Functions that take a secret, for where the library is not loaded or takes `*args` ------------
# Before the colon what they call their arguments by position; "_" does not count. A name with a dot
# is the function's with what holds it: a module, a class, or the whole package.
_WELL_KNOWN = """
password: Fernet hmac.new URLSafeSerializer URLSafeTimedSerializer pass_ AzureKeyCredential
password: AzureSasCredential huggingface_hub.login SecretStr SecretBytes Secret
_ password: login authenticate simple_bind simple_bind_s username_pw_set from_private_key_file
_ password: cx_Oracle.connect cx_Oracle.Connection oracledb.connect SMBConnection PlainCredentials
_ password: PlainTextAuthProvider AzureNamedKeyCredential BlobServiceClient jwt.encode jwt.decode
_ password: influxdb_client.InfluxDBClient hvac.Client Github wandb.login
_ _ password: pymysql.connect pymysql.Connect pymysql.Connection MySQLdb.connect MySQLdb.Connect
_ _ password: aiomysql.connect pymssql.connect fdb.connect ibm_db.connect ldap3.Connection FTP
_ _ password: FTP_TLS swiftclient.Connection register_session URL.create Transport.connect
_ _ password: ClientSecretCredential UsernamePasswordCredential
_ _ _ password: Redis StrictRedis NNTP SSHClient.connect pysftp.Connection influxdb.InfluxDBClient
_ _ _ _ password: clickhouse_driver.Client pg8000.connect
_ secret _ secret: OAuth1 OAuth1Session OAuthHandler
_ access_key secret_key session_token: Minio
_ _ access_key secret_key session_token: S3FileSystem
access_key secret_key session_token: boto3.Session session.Session
_ _ _ _ _ _ access_key secret_key session_token: boto3.client boto3.resource
_ _ _ _ _ _ access_key secret_key session_token: Session.client Session.resource
_ auth: GraphDatabase.driver
_ _ auth: jaydebeapi.connect
_ _ _ _ _ _ _ auth: Session.request
""".strip().splitlines()
_POSITIONS: Final = {
    name: words.split()
    for words, _, names in (line.partition(":") for line in _WELL_KNOWN)
    for name in names.split()
}
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def well_known(path: str) -> list[str]:
    """Return what a function of a library calls its arguments; "_" for those that do not count."""
    parts = path.split(".")
    names = (".".join(parts[-2:]), f"{parts[0]}.{parts[-1]}", parts[-1])
    return next((_POSITIONS[name] for name in names if name in _POSITIONS), [])


def parameters_of_live(function: object) -> list[str]:
    """Return what a live function or class calls its arguments; no code of an object's runs."""
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if isinstance(function, functools.partial):
        return parameters_of_live(function.func)[len(function.args) :]
    kinds = (FunctionType, MethodType, BuiltinFunctionType, type, functools._lru_cache_wrapper)
    if not isinstance(function, kinds):
        function = inspect.getattr_static(type(function), "__call__", None)
    if not isinstance(function, kinds):
        return []
    with contextlib.suppress(Exception):  # many functions in C have none
        every = parameters_of(function).values()
        return _without_self([one.name for one in every if one.kind in _BY_POSITION])
    return []


def argument_names(function: object) -> list[str]:
    """Return what a live function calls its arguments, or what is well known of it."""
    names, known = parameters_of_live(function), well_known(path_of_live(function))
    pairs = itertools.zip_longest(names, known, fillvalue="_")
    return [name if word == "_" else word for name, word in pairs]


def path_of_live(value: object) -> str:
    """Return where a live function, class or module is, or where the class of an object is."""
    if isinstance(value, ModuleType):
        return value.__name__
    known = value if isinstance(value, type | FunctionType | BuiltinFunctionType) else type(value)
    return f"{known.__module__}.{known.__qualname__}"


def _without_self(names: list[str]) -> list[str]:
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


# -- Names in a text -------------------------------------------------------------------------------
_DEEPEST = 8  # variables between a name and what it stands for
_Callee = ast.Name | ast.Attribute


@final
class NamesInText:
    """What the names in a source text stand for."""

    def __init__(self, nodes: list[ast.AST], live: Mapping[str, Any]) -> None:
        self._live = live
        self._functions = _functions_in(nodes)
        self._takes = {name: _taken(node) for name, node in self._functions.items()}
        self._paths: dict[str, str] = {}  # of what is imported
        self._around: dict[ast.AST, ast.AST | None] = {}  # the function that a node is in
        # By function and name what variables are assigned; by "" and name, attributes and keys.
        self._values: dict[tuple[object, str], list[ast.expr]] = {}
        for node in nodes:
            inside = isinstance(node, Function | ast.Lambda)
            around = node if inside else self._around.get(node)
            self._around.update(dict.fromkeys(ast.iter_child_nodes(node), around))
            self._read(node)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._pass_arguments(node)

    def values_of(self, node: ast.AST) -> list[ast.expr]:
        """Return what a variable, an attribute or a key is assigned in this text, and given.

        For a call of a function of the text, return what that returns.
        """
        match node:
            case ast.Name(name):
                scope = self._around.get(node)
                while scope is not None and (scope, name) not in self._values:
                    scope = self._around.get(scope)
                return self._values.get((scope, name), [])
            case ast.Attribute(_, name) | ast.Subscript(_, ast.Constant(str() as name)):
                return self._values.get(("", name), []) + self._values.get((None, name), [])
            case ast.Call(ast.Name(name)):
                body = ast.walk(self._functions.get(name, ast.Pass()))
                return [one.value for one in body if isinstance(one, ast.Return) and one.value]
        return []

    def arguments_of(self, call: ast.Call) -> Iterator[tuple[str, ast.expr, bool]]:
        """Return the arguments of a call by position, each with the name of its parameter.

        What is given behind a function counts as its arguments, as in `submit(connect, ...)`.
        Names of live functions and of libraries are marked: they may mean something else there.
        """
        given = list(self._spread(call.args))
        calls: list[tuple[ast.expr, list[ast.expr]]] = [(call.func, given)]
        if given and isinstance(given[0], _Callee):
            calls.append((given[0], given[1:]))
        for function, arguments in calls:
            in_text = self._takes.get(last_name(function), [])
            live = parameters_of_live(self._live_of(function))
            known = well_known(self._path_of(function))
            for names, marked in ((in_text, False), (live, True), (known, True)):
                pairs = zip(names, arguments, strict=False)
                yield from ((name, value, marked) for name, value in pairs)

    def _spread(self, given: list[ast.expr]) -> Iterator[ast.expr]:
        """Return positional arguments, those of a literal behind a star, too."""
        for one in given:
            if not isinstance(one, ast.Starred):
                yield one
                continue
            known = [one.value, *self.values_of(one.value)]
            items = next((x.elts for x in known if isinstance(x, ast.Tuple | ast.List)), None)
            if items is None:
                return
            yield from items

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names):
                for one in names:
                    root = one.name.partition(".")[0]
                    self._paths[one.asname or root] = one.name if one.asname else root
            case ast.ImportFrom(module, names):
                for one in names:
                    self._paths[one.asname or one.name] = f"{module}.{one.name}"
            case ast.Assign(targets, value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign() | ast.NamedExpr():
                self._bind(node.target, node.value)
            case ast.withitem(value, target):
                self._bind(target, value)
            case ast.Dict(keys, values):
                for key, value in zip(keys, values, strict=True):
                    number = isinstance(getattr(value, "value", None), int | float)
                    if isinstance(key, ast.Constant) and not number:
                        self._add("", str(key.value), value)
            case ast.arguments():
                function, defaults = self._around[node], dict(defaults_in(node))
                for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs):
                    self._add(function, argument.arg, defaults.get(argument.arg))

    def _bind(self, target: ast.AST | None, value: ast.expr | None) -> None:
        match target, value:
            case ((ast.Tuple(names) | ast.List(names)), (ast.Tuple(values) | ast.List(values))):
                for one, other in zip(names, values, strict=False):
                    self._bind(one, other)
            case ast.Name(name), _:
                self._add(self._around.get(target), name, value)
            case ((ast.Attribute(_, name) | ast.Subscript(_, ast.Constant(str() as name))), _):
                self._add("", name, value)

    def _add(self, scope: object, name: str, value: ast.expr | None) -> None:
        values = self._values.setdefault((scope, name), [])
        values += [] if value is None else [value]

    def _pass_arguments(self, call: ast.Call) -> None:
        """Take what a function of the text is given for values of its parameters."""
        name = last_name(call.func)
        function = self._functions.get(name)
        if function is None:
            return
        given = dict(zip(self._takes[name], self._spread(call.args), strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        for parameter, value in given.items():
            if (function, parameter) in self._values:
                self._add(function, parameter, value)

    # -- what is called ----------------------------------------------------------------------
    def _path_of(self, node: ast.AST, depth: int = 0) -> str:
        """Return the path of a function, as "redis.Redis"; of an object, that of its class."""
        made = self._made(node) if depth < _DEEPEST else None
        match node:
            case ast.Name(name) if name in self._paths:
                return self._paths[name]
            case _ if made is not None:
                return self._path_of(made, depth + 1)
            case ast.Name(name):
                return path_of_live(self._live[name]) if name in self._live else name
            case ast.Attribute(value, name):
                return f"{self._path_of(value, depth)}.{name}"
            case ast.Call(function):
                return self._path_of(function, depth)
        return ""

    def _live_of(self, node: ast.AST, depth: int = 0) -> Any:
        """Return a live function, or the class of a call's result; None where unknown."""
        made = self._made(node) if depth < _DEEPEST else None
        match node:
            case ast.Name(name) if name in self._paths:
                return _loaded(self._paths[name])
            case ast.Name(name) if name in self._live:
                return self._live[name]
            case _ if made is not None:
                return self._live_of(made, depth + 1)
            case ast.Attribute(value, name):
                owner = self._live_of(value, depth)
                return None if owner is None else inspect.getattr_static(owner, name, None)
            case ast.Call(function):
                called = self._live_of(function, depth)
                return called if isinstance(called, type) else None
        return None

    def _made(self, node: ast.AST) -> ast.expr | None:
        """Return the call or the name that a variable, or an attribute of `self`, is set to."""
        match node:
            case ast.Name() | ast.Attribute(ast.Name("self"), _):
                values = self.values_of(node)
                return next((one for one in values if isinstance(one, ast.Call | _Callee)), None)
        return None


def _functions_in(nodes: list[ast.AST]) -> dict[str, ast.AST]:
    """Return the functions and methods of a text by name, and for a class its `__init__`."""
    found: dict[str, ast.AST] = {}
    for node in nodes:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            inits = (one for one in node.body if isinstance(one, Function))
            found[node.name] = next((one for one in inits if one.name == "__init__"), node)
    return found


def _taken(node: ast.AST) -> list[str]:
    """Return what a function, or a class with fields, calls its arguments by position."""
    if isinstance(node, Function):
        return _without_self([one.arg for one in (*node.args.posonlyargs, *node.args.args)])
    targets = [one.target for one in getattr(node, "body", ()) if isinstance(one, ast.AnnAssign)]
    return [one.id for one in targets if isinstance(one, ast.Name)]


def _loaded(path: str) -> Any:
    """Return what a path stands for, without importing anything; None where it is not loaded."""
    parts = path.split(".")
    for at in range(len(parts), 0, -1):
        found: Any = sys.modules.get(".".join(parts[:at]))
        if found is not None:
            for part in parts[at:]:
                found = None if found is None else inspect.getattr_static(found, part, None)
            return found
    return None
