"""Chain: live stages become what builds them again, as one expression or as the user wrote it."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, final

from ..executors.pickling import by_reference
from ..ops.batch import Batch
from ..ops.call import Call
from ..ops.device import Target
from ..ops.route import Route
from ..ops.source import Source
from ..ops.stage import Chain, Stage, addresses, auto_name, clean_name, numbered, taken_names
from .arguments import (
    Comments,
    Place,
    call_of,
    calls_of,
    comments_of,
    expression,
    on_trial,
    policy_arguments,
    store_of,
    target_of,
)
from .cells import Statement
from .collect import Collector, Found, Scope, Use, is_import, refusal, refuse_secret, unwritable
from .fingerprint import same_value
from .literals import group, in_double_quotes, quoted
from .module import BREAK, Line, Module, Parameter, Spelling, outside_texts, stage_words
from .pieces import check_text, is_defined
from .reachable import handle_in, kind_of
from .source import last_name, lines_of, names_in, names_read

# -- Stages: a chain of live stages becomes the expression that builds it again --------------------
_EXECUTORS = {  # what to give instead of an object
    "dask": 'give executor="dask", which takes the client of the process it runs in',
    "executor": 'give executor="thread" or executor="process"',
}


def drafted(chain: Chain, collector: Collector, home: Scope) -> Module:
    """Write a chain as the `build_pipeline` of a module, and collect what it uses.

    Args:
        chain: the stages.
        collector: takes what they use.
        home: whose names stand for objects without a namespace of their own.

    Raises:
        ExportError: something cannot be written.
    """
    before = collector.found.copied()
    writer = _ChainWriter(chain, collector, home)
    writer.write(chain)
    avoid, unnamed = writer.read & writer.parameters.keys(), writer.hidden
    if avoid or unnamed:  # what is local would stand before a global variable that the chain reads
        collector.found = before
        writer = _ChainWriter(chain, collector, home, avoid=frozenset(avoid), unnamed=unnamed)
        writer.write(chain)
    return Module(tuple(writer.parameters.values()), tuple(writer.body))


@final
class _ChainWriter:
    def __init__(
        self,
        chain: Chain,
        collector: Collector,
        home: Scope,
        *,
        avoid: frozenset[str] = frozenset(),
        unnamed: frozenset[str] = frozenset(),
    ) -> None:
        self._collector, self._home = collector, home
        self._avoid, self._unnamed = avoid, unnamed  # as parameters, and as variables
        self.read: set[str] = set()
        self._addresses = {id(stage): address for address, stage in addresses(chain).items()}
        self._words = stage_words(chain)
        self._sources: dict[int, str] = {}  # what each reads, by the stage's id
        self._knobs: dict[int, tuple[str, Stage]] = {}
        self._devices: dict[str, str] = {}
        self._variables: dict[Chain, str] = {}
        self._calls = calls_of(chain, home)
        self._comments = comments_of([*self._calls.values()])
        self._told: set[Statement] = set()
        self.parameters: dict[str, Parameter] = {}
        self.body: list[Line] = []

    @property
    def hidden(self) -> frozenset[str]:
        """Variables that would be local, and stand for something else already."""
        names = self._variables.values()
        known = self.read | self._collector.found.owners.keys() - self.parameters.keys()
        taken = known | self.parameters.keys() | set(dir(builtins))
        return frozenset(taken.intersection(names))

    # -- chains ---------------------------------------------------------------------------
    def write(self, stages: Chain) -> None:
        """Write the statements of `build_pipeline`."""
        text, above = self._chain(stages)
        self.body.append(Line(text, "", above))

    def _chain(self, stages: Chain, *, joined: bool = False) -> tuple[str, tuple[str, ...]]:
        """Write a chain, the beginnings that have a name as statements; return the comments, too.

        A beginning without a name that several chains have in common is written in each; a chain
        that is joined may have a name as a whole.
        """
        text, begins = "", True
        above: tuple[str, ...] = ()
        taken = {stages[0].name}
        for number, stage in enumerate(stages):
            own = self._comments_above(stage)
            above, own = (own, ()) if begins else (above, own)
            step = self._step(stage, number, taken, own) if number else self._head(stage)
            text = f"{text.rstrip()}{BREAK}{step.lstrip()}" if number else step
            taken |= taken_names((stage,)) if number else set()
            name = self._variable(stages[number:], joined=joined)
            begins = bool(name)
            if name:
                if stages[: number + 1] not in self._variables:
                    self._variables[stages[: number + 1]] = name
                    self.body.append(Line(text, name, above))
                text, above = name, ()
        return text, above

    def _comments_above(self, stage: Stage) -> tuple[str, ...]:
        """Return the comments above the statement that made a stage, once for each statement."""
        call = self._calls.get(id(stage))
        if call is None or call.statement in self._told:
            return ()
        self._told.add(call.statement)
        return call.above

    def _variable(self, rest: Chain, *, joined: bool) -> str:
        """Return the user's variable for what the first of some stages ends; empty for none."""
        calls = (self._calls.get(id(stage)) for stage in rest)
        name, *others = ["" if one is None else one.name for one in calls]
        following = next(filter(None, others), "")
        return name if (others or joined) and name not in (following, *self._unnamed) else ""

    def _head(self, stage: Stage) -> str:
        spec: Any = stage.spec
        if spec.runs != "source":
            inputs = [self._input(one) for one in stage.inputs]
            if stage.op in ("mix", "interleave"):
                inputs = [group("[", inputs, "]")]
            arguments = [*inputs, *self._join(stage, spec)]
            return self._noted(stage, f"nbpipe.{stage.op}(", arguments)
        tail = [] if stage.name == "source" else [f"name={quoted(stage.name)}"]
        tail += self._knob_arguments(stage)
        if id(stage) not in self._sources:
            inputs = [self._input(one) for one in stage.inputs]
            self._sources[id(stage)] = inputs[0] if inputs else self._items(stage, spec)
        return self._noted(stage, "nbpipe.source(", [self._sources[id(stage)], *tail])

    def _input(self, stages: Chain) -> str:
        """Write a chain that another one begins with."""
        return self._chain(stages, joined=True)[0]

    def _items(self, stage: Stage, spec: Source) -> str:
        place = self._place(stage, spec.items, "items")
        counted = self._collector.counted.get(stage.name)
        if counted is not None:
            return f"range(len({self._expression(counted, place)}))"
        text = items_of(stage, spec.items, place, word=self._words[id(stage)])
        self._collector.found.listed |= names_in(text)
        self.read |= self._reads(text)
        return text

    def _join(self, stage: Stage, spec: Any) -> list[str]:
        given = [
            self._argument(stage, word, value, named=True)
            for word, value in spec.arguments(stage.given)
        ]
        return given + self._knob_arguments(stage)

    # -- steps ----------------------------------------------------------------------------
    def _step(self, stage: Stage, number: int, names: set[str], above: Sequence[str] = ()) -> str:
        spec: Any = stage.spec
        if spec.runs == "call":
            arguments = self._call(stage, spec, number, names)
        elif spec.runs == "route":
            arguments = self._route(stage, spec, names)
        elif spec.runs == "batch":
            arguments = self._batch(stage, spec, names)
        else:
            arguments = self._plain(stage, spec)
        return self._noted(stage, f".{stage.op}(", arguments, above=above)

    def _noted(
        self, stage: Stage, opening: str, arguments: list[str], *, above: Sequence[str] = ()
    ) -> str:
        """Write a call with its comments, and those above its statement, but for others' own."""
        call, kept = self._calls.get(id(stage)), self._comments_in(arguments)
        found = Comments([], []) if call is None else self._comments[call.node]
        rows = [[*above, *found.above], [*found.behind]]
        for row in kept:
            next((one for one in rows if row in one), [row]).remove(row)  # once
        text = group(opening, arguments, ")")
        end = f"  {BREAK.join(rows[1])}\n" if rows[1] else ""
        return f"{BREAK.join(['', *rows[0], ''])}{text}{end}" if rows[0] else text + end

    def _comments_in(self, arguments: list[str]) -> list[str]:
        """Return the comments in the text of arguments, and of what was written for them."""
        found, names = self._collector.found, names_in(", ".join(arguments))
        pieces = [found.pieces[name] for name in names & found.written.keys()]
        pieces += [found.checks[name] for name in names & found.checks.keys()]
        texts = [*arguments, *(way.text for piece in pieces for way in piece.spellings)]
        tokens = (token for text in texts for token in lines_of(f"({text}\n)").tokens)
        return [token.string for token in tokens if token.type == tokenize.COMMENT]

    def _call(self, stage: Stage, spec: Call, number: int, names: set[str]) -> list[str]:
        place = self._place(stage, spec.fn, stage.name, stage.op)
        text = self._expression(spec.fn, place)
        found = self._collector.found.called.get(text)
        if found is None:
            found = auto_name(spec.fn, "", 0).removesuffix("_0")
        found = found or f"{stage.op}_{number}"  # that of a lambda
        arguments = [text, *self._name(stage, found, names), *self._executor(stage, place)]
        arguments += self._knob_arguments(stage)
        if not spec.ordered:
            arguments.append("ordered=False")
        arguments += policy_arguments(spec.policy)
        if spec.timeout_s is not None:
            arguments.append(f"timeout_s={spec.timeout_s!r}")
        return arguments + self._process_options(stage, place)

    def _name(self, stage: Stage, found: str, names: set[str]) -> list[str]:
        """Return `name=` where the module would call the stage something else."""
        name = stage.name.partition("@")[0]
        same = numbered(clean_name(found), names) == name
        return [] if same and not stage.named else [f"name={quoted(name)}"]

    def _executor(self, stage: Stage, place: Place) -> list[str]:
        if stage.placement is None:
            said = stage.executor == "inline" or "executor" in stage.given
            return [f'executor="{stage.executor}"'] if said else []
        if stage.placement.follows:
            return []
        given = stage.placement.given
        if isinstance(given, Target):
            return [f"device={self._device(stage, given)}"]
        if given is None:
            return [f'executor="{stage.placement.executor}"']
        name = self._home.name_of(given)
        what = "its executor" if name is None else f"variable {name!r}"
        raise refusal(
            f"{what} is a live {type(given).__name__}; "
            + _EXECUTORS.get(stage.placement.executor, _EXECUTORS["executor"]),
            place.use,
        )

    def _process_options(self, stage: Stage, place: Place) -> list[str]:
        placement = stage.placement
        if placement is None or placement.follows:
            return []
        given = []
        if placement.worker_init is not None:
            named = f"{stage.name}_init"
            inner = self._place(stage, placement.worker_init, named, stage.op, "worker_init")
            given.append(f"worker_init={self._expression(placement.worker_init, inner)}")
        if placement.max_items_per_worker is not None:
            given.append(f"max_items_per_worker={placement.max_items_per_worker}")
        given += [] if placement.copy else ["copy=False"]
        return given + ([] if placement.region else ["region=False"])

    def _batch(self, stage: Stage, spec: Batch, names: set[str]) -> list[str]:
        name = self._parameter(stage, "size")
        self._add(Parameter(name, type(spec.size).__name__, repr(spec.size)))
        _, *given = spec.arguments(stage.given)  # the size comes first
        arguments = [name, *(self._argument(stage, *one, named=True) for one in given)]
        arguments += self._executor(stage, self._place(stage, None, ""))
        arguments += self._knob_arguments(stage)
        return arguments + self._name(stage, "batch", names)

    def _plain(self, stage: Stage, spec: Any) -> list[str]:
        if spec.runs == "device":
            target = target_of(stage, self._place(stage, None, "").use)
            return [self._device(stage, target), *self._knob_arguments(stage)]
        given = [
            self._argument(stage, word, value, named=word not in spec.positional)
            for word, value in spec.arguments(stage.given)
        ]
        given += [f"name={quoted(stage.name)}"] if stage.named else []
        return given + self._knob_arguments(stage)

    def _argument(self, stage: Stage, word: str, value: Any, *, named: bool) -> str:
        place = self._place(stage, value, f"{stage.name}_{word}", stage.op, word)
        is_store = word == "store"
        text = store_of(stage, value, place.use) if is_store else self._expression(value, place)
        return f"{word}={text}" if named else text

    def _device(self, stage: Stage, target: Target) -> str:
        """Return the parameter for a device; stages on one device have one."""
        if target.device not in self._devices:
            self._devices[target.device] = name = self._parameter(stage, "device")
            default = self._chosen_device(stage, target) or quoted(target.device)
            self._add(Parameter(name, "str", default))
        return self._devices[target.device]

    def _chosen_device(self, stage: Stage, target: Target) -> str | None:
        """Return the user's variable for a device, where code chose its value; else None."""
        keyword = "" if stage.op == "to_device" else "device"
        place = self._place(stage, None, "device", stage.op, keyword)
        name = place.node.id if isinstance(place.node, ast.Name) else ""
        newest = self._home.newest(name)
        value = None if newest is None else self._home.namespace.get(name)
        if newest is None or value != target.device:
            return None
        parts = (ast.If, ast.IfExp, ast.BoolOp, ast.Call, ast.Try)
        is_chosen = any(isinstance(one, parts) for one in ast.walk(newest.node))
        return place.need(name) if is_chosen else None

    def _route(self, stage: Stage, spec: Route, names: set[str]) -> list[str]:
        place = self._place(stage, spec.key, f"{stage.name}_key", "route")
        key = self._expression(spec.key, place)
        home = Place(self._collector, self._home, place.use, place.name)
        branches: dict[str, str] = {}
        for value, inner in zip(spec.values, stage.inputs, strict=True):
            text = self._expression(value, home)
            branches[text] = ""
            known: set[str] = set()
            for number, one in enumerate(inner):
                branches[text] += self._step(one, number, known)
                known.add(one.name.partition("@")[0])
        name, read = "chain", re.findall(r"\w+", " ".join(branches.values()))
        while name in read:
            name = f"{name}_"
        pairs = [f"{value}: lambda {name}: {name}{steps}" for value, steps in branches.items()]
        return [key, group("{", pairs, "}"), *self._name(stage, "route", names)]

    # -- knobs ----------------------------------------------------------------------------
    def _knob_arguments(self, stage: Stage) -> list[str]:
        """Return the knobs that were given or tuned, as parameters with their values."""
        arguments = []
        for word, knob in stage.knobs.items():
            name, owner = self._knobs.get(id(knob), (self._parameter(stage, word), stage))
            value = self._collector.value_of(knob)
            if owner is stage and (word in stage.given or value != knob.default):
                self._knobs[id(knob)] = name, stage
                self._add(Parameter(name, "int", str(value)))
                arguments.append(f"{word}={name}")
        return arguments

    def _parameter(self, stage: Stage, word: str) -> str:
        name = f"{self._words[id(stage)]}_{word}"
        return self._collector.free_name(name) if name in self._avoid else name

    def _expression(self, value: Any, place: Place) -> str:
        """Write a value, and note what its text reads."""
        text = expression(value, place)
        self.read |= self._reads(text)
        return text

    def _reads(self, text: str) -> set[str]:
        """Return the variables of an expression, with those that the trial may put there."""
        names, checks = names_in(text), self._collector.found.checks
        ways = (way for name in names & checks.keys() for way in checks[name].spellings)
        return names.union(*(way.now | way.later for way in ways))

    def _add(self, parameter: Parameter) -> None:
        self.parameters[parameter.name] = parameter
        self._collector.found.owners.setdefault(parameter.name, None)

    # -- places ---------------------------------------------------------------------------
    def _place(
        self, stage: Stage, value: Any, name: str, method: str = "", keyword: str = ""
    ) -> Place:
        scope = self._scope_of(value)
        call = call_of(stage, scope.cells, method) if method else None
        use = Use(f"stage {self._addresses.get(id(stage), stage.name)!r}")
        return Place(self._collector, scope, use, name, call, keyword)

    def _scope_of(self, value: Any) -> Scope:
        function = _inner_function(value)
        if function is None or by_reference(function):
            return self._home
        whole = inspect.unwrap(function)  # a library's decorator has the library's globals
        return self._collector.scope(getattr(whole, "__globals__", function.__globals__))


