"""Collect: from what the stages use, in the live namespace, to what a module needs."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import itertools
import re
import sys
from collections import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, final

from ..base.knobs import Knob
from ..base.tree import is_tensor
from ..errors import ExportError
from ..executors.pickling import by_reference, importable
from .cells import Cell, Cells, Definition, Statement, of_file, recorded
from .fingerprint import same_value
from .literals import NoLiteral, literal
from .module import Import, Parameter, Piece, Spelling
from .reachable import is_generator, is_installed, is_local, kind_of, secret_in
from .secrets import advice, scrubbed, secrets_in_text
from .source import Names, changed_by, last_name, names_read, root_of


# -- Uses: who uses what, from the stage down, and refusals that tell it ---------------------------
@dataclass(frozen=True, slots=True)
class Use:
    """A link in the chain of use.

    Attributes:
        words: who uses something, as "decode() [In[4]]" or "stage 'decode'".
        by: who uses that, in turn; None at the stage.
    """

    words: str
    by: Use | None = None

    def then(self, words: str) -> Use:
        """Go on to what this one uses."""
        return Use(words, self)

    @property
    def chain(self) -> str:
        """All links, from here up to the stage."""
        return self.words if self.by is None else f"{self.words} <- {self.by.chain}"


def refusal(what: str, use: Use) -> ExportError:
    """Make the error for something that cannot be exported.

    Args:
        what: the culprit and the way out.
        use: who uses it.
    """
    return ExportError(scrubbed(f"{what}\n  used by: {use.chain}"))


def refuse_secret(
    what: str, use: Use, *, text: str = "", name: str = "", value: object = None
) -> None:
    """Refuse what holds a secret.

    Args:
        what: what may hold it.
        use: who uses it.
        text: its source.
        name: what it is called.
        value: it, where that counts.

    Raises:
        ExportError: it does.
    """
    names = [one for one, _ in secrets_in_text(text)]
    if names or secret_in(name, value) is not None:
        raise refusal(f"{what} {advice(next(filter(None, names), ''))}", use)


def unwritable(what: str, reason: str, use: Use) -> ExportError:
    """Make the error for a value that has no text."""
    return refusal(f"cannot write {what} into the module: {reason}", use)


# -- Scope: one namespace of live values, and the text that they came from -------------------------
# Names that IPython puts into a notebook, and keeps filling.
_NOTEBOOK_NAMES = frozenset(
    ("In", "Out", "get_ipython", "display", "exit", "quit", "_exit_code", "_sh")
)
_CONTAINERS = (abc.MutableMapping, abc.MutableSequence, abc.MutableSet)
# Names that every module has.
_MODULE_NAMES = frozenset(("__name__", "__doc__", "__file__", "__package__", "__spec__"))
_KEPT = re.compile(r"_+|_i+|_i?\d+|_[iod]h")  # names under which IPython keeps input and output


@final
class Scope:
    """The global variables of a notebook, a script or a module.

    Args:
        namespace: the live values.
        cells: the text.

    Attributes:
        is_notebook: it is that of a notebook.
    """

    def __init__(self, namespace: dict[str, Any], cells: Cells, *, is_notebook: bool) -> None:
        self.namespace = namespace
        self.cells = cells
        self.is_notebook = is_notebook

    @classmethod
    def of(cls, namespace: dict[str, Any]) -> Scope:
        """Find the text of a namespace; where there is none, it has no cells."""
        if namespace.get("__name__") == "__main__":
            cells = recorded()
            if cells.cells:
                return cls(namespace, cells, is_notebook=True)
        file = namespace.get("__file__")
        cells = _cells_of(file) if isinstance(file, str) else Cells(())
        return cls(namespace, cells, is_notebook=False)

    def __contains__(self, name: str) -> bool:
        return name in self.namespace and not self._is_replaced(name)

    def _is_replaced(self, name: str) -> bool:
        """Tell whether IPython gave a builtin another body, as it does with `open`."""
        whole = getattr(builtins, name, None)
        inside = getattr(self.namespace[name], "__wrapped__", None)
        return whole is not None and inside is whole and self.newest(name) is None

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]

    def newest(self, name: str) -> Statement | None:
        """Return the statement that bound a name last."""
        found = self.cells.bindings(name)
        return found[0] if found else None

    def first(self, name: str) -> tuple[int, int]:
        """Tell where a name was bound first: the cell, and the statement in it."""
        found = self.cells.bindings(name)
        return found[-1].order if found else (sys.maxsize, 0)

    def knows(self, name: str) -> bool:
        """Tell whether a name is bound, imported somewhere, or one of Python's."""
        found = name in self or _is_builtin(name) or self.not_executed(name) is not None
        return found or self.is_set_inside(name)

    def is_set_inside(self, name: str) -> bool:
        """Tell whether functions alone bind a name, by `global`."""
        return self.newest(name) is None and name in self.rebound

    def is_changed_inside(self, name: str) -> bool:
        """Tell whether some function binds a name by `global`, or changes its value in place."""
        return name in self.rebound or any(
            name in reads.changed and self.is_changed_in(name, node) for node, reads in self._reads
        )

    def is_changed_in(self, name: str, node: ast.AST) -> bool:
        """Tell whether code that seems to change a value in place does, by what the value is."""
        ways = ((one, changed_by(one)) for one in ast.walk(node))
        return any(
            last_name(root_of(target)) == name and not self._is_pure(way)
            for way, target in ways
            if target is not None
        )

    def _is_pure(self, way: ast.AST) -> bool:
        """Tell whether a call is arithmetic, or of the user's class, whose attributes will tell."""
        match way:
            case ast.Call(ast.Attribute(ast.Name(name), method)) if name in self:
                value, kind = self[name], type(self[name])
                if is_tensor(value) and not method.endswith("_"):
                    return True
                function = inspect.getattr_static(kind, method, None)
                own = isinstance(function, FunctionType) and not by_reference(function)
                own = own and not isinstance(value, _CONTAINERS)
                return own or (method == "add" and hasattr(kind, "__add__"))
        return False

    @functools.cached_property
    def rebound(self) -> frozenset[str]:
        """Names that some function binds by `global`."""
        return frozenset(name for _, reads in self._reads for name in reads.rebound)

    @functools.cached_property
    def _reads(self) -> list[tuple[ast.stmt, Names]]:
        nodes = (one.node for cell in self.cells.cells for one in cell.statements)
        return [(node, names_read(node, future=True)) for node in nodes]

    def is_foreign(self, name: str) -> bool:
        """Tell whether a name comes from IPython, and the user has not bound it."""
        known = name in _NOTEBOOK_NAMES or _KEPT.fullmatch(name) is not None
        return self.is_notebook and known and self.newest(name) is None

    def name_of(self, value: object) -> str | None:
        """Return the user's name for an object, by identity; None where it has none."""
        own = getattr(value, "__name__", None)
        names = filter(self._is_name, self.names_of(value))
        return min(names, key=lambda name: (name != own, name.startswith("_")), default=None)

    def names_of(self, value: object) -> list[str]:
        """Return all names of an object."""
        return [name for name, one in tuple(self.namespace.items()) if one is value]

    def _is_name(self, name: str) -> bool:
        """Tell whether a name is the user's for one thing: loops give theirs to many."""
        newest = self.newest(name)
        loops = newest is not None and isinstance(newest.node, ast.For | ast.AsyncFor)
        return not (loops or self.is_foreign(name) or name in _MODULE_NAMES)

    # -- imports --------------------------------------------------------------------------
    def imported(self, name: str, value: object) -> tuple[Import, ...]:
        """Spell a name as the user imported it; empty where no import gives this value.

        `import a.b` and `import a.c` both bind `a`: all of them are given.
        """
        lines = filter(None, (_line(one, name) for one in self._imports))
        found = [line for line in lines if gives(line, value)]
        plain = itertools.takewhile(lambda line: line.member is line.alias is None, found)
        return tuple(dict.fromkeys(plain)) or tuple(found[:1])

    def not_executed(self, name: str) -> Import | None:
        """Return an import of a name that is not bound, as one under `if TYPE_CHECKING:`."""
        lines = (_line(one, name) for one in self._imports)
        return next((line for line in lines if line is not None), None)

    def alias_of(self, value: object) -> tuple[str, Import] | None:
        """Return the user's name for something imported, and the import."""
        for name in self.names_of(value):
            lines = () if self.is_foreign(name) else self.imported(name, value)
            if [one.alias or one.member or one.module for one in lines] == [name]:
                return name, lines[0]
        return None

    @functools.cached_property
    def _imports(self) -> list[Import]:
        return self.cells.imports(self.namespace.get("__package__") or "")


