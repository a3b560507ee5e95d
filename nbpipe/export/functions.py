"""Functions: those without a name in the notebook become definitions of the module's own."""

from __future__ import annotations

import ast
from types import FunctionType

from .definitions import check_text, definition_of, place_of, read
from .handles import handle_in
from .model import Piece, Spelling
from .parameters import identifier
from .places import Place, older_error
from .portrait import difference, portrait
from .texts import Definition
from .uses import refusal


def same_function(value: FunctionType, place: Place) -> str | None:
    """Give the name of a function that was defined anew since, but to the same effect.

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
    """Give the name that a function of the same code and defaults was written under."""
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
