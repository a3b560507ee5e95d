"""The history in columns: thinned evenly, on the clock of the day."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.ops.stage import CONSUMER
from nbpipe.show.snapshot import history, spread
from tests.show.fakes import BEGUN_S, NOW_S, FakeWatched, past_of, photographs


def test_columns():
    """Each stage and the loop have one rate for each time, in Unix time."""
    run = photographs()
    found = history(run)
    assert list(found["stages"]) == [*run.stages, CONSUMER]
    assert {len(column) for column in found["stages"].values()} == {len(found["time_s"])}
    assert (found["time_s"][0], len(found["changes"])) == (BEGUN_S + 0.25, 2)


def test_rows_without_the_time_of_day(monkeypatch):
    """Where rows do not hold the time of day, the last one is new."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    run = photographs()
    for row in run.past:
        del row["when_s"]
    assert history(run)["time_s"][-1] == NOW_S


def test_late_stage():
    """A stage that came later did nothing before."""
    run = photographs()
    run.past = [row for row in run.past if row["stage"] != "batch" or row["time_s"] > 38]
    assert history(run)["stages"]["batch"][:38] == [0.0] * 38


def test_thinned():
    """A long history is thinned to the points asked for, the newest among them."""
    run = photographs()
    run.past = past_of(run.rows, seconds=900)
    found = history(run, 300)
    assert (len(found["time_s"]), found["time_s"][-1]) == (300, BEGUN_S + 899.25)


def test_nothing_yet():
    """Before the first row the columns are empty."""
    assert history(FakeWatched()) == {"time_s": [], "stages": {}, "changes": []}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_are_kept(count):
    """What is few enough is kept whole."""
    assert spread(count, 5) == list(range(count))


@given(st.integers(1, 3000), st.integers(1, 700))
def test_spread_is_even(count, most):
    """Places are in order, evenly apart, end with the last and are no more than asked for."""
    places = spread(count, most)
    steps = {b - a for a, b in pairwise(places)}
    assert len(places) == min(count, most)
    assert (places[-1], max(steps, default=0) - min(steps, default=0) <= 1) == (count - 1, True)