def _line(one: Import, name: str) -> Import | None:
    """Return what an import has to do with a name."""
    if one.module == "__future__":
        return None
    if one.member == "*" and hasattr(sys.modules.get(one.module), name):
        one = replace(one, member=name)
    return replace(one, local=is_local(one.module)) if one.binds == name else None


def gives(line: Import, value: object) -> bool:
    """Tell whether an import gives this very object."""
    if line.member is None:
        name = line.module if line.alias is not None else line.module.partition(".")[0]
        return sys.modules.get(name) is value and line.module in sys.modules
    module = sys.modules.get(line.module)
    member = getattr(module, line.member, sys.modules.get(f"{line.module}.{line.member}"))
    plain = isinstance(value, int | float | str | bytes | tuple)
    return member is value or (plain and type(member) is type(value) and member == value)


def _is_builtin(name: str) -> bool:
    """Tell whether a name is known without being bound."""
    return hasattr(builtins, name) or name in _MODULE_NAMES


# -- Code of live functions and classes, and where it was defined ----------------------------------
_GENERATED = ("<string>", "<attrs", "<frozen", "<makefun", "<decorator")
# Where compilers and wrappers keep the function that they were given.
_WRAPPED = ("__wrapped__", "py_func", "__func__", "fget", "func")
_DEPTH = 20


