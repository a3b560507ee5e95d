"""What autotune reaches on each kind of pipeline, in virtual time; `python -m tests.tune.score`."""

import pytest

from tests.tune.kinds import KINDS
from tests.tune.score import GOALS, missed, score, table

EVERYDAY = ("io", "consumer", "lock", "growing")


@pytest.mark.parametrize(
    "kind", [one if one in EVERYDAY else pytest.param(one, marks=pytest.mark.slow) for one in KINDS]
)
def test_goals(kind):
    """With one seed, each goal holds."""
    assert missed(kind, [score(KINDS[kind], 0)]) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_goals_with_a_hundred_seeds(kind):
    """The median and the worst of a hundred seeds hold what the page of the design promises."""
    assert missed(kind, [score(KINDS[kind], seed) for seed in range(100)]) == []


def test_a_goal_that_is_missed_is_named():
    """The message has the number that was asked for, and the seed."""
    good = score(KINDS["consumer"], 0)
    bad = [good._replace(reached=0.5, seed=7, reversals=3)]
    assert missed("consumer", [good]) == []
    assert missed("consumer", bad) == [
        "consumer: reached, median: 0.50, 0.98 is asked for",
        "consumer: reached, worst: 0.50, 0.95 is asked for (seed 7)",
        "consumer: reversals, worst: 3.00, 2.00 is asked for (seed 7)",
    ]
    assert "consumer" in table({"consumer": bad})
    assert GOALS["below"][1] == 0.95
