"""Which items are still wanted: the arithmetic agrees with plain sets of numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.inner import IndexRanges

END = 60  # beyond what any example leaves out
RUNS = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=6)


@st.composite
def rests(draw):
    """Give a rest, made of runs that may touch and overlap."""
    runs = sorted((first, first + length) for first, length in draw(RUNS))
    return IndexRanges.of(draw(st.integers(0, 10)), runs)


def wanted(rest, end=END):
    """List the wanted numbers below `end`."""
    return [number for number in range(end) if number in rest]


@given(st.integers(0, 10), RUNS)
def test_of_leaves_out_what_it_is_told(start, runs):
    """What is wanted is neither before the start nor in any run; the runs are apart."""
    runs = sorted((first, first + length) for first, length in runs)
    rest = IndexRanges.of(start, runs)
    bounds = [rest.start, *(number for run in rest.gaps for number in run)]
    out = {number for first, end in runs for number in range(first, end)} | set(range(start))
    assert wanted(rest) == [number for number in range(END) if number not in out]
    assert bounds == sorted(set(bounds))


@given(st.integers(0, 10), RUNS)
def test_arrays_give_the_same_as_runs(start, runs):
    """The way over arrays, in any order, ends at the same holes."""
    runs = [(first, first + length + 1) for first, length in runs]
    firsts = np.array([first for first, _ in runs], np.int64)
    ends = np.array([end for _, end in runs], np.int64)
    assert IndexRanges.of_arrays(start, firsts, ends) == IndexRanges.of(start, sorted(runs))


@given(st.sets(st.integers(0, 30)), st.integers(0, 10))
def test_only_wants_the_numbers_given(numbers, more):
    """The numbers given are wanted, and all from the frontier on."""
    frontier = max(numbers, default=-1) + 1 + more
    rest = IndexRanges.only(sorted(numbers), frontier)
    assert wanted(rest) == [*sorted(numbers), *range(frontier, END)]


@given(rests(), rests())
def test_of_wanted_counts_what_is_wanted(outer, inner):
    """The n-th wanted item of the outer one is wanted when the inner one wants number n."""
    numbers = wanted(outer, 4 * END)
    expected = [numbers[n] for n in wanted(inner, 2 * END)]
    assert wanted(outer.of_wanted(inner), numbers[2 * END]) == expected


@given(rests(), rests())
def test_ranked_is_the_way_back(outer, inner):
    """What was put among the wanted items is found there again."""
    assert outer.ranked(outer.of_wanted(inner)) == inner


@given(rests(), rests())
def test_both_wants_what_both_want(one, other):
    """A number is wanted by both, or not at all."""
    assert wanted(one.both(other)) == [n for n in wanted(one) if n in other]


@given(rests())
def test_pick_gives_the_wanted_numbers(rest):
    """An array of ranks becomes the array of numbers."""
    numbers = wanted(rest)
    assert rest.pick(np.arange(len(numbers))).tolist() == numbers
    assert list(rest.numbers(END)) == numbers


@given(rests(), st.integers(0, 40))
def test_since_and_within_part_a_rest(rest, place):
    """What is wanted before a place and from it on is all that is wanted."""
    before = wanted(rest.within(place), place)
    behind = [place + number for number in wanted(rest.since(place), END - place)]
    assert before + behind == wanted(rest)
    assert rest.first_from(place) == next(n for n in range(place, 4 * END) if n in rest)


@given(rests())
def test_data_can_be_read(rest):
    """Lists of numbers and back."""
    assert IndexRanges.read(rest.data) == rest
    assert rest.left_out == END - len(wanted(rest))