def code_of(value: Any) -> CodeType | None:
    """Return the code of the function inside a callable: what decorators wrapped around it."""
    for _ in range(_DEPTH):
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            return value.__code__
        inner = next((getattr(value, name) for name in _WRAPPED if _has(value, name)), None)
        if inner is None or inner is value:
            break
        value = inner
    return getattr(value, "__code__", None)


def _has(value: Any, name: str) -> bool:
    if isinstance(value, functools.partial):
        return name == "func"
    return name != "func" and callable(getattr(value, name, None))


def definition_of(
    scope: Scope, code: CodeType, templates: Collection[CodeType] = ()
) -> Definition | None:
    """Return the definition of some code: in the cells, or in a file that was run by its path.

    Args:
        scope: the notebook.
        code: of a function.
        templates: code whose text counts though its file belongs to a library.
    """
    found = scope.cells.definition(code)
    file = code.co_filename
    if found is not None or not file.endswith(".py"):
        return found
    if is_installed(file) and code not in templates:
        return None
    return _cells_of(file).definition(code)


def _cells_of(file: str) -> Cells:
    """Return a file as a cell; none where it cannot be read."""
    try:
        return of_file(file)
    except (OSError, SyntaxError):
        return Cells(())


def refuse_older(scope: Scope, kind: type, use: Use) -> None:
    """Refuse a class that was redefined since to another effect.

    Raises:
        ExportError: it was.
    """
    live = scope.namespace.get(kind.__name__)
    if live is kind or not isinstance(live, type) or by_reference(kind):
        return
    if kind.__qualname__ == kind.__name__ and not same_value(kind, live):
        raise older_error(kind.__name__, place_of(scope, kind), use)