def _inner_function(value: Any) -> FunctionType | None:
    """Return the function inside a partial or a bound method, or None."""
    while not isinstance(value, FunctionType):
        inner = getattr(value, "func", getattr(value, "__func__", None))
        if inner is None or inner is value:
            return None
        value = inner
    return value


# -- Items: the source of a pipeline; the path that its files are found under is a parameter -------
_METHODS = frozenset(("glob", "rglob", "iterdir", "walk"))  # of paths
_LISTING = frozenset(("listdir", "scandir", "walk", "glob", "iglob"))  # functions of a path
_ROOT = "root"
_ITEMS = "_items"  # what stands for an expression that the trial decides on
_MAKE = "give the source a function that makes them: nbpipe.source(make_items)"


_Written = tuple[Statement, ast.expr]  # an expression of the user's text


def items_of(stage: Stage, items: Any, place: Place, *, word: str) -> str:
    """Write what a source was given, and take note of the path under which files are found.

    Args:
        stage: the source.
        items: what it reads.
        place: where it stands.
        word: what the names of its parameters begin with.

    Raises:
        ExportError: it cannot be written.
    """
    handle = None if _is_named(items, place) else handle_in("items", items)
    if handle is not None:
        words = f"reads a live {kind_of(handle.value)}, {handle.place}; {handle.way_out}"
        raise refusal(f"{place.use.words} {words}", place.use)
    call = call_of(stage, place.scope.cells, "source")
    node = None if call is None or not call.is_global else call.argument()
    given = None if call is None or node is None else (call.statement, node)
    written = _followed(given, items, place)
    root = None if written is None else _root(written[1], place)
    if written is not None and root is not None:
        text = _searched(written, items, place)
        _note_root(root, place, word)
        return text
    return expression(items, place) if _is_named(items, place) else _checked(written, items, place)


