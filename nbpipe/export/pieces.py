"""Values become pieces: by the text that made them, as literals, as definitions without a name."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.tree import is_tensor
from ..ops.stage import class_name
from .cells import Definition, Statement
from .definitions import (
    Place,
    as_called,
    check_text,
    definition_of,
    older,
    older_error,
    place_of,
    read,
    unnamed_in,
)
from .difference import difference, portrait
from .handles import handle_in, is_generator, kind_of
from .held import HeldState, need_held
from .literals import MOST, NoLiteral, literal
from .model import Import, Piece, Spelling
from .names import names_read
from .scope import Scope
from .secrets import reads_environment, secret_in, secret_in_text
from .source import span_of
from .uses import Use, identifier, refusal, secret_refusal

if TYPE_CHECKING:
    from .collect import Collector

# -- Constants: values become pieces, by the text that made them or as literals --------------------
_REFLECTING = ("globals", "locals", "vars", "eval", "exec")
_PLAIN_NODES = (
    *(ast.Constant, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Name, ast.Attribute),
    *(ast.expr_context, ast.UnaryOp, ast.unaryop, ast.keyword),
)
_CONTAINERS = (
    *("dict", "list", "set", "tuple", "defaultdict", "OrderedDict", "deque", "local"),
    *("WeakValueDictionary", "WeakKeyDictionary", "WeakSet"),
)
_TRIED = 3  # texts, the newest first


def is_assignment(node: ast.AST) -> bool:
    """Tell whether a statement binds plain names to the value of an expression."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    return isinstance(node, ast.Assign) and all(map(_is_plain, node.targets))


def _is_plain(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_plain, target.elts))
    return isinstance(target, ast.Name)


def collect(collector: Collector, scope: Scope, name: str, value: Any, use: Use) -> None:
    """Collect the value that a name stands for, and what the ways to write it use.

    Raises:
        ExportError: it is a secret, lives in one process, or cannot be written.
    """
    statement = scope.newest(name)
    place = "" if statement is None else f", assigned in {statement.cell.place}"
    known = Known(collector, scope, name, use=use, words=f"variable {name!r}{place}")
    statements = [one for one in scope.cells.bindings(name) if _is_usable(scope, one)][:_TRIED]
    _refuse_handle(known, statements)
    if statement is not None and _is_lookup(collector, scope, statement):
        known.look_up(statement)
        return
    _refuse(known)
    if is_generator(value):
        known.keep_seeded(statements)
        return
    known.write(statements)


def _is_usable(scope: Scope, statement: Statement) -> bool:
    """Tell whether a text may stand for a value: what it binds was not bound anew since."""
    if not is_assignment(statement.node):
        return False
    lines = range(statement.first_line, statement.last_line + 1)
    if not statement.cell.shell_lines.isdisjoint(lines) or _looks_around(statement.node):
        return False
    if len(statement.binds) == 1:
        return True
    return all(scope.newest(name) is statement for name in statement.binds)


def _looks_around(node: ast.AST) -> bool:
    """Tell whether code finds variables by means that do not name them."""
    return any(isinstance(one, ast.Name) and one.id in _REFLECTING for one in ast.walk(node))


def _is_lookup(collector: Collector, scope: Scope, statement: Statement) -> bool:
    """Tell whether a value comes from the environment, perhaps by way of other variables."""
    if not is_assignment(statement.node):
        return False
    if reads_environment(statement.node):
        return True
    for name in sorted(names_read(statement.node, future=True)[0]):
        source = scope.newest(name)
        if source is None or source is statement or not _comes_before(source, statement):
            continue
        if name in collector.found.lookups or _is_lookup(collector, scope, source):
            return True
    return False


def _comes_before(one: Statement, other: Statement) -> bool:
    return (one.cell.order, one.number) < (other.cell.order, other.number)


def _refuse_handle(known: Known, statements: list[Statement]) -> None:
    """Refuse what lives in one process, if the exported code does not fill it by itself.

    Raises:
        ExportError: the value is something of that kind, or holds it.
    """
    handle = handle_in(known.name, known.value)
    if handle is None:
        return
    direct = f"variable {known.name!r}" if handle.value is known.value else handle.place
    error = refusal(handle._replace(place=direct).words, known.use)
    begins_plain = bool(statements) and _is_plain_value(statements[0].node)
    if not handle.attribute and not (begins_plain and known.scope.is_changed_inside(known.name)):
        raise error
    known.collector.found.alive[known.name] = (handle.attribute, error)


def _is_plain_value(node: ast.stmt) -> bool:
    """Tell whether an assignment gives a constant, or containers of them."""
    value = getattr(node, "value", None)
    return value is not None and all(
        isinstance(one, _PLAIN_NODES) or (isinstance(one, ast.Call) and _makes_container(one))
        for one in ast.walk(value)
    )


