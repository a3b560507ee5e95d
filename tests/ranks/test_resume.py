"""A job that was killed in the middle of an epoch goes on with another number of ranks."""

import json
from collections import Counter

import pytest

import nbpipe
from tests.ranks import world
from tests.ranks.jobs import with_number

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ITEMS = 47
WAYS = ["pad", "uneven", "claim"]


def killed(size):
    """Kill ranks in mid-epoch; give the items they had, and their states, for each way."""
    job = world.World(size)
    try:
        job.begin("interrupted", ways=WAYS, items=ITEMS)
        told = job.wait(range(size))
    finally:
        job.kill()
    items = {how: [item for rank in told for item in rank[how][0]] for how in WAYS}
    gathered = [{how: rank[how][1] for how in WAYS} for rank in told]
    assert all(states == gathered[0] for states in gathered)
    return items, json.loads(json.dumps(gathered[0]))


@pytest.mark.parametrize(("before", "after"), [(2, (3, 1)), (3, (2, 3))])
def test_killed_and_resumed(ranks, before, after):
    """What was left comes once, with the same random numbers, and then whole epochs."""
    had, states = killed(before)
    whole = nbpipe.source(range(ITEMS)).shuffle(seed=1).map(with_number)
    with whole.start() as run:
        epochs = [sorted(run) for _ in range(2)]
    for size in after:
        results = ranks.run("resumed", size, states=states, items=ITEMS)
        for how in WAYS:
            rest = [item for rank in results for item in rank[how][0]]
            following = [item for rank in results for item in rank[how][1]]
            repeated = Counter(item for item, _ in had[how] + rest) - Counter(range(ITEMS))
            assert set(epochs[0]) <= {*had[how], *rest}
            assert set(epochs[1]) <= set(following)
            assert sum(repeated.values()) < (size if how == "pad" else 1)