def _followed(written: _Written | None, items: Any, place: Place) -> _Written | None:
    """Go from a variable to the expression that it was assigned.

    Raises:
        ExportError: the variable has another value by now.
    """
    name = place.scope.name_of(items)
    if written is not None and isinstance(written[1], ast.Name):
        given, made = written[1].id, written[0]
        if given in made.binds:  # it is bound to the pipeline: what was it before
            bound = place.scope.cells.bindings(given)
            earlier = _assigned(next((one for one in bound if one.order < made.order), None))
            if earlier is not None:
                return earlier
        live = place.scope.namespace.get(given)
        if live is not items and not same_value(items, live):
            raise refusal(
                f"the pipeline still reads an older {given!r}; it was assigned anew since: rebuild "
                "the pipeline, then export",
                place.use,
            )
        name = given
    elif written is not None:
        return written
    return _assigned(None if name is None else place.scope.newest(name))


def _assigned(statement: Statement | None) -> _Written | None:
    """Return the expression of an assignment to one variable."""
    value = getattr(None if statement is None else statement.node, "value", None)
    simple = statement is not None and isinstance(statement.node, ast.Assign | ast.AnnAssign)
    if statement is None or not simple or not isinstance(value, ast.expr):
        return None
    return (statement, value) if len(statement.binds) == 1 else None


