"""Slicing: the expression that gives a pipeline, and the statements that it needs."""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from ..errors import ExportError
from ..ops.stage import Chain
from .literals import NoLiteral, import_of
from .record import END, Record
from .secrets import secret_in_text
from .source import span_of
from .statements import Statement, shell

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
        """Return the statements in the order of execution; the goal is the last."""
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
        """Return the error of what a statement needs."""
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
        line = f"import {module}"
        if any(one.text == line for one in self.extra):
            raise ExportError(f"module {module!r} is not there in a fresh process; import it")
        self.extra.add(self.imported(line))

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


def _import_of(name: str, value: object) -> str | None:
    """Return an import that gives a value its name, where no cell imports it."""
    with contextlib.suppress(NoLiteral):
        line, text = import_of(value, {}, {})
        if line and (text.isidentifier() or isinstance(value, ModuleType)):
            return line if text == name else f"{line} as {name}"
    return None


def _file_of(value: Any) -> str:
    code = getattr(value, "__code__", None)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return str(getattr(code, "co_filename", "") or getattr(module, "__file__", "") or "")


# -- Goal: the expression that gives the pipeline, as the user would write it ----------------------
def goal_of(receiver: Any, chain: Chain) -> tuple[Record, str]:
    """Return the record of the notebook or script that has a pipeline, and its expression there."""
    seen: list[dict[str, Any]] = []
    for space in _homes(chain):
        if not any(space is one for one in seen):
            seen.append(space)
            record = Record.of(space)
            goal = _goal_in(record, receiver, chain)
            if goal:
                return record, goal
    raise ExportError(
        "the pipeline has no name in the notebook; assign it to a variable in a cell, then export"
    )


def _goal_in(record: Record, receiver: Any, chain: Chain) -> str:
    """Return the expression of a pipeline; empty where it has no name."""
    space, suffix = record.namespace, suffix_of(receiver)
    named = [(str(n), v) for n, v in reversed(list(space.items())) if not n.startswith("_")]

    def gives(value: object) -> bool:
        return value is receiver or (not suffix and getattr(value, "chain", None) is chain)

    if suffix:  # a module starts no run, and takes a loader's pipeline
        for name, value in named:
            if not suffix_of(value) and _is_of(value, chain):
                return name
    node, text = _receiver(space)
    own = node.id if isinstance(node, ast.Name) and gives(space.get(node.id)) else ""
    own = own or next((name for name, value in named if gives(value)), "")
    if own:
        return _unstarted(own, suffix, record)
    typed = isinstance(node, ast.Call)
    with contextlib.suppress(Exception):  # an index or attribute of the user's own
        typed = typed or gives(eval(text, space))  # noqa: S307  what the user has typed
    if typed:
        return f"{text}{suffix}"
    for name, value in reversed(named):
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
        for key, inner in enumerate(value) if isinstance(value, list | tuple) else pairs:
            if gives(inner):
                return f"{name}[{key!r}]{suffix}"
    # A property may make one, as `loader.pipeline`.
    return f"{text}{suffix}" if isinstance(node, ast.Attribute) else ""


def _is_of(value: Any, chain: Chain) -> bool:
    """Return whether a value is the pipeline of a run, which may place some stages elsewhere."""
    own = getattr(value, "chain", None)
    if not isinstance(own, tuple) or len(own) != len(chain):
        return False
    pairs = zip(own, chain, strict=True)
    return all(getattr(one, "made_at", one) is other.made_at for one, other in pairs)


def suffix_of(receiver: Any) -> str:
    """Return what stands behind a run or loader where its pipeline is meant."""
    return str(getattr(receiver, "_export_goal_", str)())


def _unstarted(name: str, suffix: str, record: Record) -> str:
    """Return the expression of a variable's pipeline; one that was started at once is not, there.

    `run = pipe.map(f).start()` stands in the module as `run = pipe.map(f)`.
    """
    one = record.binding(name, END)
    value = getattr(one.own, "value", None) if one is not None else None
    match value:
        case ast.Call(ast.Attribute(inner, "start")) if one is not None and suffix:
            data = one.text.encode()
            one.cuts.append((span_of(data, inner)[1], span_of(data, value)[1], ""))
            return name
    return f"{name}{suffix}"


def _frame_of_user() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    own = __name__.partition(".")[0]
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == own:
        frame = frame.f_back
    return frame


def _receiver(space: dict[str, Any]) -> tuple[ast.expr | None, str]:
    """Return the expression before `.export(...)` in the line that exports, and its text."""
    frame = _frame_of_user()
    if frame is None or frame.f_globals is not space or frame.f_code.co_name != "<module>":
        return None, ""
    with contextlib.suppress(Exception):  # it is not installed, or the script was edited
        from executing import Source  # IPython brings it

        found = Source.executing(frame)
        if isinstance(found.node, ast.Call) and isinstance(found.node.func, ast.Attribute):
            node = found.node.func.value
            text = ast.get_source_segment(found.source.text, node) or ""
            return node, text if text and "\n" not in text else ast.unparse(node)
    return None, ""


def _homes(chain: Chain) -> Iterator[dict[str, Any]]:
    """Return the namespaces that may hold a pipeline: of the notebook, of the script, its own."""
    ip = shell()
    if ip is not None:
        yield ip.user_ns
    main = vars(sys.modules["__main__"])
    frame = user = _frame_of_user()
    while frame is not None:
        if frame.f_globals is main and frame.f_code.co_name == "<module>" and ip is None:
            yield main
        frame = frame.f_back
    for stage in reversed(chain):
        if stage.made_at is not None:
            yield stage.made_at.namespace
    yield main if user is None else user.f_globals
