"""Layout of a literal: brackets that are opened over several lines where they are too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_WIDTH = 88  # characters of a line
_FIRST = 72  # of the first one, which has a name in front
_SHORT = 12  # characters of an item that shares its line with others
_MANY = 8  # items, from which on short ones share lines
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Group:
    """A bracket and what is in it.

    Attributes:
        opening: text in front, as "Resize(" or "size=[".
        items: texts and further groups.
        closing: the bracket that closes it.
        comma: a single item needs a comma, as in a tuple.
    """

    opening: str
    items: tuple[Item, ...]
    closing: str
    comma: bool = False


Item = str | Group


def group(opening: str, items: Sequence[Item], closing: str) -> Group:
    """Make a group."""
    return Group(opening, tuple(items), closing)


def labelled(label: str, item: Item) -> Item:
    """Put a label as "size=" in front of an item."""
    if isinstance(item, str):
        return label + item
    return replace(item, opening=label + item.opening)


def flat(item: Item) -> str:
    """Write an item in one line."""
    if isinstance(item, str):
        return item
    comma = "," if item.comma and len(item.items) == 1 else ""
    return f"{item.opening}{', '.join(map(flat, item.items))}{comma}{item.closing}"


def laid_out(item: Item) -> str:
    """Write an item in one line if it is short, else over several."""
    text = flat(item)
    if len(text) <= _FIRST or isinstance(item, str) or not item.items:
        return text
    return "\n".join(_lines(item, ""))


def _lines(item: Group, indent: str) -> Iterator[str]:
    inner = indent + _INDENT
    yield indent + item.opening
    if len(item.items) >= _MANY and all(len(flat(part)) <= _SHORT for part in item.items):
        yield from _filled([flat(part) for part in item.items], inner)
    else:
        for part in item.items:
            yield from _item(part, inner)
    yield indent + item.closing


def _item(part: Item, indent: str) -> Iterator[str]:
    text = flat(part)
    if len(indent) + len(text) < _WIDTH or isinstance(part, str) or not part.items:
        yield f"{indent}{text},"
        return
    *lines, last = _lines(part, indent)
    yield from (*lines, f"{last},")


def _filled(texts: list[str], indent: str) -> Iterator[str]:
    line = indent
    for text in texts:
        if line != indent and len(line) + len(text) + 2 > _WIDTH:
            yield line
            line = indent
        line += f"{text}," if line == indent else f" {text},"
    yield line
