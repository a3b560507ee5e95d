"""Matching: the slice is widened until a fresh process makes of it what the notebook has."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..errors import ExportError
from ..ops.stage import Chain, addresses
from .fingerprint import RANDOM_STATE, difference, json_fingerprint, steady, without
from .fresh import FreshProcesses, FreshResult, ReplayStep, StepResult, chain_prints
from .layout import parameters_of, placed
from .literals import NoLiteral, Spelled, Values
from .reachable import handle_in, holds_pipeline, of_shell
from .record import END, Record
from .slicing import Slice
from .source import last_name
from .statements import Definition, Statement, is_plain, root_name

_FRESH = "in a fresh process"
_NOT_FOUND = re.compile("No such file|not found|cannot find|does not exist", re.IGNORECASE)


class Match:
    """Replays a slice until its values are those of the notebook.

    Args:
        chain: the notebook's pipeline.
        record: what was executed.
        goal: the expression that gives the pipeline, as a statement.
        values: writes live values.

    Attributes:
        part: the slice.
        parameters: with which knobs are set.
        replayed: what came of the last replay.
        moved: variables that the stages change.
        reads: files that statements read.
        is_loose: what methods change may differ, as no statement explains the difference.
    """

    def __init__(self, chain: Chain, record: Record, goal: Statement, values: Values) -> None:
        self._chain, self._record, self._values = chain, record, values
        self.part = Slice(record, goal, self._write_shell)
        self.parameters = parameters_of(chain, record)
        self.replayed: FreshResult
        self.moved: set[str] = set()
        self.reads: dict[Statement, tuple[str, ...]] = {}
        self.is_loose = False
        self._written: set[Statement] = set()  # those whose values stand in their place
        self._prints: dict[int, Any] = {}

    # -- the rounds ------------------------------------------------------------------------
    def settle(
        self, fresh: FreshProcesses, count: int, check: Callable[[Sequence[Statement]], None]
    ) -> list[Statement]:
        """Return the statements whose replay gives the notebook's values, without the goal.

        Each round takes statements that the last one had not, or writes a value that was not
        written; so there is a last one.

        Args:
            fresh: where they are replayed.
            count: first items that are compared.
            check: called with the statements before each replay; refuses secrets.

        Raises:
            ExportError: no statements do.
        """
        self._fresh, self._count = fresh, count
        while True:
            statements = self._named_apart(self.part.build())
            check(statements)
            self._refuse_live(statements)  # a replay would open them again
            runs = statements[:-1]
            self.replayed = self._replay(runs)
            if self._has_mended(runs):
                continue
            wrong = self._wrong(runs)
            if not wrong:
                if self._widened_for_chain(runs):
                    continue
                self._leave_out_idle(runs)
                self._write_data([one for one in runs if one not in self.part.idle])
                return self.part.build()[:-1]
            behind = (self.part.behind(self._record.binding(name, END)) for name in wrong)
            if self._widen(set().union(*behind)):
                continue
            for name, words in wrong.items():
                if self._is_drawn_from(name):
                    self.moved.add(name)
                elif not self._write_live(name):
                    raise self._differs(name, words)

    def _leave_out_idle(self, runs: list[Statement]) -> None:
        """Leave out statements that may change something, and did not; check that by a replay."""
        found, before = self.part.idle, self.replayed
        steps = zip(runs, before.steps, strict=True)
        self.part.idle = found | {one for one, step in steps if step.idle}
        if self.part.idle != found:
            kept = self._named_apart(self.part.build())
            self.replayed = self._replay(kept[:-1])
            same = ("prints", "chain", "items", "raised", "goal", "words", "absent")
            if any(getattr(self.replayed, word) != getattr(before, word) for word in same):
                self.part.idle, self.replayed = found, before

    def _has_mended(self, runs: list[Statement]) -> bool:
        """Have what failed in the fresh process run there; return whether anything did."""
        absent = self.replayed.absent
        for module in absent:
            if not any(other.startswith(f"{module}.") for other in absent):
                self.part.take_import(module)
        if absent:
            return True
        words = self.replayed.goal.error or self.replayed.words
        for one, step in zip(runs, self.replayed.steps, strict=False):
            if step.error:
                self._mend(one, step)
                return True
        if words and not self._widen(self.part.behind(self.part.goal)):
            raise ExportError(f"the pipeline cannot be built in a fresh process: {words}")
        return bool(words)

    def _named_apart(self, statements: list[Statement]) -> list[Statement]:
        """Give the parameters names that no statement of the slice binds; return the slice."""
        bound = {name for one in statements for name in one.binds}
        if bound.isdisjoint(one.name for one in self.parameters):
            return statements
        self.parameters = parameters_of(self._chain, self._record, taken=bound)
        return self.part.build()

    def gives_again(self, runs: Sequence[Statement]) -> bool:
        """Return whether another replay gives the same items, so that nothing random is in."""
        again = self._replay(runs)
        return (again.items, again.raised) == (self.replayed.items, self.replayed.raised)

    def _replay(self, runs: Sequence[Statement]) -> FreshResult:
        final = {
            name
            for one in runs
            for name in one.binds
            if not one.is_import and self._record.binding(name, END) in self.part.taken
        }
        return self._fresh.replay(
            [ReplayStep(one.edited, watch=self._watched(one)) for one in runs],
            goal=self.part.goal.text,
            below=[one.below for one in self.parameters if one.below],
            parameters={one.name: one.value for one in self.parameters},
            names=sorted(final & self._read_later()),
            modules=self.part.submodules(),
            future=self._record.has_future,
            script=None if self._record.is_notebook else self._record.namespace.get("__file__"),
            files=self.files(),
            count=self._count,
        )

    def files(self) -> dict[str, bytes]:
        """Return the files that the module loads, by name."""
        return self._values.files({n: one.text for one in self.part.taken for n in one.binds})

    def _watched(self, one: Statement) -> tuple[str, ...]:
        """Return the names for whose sake alone a statement is in the slice."""
        alone = isinstance(one.node, ast.Expr) and not (one.changes or one.cell.is_setup)
        return tuple(sorted(one.may_change & self.part.widened)) if alone else ()

    def _read_later(self) -> set[str]:
        """Return the names that functions read; others are compared by their results."""
        return {name for one in self.part.taken for name in one.needed_later}

    def _widen(self, names: set[str]) -> bool:
        """Take also what may change some names; return whether that is new."""
        space = self._record.namespace  # what is called on a pipeline does not change it
        names = {name for name in names if not hasattr(space.get(name), "_export_goal_")}
        new = not names <= self.part.widened
        self.part.widened |= names
        return new

    def _mend(self, one: Statement, step: StepResult) -> None:
        """Have a statement that failed in the fresh process run there, or refuse it."""
        found = None
        if step.missing:  # read by a function that is called at once
            found = self._record.binding(step.missing, one.at)
            found = found or self._record.binding(step.missing, END)
        if found is not None and found not in self.part.taken:
            self.part.extra.add(found)
            return
        outside = step.connects or step.late
        if not outside and self._widen(self.part.behind(one)):
            return
        names = sorted(one.binds)
        if names and isinstance(one.node, ast.Assign | ast.AnnAssign | ast.With | ast.For):
            values = self._spelled_all(one, names)
            if values is not None:
                self._replace(one, values)
                return
        raise self.part.refused(f"{one.words} {_words_of(step)}", one)

    def _spelled_all(self, one: Statement, names: list[str]) -> dict[str, Spelled] | None:
        """Return the live values of names as source; None where one of them has none."""
        space = self._record.namespace
        if self.part.is_of_machine(one) or any(name not in space for name in names):
            return None
        if one in self._written or any(self._record.binding(n, END) is not one for n in names):
            return None
        try:
            return {name: self._values.spelled(name, space[name]) for name in names}
        except NoLiteral:
            return None

    # -- values ----------------------------------------------------------------------------
    def _wrong(self, runs: list[Statement]) -> dict[str, str]:
        """Return the names whose values in the fresh process are others, each with where."""
        state, space = state_of(runs, self._record), self._record.namespace
        wrong: dict[str, str] = {}
        for name, theirs in self.replayed.prints.items():
            live = space.get(name)
            if name not in space or name in self.moved or holds_pipeline(live):
                continue
            if isinstance(live, types.ModuleType):
                continue
            mine = self._print(live)
            own, is_state = moving_in(live, runs), name in state
            if is_state:
                words = difference(mine, theirs, _FRESH)
            else:
                left, right = (without(one, own, deep=False) for one in (mine, theirs))
                words = self._steady_difference(name, left, right, before=theirs, where=_FRESH)
            if words and not (is_state and not self._may_explain(name)):
                wrong[name] = words
            elif words or name in self.replayed.moved or (not self._count and (own or is_state)):
                self.moved.add(name)
        inner = {  # results of a wrong value are wrong, too
            name: words
            for name, words in wrong.items()
            if not (self.part.behind(self._record.binding(name, END)) - {name}) & wrong.keys()
        }
        return inner or wrong

    def _may_explain(self, name: str) -> bool:
        """Return whether statements that are not in the slice yet may change a variable's object.

        A call of what the stages use themselves was a trial of it.
        """
        if name in self.part.widened:
            return False
        used = {name for one in self.part.taken for name in one.binds}
        every = self._record.statements
        return any(name in one.may_change and used.isdisjoint(one.calls) for one in every)

    def _is_drawn_from(self, name: str) -> bool:
        """Recognise a generator of random numbers that is as it was typed, and was drawn from."""
        given = self._print(self._record.namespace[name]), self.replayed.prints[name]
        mine, theirs = (without(one, {RANDOM_STATE}) for one in given)
        return mine == theirs

    def _print(self, value: object) -> Any:
        if id(value) not in self._prints:
            self._prints[id(value)] = json_fingerprint(value)
        return self._prints[id(value)]

    def _differs(self, name: str, words: str) -> ExportError:
        one = self._record.binding(name, END)
        place = one.cell.place if one is not None else "a cell"
        return self.part.refused(
            f"variable {name!r}, assigned in {place}, differs in a fresh process: {words}; "
            "assign it in one statement, or load it inside a function",
            one,
        )

    # -- the pipeline ----------------------------------------------------------------------
    def _widened_for_chain(self, runs: list[Statement]) -> bool:
        """Return whether the fresh pipeline is another one, and more statements may explain it."""
        try:
            self.compare_chain(self.replayed.chain, runs, _FRESH)
        except ExportError:
            behind = self.part.behind(self.part.goal)
            if not behind <= self.part.late:  # as `config.size = 3`, below the chain
                self.part.late |= behind
                return True
            if self._widen(behind):
                return True
            self.is_loose = True
            self.compare_chain(self.replayed.chain, runs, _FRESH)
        return False

    def compare_chain(
        self, theirs: list[dict[str, Any]], runs: Sequence[Statement], where: str
    ) -> None:
        """Refuse a pipeline whose stages are others than the notebook's."""
        mine = chain_prints(self._chain)
        names, others = [row["name"] for row in mine], [row["name"] for row in theirs]
        again = "rebuild the pipeline, then export"
        if names != others:
            raise ExportError(
                f"the pipeline has the stages {', '.join(map(repr, names))} in the notebook, "
                f"{', '.join(map(repr, others)) or 'none'} {where}; {again}"
            )
        moving = set[str]()
        if self.is_loose:
            moving = {label for one in runs for label in moving_attributes(one)} | {RANDOM_STATE}
        before = {
            f"{row['name']} {word}": value
            for row in self.replayed.chain
            for word, value in row["spec"].items()
        }
        for one, other in zip(mine, theirs, strict=True):
            for key in ("op", "executor", "knobs", "executor_spec"):
                if one[key] != other[key]:
                    raise ExportError(
                        f"stage {one['name']!r}, {key}: {_said(one[key])} in the notebook, "
                        f"{_said(other[key])} {where}; {again}"
                    )
            for word, value in one["spec"].items():
                key = f"{one['name']} {word}"
                given = [without(print_, moving) for print_ in (value, other["spec"][word])]
                words = self._steady_difference(
                    key, *given, before=before.get(key), moving=moving, where=where
                )
                if words:
                    raise ExportError(f"stage {one['name']!r}, {word}: {words}; {again}")

    def _steady_difference(
        self,
        name: str,
        mine: Any,
        theirs: Any,
        *,
        before: Any,
        where: str,
        moving: Collection[str] = (),
    ) -> str | None:
        """Return where two fingerprints differ, but for what the first items have changed."""
        if name in self.replayed.moved:
            old, new = (without(one, moving) for one in (before, self.replayed.moved[name]))
            nothing = {"kind": old["kind"], "shown": ""}
            mine, theirs = (steady(one, old, new) or nothing for one in (mine, theirs))
        return difference(mine, theirs, where)

    # -- values in the place of statements -------------------------------------------------
    def _write_shell(self, one: Statement, name: str) -> None:
        """Let the live value stand in the place of a statement that no module can execute."""
        space = self._record.namespace
        of = "from a shell line, a magic, await or the command line"
        what = f"variable {name!r}, assigned in {one.cell.place} {of}"
        if name not in space or self.part.is_of_machine(one):
            way_out = "has a value of this machine; assign it in a cell"
            raise self.part.refused(f"{what}, {way_out}", None)
        try:
            self._replace(one, {name: self._values.spelled(name, of_shell(space[name]))})
        except NoLiteral as error:
            raise self.part.refused(f"{what}, holds {error.reason}", None) from None

    def _write_live(self, name: str) -> bool:
        """Let the live value of a plain variable stand in the place of its statement."""
        one = self._record.binding(name, END)
        if one is None or one.is_definition or one.is_import:
            return False
        values = self._spelled_all(one, [name])
        if values is None:
            return False
        self._replace(one, values)
        read = {n for other in self.part.taken for n in (*other.needed, *other.needed_later)}
        for other in self._record.after(one.at, END):  # the value has what they changed
            if not other.binds & read - {name}:
                other.changes -= {name}
                other.may_change -= {name}
        return True

    def _replace(self, one: Statement, values: dict[str, Spelled]) -> None:
        """Let assignments of values stand in the place of a statement.

        Names that it also binds stay its own.
        """
        hint = (
            f": {ast.unparse(one.node.annotation)}" if isinstance(one.node, ast.AnnAssign) else ""
        )
        tail = re.search(r"  #[^\n]*$", one.text)
        for name, (text, imports) in sorted(values.items()):
            line = f"{name}{hint} = {text}"
            if tail and one.binds == {name} and "\n" not in line:
                line += tail[0]
            new = one.of_value(name, line)
            self._record.statements.append(new)
            self._written.add(new)
            if one in self.part.extra:
                self.part.extra.add(new)
            for import_ in imports:
                self.part.imported(import_)
        if not one.binds:
            self.part.extra.discard(one)
        self._record.index()

    def _write_data(self, runs: list[Statement]) -> None:
        """Write what functions read of files as values: the module can be imported anywhere.

        What only the chain reads is read again by `build_pipeline`.
        """
        steps = zip(runs, self.replayed.steps, strict=True)
        self.reads = {one: step.reads for one, step in steps if step.reads}
        tried: set[str] = set()
        while name := self._made_of_files(tried):
            tried.add(name)
            self._write_live(name)

    def _made_of_files(self, tried: set[str]) -> str:
        """Return a variable of the module's top that is made of files; empty: there are no more.

        The newest comes first: what it is made of may not be needed then.
        """
        top, _ = placed(self.part, self._record)
        made: set[str] = set()
        for one in top:
            own = one.is_import or one.is_definition or one.cell.is_setup
            if not own and (one in self.reads or not made.isdisjoint(one.needed)):
                made |= one.binds | one.changes | (one.may_change & self.part.widened)
        newest = (
            name
            for one in reversed(top)
            for name in sorted(one.binds & made - tried)
            if self._record.binding(name, END) is one
        )
        return next(newest, "")

    # -- live resources --------------------------------------------------------------------
    def _refuse_live(self, statements: list[Statement]) -> None:
        """Refuse what lives in one process: a file, a connection, a lock, wherever in a value."""
        space = self._record.namespace
        needed = {name for one in statements for name in (*one.needed, *one.needed_later)}
        for one in statements:
            for name in sorted(one.binds & needed):
                current = self._record.binding(name, END) is one and name in space
                if one.is_import or not current or holds_pipeline(space.get(name)):
                    continue
                live = handle_in(name, of_shell(space[name]))
                if live is None or self._opens_later(one, name, live.attribute, statements):
                    continue
                if hasattr(live.value, "_export_goal_"):  # a pipeline that a builder begins with
                    continue
                words = live.words.removeprefix(f"{name} ")
                what = f"variable {name!r}{'' if words != live.words else ':'} {words}"
                raise self.part.refused(what, one)
        for address, stage in addresses(self._chain).items():
            held = getattr(stage.fn, "__self__", stage.fn)  # of a bound method, its object
            live = None if held is None else handle_in("function", held)
            if live is not None and live.attribute not in _first_plain(held, statements):
                raise ExportError(f"stage {address!r}: {live.words}")

    def _opens_later(
        self, one: Statement, name: str, attribute: str, statements: list[Statement]
    ) -> bool:
        """Return whether functions replace a plain value by what they open."""
        if attribute in _first_plain(self._record.namespace[name], statements):
            return True
        value = getattr(one.node, "value", None)
        is_first = value is not None and is_plain(value)
        changed = any(name in other.changes for other in statements)
        return is_first and not changed and name in state_of(statements, self._record)