def _is_named(items: Any, place: Place) -> bool:
    return place.scope.name_of(items) is not None or callable(items)


# -- files under a path ----------------------------------------------------------------------------
def _root(node: ast.expr, place: Place) -> ast.expr | None:
    """Return the path whose method an expression looks for files by.

    It is a variable or `Path(...)`; None where there are several, or none.
    """
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    found = [
        one.func.value
        for one in calls
        if isinstance(one.func, ast.Attribute)
        and one.func.attr in _METHODS
        and _is_path(one.func.value, node, place)
    ]
    given = [one.args[0] for one in calls if last_name(one.func) in _LISTING and one.args]
    found += [
        one
        for argument in given
        for one in outside_texts(argument)
        if isinstance(one, ast.Name) and _is_folder(one, place.scope)
    ]
    return found[0] if len(set(map(ast.dump, found))) == 1 else None


def _is_path(node: ast.expr, whole: ast.expr, place: Place) -> bool:
    if isinstance(node, ast.Name):
        is_global = node.id in names_read(whole, future=True).now
        return is_global and isinstance(place.scope.namespace.get(node.id), Path)
    return isinstance(node, ast.Call) and last_name(node.func) == "Path"


def _note_root(root: ast.expr, place: Place, word: str) -> None:
    """Take note of a parameter for the path that files are looked for under."""
    found, text = place.collector.found, ast.unparse(root)
    wanted = f"{word}_{_ROOT}" if found.roots else _ROOT
    is_text = isinstance(root, ast.Name) and isinstance(place.scope.namespace[root.id], str)
    annotation = "str" if is_text else place.collector.spelled(place.scope, Path, place.use)
    if text not in found.roots:
        name = place.collector.free_name(wanted) if text != wanted else wanted
        found.roots[text] = Parameter(name, annotation, in_double_quotes(text), positional=True)
        found.owners.setdefault(name, None)