def _makes_container(node: ast.Call) -> bool:
    func = node.func
    name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", None)
    return name in _CONTAINERS


def _refuse(known: Known) -> None:
    """Refuse what must never be written."""
    secret = secret_in(known.name, known.value)
    if secret is not None:
        what = f"variable {known.name!r}"
        if secret != known.name:
            what += f" holds {secret}, which"
        raise refusal(
            f"{what} looks like a secret; it is never written to a file. Read it at run time, e.g. "
            f'os.environ["{_variable(secret)}"]',
            known.use,
        )
    kind = type(known.value)
    place = older(known.scope, kind)
    if place is not None:
        raise refusal(
            f"the pipeline still uses an older {kind.__name__!r}{place}; it was redefined since: "
            "rebuild the pipeline, then export",
            known.use.then(known.described),
        )


def _variable(secret: str) -> str:
    """Return the name of an environment variable for a secret, as CONFIG['token'] has it."""
    words = re.findall(r"[A-Za-z][\w-]*", secret.removesuffix(" (a key)"))
    return words[-1].replace("-", "_").upper() if words else "TOKEN"


class Known:
    """One variable that is to be written.

    Args:
        collector: takes the piece.
        scope: where it lives.
        name: its name.
        use: who uses it.
        words: what it is called in a message.
    """

    def __init__(
        self, collector: Collector, scope: Scope, name: str, *, use: Use, words: str
    ) -> None:
        self.collector, self.scope = collector, scope
        self.name, self.value, self.use, self.words = name, scope[name], use, words

    @property
    def described(self) -> str:
        """What it is in a chain of use, as "aug = ... [In[4]]"."""
        statement = self.scope.newest(self.name)
        return f"{self.name} = ..." + (f" [{statement.cell.place}]" if statement else "")

    # -- ways to write it -----------------------------------------------------------------
    def look_up(self, statement: Statement) -> None:
        """Keep a look-up in the environment; its value is neither written nor compared."""
        self._check_secret(statement)
        self.collector.found.lookups.add(self.name)
        self._add([self._as_written(statement)], statement)

    def keep_seeded(self, statements: list[Statement]) -> None:
        """Keep a generator of random numbers that has a seed."""
        for statement in statements[:1]:
            if _is_seeded(statement.node):
                self.collector.note(
                    f"{self.name!r} starts from its seed again whenever the module is imported"
                )
                self._add([self._as_written(statement)], statement)
                return
        raise refusal(
            f"variable {self.name!r} is a random generator without a seed, so nobody could draw "
            "the same numbers; give it one, as np.random.default_rng(0), or give the stage's "
            "function a parameter named rng",
            self.use,
        )

    def write(self, statements: list[Statement]) -> None:
        """Write it as its text says, if that gives the live value; else as a literal."""
        spellings: list[Spelling] = []
        errors = []
        for statement in statements:
            if statement is not statements[0] and secret_in_text(statement.text):
                continue
            self._check_secret(statement)
            error = self.collector.attempt(
                lambda one=statement: spellings.append(self._as_written(one))  # type: ignore[misc]
            )
            errors += [] if error is None else [error]
        newest = statements[0] if statements else None
        held = need_held(self.collector, self.scope, self.value, self.use.then(self.described))
        place = unnamed_in(self.scope, self.value, statements)
        if place is not None:
            self.collector.found.unnamed[self.name] = (place, self.use)
        spellings = [replace(one, later=one.later | held) for one in spellings]
        alive = self.name in self.collector.found.alive
        last = None if alive else self._as_literal(newest) or self._as_asset()
        if last is not None:
            spellings.append(last)
        if not spellings:
            if alive:
                raise self.collector.found.alive.pop(self.name)[1]
            raise errors[0] if errors else self._unwritable()
        names = {self.name} | (set(newest.binds) if newest else set())
        for name in names:
            self.collector.found.held[name] = HeldState.of(self.scope[name])
        self._add(spellings, newest, {name: portrait(self.scope[name]) for name in sorted(names)})

    def _check_secret(self, statement: Statement) -> None:
        if secret_in_text(statement.text):
            raise secret_refusal(f"the text of {self.words}", self.use, text=statement.text)

    def _as_written(self, statement: Statement) -> Spelling:
        use = self.use.then(f"{self.name} = ... [{statement.cell.place}]")
        now, later = read(self.collector, self.scope, statement.node, statement.cell.flags, use)
        if self.name not in now or not callable(self.value):
            return Spelling(statement.text, now, later)
        for before in self._wrapped(statement):
            self._check_secret(before)
            more = read(self.collector, self.scope, before.node, before.cell.flags, use)
            now, later = now | more[0], later | more[1]
        texts = [one.text for one in (*self._wrapped(statement), statement)]
        return Spelling("\n\n\n".join(texts), now - {self.name}, later - {self.name})

    def _wrapped(self, statement: Statement) -> list[Statement]:
        """Return what bound the name that `name = wrapper(name)` reads, the oldest first."""
        found: list[Statement] = []
        every = self.scope.cells.bindings(self.name)
        for one in every[every.index(statement) + 1 :]:
            found.insert(0, one)
            if self.name not in names_read(one.node, future=True)[0]:
                break
        return found

    def _as_literal(self, statement: Statement | None) -> Spelling | None:
        spelled: set[str] = set()

        def spell(value: object) -> str:
            text = self.collector.spell(self.scope, self.use)(value)
            spelled.add(text.partition(".")[0])
            return text

        before = self.collector.found.copied()
        try:
            if statement is None or len(statement.binds) == 1:
                text = _assigned(self.name, literal(self.value, spell), statement)
            else:
                text = "\n".join(
                    f"{' = '.join(names)} = {literal(self.scope[names[0]], spell)}"
                    for names in _alike(self.scope, statement.binds)
                )
        except NoLiteral as no:
            self.collector.found = before
            self.collector.found.reasons[self.name] = no.reason
            return None
        return Spelling(text, frozenset(spelled))

    def _as_asset(self) -> Spelling | None:
        """Load a large array from a file beside the module, where that is wanted."""
        archive = self.collector.archive
        array = _as_array(self.value)
        if archive is None or array is None:
            return None
        numpy = self.collector.spelled(self.scope, np, self.use)
        self.collector.add_import(Import("pathlib", "Path"))
        text = f'{numpy}.load(Path(__file__).with_name("{archive}"))["{self.name}"]'
        if is_tensor(self.value):
            torch = self.collector.spelled(self.scope, sys.modules["torch"], self.use)
            text = f"{torch}.from_numpy({text})"
        self.collector.found.arrays[self.name] = array
        return Spelling(f"{self.name} = {text}", frozenset({"Path", text.partition(".")[0], numpy}))

    # -- what becomes of it ---------------------------------------------------------------
    def _add(
        self,
        spellings: list[Spelling],
        statement: Statement | None,
        expected: dict[str, Any] | None = None,
    ) -> None:
        names = (self.name, *sorted((statement.binds if statement else set()) - {self.name}))
        piece = Piece(
            names=names,
            spellings=tuple(spellings),
            expected=expected or {},
            kind="constant",
            first=self.scope.first(self.name),
            words=self.words,
        )
        self.collector.add(piece, self.scope)

    def _unwritable(self) -> Exception:
        reason = self.collector.found.reasons.get(self.name, kind_of(self.value))
        return refusal(f"cannot write {self.words} into the module: {reason}", self.use)