def _words_of(step: StepResult) -> str:
    """Return why a statement cannot stand in a module, and the way out."""
    way_out = "put it into a function, or load the value from a file"
    if step.connects:
        return f"connects to a host; {way_out}"
    if step.late:
        return f"takes longer than 60 s in a fresh process; {way_out}"
    if "no module named" in step.error:
        way_out = "install it, or restore its file"
    elif _NOT_FOUND.search(step.error):
        way_out = "create it inside a function, or restore the file"
    else:
        way_out = "assign it in one statement, or create it inside a function"
    return f"cannot run in a fresh process: {step.error}; {way_out}"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)


# -- State: what the stages themselves change ------------------------------------------------------
def state_of(runs: Sequence[Statement], record: Record) -> set[str]:
    """Return the variables that functions change when stages call them.

    A function that a cell calls, as `register(...)`, has done its work before.
    """
    called = {name for one in runs if isinstance(one.node, ast.Expr) for name in one.calls}
    found: set[str] = set()
    for one in runs:
        has_functions = one.is_definition or any(
            isinstance(part, ast.Lambda) for part in ast.walk(one.node)
        )
        if has_functions:
            for name in one.reads_later:  # a `defaultdict` is filled by reading
                if hasattr(record.namespace.get(name), "default_factory"):
                    found.add(name)
            if not one.binds & called:
                found |= one.state
    return found


