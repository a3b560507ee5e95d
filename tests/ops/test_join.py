"""Joins, bare: driven by hand, without an engine."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.ops.join import Concat, Interleave, Mix, Zip
from nbpipe.ops.join import GoesOn as Begin
from nbpipe.ops.remaining import Remaining

KINDS = {
    "zip": Zip(strict=False),
    "concat": Concat(),
    "mix": Mix(weights=(0.5, 0.3, 0.2), seed=3),
    "interleave": Interleave(cycle=2),
}


class Queue(deque):
    """What waits in an input."""

    @property
    def count(self):
        return len(self)


def inputs(*counts, done=True, first=None):
    """Make inputs of so many items; `first` says from which item on each of them goes."""
    starts = first or [0] * len(counts)
    queues = [
        Queue((item, (number, item)) for item in range(start, count))
        for number, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return [SimpleNamespace(out=queue, done=done, error=None) for queue in queues]


def begun(spec, count=3, node_state=()):
    """Return the join of a specification, and the inputs that are open at first."""
    return spec.join(Begin("joined", count, dict(node_state), np.random.default_rng))


def drain(join, streams, most=4):
    """Take all there is."""
    taken = []
    while not join.over:
        more = join.take(streams, most)
        assert len(more) <= most
        if not more and not join.over:
            break
        taken += more
    return taken


def test_zip_takes_rows():
    """Rows have the path of their first item and the sum of the sizes; the shortest ends it."""
    join, opened = begun(KINDS["zip"], 2)
    streams = inputs(3, 2)
    assert drain(join, streams) == [(0, ((0, 0), (1, 0))), (1, ((0, 1), (1, 1)))]
    assert (list(opened), join.error, join.unread) == ([0, 1], None, [0])
    sized = [SimpleNamespace(out=Queue([(7, "a", 10)]), done=True, error=None) for _ in range(2)]
    assert begun(KINDS["zip"], 2)[0].take(sized, 5) == [(7, ("a", "a"), 20)]


def test_strict_zip_names_the_longer_input():
    """Inputs of different lengths are an error at the end of the shorter one."""
    join, _ = begun(Zip(strict=True), 2)
    assert len(drain(join, inputs(3, 2))) == 2
    assert "pipeline 1 ended after 2 items, pipeline 0 has more" in str(join.error)


def test_concat_wants_its_inputs_one_by_one():
    """The input after the current one warms up; each path begins with its input's number."""
    join, opened = begun(KINDS["concat"])
    streams = inputs(1, 2, 1)
    assert list(opened) == [0, 1]
    assert [path for path, _ in drain(join, streams, 1)] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert (join.wanted, join.over) == ([2], True)


def test_interleave_takes_turns_and_opens_the_next():
    """Two inputs are open at once; the third is wanted when one of them has ended."""
    join, opened = begun(KINDS["interleave"])
    assert opened == {0, 1}
    numbers = [path[0] for path, _ in drain(join, inputs(1, 3, 2))]
    assert (numbers, join.wanted) == ([0, 1, 2, 1, 2, 1], [2])


def test_mix_draws_by_weight():
    """Draws are those of the generator; an input that has ended is drawn no more."""
    join, _ = begun(Mix(weights=(0.75, 0.25), seed=1), 2)
    numbers = [path[0] for path, _ in drain(join, inputs(2000, 2000))]
    rng = np.random.default_rng(1)
    assert numbers[:1000] == [int(rng.random() >= 0.75) for _ in range(1000)]
    assert sorted(numbers) == [0] * 2000 + [1] * 2000


@pytest.mark.parametrize("name", KINDS)
def test_waits_for_an_input_that_has_not_ended(name):
    """Nothing is taken out of turn: an input that is empty and not done is waited for."""
    join, _ = begun(KINDS[name])
    assert join.take(inputs(0, 5, 5, done=False), 9)[1:] == []
    assert not join.over


@pytest.mark.parametrize("name", KINDS)
def test_error_of_an_input_ends_the_join_behind_its_items(name):
    """Items that come before it are given first."""
    streams = inputs(2, 2, 2)
    error = streams[0].error = OSError("gone")
    join, _ = begun(KINDS[name])
    taken = drain(join, streams, 1)
    assert taken
    assert join.error is error


@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(0, 7), min_size=3, max_size=3),
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_goes_on_where_it_was(name, counts, done, most):
    """A join that begins with the state of another gives what that one would have given."""
    whole = drain(begun(KINDS[name])[0], inputs(*counts))
    join, streams = begun(KINDS[name])[0], inputs(*counts)
    taken = []
    while len(taken) < done and not join.over:
        more = join.take(streams, most)
        if not more:
            break
        taken += more
    seen = min(done, len(taken))
    node_state = {}
    rests = join.rest_of_inputs(Remaining(seen), 3, node_state)
    again = [
        count if rest is None else rest.start for rest, count in zip(rests, counts, strict=True)
    ]
    left = drain(begun(KINDS[name], 3, node_state)[0], inputs(*counts, first=again))
    assert left == whole[seen:]
