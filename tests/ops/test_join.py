"""zip, concat, mix, interleave: against plain lists, nested in each other, and bare."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError
from tests import models
from tests.chains import Hands, build, called
from tests.inner import order_generator
from tests.strategies import HANDS, ITEMS, recipes

LISTS = st.lists(ITEMS, min_size=1, max_size=5)


def pipes_of(lists, hands=None):
    """Make a pipeline of each list, with a stage in it."""
    dealt = (hands or Hands()).deal()
    return [called(nbpipe.source(items), "map", lambda item: item, dealt) for items in lists]


def interleaved(lists, cycle):
    """Take turns between lists, `cycle` of them open at once."""
    waiting = [iter(items) for items in lists]
    opened, waiting = waiting[:cycle], waiting[cycle:]
    found, turn = [], 0
    while opened:
        item = next(opened[turn], waiting)  # a list can be no item
        if item is waiting:
            opened[turn : turn + 1] = [waiting.pop(0)] if waiting else []
            turn = turn % len(opened) if opened else 0
        else:
            found.append(item)
            turn = (turn + 1) % len(opened)
    return found


def mixed(lists, weights, seed, stop, epoch=0):
    """Draw from lists by weight, as the documentation says."""
    rng = order_generator(seed, epoch)
    queues = {number: list(items) for number, items in enumerate(lists)}
    chances = {number: weight / sum(weights) for number, weight in enumerate(weights)}
    found = []
    while queues:
        point, drawn = rng.random() * sum(chances[number] for number in queues), None
        for drawn in queues:
            point -= chances[drawn]
            if point < 0:
                break
        if queues[drawn]:
            found.append(queues[drawn].pop(0))
        elif stop == "shortest":
            break
        else:
            del queues[drawn]
    return found


@given(st.integers(0, 20), st.integers(1, 4), HANDS)
def test_zip_of_equal_lengths(length, count, hands):
    """Pipelines of one length give whole rows."""
    lists = [[10 * number + place for place in range(length)] for number in range(count)]
    assert list(nbpipe.zip(*pipes_of(lists, hands))) == list(zip(*lists, strict=True))


@pytest.mark.parametrize(("lengths", "ended", "longer"), [((3, 5), 0, 1), ((4, 2), 1, 0)])
def test_zip_of_unequal_lengths_raises_at_the_end(lengths, ended, longer):
    """Every whole row comes first, then the error says which pipeline was short."""
    got = []
    with pytest.raises(ArgumentError) as caught:
        got.extend(nbpipe.zip(*pipes_of([list(range(length)) for length in lengths])))
    rows = min(lengths)
    assert got == [(number, number) for number in range(rows)]
    assert str(caught.value) == (
        f"zip needs pipelines of equal length: pipeline {ended} ended after {rows} items, "
        f"pipeline {longer} has more; use strict=False to stop at the shortest"
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("first", ["short", "failing"])
def test_zip_asks_in_order(first, strict):
    """As with Python's zip, the input asked first decides whether a failure is seen."""

    def failing():
        yield from range(3)
        raise OSError("no disk")

    inputs = {"short": nbpipe.source(range(3)), "failing": nbpipe.source(failing)}
    joined = nbpipe.zip(inputs.pop(first), *inputs.values(), strict=strict)
    errors = []
    for _ in range(20):
        try:
            errors.append(len(list(joined)))
        except nbpipe.StageError as error:
            errors.append(str(error.__cause__))
    assert set(errors) == ({"no disk"} if strict or first == "failing" else {3})


@given(LISTS, st.integers(1, 6), HANDS)
def test_interleave_takes_turns(lists, cycle, hands):
    """One item from each open pipeline; the next opens where one has ended."""
    pipe = nbpipe.interleave(pipes_of(lists, hands), cycle)
    assert list(pipe) == interleaved(lists, cycle)
    assert len(pipe) == sum(map(len, lists))


