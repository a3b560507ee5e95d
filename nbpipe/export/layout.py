"""Layout: knobs become parameters, and statements become the text of a module."""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import keyword
import linecache
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..ops.stage import Chain, Stage, addresses, numbered
from .record import END, Record
from .slicing import Slice
from .source import edited, last_name, lines_of, run_ruff, span_of
from .statements import Definition, Statement, executed_with, is_plain

# -- Parameters: tuned values come in by them ------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter of `build_pipeline`."""

    name: str
    value: int
    below: str = ""


def identifier(text: str) -> str:
    """Make the name of a variable out of any text, as the name of a stage."""
    name = re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", text))
    if name.startswith("__") and name.endswith("__"):  # a method, as __getitem__
        name = name.strip("_")
    name = name or "stage"
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable else f"stage_{name}"


def stage_words(chain: Chain) -> dict[int, str]:
    """Return what the names of the parameters of each stage begin with, by the stage's id.

    Stages whose names give the same word are numbered, in the order of their addresses.
    """
    words: dict[int, str] = {}
    for stage in addresses(chain).values():
        if id(stage) not in words:
            words[id(stage)] = numbered(identifier(stage.name), words.values())
    return words


def parameters_of(
    chain: Chain, record: Record, *, as_values: bool = False, taken: Collection[str] = ()
) -> list[Parameter]:
    """Have the calls that made the stages take their knobs from parameters.

    A call that made several stages, as in a loop or a function, or that stands elsewhere, is left
    as it is: a line behind the pipeline sets the knob.

    Args:
        chain: the stages.
        record: what was executed; edits that it has are undone.
        as_values: the calls get the present values themselves.
        taken: names that no parameter may have.
    """
    for one in record.statements:
        one.edits, one.unread = [], frozenset()
    stages = {id(stage): (address, stage) for address, stage in addresses(chain).items()}
    words = stage_words(chain)
    places = [_place(stage) for _, stage in stages.values()]
    found: list[Parameter] = []
    known: set[int] = set()
    for (address, stage), place in zip(stages.values(), places, strict=True):
        calls = _calls(stage, record) if places.count(place) == 1 else []
        for word, knob in stage.knobs.items():
            is_told = word in stage.given or knob.value != knob.default
            if not is_told or id(knob) in known:
                continue
            known.add(id(knob))
            name = numbered(f"{words[id(stage)]}_{word}", taken)
            name = str(knob.value) if as_values else name
            if _set(calls, word, name):
                found.append(Parameter(name, knob.value))
            else:
                below = f"[{json.dumps(address, ensure_ascii=False)}].{word} = {name}"
                found.append(Parameter(name, knob.value, below))
        size = getattr(stage.spec, "size", None)
        if stage.op == "batch" and type(size) is int and not as_values:
            name = numbered(f"{words[id(stage)]}_size", taken)
            if _set(calls, "size", name, position=0):
                found.append(Parameter(name, size))
    return found


def set_arguments(chain: Chain, record: Record, arguments: Mapping[str, int]) -> None:
    """Have the call that made all stages, as a loader's does, take arguments as they are now."""
    for word, value in arguments.items():
        for call in _calls(chain[-1], record, by_any=True):
            _set([call], word, str(value))


_Calls = list[tuple[Statement, ast.Call]]
_Edit = tuple[int, int, str, ast.expr | None]


def _place(stage: Stage) -> object:
    at = stage.made_at
    return id(stage) if at is None else (at.code, at.offset)


def _calls(stage: Stage, record: Record, *, by_any: bool = False) -> _Calls:
    """Find the call that made a stage, in each execution of its cell, by where the call ends."""
    at = stage.made_at
    if at is None or at.code.co_name not in ("<module>", "<lambda>"):
        return []
    _, line, _, column = list(at.code.co_positions())[at.offset // 2]
    if line is None or column is None:
        return []
    found: dict[str, _Calls] = {}
    for one in record.statements:
        if one.is_import or not one.first <= line <= one.last:
            continue
        walk = ast.walk if at.code.co_name == "<lambda>" else executed_with
        for node, own in zip(walk(one.node), walk(one.own), strict=True):
            ends = (getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None))
            if not isinstance(own, ast.Call) or ends != (line, column):
                continue
            if by_any or stage.op in (last_name(own.func), "source"):
                found.setdefault(one.cell.text.strip("\n"), []).append((one, own))
                break
    text = "".join(linecache.getlines(at.code.co_filename)).strip("\n")
    if text in found:
        return found[text]
    return next(iter(found.values())) if len(found) == 1 else []