def _alike(scope: Scope, names: Iterable[str]) -> list[list[str]]:
    """Put names of the same object together."""
    groups: dict[int, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(id(scope[name]), []).append(name)
    return list(groups.values())


def _is_seeded(node: ast.AST) -> bool:
    """Tell whether some call in an assignment is given an argument."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(call.args or call.keywords for call in calls)


def _as_array(value: Any) -> Any:
    if is_tensor(value):
        return value.detach().cpu().numpy() if value.numel() > MOST else None
    large = isinstance(value, np.ndarray) and value.size > MOST and value.dtype.kind != "O"
    return value if large else None


def _assigned(name: str, text: str, statement: Statement | None) -> str:
    """Put a literal in the place of the value in an assignment; comments and annotation stay."""
    if statement is None:
        return f"{name} = {text}"
    source = statement.text
    node = ast.parse(source).body[0]
    value = getattr(node, "value", None)
    if value is None:
        return f"{name} = {text}"
    data = source.encode("utf-8")
    first, last = span_of(data, value)
    return (data[:first] + text.encode("utf-8") + data[last:]).decode("utf-8")


# -- Functions: those without a name in the notebook become definitions of the module's own --------
def same_function(value: FunctionType, place: Place) -> str | None:
    """Return the name of a function that was defined anew since, but to the same effect.

    Raises:
        ExportError: it was redefined to another effect.
    """
    name = value.__name__
    live = place.scope.namespace.get(name)
    if live is None or "<locals>" in value.__qualname__:
        return None
    if isinstance(live, FunctionType) and difference(portrait(value), portrait(live)) is None:
        place.collector.need(place.scope, name, place.use)
        return name
    raise older_error(name, place_of(place.scope, value), place.use)


def new_function(value: FunctionType, place: Place, wanted: str, free: list[str]) -> str:
    """Write a function that has no name in the notebook as one of the module's own.

    Args:
        value: the function.
        place: where it is used.
        wanted: what it is to be called.
        free: the variables that it captured, which become its first parameters.

    Returns:
        Its name.

    Raises:
        ExportError: its text is not known, it rebinds what it captured, or it uses something
            that cannot be exported.
    """
    collector = place.collector
    known = _known(value, place, free)
    if known is not None:
        return known
    found = definition_of(place.scope, value.__code__)
    if found is None:
        raise refusal(
            f"the text of {value.__qualname__!r} is not known: it was made neither in a cell nor "
            "in a file; define it in a cell, or import it",
            place.use,
        )
    name = collector.free_name(identifier(wanted))
    text = found.with_parameters(free, name) if free else found.text(name)
    _check(value, found, text, place)
    handle = handle_in(name, value)
    if handle is not None:
        raise refusal(handle.words, place.use)
    collector.found.written[name] = (value.__code__, len(free))
    collector.found.defaults[name] = portrait(value.__defaults__)
    collector.found.owners[name] = None
    collector.found.called[name] = name
    use = place.use.then(f"{name}() [{found.place}]")
    now, later = read(collector, place.scope, found.node, found.cell.flags, use, local=free)
    spelling = Spelling(text, now - {name}, later - {name} - set(free))
    words = f"function {name!r}, defined in {found.place}"
    collector.add(Piece((name,), (spelling,), {}, "definition", _first(found), words))
    return name


def _known(value: FunctionType, place: Place, free: list[str]) -> str | None:
    """Return the name that a function of the same code and defaults was written under."""
    found = place.collector.found
    for name, code in found.written.items():
        same = code == (value.__code__, len(free))
        if same and portrait(value.__defaults__) == found.defaults[name]:
            return name
    return None


def _check(value: FunctionType, found: Definition, text: str, place: Place) -> None:
    words = f"{value.__name__}() [{found.place}]"
    check_text(text, found.node, found.cell, words, place.use)
    kept = [one for one in ast.walk(found.node) if isinstance(one, ast.Nonlocal)]
    if kept:
        raise refusal(
            f"{words} changes the variable {kept[0].names[0]!r} of the function around it "
            "(`nonlocal`), which no module can hold; keep that state in a class with __call__",
            place.use,
        )


def _first(found: Definition) -> tuple[int, ...]:
    node = found.node
    return found.cell.order, found.statement.number, node.lineno, node.col_offset


# -- Instances: objects without a name become constants of the module's own ------------------------
_PACKAGE = __package__.rpartition(".")[0]
_LOADER = f"{_PACKAGE}.dataloader."


def new_object(value: Any, place: Place) -> str:
    """Write an object without a name as a constant of the module's own."""
    collector = place.collector
    for known, one in collector.found.objects.items():
        if one is value:
            return known
    if secret_in(place.name, value) is not None:
        raise secret_refusal(f"the {type(value).__name__} of {place.use.words}", place.use)
    name = collector.free_name(identifier(class_name(value)))
    collector.failed = None
    ways = (as_called(place, name), _as_literal(value, name, place))
    spellings = [way for way in ways if way is not None]
    if not spellings and collector.failed is not None:
        raise collector.failed
    if not spellings and type(value).__module__.startswith(_LOADER):
        raise refusal(
            f"cannot write the {type(value).__name__} into the module: it is a part of a "
            "DataLoader, whose chain a module does not hold; keep the line that makes the loader, "
            "or export a pipeline of your own: "
            "nbpipe.source(range(len(dataset))).map(dataset.__getitem__).batch(...)",
            place.use,
        )
    if not spellings:
        reason = collector.found.reasons.get(name, kind_of(value))
        raise refusal(
            f"cannot write the {type(value).__name__} into the module: {reason}; give it a name in "
            f"a cell: {name} = {type(value).__name__}(...)",
            place.use,
        )
    collector.found.objects[name] = value
    collector.found.held[name] = HeldState.of(value)
    words = f"the {type(value).__name__} of {place.use.words}"
    expected = {name: portrait(value)}
    collector.add(Piece((name,), tuple(spellings), expected, "constant", (2**31, 0), words))
    return name


def _as_literal(value: Any, name: str, place: Place) -> Spelling | None:
    spelled: set[str] = set()
    spell = place.collector.spell(place.scope, place.use)

    def noted(one: object) -> str:
        text = spell(one)
        spelled.add(text.partition(".")[0])
        return text

    try:
        text = literal(value, noted)
    except NoLiteral as no:
        place.collector.found.reasons[name] = no.reason
        return None
    return Spelling(f"{name} = {text}", frozenset(spelled))
