"""Pieces stand in the order that importing the module needs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.errors import ExportError
from nbpipe.export.module import Piece, Spelling, ordered


def piece(name, first=0, now="", later="", kind="definition", *literal):
    """Build a piece that binds one name; `literal` adds spellings that read nothing."""
    spelling = Spelling(name, frozenset(now.split()), frozenset(later.split()))
    ways = (spelling, *(Spelling(text) for text in literal))
    return Piece((name,), ways, kind=kind, first=(first, 0), words=f"variable {name!r}")


def constant(name, first=0, now="", later="", *literal):
    """Build a constant."""
    return piece(name, first, now, later, "constant", *literal)


def names(pieces):
    """Return the names in the order that `ordered` gives, from any order."""
    orders = {
        " ".join(name for found in ordered(shuffled) for name in found.names)
        for shuffled in (pieces, pieces[::-1], random.sample(pieces, len(pieces)))
    }
    assert len(orders) == 1, "the order given must not matter"
    return orders.pop()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([constant("K", 1), piece("helper", 1), piece("decode", 2, later="helper K")],
         "K helper decode"),
        ([piece("Mode", 1), piece("Decoder", 2, "Mode dataclass"),
          constant("dec", 3, "Decoder Mode")], "Mode Decoder dec"),
        ([piece("decode", 3, later="Undefined_ok np"), piece("Undefined_ok", 4)],
         "Undefined_ok decode"),
        ([constant("OFF", 1), piece("_inner", 1, later="OFF"), constant("by2", 1, "_inner partial"),
          constant("by3", 1, "_inner partial")], "OFF _inner by2 by3"),
        ([constant("SIZE", 2), piece("crop", 1, "SIZE")], "SIZE crop"),
        ([piece("a", 1), piece("setup", 3, kind="setup"), constant("B", 2)], "setup B a"),
        ([piece("even", 1, later="odd"), piece("odd", 2, later="even"),
          piece("top", 0, later="even")], "even odd top"),
    ],
)  # fmt: skip
def test_small_modules_read_as_one_would_write_them(pieces, expected):
    """Constants, then what is called, then what calls it; else by where it was first bound."""
    assert names(pieces) == expected


def test_a_function_called_while_importing_has_all_that_it_uses():
    """What a constant's function calls stands above the constant, circles or not."""
    pieces = [
        constant("table", 0, "make"),
        piece("make", 1, later="row limit"),
        piece("row", 2, later="make"),
        constant("limit", 3, "depth"),
        piece("depth", 4),
    ]
    assert names(pieces) == "depth limit make row table"


def test_set_up_has_only_what_it_uses_above_it():
    """What does not serve the set-up waits for it."""
    pieces = [
        constant("weights", 0, "random"),
        piece("seed_all", 3, later="SEED"),
        constant("SEED", 4),
        piece("setup", 5, "seed_all", kind="setup"),
    ]
    assert names(pieces) == "SEED seed_all setup weights"


def test_children_may_be_named_in_their_base():
    """A base class that builds its children stands above them: only calls wait for them."""
    pieces = [
        piece("Child", 1, "Base"),
        piece("Other", 2, "Base"),
        piece("Base", 3, later="Child Other"),
    ]
    assert names(pieces) == "Base Child Other"


def test_a_literal_opens_a_circle():
    """Where values were made from each other, one of them is written without the other."""
    pieces = [constant("a", 1, "b", "", "3"), constant("b", 2, "a", "", "2")]
    assert names(pieces) == "a b"
    assert [len(found.spellings) for found in ordered(pieces)] == [1, 2]


def test_a_circle_that_cannot_be_opened_is_refused():
    """The message names who needs whom, and nobody else."""
    pieces = [constant("a", 1, "b"), piece("b", 2, "a"), piece("c", 3, "a"), piece("d", 0)]
    with pytest.raises(ExportError) as caught:
        ordered(pieces)
    assert str(caught.value).startswith("cannot put variable 'a' and variable 'b' in an order")


@given(st.lists(st.tuples(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11))), max_size=12))
def test_what_is_read_now_stands_above(edges):
    """Names read while importing are always above; names read later are, without circles."""
    pieces = [
        piece(
            f"n{number}",
            -number,
            " ".join(f"n{other}" for other in now if other < number),
            " ".join(f"n{other}" for other in later),
        )
        for number, (now, later) in enumerate(edges)
    ]
    found = names(pieces).split()
    height = {name: number for number, name in enumerate(found)}
    wrong = [
        name
        for name, built in zip(found, ordered(pieces), strict=True)
        for other in built.now
        if height[other] > height[name]
    ]
    assert sorted(found) == sorted(f"n{number}" for number in range(len(edges)))
    assert wrong == []


@given(st.lists(st.sets(st.integers(0, 11)), max_size=12))
def test_callees_stand_above_their_callers(calls):
    """Without circles, a function stands below all functions that it calls."""
    pieces = [
        piece(f"n{number}", -number, later=" ".join(f"n{it}" for it in callees if it < number))
        for number, callees in enumerate(calls)
    ]
    height = {name: number for number, name in enumerate(names(pieces).split())}
    wrong = [
        (built.names, callee)
        for built in pieces
        for callee in built.later
        if height[callee] > height[built.names[0]]
    ]
    assert wrong == []