def _set(calls: _Calls, word: str, text: str, position: int | None = None) -> bool:
    """Have calls take an argument that a text gives; return whether all can."""
    edits = [_edit(one, call, word, text, position) for one, call in calls]
    for (one, _), edit in zip(calls, edits, strict=True):
        if edit is not None and all(edits):
            first, last, new, value = edit
            one.edits.append((first, last, new))
            inside, every = _names(value), _names(one.own)
            one.unread |= {name for name in inside if every.count(name) == inside.count(name)}
    return bool(edits) and all(edits)


def _edit(
    one: Statement, call: ast.Call, word: str, name: str, position: int | None = None
) -> _Edit | None:
    """Return the edit that has a call take an argument from a parameter, or None."""
    data = one.text.encode()
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    value = given.get(word)
    if value is None and position is not None:
        before = call.args[: position + 1]
        starred = any(isinstance(arg, ast.Starred) for arg in before)
        value = before[position] if len(before) > position and not starred else None
    if position is not None and not isinstance(value, ast.Constant | ast.Name):
        return None
    if value is not None:
        return (*span_of(data, value), name, value)
    if None in given:  # it may come by `**options`
        return None
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    close = span_of(data, call)[1] - 1
    end = max((span_of(data, part)[1] for part in parts), default=close)
    while parts and end < close and data[end : end + 1] == b")":  # around the last argument
        end += 1
    return end, end, f"{', ' if parts else ''}{word}={name}", None


def _names(node: ast.AST | None) -> list[str]:
    return [] if node is None else [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]


# -- Places: what stands at the top of the module, and what in `build_pipeline` --------------------


def placed(part: Slice, record: Record) -> tuple[list[Statement], list[Statement]]:
    """Return the statements of the module's top, and those of `build_pipeline`.

    At the top stand imports, functions, classes, the values that they read, and constants that
    nothing changes. Each call makes again what only the chain reads: lists of files, datasets,
    objects with state. So the import of the module does no work.
    """
    statements, raised = part.build()[:-1], set[Statement]()
    while True:
        top = _top(part, record, statements, raised)
        below = [one for one in statements if one not in top]
        _repeat(part, record, top, below)
        more = _hiding(part, record, top, below) - raised
        if not more:
            break
        raised |= more
    return [one for one in statements if one in top], sorted(below, key=lambda one: one.at)


def _top(
    part: Slice, record: Record, statements: list[Statement], raised: Collection[Statement]
) -> set[Statement]:
    """Return the statements of the top; those in `raised` are among them in any case."""
    top: set[Statement] = set()
    modules = {name for one in statements if one.is_import for name in one.binds}
    waiting = {name for one in (*statements, part.goal) for name in one.needed_later}
    waiting |= {name for one in statements for name in one.annotated}
    final = {record.binding(name, END) for name in waiting}

    def lift(one: Statement) -> None:
        if one not in top:
            top.add(one)
            for name in one.needed:
                found = record.binding(name, one.at)
                if found in part.taken:
                    lift(found)

    for one in statements:
        sets_module = isinstance(one.node, ast.Assign) and not modules.isdisjoint(one.changes)
        is_function = one.is_definition or _names_lambda(one)
        defines = is_function and not _begins_with_pipeline(one, record)
        always = one.is_import or one.cell.is_setup or sets_module or one in raised
        if always or defines or one in final:
            lift(one)
    size = -1
    while size != len(top):  # what changes an object of the top stands there, too
        size = len(top)
        for one in statements:
            changed = one.changes | (one.may_change & part.widened)
            owners = [record.binding(name, one.at) for name in changed if name not in modules]
            is_part = one.edits or _makes_pipeline(one, record)
            if owners and all(owner in top for owner in owners) and not is_part:
                lift(one)
    return top | _constants(part, record, statements, top)


