"""Gate: nothing leaves an export, as a file, a note or an error, but through here."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import ExportError, NbpipeError
from .cells import Statement
from .model import Piece
from .scope import Scope, is_local
from .secrets import (
    advice,
    as_text,
    is_text_of_texts,
    reads_environment,
    reads_secret,
    secret_in,
    secret_in_text,
    secrets_in_text,
    texts_named_as_secrets,
    told_in,
)
from .shapes import is_suspicious_name, knowing, scrubbed

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
    """Give the secrets of a notebook, by name, by its text, and by where they come from."""
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
    """Give the secrets in the variables of a module of the user's own."""
    if is_local(module.__name__):
        for name, value in tuple(vars(module).items()):
            if is_suspicious_name(name):
                yield from texts_named_as_secrets(name, value)


def _derived(scope: Scope) -> set[str]:
    """Give the variables that were looked up as secrets, or computed from such."""
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