@pytest.mark.parametrize(
    "join",
    [lambda pipes: nbpipe.interleave(pipes, 2, prefetch=1), lambda pipes: nbpipe.concat(*pipes)],
    ids=["interleave", "concat"],
)
def test_inputs_are_opened_late(join):
    """A pipeline beyond the cycle, or behind the one after the current one, is not read yet."""
    opened = []

    def reader(number):
        def read():
            opened.append(number)
            yield from range(100)

        return read

    with join([nbpipe.source(reader(number)) for number in range(6)]).start() as run:
        next(iter(run))
    assert set(opened) <= {0, 1}


@given(
    LISTS,
    st.lists(st.floats(0.01, 10), min_size=5, max_size=5),
    st.integers(0, 2**64),
    st.sampled_from(["longest", "shortest"]),
    HANDS,
)
def test_mix_draws_by_weight(lists, weights, seed, stop, hands):
    """The draws depend on the seed and the lists alone, whatever the timing."""
    weights = weights[: len(lists)]
    pipe = nbpipe.mix(pipes_of(lists, hands), weights, seed=seed, stop=stop)
    assert list(pipe) == mixed(lists, weights, seed, stop)


def test_mix_draws_anew_every_epoch():
    """Epochs and seeds differ, the same epoch does not."""
    pipes = pipes_of([[0] * 50, [1] * 50])
    with nbpipe.mix(pipes, seed=1).start() as run:
        first, second = list(run), list(run)
    others = list(nbpipe.mix(pipes, seed=2))
    assert first == list(nbpipe.mix(pipes, seed=1))
    assert len({tuple(first), tuple(second), tuple(others)}) == 3


def test_passes_of_repeat_mix_anew():
    """A second pass draws another order."""
    drawn = list(nbpipe.mix(pipes_of([[0] * 50, [1] * 50])).repeat(2))
    assert Counter(drawn[:100]) == Counter(drawn[100:])
    assert drawn[:100] != drawn[100:]


@pytest.mark.slow
@given(st.lists(recipes(longest=3), min_size=1, max_size=3), st.data(), HANDS)
def test_joins_within_joins(inner, data, hands):
    """Joins of any pipelines, nested in each other, give what lists would."""
    parts = [(build(recipe, hands), models.given(recipe)) for recipe in inner]
    for _ in range(data.draw(st.integers(1, 3))):
        pipes, lists = [part[0] for part in parts], [part[1] for part in parts]
        cycle = data.draw(st.integers(1, 4))
        weights = [1 + number for number in range(len(parts))]
        parts = [
            data.draw(st.sampled_from(parts)),
            (nbpipe.zip(*pipes, strict=False), list(zip(*lists, strict=False))),
            (nbpipe.concat(*pipes), list(itertools.chain.from_iterable(lists))),
            (nbpipe.interleave(pipes, cycle), interleaved(lists, cycle)),
            (nbpipe.mix(pipes, weights), mixed(lists, weights, 0, "longest")),
        ][:3]
    pipe, expected = data.draw(st.sampled_from(parts))
    assert list(pipe) == expected


@pytest.mark.parametrize("join", ["concat", "zip", "interleave", "mix"])
def test_a_pipeline_joined_with_itself(join):
    """The same stages twice are two streams, with one set of knobs."""
    pipe = nbpipe.source([1, 2]).map(str)
    pairs = [pipe, pipe]
    joined = getattr(nbpipe, join)(*([pairs] if join in ("interleave", "mix") else pairs))
    assert sorted(map(str, joined)) == sorted(
        {"zip": ["('1', '1')", "('2', '2')"]}.get(join, ["1", "1", "2", "2"])
    )
    assert joined["0/source"] is joined["1/source"]


@pytest.mark.parametrize("join", ["concat", "zip", "interleave", "mix"])
def test_a_failing_input_fails_the_join_in_order(join):
    """What comes before the failure in the joined order arrives first."""

    def broken(item):
        raise ValueError(item)

    good, bad = nbpipe.source([1]), nbpipe.source([2]).map(broken, name="bad")
    joined = {
        "concat": nbpipe.concat(good, bad),
        "zip": nbpipe.zip(good, bad),
        "interleave": nbpipe.interleave([good, bad]),
        "mix": nbpipe.mix([good, bad], [1e9, 1]),
    }[join]
    got = []
    with pytest.raises(nbpipe.StageError) as caught:
        got.extend(joined)
    assert (got, caught.value.stage) == ([] if join == "zip" else [1], "bad")


