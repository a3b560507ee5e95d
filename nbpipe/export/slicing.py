"""Slicing: the statements that a pipeline needs, and the chain of use that leads to each."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..errors import ExportError
from .record import END, Record
from .secrets import secret_in_text
from .statements import Statement

# What the machine or the session decides: a value made of it is never written down.
_OF_MACHINE = re.compile(
    r"\b(environ|environb|getenv|expanduser|expandvars|getpass|gethostname|getuser|getlogin"
    r"|home\(|(?:get)?cwdb?\(|tempfile|mkdtemp|TemporaryDirectory|keyring|dotenv|userdata)"
)
_OF_IPYTHON = re.compile(r"display|In|Out|_{1,3}|_i{0,3}\d*|_[io]h|_dh|exit|quit")
_OF_MODULES = frozenset(("__name__", "__file__", "__doc__", "__builtins__", "__spec__"))


class Slice:
    """A backward slice: from the goal to all that it needs, and no more.

    A need is a name, the time at which it is read, and who reads it. The last statement before
    that time that binds the name meets it, with those behind it that change its object.

    Args:
        record: what was executed.
        goal: the expression that gives the pipeline, as a statement after all others.
        literal: replaces a statement that no module can execute by the value of its variable.

    Attributes:
        taken: the statements of the slice, each with the one that first needed it.
        widened: names of which also what may change their objects is taken.
        late: names of which also what changes their objects after they were read is taken.
        extra: statements that are needed whatever the reading of the text says.
        idle: statements that were seen to change nothing.
    """

    def __init__(
        self, record: Record, goal: Statement, literal: Callable[[Statement, str], None]
    ) -> None:
        self._record = record
        self.goal = goal
        self._literal = literal
        self.taken: dict[Statement, Statement | None] = {}
        self.widened: set[str] = set()
        self.late: set[str] = set()
        self.extra: set[Statement] = set()
        self.idle: set[Statement] = set()

    def build(self) -> list[Statement]:
        """Return the statements in the order of execution; the goal is the last.

        Raises:
            ExportError: something that the pipeline needs has no text.
        """
        self.taken = {}
        for one in self._record.statements:
            if one.cell.is_setup:
                self._take(one, None)
        for one in sorted(self.extra, key=lambda one: one.at):
            self._take(one, None)
        self._take(self.goal, None)
        return sorted(self.taken, key=lambda one: one.at)

    def use(self, one: Statement | None) -> str:
        """Return the chain of use that begins with a statement: `decode() [In[4]] <- the pipeline`.

        Statements that make pipelines are left out.
        """
        words = []
        while one is not None:
            if not any(hasattr(self._value(name), "_export_goal_") for name in one.binds):
                words.append("the pipeline" if one is self.goal else one.words)
            one = self.taken.get(one)
        return " <- ".join(dict.fromkeys([*words, "the pipeline"]))

    def refusal(self, what: str, by: Statement | None) -> ExportError:
        """Return the error of what a statement needs.

        Args:
            what: the cause and the way out.
            by: the statement that needs it.
        """
        return ExportError(f"{what}\n  used by: {self.use(by)}")

    def refused(self, what: str, one: Statement | None) -> ExportError:
        """Return the error of a statement itself."""
        return self.refusal(what, None if one is None else self.taken.get(one))

    def _value(self, name: str) -> object:
        return self._record.namespace.get(name)

    def behind(self, one: Statement | None) -> set[str]:
        """Return the names in the slice of a statement, its own included; no modules."""

        def before(this: Statement) -> Iterator[Statement | None]:
            later = this.reads_later if this is not one and not this.is_definition else ()
            return (self._record.binding(name, this.at) for name in (*this.reads, *later))

        return {n for this in _reached(one, before) if not this.is_import for n in this.binds}

    def submodules(self) -> dict[str, str]:
        """Return the expressions by which the slice reads modules of packages, as `xml.dom`."""
        found: dict[str, str] = {}
        for one in self.taken:
            for node in ast.walk(one.node):
                if isinstance(node, ast.Attribute):
                    package, module = self._module(node.value), self._module(node)
                    if package and module and module.__name__ == f"{package.__name__}.{node.attr}":
                        found[module.__name__] = ast.unparse(node)
        return found

    def _module(self, node: ast.expr) -> ModuleType | None:
        """Return the module that an expression of names and dots gives."""
        match node:
            case ast.Name(name):
                value = self._value(name)
            case ast.Attribute(inner, name):
                value = getattr(self._module(inner), name, None)
            case _:
                value = None
        return value if isinstance(value, ModuleType) else None

    def is_of_machine(self, one: Statement | None) -> bool:
        """Return whether the machine or the session decides what a statement gives."""

        def before(this: Statement) -> Iterator[Statement | None]:
            for name in this.reads:
                yield self._record.binding(name, this.at)
                yield from (c for c in self.taken if name in c.changes and c.at < this.at)

        return any(_OF_MACHINE.search(this.text) for this in _reached(one, before))

    # -- needs -----------------------------------------------------------------------------
    def _take(self, one: Statement, by: Statement | None) -> None:
        if one in self.taken:
            return
        self.taken[one] = by
        for name in sorted(one.needed):
            self._need(name, one.at, one)
        for name in sorted(one.needed_later):
            self._need(name, END, one)
        for name in sorted(one.annotated - one.needed - one.needed_later):
            found = self._record.binding(name, END)
            if found is not None:
                self._take(found, one)

    def _need(self, name: str, when: int, by: Statement) -> None:
        if name == "get_ipython":
            raise self.refusal(
                "a shell/magic line (`!`, `%`) or get_ipython() is inside exported code, and a "
                "module has no IPython; write subprocess or plain Python",
                by,
            )
        found = self._record.binding(name, when) or self._record.binding(name, END)
        if found is None:
            self._need_unbound(name, by)
            return
        if isinstance(found.node, ast.Delete):
            raise self.refusal(
                f"name {name!r} was deleted in {found.cell.place}; run the cell that defines it "
                "again",
                by,
            )
        if found.is_shell and not found.is_definition:
            self._literal(found, name)
            found = self._record.binding(name, when) or found
        self._take(found, by)
        if isinstance(found.node, ast.If | ast.For | ast.While) and not found.node.orelse:
            before = self._record.binding(name, found.at)  # it may not bind the name
            if before is not None and not isinstance(before.node, ast.Delete):
                self._take(before, found)
        for change in self._changes(name, found, when):
            if not change.is_shell:
                self._take(change, by)

    def _changes(self, name: str, found: Statement, when: int) -> Iterator[Statement]:
        """Return what changes the object of a name that a statement binds."""
        if found.is_import:  # an attribute of a module is set for all who use it
            for one in self._record.statements:
                is_set = name in one.changes and isinstance(one.node, ast.Assign)
                if is_set and "environ" not in one.text and not secret_in_text(one.text):
                    yield one
            return
        if name in self.late:
            when = self._record.next_binding(name, found.at)
        for one in self._record.after(found.at, when):
            may = name in self.widened and name in one.may_change and one not in self.idle
            if may or name in one.changes:
                yield one

    def _need_unbound(self, name: str, by: Statement) -> None:
        """Meet the need of a name that no statement binds."""
        of_ipython = _OF_IPYTHON.fullmatch(name)
        if name in _OF_MODULES or (hasattr(builtins, name) and not of_ipython):
            return
        if of_ipython:
            raise self.refusal(
                f"name {name!r} belongs to IPython, and a module does not have it; assign what the "
                "stage needs to a variable",
                by,
            )
        namespace = self._record.namespace
        if name not in namespace:
            return  # a function that reads it fails in the notebook, too
        value = namespace[name]
        line = self._star(name, value) or _import_of(name, value)
        if line is None:
            where = f"it is in {file}" if (file := _file_of(value)) else "no cell defines it"
            raise self.refusal(
                f"the text of {name!r} is not known: {where}; define it in a cell, or import it",
                by,
            )
        self._take(self.imported(line), by)

    def take_import(self, module: str) -> None:
        """Take the import of a module of a package, which another library imported before."""
        self.extra.add(self.imported(f"import {module}"))

    def imported(self, line: str) -> Statement:
        """Add an import that no cell has to the record; return its statement."""
        node = ast.parse(line).body[0]
        one = Statement.of(-1, self.goal.cell, node, line)
        self._record.statements.append(one)
        self._record.index()
        return one

    def _star(self, name: str, value: object) -> str | None:
        """Return the import of a name that `from module import *` has bound."""
        for one in reversed(self._record.statements):
            match one.node:
                case ast.ImportFrom(str(module), [ast.alias("*")], 0):
                    if getattr(sys.modules.get(module), name, self) is value:
                        return f"from {module} import {name}"
        return None


def _reached(
    one: Statement | None, before: Callable[[Statement], Iterator[Statement | None]]
) -> Iterator[Statement]:
    """Return a statement, and those that are reached from it, each once."""
    todo, seen = [one], set[Statement]()
    while todo:
        this = todo.pop()
        if this is not None and this not in seen:
            seen.add(this)
            yield this
            todo += before(this)


def _import_of(name: str, value: Any) -> str | None:
    """Return an import that gives a value its name, where no cell imports it."""
    if isinstance(value, ModuleType):
        known = sys.modules.get(value.__name__) is value and value.__name__ != "__main__"
        same = value.__name__ == name
        return f"import {value.__name__}{'' if same else f' as {name}'}" if known else None
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not own.isidentifier():
        return None
    if getattr(sys.modules.get(module), own, None) is not value:
        return None
    return f"from {module} import {own}{'' if own == name else f' as {name}'}"


def _file_of(value: Any) -> str:
    code = getattr(value, "__code__", None)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return str(getattr(code, "co_filename", "") or getattr(module, "__file__", "") or "")
