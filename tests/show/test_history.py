"""The history in columns: thinned evenly, on the clock of the day."""

from nbpipe.ops.stage import CONSUMER
from nbpipe.show.snapshot import history
from tests.show.fakes import BEGUN_S, FakeWatched, past_of, photographs


def test_columns():
    """Each stage and the loop have one rate for each time, in Unix time."""
    run = photographs()
    found = history(run)
    assert list(found["stages"]) == [*run.stages, CONSUMER]
    assert {len(column) for column in found["stages"].values()} == {len(found["time_s"])}
    assert (found["time_s"][0], len(found["changes"])) == (BEGUN_S + 0.25, 2)


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
