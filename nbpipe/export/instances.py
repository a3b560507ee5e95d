"""Instances: objects without a name become constants of the module's own."""

from __future__ import annotations

from typing import Any

from ..stage import class_name
from .literals import NoLiteral, literal
from .living import kind_of
from .model import Piece, Spelling
from .parameters import identifier
from .places import Place, as_called
from .portrait import portrait
from .secrets import secret_in
from .state import Held
from .uses import refusal, secret_refusal

_PACKAGE = __package__.rpartition(".")[0]
_LOADER = {f"{_PACKAGE}.{name}" for name in ("fetching", "loader", "loader_chain")}


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
    if not spellings and type(value).__module__ in _LOADER:
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
    collector.found.held[name] = Held.of(value)
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
