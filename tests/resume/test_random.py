"""Random pipelines, cut at every item, gone on with by other hands: the whole is the same."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.chains import build, outcome
from tests.gates import finished, quiet
from tests.resume.checking import LEAVE, check_every_cut
from tests.strategies import HANDS, RECIPES, SEEDS, examples

ALL = settings(suppress_health_check=list(HealthCheck))
SHORT = 150  # characters: pipelines of a few stages


@ALL
@given(RECIPES, HANDS, HANDS, SEEDS, st.tuples(st.sampled_from(LEAVE), st.integers(0, 4)))
def test_every_cut_goes_on_exactly(recipe, first, later, seed, left):
    """However an epoch was cut, twice, its parts joined are the uninterrupted one."""

    def check():
        return check_every_cut(recipe, first, later, seed=seed, by=left[0], again=left[1])

    assume(finished(check))


@pytest.mark.slow
@settings(ALL, max_examples=examples(0.1))
@given(RECIPES, HANDS, SEEDS)
def test_isolated_runs_go_on_exactly(recipe, hands, seed):
    """Stages in a process of their own stand where the loop does, too."""
    assume(len(str(recipe)) < SHORT)

    def check():
        return check_every_cut(recipe, hands, hands, seed=seed, most=1, isolate=True)

    assume(finished(check))


@pytest.mark.slow
@settings(ALL, max_examples=examples(0.2))
@given(RECIPES, HANDS, HANDS, SEEDS, st.integers(0, 2))
def test_epochs_that_are_read_ahead(recipe, first, later, seed, rests):
    """With the next epoch ahead every cut goes on exactly, and epochs give what they gave."""

    def check():
        options = {"seed": seed, "read_ahead": True}
        if not check_every_cut(recipe, first, later, again=0, most=3, **options):
            return False
        with build(recipe, first).start(seed=seed) as run:
            expected = [outcome(run) for _ in range(3)]
        with build(recipe, later).start(**options) as run:
            for number in range(3):
                assert outcome(run) == expected[number]
                if number < rests:
                    quiet(run)
        return True

    assume(finished(check))
