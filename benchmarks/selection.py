"""Selection: the names given on a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def chosen(things: Sequence[T], names: str, name: Callable[[T], str]) -> list[T]:
    """Give the things named in a comma-separated text; all of them where it is empty.

    Raises:
        SystemExit: a name is not known.
    """
    wanted = [part.strip() for part in names.split(",") if part.strip()]
    known = {name(thing): thing for thing in things}
    for word in wanted:
        if word not in known:
            raise SystemExit(f"no {word!r}; there are {', '.join(known)}")
    return [known[word] for word in wanted] if wanted else list(things)