def place_of(scope: Scope, value: Any) -> str:
    """Tell where a function or class was defined, as " (In[3])"; empty where that is not known."""
    code = code_of(value)
    one = None if code is None else definition_of(scope, code)
    found = methods_of(scope, value).values() if isinstance(value, type) else filter(None, [one])
    first = min(found, key=lambda one: one.cell.order, default=None)
    return "" if first is None else f" ({first.place})"


def methods_of(scope: Scope, kind: type) -> dict[str, Definition]:
    """Return the definitions of a class's own methods; those that were generated have none."""
    found: dict[str, Definition] = {}
    for name, value in vars(kind).items():
        code = code_of(value)
        if code is None or code.co_filename.startswith(_GENERATED):
            continue
        definition = scope.cells.definition(code)
        if definition is not None:
            found[name] = definition
    return found


def older_error(name: str, at: str, use: Use) -> Exception:
    """Make the error for a function or class that was redefined, at a place like " (In[3])"."""
    return refusal(
        f"the pipeline still uses an older {name!r}{at}; it was redefined since: rebuild the "
        "pipeline, then export",
        use,
    )


# -- The collector ---------------------------------------------------------------------------------
def is_import(node: ast.AST) -> bool:
    """Tell whether a statement imports, perhaps in a `try` or `if`."""
    if isinstance(node, ast.If | ast.Try | ast.With):
        return any(isinstance(one, ast.Import | ast.ImportFrom) for one in ast.walk(node))
    return isinstance(node, ast.Import | ast.ImportFrom)


class HeldState(NamedTuple):
    """What an object holds.

    Attributes:
        kinds: names of its class and of the classes that this is made from.
        attributes: names of its attributes.
        moving: those of attributes that change when they are used, as random generators.
    """

    kinds: tuple[str, ...]
    attributes: frozenset[str]
    moving: frozenset[str]

    @classmethod
    def of(cls, value: Any) -> HeldState:
        """Look at an object; only its own attributes count."""
        held = getattr(value, "__dict__", None)
        attributes = dict(held) if type(held) is dict else {}
        moving = (name for name, one in attributes.items() if is_generator(one))
        kinds = tuple(kind.__name__ for kind in type(value).__mro__)
        return cls(kinds, frozenset(attributes), frozenset(moving))


_FIXED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)
_USUAL = {"numpy": "np", "pandas": "pd", "torch.nn.functional": "F"}


