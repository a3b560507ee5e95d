"""Order: pieces in the order that importing the module needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..errors import ExportError
from .model import Piece, Spelling

_RANK = {"setup": 0, "constant": 1, "definition": 2}

# For each piece that is not placed yet, by its number, the numbers of those it must follow.
_Edges = dict[int, set[int]]


@dataclass(frozen=True, slots=True)
class _Graph:
    """Who follows whom.

    Attributes:
        hard: whose names are read while the module is imported.
        calls: what those read in turn: a function that is called needs all that it uses. And
            set-up, for all that set-up itself does not use.
        soft: whose names are read later, and what those read; callees read best above callers.
    """

    hard: _Edges
    calls: _Edges
    soft: _Edges

    def all_edges(self) -> _Edges:
        """Give for each piece all that it is to follow."""
        return _united(self.hard, _united(self.calls, self.soft))

    def without(self, placed: list[int]) -> _Graph:
        """Leave out the pieces that have their place."""
        done = set(placed)
        return _Graph(*(_left(edges, done) for edges in (self.hard, self.calls, self.soft)))


def _united(these: _Edges, those: _Edges) -> _Edges:
    return {piece: needs | those[piece] for piece, needs in these.items()}


def _left(edges: _Edges, done: set[int]) -> _Edges:
    return {piece: needs - done for piece, needs in edges.items() if piece not in done}


def ordered(pieces: Iterable[Piece]) -> list[Piece]:
    """Order pieces so that each stands below what it needs; else by where they were first bound.

    Set-up comes first, below what it uses itself; then constants, then definitions. A function
    stands below the functions it calls, unless they call each other. Where constants need each
    other, one of them loses the spellings that say so.

    Raises:
        ExportError: pieces need each other, and have no other spelling.
    """
    by_rank = sorted(pieces, key=_rank)
    graph = _graph(by_rank)
    placed: list[int] = []
    while len(placed) < len(by_rank):
        left = graph.without(placed)
        number = _next(left)
        if number is None:
            by_rank = _without_circle(by_rank, left)
            graph = _graph(by_rank)
        else:
            placed.append(number)
    return [by_rank[number] for number in placed]


def _rank(piece: Piece) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    return _RANK[piece.kind], piece.first, piece.names


def _graph(pieces: list[Piece]) -> _Graph:
    homes: dict[str, set[int]] = {}
    for number, piece in enumerate(pieces):
        for name in piece.names:
            homes.setdefault(name, set()).add(number)
    hard = _edges(pieces, homes, lambda spelling: spelling.now)
    soft = _edges(pieces, homes, lambda spelling: spelling.later)
    uses = _united(hard, soft)
    calls = {piece: _reached(needs, uses) - {piece} for piece, needs in hard.items()}
    later = {piece: _reached(needs, uses) - {piece} for piece, needs in soft.items()}
    setups = {number for number, piece in enumerate(pieces) if piece.kind == "setup"}
    for number in calls.keys() - _reached(setups, uses):
        calls[number] |= setups
    return _Graph(hard, calls, later)


def _edges(
    pieces: list[Piece],
    homes: dict[str, set[int]],
    read: Callable[[Spelling], frozenset[str]],
) -> _Edges:
    edges: _Edges = {}
    for number, piece in enumerate(pieces):
        names = {name for spelling in piece.spellings for name in read(spelling)}
        edges[number] = {home for name in names for home in homes.get(name, ())} - {number}
    return edges


def _reached(starts: Iterable[int], edges: _Edges) -> set[int]:
    found: set[int] = set()
    ahead = set(starts)
    while ahead:
        piece = ahead.pop()
        found.add(piece)
        ahead |= edges[piece] - found
    return found


def _next(graph: _Graph) -> int | None:
    """Give the best piece that can stand next, or None where circles leave none."""
    edges = graph.all_edges()
    free = next((piece for piece, needs in edges.items() if not needs), None)
    if free is not None:
        return free
    circling = _circling(edges)
    blocks = (_united(graph.hard, graph.calls), graph.hard)
    return next((piece for needs in blocks for piece in circling if not needs[piece]), None)


def _circling(edges: _Edges) -> list[int]:
    """List pieces that follow each other and no others."""
    below: _Edges = {piece: set() for piece in edges}
    for piece, needs in edges.items():
        for need in needs:
            below[need].add(piece)
    piece = next(iter(edges))
    while others := _reached([piece], edges) - _reached([piece], below):
        piece = min(others)
    return sorted(_reached([piece], edges))


def _without_circle(pieces: list[Piece], graph: _Graph) -> list[Piece]:
    """Take from one piece of a circle the spellings that close it."""
    circle = _circling({piece: graph.hard[piece] for piece in _circling(graph.all_edges())})
    names = {name for number in circle for name in pieces[number].names}
    for number in circle:
        piece = pieces[number]
        spellings = tuple(way for way in piece.spellings if not way.now & names)
        if spellings:
            return [*pieces[:number], replace(piece, spellings=spellings), *pieces[number + 1 :]]
    culprits = " and ".join(_words(pieces[number]) for number in circle)
    raise ExportError(
        f"cannot put {culprits} in an order: while a module is imported, what is read must stand "
        "above what reads it, and these read each other; "
        "look one of the names up inside a function"
    )


def _words(piece: Piece) -> str:
    return piece.words or ", ".join(map(repr, piece.names))