def _constants(
    part: Slice, record: Record, statements: list[Statement], top: set[Statement]
) -> set[Statement]:
    """Return the constants that nothing changes."""
    found: set[Statement] = set()
    bound = [name for one in statements for name in one.binds]
    moved = {n for one in statements for n in one.changes | (one.may_change & part.widened)}
    for one in statements:
        value = getattr(one.node, "value", None)
        if isinstance(one.node, ast.Assign | ast.AnnAssign) and value and is_plain(value):
            above = top | found
            once = all(bound.count(name) == 1 for name in one.binds)
            known = all(
                record.binding(n, one.at) in above or hasattr(builtins, n) for n in one.reads
            )
            if once and known and moved.isdisjoint(one.binds) and not one.edits:
                found.add(one)
    return found


def _names_lambda(one: Statement) -> bool:
    """Return whether a statement is `name = lambda ...`, a function as one that `def` makes."""
    match one.node:
        case ast.Assign([ast.Name()], ast.Lambda()) | ast.AnnAssign(ast.Name(), _, ast.Lambda()):
            return True
    return False


def _hiding(
    part: Slice, record: Record, top: set[Statement], below: list[Statement]
) -> set[Statement]:
    """Return what has to leave `build_pipeline`, for it would hide a name of the top.

    A function there reads the newest value of a name when it is called. Where `build_pipeline`
    binds an older one for other statements, that function would read the older one.
    """
    own = {name for one in below for name in one.binds}
    later = {name for one in (*below, part.goal) for name in one.needed_later}
    hidden = {name for name in own & later if record.binding(name, END) in top}
    return {
        one
        for one in below
        if not hidden.isdisjoint(one.binds | one.needed)
        and not one.edits
        and not _makes_pipeline(one, record)
    }


def _is_pipeline(name: str, record: Record) -> bool:
    return hasattr(record.namespace.get(name), "_export_goal_")


def _makes_pipeline(one: Statement, record: Record) -> bool:
    return any(_is_pipeline(name, record) for name in one.binds)


def _begins_with_pipeline(one: Statement, record: Record) -> bool:
    """Return whether a function is given a pipeline where it is defined, as by a default."""
    return any(_is_pipeline(name, record) for name in one.needed)


def _repeat(part: Slice, record: Record, top: set[Statement], below: list[Statement]) -> None:
    """Add to `build_pipeline` the versions of names that are others at the top of the module.

    So is a name that `build_pipeline` binds: Python takes it for its own from the first line on.
    """
    todo = [*below, part.goal]
    while todo:
        one = todo.pop()
        own = {name for other in below for name in other.binds}
        for name in one.needed:
            found = record.binding(name, one.at)
            if found not in top or found in below or found.is_import:
                continue
            newest = record.binding(name, END)
            if name in own or (newest in top and newest is not found):
                below.append(found)
                todo.append(found)


# -- Text ------------------------------------------------------------------------------------------
_BUILD = "build_pipeline"
_FUTURE = "from __future__ import annotations"
_MODULE = '''"""{title}, exported by nbpipe.

Tuned values are the defaults of build_pipeline(). Edit freely: nbpipe does not overwrite edits.
"""

{head}


def build_pipeline({parameters}) -> {nbpipe}.Pipeline:
    """Build the pipeline with the values tuned in the {origin}."""
{body}


def {main}() -> None:
    for _ in {nbpipe}.progress(build_pipeline()):
        pass


if __name__ == "__main__":
    {main}()
'''


def module_text(
    top: Sequence[Statement],
    below: Sequence[Statement],
    goal: str,
    *,
    title: str,
    origin: str,
    parameters: Sequence[Parameter],
    has_future: bool,
) -> str:
    """Write a module."""
    imports = sorted({one.text for one in top if one.is_import})
    given = (re.fullmatch(r"import nbpipe(?: as (\w+))?", line) for line in imports)
    nbpipe = next((found[1] or "nbpipe" for found in given if found), "")
    imports = [line for line in imports if not line.startswith("from __future__")]
    imports = [*[_FUTURE, ""] * has_future, *imports, *["import nbpipe"] * (not nbpipe)]
    names = {name for one in (*top, *below) for name in one.binds | one.reads | one.reads_later}
    own = _free(_BUILD, names)
    moved = {_BUILD: own} if own != _BUILD else {}
    held = [(one, _renamed(one.edited, moved)) for one in top if not one.is_import]
    body = [(one, _renamed(one.edited, moved)) for one in below]
    rows = "".join(f"    {one.name}: int = {one.value!r},\n" for one in parameters)
    return _MODULE.format(
        title=title,
        origin=origin,
        head=("\n".join(imports) + "\n" + _laid_out(held, level=0)).rstrip(),
        parameters=f"\n    *,\n{rows}" if rows else "",
        body=_body(body, _renamed(goal, moved), [one.below for one in parameters if one.below]),
        nbpipe=nbpipe or "nbpipe",
        main=_free("main", names),
    )