def _searched(written: _Written, items: Any, place: Place) -> str:
    """Write what looks for files; a fresh process is to find those that the notebook has."""
    statement, node = written
    whole = ast.get_source_segment(statement.cell.text, node) or ""
    refuse_secret("the source", place.use, text=f"items = {whole}")
    now, later = place.collector.read(place.scope, node, statement.cell, place.use)
    if not isinstance(items, list | tuple | dict):
        return whole
    mark = place.collector.free_name(_ITEMS)
    name = place.scope.name_of(items) or "files"
    place.collector.found.reasons[mark] = (
        f"{name!r} is not what its text in {statement.cell.place} finds by now: the list was "
        f"changed afterwards, or the files were; make it in one expression, as {name} = "
        "sorted(...), and rebuild the pipeline"
    )
    found = Spelling(f"{mark} = ({whole})", now | later, ran=statement.order)
    return on_trial(mark, (found,), items, place, f"what {place.use.words} reads")


def _is_folder(node: ast.AST, scope: Scope) -> bool:
    """Tell whether a variable or a text is the path of a folder."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        value = scope.namespace.get(node.id)
    else:
        value = node.value if isinstance(node, ast.Constant) else None
    try:
        return isinstance(value, str | Path) and bool(str(value)) and Path(value).is_dir()
    except (OSError, ValueError):  # no text that could be a path
        return False


def rooted(module: Module, scope: Scope, found: Found) -> Module:
    """Make a parameter of the folder that `build_pipeline` alone reads; one that others do is none.

    Args:
        module: with all that `build_pipeline` does.
        scope: the notebook.
        found: has the paths that sources look for files under.
    """
    parts = [one for line in module.body for one in ast.walk(line.tree)]
    read = {name for piece in module.pieces for name in (*piece.now, *piece.later)}
    # Of variables in f-strings, Python 3.11 does not know the place.
    read |= {name for one in parts if isinstance(one, ast.JoinedStr) for name in names_in(one)}
    texts = {ast.unparse(one) for one in parts if isinstance(one, ast.Name | ast.Call)} - read
    roots = {text: one for text, one in found.roots.items() if text in texts}
    roots = roots or _folder(module, scope, read)
    names = {text: one.name for text, one in roots.items()}
    body = [line.changed(names) if line.is_code or found.roots else line for line in module.body]
    bound = {one.annotation.partition(".")[0] for one in roots.values()}
    imports = dict.fromkeys(
        (*module.imports, *(one for one in found.imports if one.binds in bound))
    )
    parameters = (*roots.values(), *module.parameters)
    return replace(module, parameters=parameters, body=tuple(body), imports=tuple(imports))


def _folder(module: Module, scope: Scope, read: set[str]) -> dict[str, Parameter]:
    """Return the parameter for the one folder that statements of the user's name; none for more."""
    lines = [line for line in module.body if line.is_code]
    parts = (one for line in lines for one in outside_texts(line.tree))
    folders = {ast.unparse(one) for one in parts if _is_folder(one, scope)} - read
    taken = {name for line in module.body for name in names_in(line.tree)} | module.used
    if len(folders) != 1 or _ROOT in taken:
        return {}
    text = next(iter(folders))
    annotation = "Path" if isinstance(scope.namespace.get(text), Path) else "str"
    if annotation == "Path" and "Path" not in module.used:
        return {}
    return {text: Parameter(_ROOT, annotation, in_double_quotes(text), positional=True)}