@dataclass(slots=True)
class Found:
    """What was collected so far.

    Attributes:
        owners: by each name of the module, the scope that it comes from; None: it is new.
        imports: what is imported, in the order of the finds.
        pieces: by the first of their names.
        notes: what the user should know, each with what to say of it where items differ.
        changed: names that exported functions change, by who does.
        classes: the text of each class, as a tree.
        held: what the objects of the module hold, by name.
        uses: by each name, who used it first.
        reasons: why the value of a name cannot be written as a literal.
        unnamed: by each name, where it holds a function that has no name, and who uses it.
        alive: what lives in this process and is still held by a name that the exported code may
            fill by itself: the attribute that holds it, if one does, and the refusal.
        arrays: large arrays that may be saved beside the module.
        called: by an expression, the name of the function in it, where it is not the live one's.
        written: code of the module's own functions, how many variables they captured, and the
            fingerprint of their defaults.
        objects: the module's own constants.
        captured: by its id, what closures captured that may change, with who has it, and whether
            that changes it.
        checks: expressions that the trial decides on, by what stands for them until then.
        listed: names by which sources read their items.
        roots: parameters for the paths that files are looked for under, by their text.
        unknown: names in annotations that nobody evaluates, and that stand for nothing.
        future: annotations are not evaluated.
    """

    owners: dict[str, Scope | None] = field(default_factory=dict)
    imports: dict[Import, None] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    notes: dict[str, str | None] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    classes: dict[str, ast.AST] = field(default_factory=dict)
    held: dict[str, HeldState] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, tuple[str, Use]] = field(default_factory=dict)
    alive: dict[str, tuple[str, ExportError]] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    written: dict[str, tuple[CodeType, int, Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    captured: dict[int, tuple[Any, dict[str, bool]]] = field(default_factory=dict)
    checks: dict[str, Piece] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    roots: dict[str, Parameter] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    future: bool = False

    def copied(self) -> Found:
        """Return a copy that changes on its own."""
        return replace(self, **{name: copy.copy(getattr(self, name)) for name in self.__slots__})


_Collected = TypeVar("_Collected")
_CollectValue = Callable[["Collector", Scope, str, Any, Use], None]


@final
class Collector:
    """Walks what the stages use.

    Args:
        collect_value: called for each name that stands for a function, a class or a value; it
            adds the piece.
        is_decision: tells whether a statement chooses what a name is.
        archive: name of the file for large arrays, or None where they are refused.
        counted: by the name of a source of numbers, what has as many items.
        templates: code of functions of nbpipe that the module gets as its own.
    """

    def __init__(
        self,
        collect_value: _CollectValue,
        is_decision: Callable[[ast.AST, str], bool],
        *,
        archive: str | None = None,
        counted: Mapping[str, Any] | None = None,
        templates: Collection[CodeType] = (),
    ) -> None:
        self.found = Found()
        self.templates = templates
        self._is_decision = is_decision
        self.counted = counted or {}
        self._collect_value = collect_value
        self.archive = archive
        self.failed: ExportError | None = None  # of the last attempt that failed
        self._scopes: dict[int, Scope] = {}
        self._values: dict[Knob, int] = {}

    def scope(self, namespace: dict[str, Any]) -> Scope:
        """Return the scope of a namespace."""
        found = self._scopes.get(id(namespace))
        if found is None:
            found = self._scopes[id(namespace)] = Scope.of(namespace)
        return found

    def value_of(self, knob: Knob) -> int:
        """Return what a knob is written with: later a run may turn it, and is not followed."""
        return self._values.setdefault(knob, knob.value)

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
        if name in _MODULE_NAMES and scope.newest(name) is None:
            return  # each module has its own
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
        words = f"{name!r} exists in a notebook only (a {kind_of(value)})"
        return refusal(f"{words}; take it out of the exported code", use)

    def _need_missing(self, scope: Scope, name: str, use: Use) -> None:
        if scope.is_foreign(name) and name not in _MODULE_NAMES:  # IPython makes it a builtin
            raise self._foreign(name, getattr(builtins, name, None), use)
        if _is_builtin(name):
            return
        line = scope.not_executed(name)
        if line is None:
            raise refusal(f"{name!r} is not defined; define it, or take it out", use)
        self.found.owners[name] = scope
        self.add_import(line)

    def _collect(self, scope: Scope, name: str, value: Any, use: Use) -> None:
        lines = scope.imported(name, value)
        newest = scope.newest(name)
        if newest is not None and self._is_decision(newest.node, name):
            self._collect_value(self, scope, name, value, use)
            return
        if lines and (newest is None or is_import(newest.node)):
            for line in lines:
                self.add_import(line)
            return
        if isinstance(value, ModuleType):
            self._need_module(name, value, use)
        else:
            self._collect_value(self, scope, name, value, use)

    def read(
        self, scope: Scope, node: ast.AST, cell: Cell, use: Use, *, local: Sequence[str] = ()
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Collect what some code reads; return the names read now and later.

        Args:
            scope: whose names are read.
            node: the code.
            cell: where it stands.
            use: who reads.
            local: names that are parameters in the module.
        """
        found = names_read(node, future=cell.future)
        changed = [name for name in found.changed if scope.is_changed_in(name, node)]
        values = [scope[name] for name in changed if name in scope]
        same = [
            name for one in values if not isinstance(one, _FIXED) for name in scope.names_of(one)
        ]
        for name in (*found.rebound, *changed, *same):
            self.found.changed.setdefault(name, use.words.partition(" [")[0])
        names = (found.now | found.later | found.rebound) - set(local)
        unknown = {name for name in found.noted if not scope.knows(name)}
        self.found.unknown |= unknown
        self.need_all(scope, names - unknown, use)
        return found.now, found.later

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
        if not importable(module.__name__):
            raise refusal(
                f"module {name!r} cannot be imported by its name in a fresh process; put its file "
                "into the working folder or onto sys.path, and import it",
                use,
            )
        alias = None if module.__name__ == name else name
        self.add_import(Import(module.__name__, None, alias, is_local(module.__name__)))

    def literal(self, value: object, scope: Scope, use: Use) -> Spelling:
        """Write a value as a literal, with the names that it reads.

        Raises:
            NoLiteral: it cannot be written; nothing of it is left.
        """
        before = self.found.copied()

        def spelled(one: object) -> str:
            try:
                return self.spelled(scope, one, use)
            except ExportError as error:
                raise NoLiteral(str(error).partition("\n")[0]) from error

        try:
            text = literal(value, spelled)
        except NoLiteral:
            self.found = before
            raise
        found = names_read(ast.parse(text, mode="eval").body, future=True)
        return Spelling(text, found.now, found.later)

    def as_literal(self, name: str, value: object, scope: Scope, use: Use) -> Spelling | None:
        """Write the value of a name as a literal; None where `reasons` tells why it has none."""
        try:
            return self.literal(value, scope, use)
        except NoLiteral as no:
            self.found.reasons[name] = no.reason
            return None

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
        own = scope.name_of(value) or self.same_name(scope, value, use)
        if own is not None and not (by_reference(value) and scope.newest(own) is None):
            self.need(scope, own, use)
            return own
        if by_reference(value) or getattr(value, "__module__", None) == "builtins":
            return self._spelled_member(value)
        raise refusal(
            f"{getattr(value, '__qualname__', kind_of(value))!r} has no name in the notebook any "
            "more; define it again, and rebuild the pipeline",
            use,
        )

    def same_name(self, scope: Scope, value: Any, use: Use) -> str | None:
        """Return the name of a function or class that was defined anew since, to the same effect.

        Raises:
            ExportError: it was redefined to another effect.
        """
        name = getattr(value, "__name__", None)
        live = scope.namespace.get(name) if isinstance(name, str) else None
        if live is None or by_reference(value):
            return None
        if same_value(value, live):
            return name
        # What `wraps` has given to a function is the name of another.
        code = getattr(value, "__code__", None)
        if "<locals>" in (value.__qualname__ if code is None else code.co_qualname):
            return None
        raise older_error(str(name), place_of(scope, value), use)

    def _spelled_module(self, module: ModuleType) -> str:
        name = module.__name__
        alias = _USUAL.get(name, name.rpartition(".")[2] if "." in name else None)
        return self._import(Import(name, None, None if alias == name else alias, is_local(name)))

    def _spelled_member(self, value: Any) -> str:
        module, path = value.__module__, value.__qualname__
        if module == "builtins":
            return str(path)
        module = _public(module, path, value)
        top, _, rest = path.partition(".")
        name = self._import(Import(module, top, None, is_local(module)))
        return f"{name}.{rest}" if rest else name

    def _import(self, line: Import) -> str:
        """Take an import on behalf of a literal, under a name of its own; return the name."""
        if line.binds in self.found.owners and line not in self.found.imports:
            known = (one for one in self.found.imports if replace(one, alias=line.alias) == line)
            free = self.free_name(f"_{line.binds}")
            line = next(known, replace(line, alias=free))
        self.add_import(line)
        return line.binds

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
        while name in taken or _is_builtin(name):
            name, number = f"{wanted}_{number}", number + 1
        return name

    def attempt(self, collect: Callable[[], _Collected]) -> _Collected | None:
        """Collect something; None where it fails: nothing of it is left, and `failed` says why."""
        before = self.found.copied()
        try:
            return collect()
        except ExportError as error:
            self.found = before
            self.failed = error
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
