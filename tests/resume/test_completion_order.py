"""Completion order: each item that is left comes once, whatever is held back at the cut."""

import json

import pytest

import nbpipe
from tests.gates import Calls, Gate, finished, stage
from tests.resume.checking import rest_of

COUNT = 24
HELD = (2, 3, 7)


def _children(item):
    return [item, item + 100] if item % 5 else []


KINDS = {
    "map": (lambda item: item, lambda item: [item]),
    "filter": (lambda item: item % 4 != 1, lambda item: [item] * (item % 4 != 1)),
    "flat_map": (_children, _children),
}


def chain_of(method, gates, *, kind="thread", **options):
    """Make a chain whose items wait at their gates, in completion order, perhaps in a buffer."""
    result, _ = KINDS[method]
    calls = Calls()
    function = stage(kind, result=result, gate=gates.get, calls=calls)
    pipe = nbpipe.source(range(COUNT))
    add = getattr(pipe, method)
    pipe = add(function, ordered=False, concurrency=8, name="work", **options)
    return (pipe.shuffle(buffer_size=4) if kind == "buffer" else pipe), calls


def first_part(pipe, gates, cut):
    """Give the first items while the others are held back, and the state behind them."""
    with pipe.start() as run:
        items = iter(run)
        got = finished(lambda: [next(items) for _ in range(cut)])
        state = json.loads(json.dumps(run.state_dict()))
        for gate in gates.values():
            gate.open()
        items.close()
    return got, state


def wanted(method):
    """Return what a whole epoch gives, sorted."""
    return sorted(one for item in range(COUNT) for one in KINDS[method][1](item))


CUTS = {"thread": range(13), "coroutine": range(13), "buffer": range(0, 12, 2)}


@pytest.mark.parametrize(
    ("method", "kind", "cut"),
    [
        (method, kind, cut)
        for kind, cuts in CUTS.items()
        for method in KINDS
        for cut in cuts
        if (method, kind) != ("flat_map", "coroutine")
    ],
)
def test_what_is_left_comes_once(method, kind, cut):
    """What was held back while later items came, or drawn by a buffer, comes later, and once."""
    gates = {number: Gate() for number in HELD}
    pipe, _ = chain_of(method, gates, kind=kind)
    got, state = first_part(pipe, gates, cut)
    other, _ = chain_of(method, {}, kind=kind)
    assert sorted(got + rest_of(other, state)) == wanted(method)


@pytest.mark.parametrize("method", KINDS)
def test_holes_stand_in_the_state(method):
    """Items that were delivered out of order are not read a second time."""
    gates = {number: Gate() for number in HELD}
    pipe, _ = chain_of(method, gates)
    got, state = first_part(pipe, gates, 8)
    other, calls = chain_of(method, {})
    rest = rest_of(other, state)
    twice = {item % 100 for item in got} & set(calls.of)
    partly = {item % 100 for item in rest} & twice
    again = twice - partly  # nobody had seen yet that they have no more children
    assert set(HELD) <= set(calls.of)
    assert method == "flat_map" or not again


@pytest.mark.parametrize("method", KINDS)
def test_a_second_state_with_holes_in_the_first(method):
    """A state of a run that began in a state with holes joins both."""
    gates = {number: Gate() for number in HELD}
    pipe, _ = chain_of(method, gates)
    got, state = first_part(pipe, gates, 5)
    again = {number: Gate() for number in (3, 11)}
    pipe, _ = chain_of(method, again)
    with pipe.start() as run:
        run.load_state_dict(state)
        items = iter(run)
        got += finished(lambda: [next(items) for _ in range(5)])
        state = json.loads(json.dumps(run.state_dict()))
        for gate in again.values():
            gate.open()
        items.close()
    other, _ = chain_of(method, {})
    assert sorted(got + rest_of(other, state)) == wanted(method)


@pytest.mark.slow
@pytest.mark.parametrize("method", KINDS)
def test_processes_in_completion_order(method):
    """Worker processes that finish out of order leave holes, too."""
    gates = {number: Gate() for number in HELD[:1]}
    pipe, _ = chain_of(method, gates, executor="process")
    got, state = first_part(pipe, gates, 6)
    other, _ = chain_of(method, {})
    assert sorted(got + rest_of(other, state)) == wanted(method)