# -- what has no name ------------------------------------------------------------------------------
def _checked(written: _Written | None, items: Any, place: Place) -> str:
    """Write items that have no name: as they were given, or as a literal."""
    collector, use = place.collector, place.use
    refuse_secret(use.words, use, name="items", value=items)
    mark = collector.free_name(_ITEMS)
    ways: list[Spelling | None] = []
    if written is not None:
        text = ast.get_source_segment(written[0].cell.text, written[1]) or ""
        refuse_secret("the source", use, text=f"items = {text}")
        ways.append(place.written(f"{mark} = ({text})", written[1], written[0]))
    spellings = [replace(one, now=one.now | one.later) for one in ways if one is not None]
    plain = isinstance(items, list | tuple | range | dict)
    if not spellings and not plain and by_reference(type(items)):
        return expression(items, place)
    found = collector.as_literal(mark, items, place.scope, use)
    spellings += [] if found is None else [replace(found, text=f"{mark} = {found.text}")]
    reason = collector.found.reasons.get(mark, "its text is not known")
    if not spellings and not plain:
        return expression(items, place)
    if not spellings:
        fix = "" if "function" in reason else f"; {_MAKE}"
        raise unwritable(f"the items of {use.words}", f"{reason}{fix}", use)
    collector.found.reasons[mark] = f"{reason}; {_MAKE}"
    return on_trial(mark, tuple(spellings), items, place, f"what {use.words} reads")