@pytest.mark.parametrize("join", ["concat", "zip", "interleave", "mix"])
def test_joins_of_empty_pipelines(join):
    """No items of no pipelines are no items."""
    pipes = [nbpipe.source([]), nbpipe.source(lambda: iter([]))]
    joined = getattr(nbpipe, join)(*([pipes] if join in ("interleave", "mix") else pipes))
    assert list(joined) == []


def test_endless_inputs():
    """A join of endless pipelines is endless; `take` gives it an end."""
    ones, twos = nbpipe.source([1]).map(int).repeat(), nbpipe.source([2]).repeat()
    assert list(nbpipe.zip(ones, twos).take(3)) == [(1, 2)] * 3
    assert list(nbpipe.interleave([ones, twos]).take(4)) == [1, 2, 1, 2]
    assert list(nbpipe.zip(nbpipe.source(range(3)), twos, strict=False)) == [(0, 2), (1, 2), (2, 2)]
    assert list(nbpipe.concat(nbpipe.source([0]), twos).take(3)) == [0, 2, 2]


def test_paths_of_inputs_never_meet():
    """Items of two inputs draw different random numbers, however deep they come from."""

    def draw(item, rng):
        return int(rng.integers(2**62))

    flat = nbpipe.source(range(3)).flat_map(lambda item: [item] * 3)
    joined = nbpipe.concat(nbpipe.source(range(9)).map(int), flat, flat).map(draw)
    assert len(set(joined)) == 27


# -- refused ---------------------------------------------------------------------------------------

ONE = [nbpipe.source([1])]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (nbpipe.zip, "zip must be given at least one pipeline, got none"),
        (nbpipe.concat, "concat must be given at least one pipeline, got none"),
        (lambda: nbpipe.mix([]), "mix must be given at least one pipeline, got none"),
        (
            lambda: nbpipe.zip([1, 2]),
            "zip must be given pipelines one by one, got a list; write zip(*pipes)",
        ),
        (
            lambda: nbpipe.concat(ONE[0], range(3)),
            "concat must be given pipelines, got range; wrap it: nbpipe.source(...)",
        ),
        (
            lambda: nbpipe.mix(ONE[0], ONE[0]),
            "mix must be given a sequence of pipelines, got Pipeline; for example mix([",
        ),
        (
            lambda: nbpipe.interleave(one for one in ONE),
            "interleave must be given a sequence of pipelines, got generator; for example inter",
        ),
        (lambda: nbpipe.zip(ONE[0], strict=1), "zip strict must be True or False, got 1"),
        (
            lambda: nbpipe.mix(ONE, [1, 2]),
            "mix weights must be 1 numbers, one a pipeline, got [1, 2]",
        ),
        (lambda: nbpipe.mix(ONE, 3), "mix weights must be a sequence of numbers, got 3"),
        (lambda: nbpipe.mix(ONE, [0]), "mix weights must be finite numbers above 0, got [0]"),
        (lambda: nbpipe.mix(ONE, [np.inf]), "mix weights must be finite numbers above 0"),
        (lambda: nbpipe.mix(ONE, "1"), "mix weights must be finite numbers above 0, got '1'"),
        (lambda: nbpipe.mix(ONE, seed=None), "mix seed must be an int in ["),
        (
            lambda: nbpipe.mix(ONE, stop="never"),
            "mix stop must be 'longest' or 'shortest', got 'never'",
        ),
        (
            lambda: nbpipe.interleave(ONE, 0),
            "interleave cycle must be an int of at least 1 pipelines, got 0",
        ),
    ],
)
def test_what_cannot_be_joined(made, message):
    """Something else than pipelines, and weights that do not fit."""
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        made()
    assert str(caught.value).startswith(message)
