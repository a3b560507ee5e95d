"""Collect: from what the stages use, in the live namespace, to the pieces of a module."""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any, final

from ..errors import ExportError
from ..executors.pickling import by_reference
from . import constants, definitions
from .living import MODULE_NAMES, kind_of
from .model import Import, Piece
from .numbers import NoLiteral
from .places import older_error
from .portrait import difference, portrait
from .scope import Scope, gives, is_builtin, is_importable, is_local
from .state import Held
from .uses import Use, refusal

_USUAL = {"numpy": "np", "pandas": "pd", "torch.nn.functional": "F"}
_NOTEBOOK = "exists in a notebook only"


@dataclass(slots=True)
class Found:
    """What was collected so far.

    Attributes:
        owners: by each name of the module, the scope that it comes from; None: it is new.
        imports: what is imported, in the order of the finds.
        pieces: by the first of their names.
        notes: what the user should know.
        changed: names that exported functions change, by who does.
        classes: the text of each class, as a tree.
        held: what the objects of the module hold, by name.
        lookups: names that come from the environment.
        uses: by each name, who used it first.
        reasons: why the value of a name cannot be written as a literal.
        unnamed: by each name, where it holds a function that has no name, and who uses it.
        alive: what lives in this process and is still held by a name that the exported code may
            fill by itself: the attribute that holds it, if one does, and the refusal.
        arrays: large arrays that may be saved beside the module.
        called: by an expression, the name of the function in it, where it is not the live one's.
        written: code of the module's own functions, and how many variables they captured.
        defaults: portraits of the defaults of these.
        objects: the module's own constants.
        checks: expressions that the trial decides on, by what stands for them until then.
        future: annotations are not evaluated.
    """

    owners: dict[str, Scope | None] = field(default_factory=dict)
    imports: dict[Import, None] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    classes: dict[str, ast.AST] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    lookups: set[str] = field(default_factory=set)
    uses: dict[str, Use] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, tuple[str, Use]] = field(default_factory=dict)
    alive: dict[str, tuple[str, ExportError]] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    written: dict[str, tuple[CodeType, int]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Piece] = field(default_factory=dict)
    future: bool = False

    def copied(self) -> Found:
        """Give a copy that changes on its own."""
        return replace(self, **{name: copy.copy(getattr(self, name)) for name in self.__slots__})