def chosen_text(spelling: Spelling) -> str:
    """Return the expression of a way that the trial chose."""
    value = ast.parse(spelling.text).body[0].value  # type: ignore[attr-defined]
    return ast.get_source_segment(spelling.text, value) or ""


# -- As built: the statements that make a pipeline, and what its knobs are set to below them -------
_MOST = 50  # statements


def as_built(
    chain: Chain, draft: Module, collector: Collector, home: Scope, *, tried: bool
) -> Module | None:
    """Write the user's own statements that make a pipeline, and set its knobs to what they are.

    Args:
        chain: the stages.
        draft: what makes the same stages one by one; its parameters for knobs are kept.
        collector: takes what the statements use.
        home: the notebook.
        tried: a fresh process will tell whether they make these stages.

    Returns:
        The module; None where the statements are not known, use what cannot be exported, or may
        make other stages by now, and nobody would tell.
    """
    names = variables_of(chain, home)
    name, statements = next(((one, _statements(one, home)) for one in names), ("", []))
    use = Use(f"the variable {name!r}")
    local = {bound for one in statements for bound in one.binds}

    def collect() -> bool:
        for one in statements:
            check_text(one.text, one.node, one.cell, f"the making of {name!r}", use)
            collector.read(home, one.node, one.cell, use, local=sorted(local))
            collector.found.listed |= _listed(one.node)
        return True

    if not statements or collector.attempt(collect) is None:
        return None
    reads = ((one, names_read(one.node, future=True)) for one in statements)
    if not tried and any(is_late(found.now - local, one.order, home) for one, found in reads):
        return None
    knobs = _knobs(name, chain, draft)
    read = {one for statement in statements for one in names_in(statement.node)}
    if any(one.name in read for one in knobs):  # a parameter would stand before the variable
        return None
    *first, last = statements
    lines = [Line(one.text, is_code=True) for one in first]
    pattern = rf"(?m)^{name}(?:\s*:[^=]+)?\s*=\s*"
    returns = tried and isinstance(last.node, ast.Assign) and re.search(pattern, last.text)
    if knobs or not returns:
        lines += [
            Line(last.text, is_code=True),
            *(Line(one, is_code=True) for one in knobs.values()),
        ]
        return Module(tuple(knobs), (*lines, Line(name)))
    text = re.sub(pattern, "return ", last.text, count=1)
    return Module((), (*lines, Line(text, is_code=True)))


