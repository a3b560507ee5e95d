"""Random pipelines, cut at every item, gone on with by other hands: the whole is the same."""

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.gates import finished
from tests.resume.checking import LEAVE, check_every_cut
from tests.resume.strategies import HANDS, RECIPES, SEEDS
from tests.strategies import examples

ALL = settings(suppress_health_check=list(HealthCheck))
SHORT = 150  # characters: pipelines of a few stages


@ALL
@given(RECIPES, HANDS, HANDS, SEEDS, st.tuples(st.sampled_from(LEAVE), st.integers(0, 4)))
def test_every_cut_goes_on_exactly(recipe, first, later, seed, left):
    """However an epoch was cut, twice, its parts joined are the uninterrupted one."""

    def check():
        return check_every_cut(recipe, first, later, seed=seed, by=left[0], again=left[1])

    assume(finished(check))


@settings(ALL, max_examples=examples(0.1))
@given(RECIPES, HANDS, SEEDS)
def test_isolated_runs_go_on_exactly(recipe, hands, seed):
    """Stages in a process of their own stand where the loop does, too."""
    assume(len(str(recipe)) < SHORT)

    def check():
        return check_every_cut(recipe, hands, hands, seed=seed, most=1, isolate=True)

    assume(finished(check))