@final
class Collector:
    """Walks what the stages use.

    Args:
        archive: name of the file for large arrays, or None where they are refused.
    """

    def __init__(self, *, archive: str | None = None) -> None:
        self.found = Found()
        self.archive = archive
        self.failed: ExportError | None = None  # of the last attempt that failed
        self._scopes: dict[int, Scope] = {}

    def scope(self, namespace: dict[str, Any]) -> Scope:
        """Give the scope of a namespace."""
        found = self._scopes.get(id(namespace))
        if found is None:
            found = self._scopes[id(namespace)] = Scope.of(namespace)
        return found

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Those looked at so far, the notebook's first."""
        return tuple(sorted(self._scopes.values(), key=lambda scope: not scope.is_notebook))

    # -- names ----------------------------------------------------------------------------
    def need_all(self, scope: Scope, names: Iterable[str], use: Use) -> None:
        """Collect all names that some text reads."""
        for name in sorted(names):
            self.need(scope, name, use)

    def need(self, scope: Scope, name: str, use: Use) -> None:
        """Collect what a name stands for.

        Raises:
            ExportError: it cannot be exported.
        """
        if name in self.found.owners:
            self._check_owner(scope, name, use)
            return
        if scope.is_set_inside(name):
            self.found.owners[name] = scope  # by a function, whichever process calls it
            self.found.uses.setdefault(name, use)
            return
        if name not in scope:
            self._need_missing(scope, name, use)
            return
        value = scope[name]
        if scope.is_foreign(name):
            raise self._foreign(name, value, use)
        self.found.owners[name] = scope
        self.found.uses[name] = use
        try:
            self._collect(scope, name, value, use)
        except ExportError:
            self.found.owners.pop(name, None)  # who asks again is to hear it again
            raise

    def _check_owner(self, scope: Scope, name: str, use: Use) -> None:
        owner = self.found.owners[name]
        if owner is scope or (owner and name in scope and scope[name] is owner.namespace.get(name)):
            return
        if owner is None and self._is_import(scope, name):
            return
        raise refusal(f"two different things are called {name!r}; rename one of them", use)

    def _is_import(self, scope: Scope, name: str) -> bool:
        """Say whether a name was imported on behalf of a literal, and means the same here."""
        lines = [line for line in self.found.imports if line.binds == name]
        return any(gives(line, scope.namespace.get(name)) for line in lines)

    def _foreign(self, name: str, value: object, use: Use) -> ExportError:
        return refusal(
            f"{name!r} {_NOTEBOOK} (a {kind_of(value)}); take it out of the exported code", use
        )

    def _need_missing(self, scope: Scope, name: str, use: Use) -> None:
        if scope.is_foreign(name) and name not in MODULE_NAMES:  # IPython makes it a builtin
            raise self._foreign(name, getattr(builtins, name, None), use)
        if is_builtin(name):
            return
        line = scope.for_types(name)
        if line is None:
            raise refusal(f"{name!r} is not defined; define it, or take it out", use)
        self.found.owners[name] = scope
        self.add_import(line)

    def _collect(self, scope: Scope, name: str, value: Any, use: Use) -> None:
        lines = scope.imported(name, value)
        newest = scope.newest(name)
        if lines and (newest is None or definitions.is_import(newest.node)):
            for line in lines:
                self.add_import(line)
            return
        if isinstance(value, ModuleType):
            self._need_module(name, value, use)
        elif definitions.is_defined(newest, name) or self._is_known_code(scope, name, value):
            definitions.collect(self, scope, name, value, use)
        else:
            constants.collect(self, scope, name, value, use)

    def _is_known_code(self, scope: Scope, name: str, value: Any) -> bool:
        """Say whether a function is to be found by its code: no assignment gives it."""
        newest = scope.newest(name)
        if newest is not None and constants.is_assignment(newest.node):
            return False
        if isinstance(value, FunctionType) and value.__closure__:
            return False
        return isinstance(value, FunctionType | type) and not by_reference(value)

    # -- imports --------------------------------------------------------------------------
    def add_import(self, line: Import) -> None:
        """Take an import into the module."""
        self.found.imports[line] = None
        self.found.owners.setdefault(line.binds, None)
        if line.local:
            self.found.notes[
                f"{line.module!r} is a module of your own, which the exported module imports: "
                "whoever uses it needs that file on the import path"
            ] = None

    def _need_module(self, name: str, module: ModuleType, use: Use) -> None:
        if not is_importable(module):
            raise refusal(
                f"module {name!r} cannot be imported by its name in a fresh process; put its file "
                "into the working folder or onto sys.path, and import it",
                use,
            )
        alias = None if module.__name__ == name else name
        self.add_import(Import(module.__name__, None, alias, is_local(module.__name__)))

    def spell(self, scope: Scope, use: Use) -> Callable[[object], str]:
        """Give what spells modules, classes and functions in a literal."""

        def spelled(value: object) -> str:
            try:
                return self.spelled(scope, value, use)
            except ExportError as error:
                raise NoLiteral(str(error).partition("\n")[0]) from error

        return spelled

    def spelled(self, scope: Scope, value: Any, use: Use) -> str:
        """Give the expression of a module, class or function; it is collected.

        Raises:
            ExportError: it has no name that a module could use.
        """
        known = scope.alias_of(value)
        if known is not None and known[0] not in self.found.owners:
            self.add_import(known[1])
        if known is not None and self.found.owners.get(known[0], scope) in (scope, None):
            return known[0]
        if isinstance(value, ModuleType):
            return self._spelled_module(value)
        own = scope.name_of(value) or self._same(scope, value, use)
        if own is not None and not (by_reference(value) and scope.newest(own) is None):
            self.need(scope, own, use)
            return own
        member = scope.member_of(value)
        if member is not None:
            self.need(scope, member[1], use)
            return member[0]
        if by_reference(value) or getattr(value, "__module__", None) == "builtins":
            return self._spelled_member(value)
        raise refusal(
            f"{getattr(value, '__qualname__', kind_of(value))!r} has no name in the notebook any "
            "more; define it again, and rebuild the pipeline",
            use,
        )

    def _same(self, scope: Scope, value: Any, use: Use) -> str | None:
        """Give the name of a function or class that was defined anew since, to the same effect.

        Raises:
            ExportError: it was redefined to another effect.
        """
        name = getattr(value, "__name__", None)
        live = scope.namespace.get(name) if isinstance(name, str) else None
        if by_reference(value) or not isinstance(live, FunctionType | type):
            return None
        if difference(portrait(value), portrait(live)) is None:
            return name
        raise older_error(str(name), definitions.place_of(scope, value), use)

    def _spelled_module(self, module: ModuleType) -> str:
        name = module.__name__
        alias = _USUAL.get(name, name.rpartition(".")[2] if "." in name else None)
        line = Import(name, None, None if alias == name else alias, is_local(name))
        self.add_import(line)
        return line.binds

    def _spelled_member(self, value: Any) -> str:
        module, path = value.__module__, value.__qualname__
        if module == "builtins":
            return str(path)
        module = _public(module, path, value)
        top, _, rest = path.partition(".")
        line = Import(module, top, None, is_local(module))
        taken = self.found.owners.get(top, None) is not None
        if taken:
            line = Import(module, top, self.free_name(f"_{top}"), line.local)
        self.add_import(line)
        return f"{line.binds}.{rest}" if rest else line.binds

    # -- new pieces -----------------------------------------------------------------------
    def add(self, piece: Piece, scope: Scope | None = None) -> None:
        """Take a piece into the module."""
        self.found.pieces[piece.names[0]] = piece
        for name in piece.names:
            self.found.owners.setdefault(name, scope)

    def free_name(self, wanted: str) -> str:
        """Give a name that nothing in the module or the notebook bears."""
        taken = {*self.found.owners, *(name for one in self.scopes for name in one.namespace)}
        name, number = wanted, 2
        while name in taken or is_builtin(name):
            name, number = f"{wanted}_{number}", number + 1
        return name

    def note(self, words: str) -> None:
        """Take note of what the user should know."""
        self.found.notes[words] = None

    def attempt(self, collect: Callable[[], None]) -> ExportError | None:
        """Collect something that may fail; then nothing of it is left."""
        before = self.found.copied()
        try:
            collect()
        except ExportError as error:
            self.found = before
            self.failed = error
            return error
        return None


def _public(module: str, path: str, value: object) -> str:
    """Give the shortest module that has something under the same name, as `pathlib` for `Path`."""
    top = path.partition(".")[0]
    parts = module.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        found = getattr(sys.modules.get(name), top, None)
        if found is not None and (found is value or "." in path):
            return name
    return module