def is_late(names: Iterable[str], ran: tuple[int, int], scope: Scope) -> bool:
    """Report whether names have other values now than when a statement ran, as far as texts show.

    Names that the functions among them read count, too. An import, and a definition that ran again
    with the same text, change nothing.
    """
    wanted, seen = list(names), set[str]()
    while wanted:
        name = wanted.pop()
        newest = scope.newest(name)
        if name in seen or newest is None or is_import(newest.node):
            continue
        seen.add(name)
        if is_defined(newest, name):
            wanted += names_read(newest.node, future=True).later
            bound = scope.cells.bindings(name)
            before = next((one for one in bound if one.order < ran), None)
            if newest.order > ran and (before is None or before.text != newest.text):
                return True
        elif newest.order > ran or _is_changed_since(name, ran, scope):
            return True
    return False


def _is_changed_since(name: str, ran: tuple[int, int], scope: Scope) -> bool:
    """Report whether a statement that ran later may have changed the value of a name in place."""
    later = (one for cell in scope.cells.cells for one in cell.statements if one.order > ran)
    return any(scope.is_changed_in(name, one.node) for one in later)


def variables_of(chain: Chain, home: Scope) -> Iterator[str]:
    """Return the user's variables that are the pipeline of these stages."""
    for name in tuple(home.namespace):
        if home.newest(name) and _holds(home, name, chain):
            yield name


def _knobs(name: str, chain: Chain, draft: Module) -> dict[Parameter, str]:
    """Return what sets the knobs of a pipeline, by the parameters that they are set to."""
    words = stage_words(chain)
    parameters = {one.name: one for one in draft.parameters}
    return {
        parameters[parameter]: f"{name}[{quoted(address)}].{word} = {parameter}"
        for address, stage in addresses(chain).items()
        for word in stage.knobs
        if (parameter := f"{words[id(stage)]}_{word}") in parameters
    }


def _holds(scope: Scope, name: str, chain: Chain | None) -> bool:
    """Tell whether a variable is a pipeline: of these stages, where they are given."""
    stages = getattr(scope.namespace[name], "chain", None)
    if not isinstance(stages, tuple) or not all(isinstance(one, Stage) for one in stages):
        return False
    return chain is None or [*map(id, stages)] == [*map(id, chain)]


def _statements(name: str, home: Scope) -> list[Statement]:
    """Return the statements that make a pipeline, from the first; none where one is not known."""
    found: list[Statement] = []
    wanted: list[tuple[str, Statement | None]] = [(name, None)]
    while wanted:
        one, reader = wanted.pop()
        bound = home.cells.bindings(one)
        earlier = [made for made in bound if reader is None or made.order < reader.order]
        if not earlier or len(found) > _MOST or not _is_making(earlier[0].node, home):
            return []
        if earlier[0] not in found:
            found.append(earlier[0])
            reads = names_read(earlier[0].node, future=True).now
            pipes = (
                other for other in sorted(reads) if other in home and _holds(home, other, None)
            )
            wanted += [(other, earlier[0]) for other in pipes]
    return sorted(found, key=lambda one: one.order)


def _is_making(node: ast.AST, home: Scope) -> bool:
    """Tell whether a statement makes pipelines, or what they are made of, and nothing else."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return True
    if not isinstance(node, ast.For | ast.If):
        return False
    inside = [*node.body, *node.orelse]
    blocks = [one for one in inside if isinstance(one, ast.For | ast.If)]
    plain = [one for one in inside if isinstance(one, ast.Assign | ast.AnnAssign)]
    others = [one for one in inside if one not in blocks and one not in plain]
    if not all(isinstance(one, ast.FunctionDef | ast.Pass) for one in others):
        return False  # it may train, or show something
    names = {name for one in plain for name in names_read(one, future=True).bound}
    read = names_in(node, ast.Load)
    made = all(name in read or _holds(home, name, None) for name in names if name in home)
    return made and all(_is_making(one, home) for one in blocks)


def _listed(node: ast.AST) -> set[str]:
    """Return the variables by which sources in some code read their items."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call) and one.args)
    sources = (one.args[0] for one in calls if last_name(one.func) == "source")
    return {name for one in sources for name in names_in(one)}
