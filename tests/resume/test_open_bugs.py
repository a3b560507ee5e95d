"""What waits for a mend: each of these is right, and fails."""

import pytest

import nbpipe
from nbpipe import StateError
from tests.gates import finished
from tests.resume.checking import carried


@pytest.mark.parametrize("rank", [[5, 2], [0, 0], ["a", 2], [-1, 2], [0, 10**9], [0, 2**70], None])
def test_ranks_that_cannot_be(rank):
    """A rank outside its world, or a world of no or of a billion ranks, is refused."""
    with nbpipe.source(range(9)).shard(0, 2).start() as run:
        items = iter(run)
        next(items)
        state = {**carried(run.state_dict()), "ranks": {"shard": rank}}
    with nbpipe.source(range(9)).shard(0, 3).start() as run, pytest.raises(StateError) as caught:
        finished(run.load_state_dict, state)
    assert "rank" in str(caught.value)


@pytest.mark.parametrize("word", ["shuffle", "mix"])
def test_a_number_of_draws_that_would_take_minutes(word):
    """A count of draws beyond reason is refused, or gone on from at once."""
    base = nbpipe.source(range(40))
    pipe = {"shuffle": base.shuffle(buffer_size=4), "mix": nbpipe.mix([base, base])}[word]
    with pipe.start() as run:
        items = iter(run)
        next(items)
        state = carried(run.state_dict())
    state["stages"][word][{"shuffle": "drawn", "mix": "draws"}[word]] = 10**12

    def go_on():
        with pipe.start() as run:
            try:
                run.load_state_dict(state)
                return next(iter(run), 0)
            except StateError:
                return 0

    assert finished(go_on) >= 0
