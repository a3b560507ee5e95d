"""Collect: from what the stages use, in the live namespace, to the pieces of a module."""

from __future__ import annotations

import ast
import builtins
import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any, final

from ..base.format import shortened
from ..errors import ExportError
from ..executors.pickling import by_reference
from . import definitions
from . import pieces as constants
from .cells import Cell, Statement
from .definitions import is_import, older_error, read
from .difference import difference, portrait
from .handles import MODULE_NAMES, kind_of
from .held import HeldState
from .literals import NoLiteral
from .model import Import, Piece, Spelling
from .scope import Scope, gives, is_builtin, is_importable, is_local
from .secrets import masked, secret_in_text
from .uses import Use, refusal, secret_refusal

# -- Collect: from what the stages use, in the live namespace, to the pieces of a module -----------
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
    held: dict[str, HeldState] = field(default_factory=dict)
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
        """Return a copy that changes on its own."""
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
        """Return the scope of a namespace."""
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
        """Tell whether a name was imported on behalf of a literal, and means the same here."""
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
        """Tell whether a function is to be found by its code: no assignment gives it."""
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
        """Return what spells modules, classes and functions in a literal."""

        def spelled(value: object) -> str:
            try:
                return self.spelled(scope, value, use)
            except ExportError as error:
                raise NoLiteral(str(error).partition("\n")[0]) from error

        return spelled

    def spelled(self, scope: Scope, value: Any, use: Use) -> str:
        """Return the expression of a module, class or function; it is collected.

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
        """Return the name of a function or class that was defined anew since, to the same effect.

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
        """Return a name that nothing in the module or the notebook bears."""
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
    """Return the shortest module that has something of the same name, as `pathlib` for `Path`."""
    top = path.partition(".")[0]
    parts = module.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        found = getattr(sys.modules.get(name), top, None)
        if found is not None and (found is value or "." in path):
            return name
    return module


# -- Setup: cells that are marked `#| nbpipe: setup` are kept whole, above everything else ---------
_MARK = re.compile(r"[ \t]*#\|[ \t]*nbpipe:.*")


def collect_setup(collector: Collector, scope: Scope) -> None:
    """Collect the set-up cells of a notebook, and what they use.

    Raises:
        ExportError: one of them holds a shell line or a secret, or uses what cannot be exported.
    """
    newest: dict[str, Cell] = {}
    for cell in scope.cells.cells:
        if cell.is_setup:
            newest[cell.text] = cell  # a cell that was run twice is one
    for cell in newest.values():
        _collect(collector, scope, cell)


def _collect(collector: Collector, scope: Scope, cell: Cell) -> None:
    use = Use(f"the set-up cell [{cell.place}]")
    if cell.shell_lines:
        raise refusal(
            "a shell/magic line (`!`, `%`) is inside a set-up cell; use subprocess or plain Python",
            use,
        )
    if secret_in_text(cell.text):
        raise secret_refusal("a set-up cell", use, text=cell.text)
    leading, rest = _parted(cell)
    for statement in leading:
        _import(collector, statement.node)
    if not rest:
        return
    names = sorted({name for one in rest for name in one.binds})
    for name in names:
        collector.found.owners[name] = scope
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    for one in rest:
        reads = read(collector, scope, one.node, cell.flags, use)
        now, later = now | reads[0], later | reads[1]
    order = (cell.order, rest[0].number)
    spelling = Spelling(_text(rest), now - set(names), later - set(names))
    piece = Piece((*names, f"<{cell.place}>"), (spelling,), {}, "setup", order, use.words)
    collector.add(piece, scope)


def _parted(cell: Cell) -> tuple[list[Statement], list[Statement]]:
    """Part a cell into the imports that it begins with, and the rest."""
    statements = list(cell.statements)
    count = 0
    while count < len(statements) and isinstance(
        statements[count].node, ast.Import | ast.ImportFrom
    ):
        count += 1
    return statements[:count], statements[count:]


def _import(collector: Collector, node: ast.stmt) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            line = Import(alias.name, None, alias.asname, is_local(alias.name))
            collector.add_import(line)
    elif isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
        for alias in node.names:
            module = str(node.module)
            collector.add_import(Import(module, alias.name, alias.asname, is_local(module)))


def _text(statements: list[Statement]) -> str:
    """Return the text of statements as it stands, without the mark."""
    lines = [line for one in statements for line in one.text.split("\n")]
    return "\n".join(line for line in lines if not _MARK.fullmatch(line))


# -- Effects: statements of the notebook that act on what the module uses, and are not in it -------
_LONGEST = 80
_RANDOM = ("random", "numpy", "torch")
# Calls that change how a module behaves; others only show or compute something.
_ACTS = (
    "seed", "manual_seed", "set_", "filterwarnings", "simplefilter", "basicConfig", "register",
    "enable", "disable", "use_deterministic", "configure", "setup", "init", "load_dotenv",
    "setlocale", "insert", "append", "update", "putenv", "setdefault", "setNumThreads",
    "add_safe_globals", "patch", "apply", "seterr",
)  # fmt: skip
_SHOWS = ("set_printoptions", "set_option")


def effects(scope: Scope, used: frozenset[str]) -> Iterator[Statement]:
    """Return the statements outside set-up cells that change a module the exported code uses.

    Args:
        scope: the notebook.
        used: names of the module that is written.
    """
    for cell in scope.cells.cells:
        if cell.is_setup:
            continue
        for statement in cell.statements:
            if not is_import(statement.node) and _acts(statement.node, scope, used):
                yield statement


def note_of(statement: Statement) -> str:
    """Tell what is not in the module, and how it would be."""
    text = shortened(masked(ast.unparse(statement.node)), _LONGEST)
    return (
        f"`{text}` in {statement.cell.place} acts by side effect and is not in the module; to keep "
        "it, begin its cell with the line `#| nbpipe: setup`"
    )


def _acts(node: ast.stmt, scope: Scope, used: frozenset[str]) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Name):
            return _seeds(scope.namespace.get(func.id), scope, used)
        if not isinstance(func, ast.Attribute):
            return False
        acts = func.attr.startswith(_ACTS) and func.attr not in _SHOWS
        return acts and _is_used_module(func, scope, used)
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(
            isinstance(target, ast.Attribute | ast.Subscript)
            and _is_used_module(target, scope, used)
            for target in targets
        )
    return False


def _seeds(function: object, scope: Scope, used: frozenset[str]) -> bool:
    """Tell whether a function of the user seeds what the module draws from, as by its name."""
    if not isinstance(function, FunctionType) or "seed" not in function.__name__.lower():
        return False
    return any(_draws(scope.namespace.get(name)) for name in used)


def _draws(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _RANDOM


def _is_used_module(node: ast.expr, scope: Scope, used: frozenset[str]) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    value = scope.namespace.get(node.id)
    shown = isinstance(value, ModuleType) and value.__name__.startswith(("matplotlib", "IPython"))
    return (
        (node.id in used or _reaches(node.id, scope, used))
        and not shown
        and isinstance(value, ModuleType | type)
    )


def _reaches(name: str, scope: Scope, used: frozenset[str]) -> bool:
    """Tell whether a name stands for a package that the module uses under another name."""
    value = scope.namespace.get(name)
    if not isinstance(value, ModuleType):
        return False
    top = value.__name__.partition(".")[0]
    everywhere = top in ("os", "sys", "random", "warnings")
    return everywhere or any(
        isinstance(scope.namespace.get(one), ModuleType)
        and scope.namespace[one].__name__.partition(".")[0] == top
        for one in used
    )
