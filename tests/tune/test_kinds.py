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
    found = missed(kind, [score(KINDS[kind], 0)], known=True)
    assert [line for line in found if "median" not in line] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_goals_with_many_seeds(kind):
    """The median of twenty seeds reaches each goal, and the worst what `HOLDS` says."""
    scores = [score(KINDS[kind], seed) for seed in range(20)]
    assert missed(kind, scores, known=True) == []


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