def _body(parts: list[tuple[Statement, str]], goal: str, settings: list[str]) -> str:
    """Write what `build_pipeline` does."""
    if parts and not settings and goal.isidentifier():
        last, text = parts[-1]
        if text.startswith(f"{goal} = "):  # `pipe = chain` and `return pipe` in one
            text = f"return {text.removeprefix(f'{goal} = ')}"
            return _laid_out([*parts[:-1], (last, text)], level=1).strip("\n")
    lines = [_laid_out(parts, level=1).strip("\n")] if parts else []
    if settings:
        name = goal if goal.isidentifier() else "pipe"
        lines += [f"    {name} = {goal}"] * (name != goal)
        lines += [f"    {name}{line}" for line in settings]
        goal = name
    return "\n".join([*lines, f"    return {goal}"])


def _free(word: str, names: set[str]) -> str:
    """Return a word that is no name yet, with as many underscores before it as that takes."""
    return next(name for n in itertools.count() if (name := "_" * n + word) not in names)


def _laid_out(parts: list[tuple[Statement, str]], *, level: int) -> str:
    """Write statements with the empty lines that stood between them, at least those of PEP 8."""
    text, before = "", None
    for one, body in parts:
        block = f"{one.comments}\n{body}" if one.comments else body
        above = one.first - one.comments.count("\n") - bool(one.comments)
        follows = before is not None and before.cell is one.cell and before.last + 1 >= above
        defines = one.is_definition or (before is not None and before.is_definition)
        if level:
            gap = 0 if before is None or (follows and not defines) else 1
        else:
            gap = 2 if defines else 0 if follows else 1
        text += "\n" * gap + (_indented(block) if level else block) + "\n"
        before = one
    return text


def _indented(text: str) -> str:
    """Indent a text by one step, but for the lines that begin in a string."""
    inside = lines_of(text).in_string
    return "\n".join(
        line if number in inside or not line.strip() else f"    {line}"
        for number, line in enumerate(text.split("\n"), 1)
    )


def _renamed(text: str, names: dict[str, str]) -> str:
    """Give variables of a statement other names."""
    if not any(word in text for word in names):
        return text
    data, edits = text.encode(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name | Definition):
            name = node.id if isinstance(node, ast.Name) else node.name
            if name in names:
                first = data.index(name.encode(), span_of(data, node)[0])
                edits.append((first, first + len(name.encode()), names[name]))
    return edited(data, edits).decode()


# -- ruff: sorts the imports, formats where the user's own cells are formatted, and excuses --------
_RULES = "E4,E7,E9,F"
_WIDTH = 88  # ruff's default


def tidied(text: str, statements: Iterable[Statement]) -> str:
    """Have ruff sort the imports; what it does not like in the user's words is excused by `noqa`.

    All is formatted only where the user's own statements are, at ruff's width or that of the
    longest line. Without ruff the text is as it is.
    """
    text = run_ruff("check", text, "--select", "I001", "--fix", "--silent") or text
    own = [one.text for one in statements if not one.is_import]
    longest = max((len(line) for one in own for line in one.split("\n")), default=0)
    for width in (_WIDTH, longest):
        option = f"--line-length={min(max(width, _WIDTH), 320)}"
        formatted = run_ruff("format", "\n\n\n".join(own) + "\n", option) if own else ""
        if formatted is not None and all(one in formatted for one in own):
            text = run_ruff("format", text, option) or text
            break
    with TemporaryDirectory(prefix="nbpipe-") as folder:
        file = Path(folder, "module.py")
        file.write_text(text, encoding="utf-8", newline="")
        run_ruff("check", "", "--select", _RULES, "--add-noqa", file=str(file))
        return file.read_bytes().decode("utf-8")


def undefined(text: str) -> list[tuple[int, str]]:
    """List the names that a module reads and nothing defines, each after its line."""
    out = run_ruff("check", text, "--select", "F821", "--output-format", "json") or "[]"
    try:
        found = json.loads(out)
    except ValueError:
        return []
    return [(one["location"]["row"], one["message"].split("`")[1]) for one in found]