def moving_attributes(one: Statement) -> set[str]:
    """Return the attributes that the methods of a class change, `__init__` left out, as labels."""
    if not isinstance(one.node, ast.ClassDef):
        return set()
    return {f"attribute {name!r}" for name in _moved_by(one.node)}


def _moved_by(node: ast.ClassDef) -> Iterator[str]:
    for method in node.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any("cached_property" in ast.unparse(mark) for mark in method.decorator_list):
            yield method.name
        if method.name in ("__init__", "__post_init__", "__setstate__", "__new__"):
            continue
        for part in ast.walk(method):
            stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
            if stored and root_name(part) == "self":
                yield part.attr  # type: ignore[attr-defined]


def moving_in(value: object, runs: Sequence[Statement]) -> set[str]:
    """Return the labels of the attributes of a value that its own methods change."""
    kinds = {kind.__name__ for kind in type(value).__mro__}
    return {
        label
        for one in runs
        if isinstance(one.node, ast.ClassDef) and one.node.name in kinds
        for label in moving_attributes(one)
    }


def _first_plain(value: object, runs: Sequence[Statement]) -> set[str]:
    """Return the attributes of a value that begin as plain constants and its methods set later."""
    kinds = {kind.__name__ for kind in type(value).__mro__}
    nodes = [one.node for one in runs if isinstance(one.node, ast.ClassDef)]
    own = [node for node in nodes if node.name in kinds]
    return {name for node in own for name in {*_moved_by(node)} & {*_made_plain(node)}}


def _made_plain(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, Definition) and part.name != "__init__":
            continue
        for one in ast.walk(part):
            if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                yield from map(last_name, targets) if is_plain(one.value) else ()
