"""The history in columns: thinned evenly, on the clock of the day."""

from tests.show.fakes import BEGUN_S, FakeWatched, past_of, photographs
from tests.show.inner import history


def test_columns():
    """Each stage and the loop have one rate for each time, in Unix time."""
    run = photographs()
    found = history(run)
    assert list(found["stages"]) == [*run.stages, "consumer"]
    assert {len(column) for column in found["stages"].values()} == {len(found["time_s"])}
    assert (found["time_s"][0], len(found["changes"])) == (BEGUN_S + 0.25, 2)


def test_late_stage():
    """A stage that came later did nothing before."""
    run = photographs()
    run.past = [row for row in run.past if row["stage"] != "batch" or row["time_s"] > 38]
    assert history(run)["stages"]["batch"][:38] == [0.0] * 38


def test_rates_are_those_that_the_panel_showed():
    """A stage that makes 500 items every fifth second has made 100 items/s all the while."""
    run = photographs()
    run.past = [
        row | {"items_per_s": 0.0 if round(row["time_s"]) % 5 else 500.0}
        for row in past_of(run.rows)
    ]
    rates = history(resting(run))["stages"]["files"]
    assert (rates[5], rates[12:]) == (100.0, [100.0] * 30)
    assert rates[7:9] == [0.0, 0.0]  # behind a gap they begin anew


def test_thinned():
    """A long history is thinned to the points asked for, the newest among them."""
    run = photographs()
    run.past = past_of(run.rows, seconds=900)
    found = history(run, 300)
    assert (len(found["time_s"]), found["time_s"][-1]) == (300, BEGUN_S + 899.25)


def test_nothing_yet():
    """Before the first row the columns are empty."""
    nothing = {"time_s": [], "stages": {}, "changes": [], "epoch": None}
    assert history(FakeWatched()) == nothing


def resting(run, *, epoch=1, rest_s=20.0):
    """Let so much time lie before the first row of an epoch."""
    run.past = [
        {**row, "time_s": row["time_s"] + rest_s, "when_s": row["when_s"] + rest_s}
        if row["epoch"] >= epoch
        else row
        for row in run.past
    ]
    return run


def test_time_between_epochs_is_a_gap():
    """Where nothing ran there is no rate; the next epoch begins a second before its first row."""
    found = history(resting(photographs()))
    rates = found["stages"]["files"]
    assert [at for at, rate in enumerate(rates) if rate is None] == [6]
    assert [round(at_s - BEGUN_S, 2) for at_s in found["time_s"][5:9]] == [5.25, 6.25, 25.25, 26.25]
    assert (rates[7], found["epoch"]) == (rates[8], 1)


def test_a_pause_has_no_rates():
    """In a pause the rates are 0, as a panel shows them meanwhile; behind it they begin anew."""
    run = photographs()
    run.past = [row | {"epoch": 0, "items_per_s": 100.0 + row["time_s"] // 6} for row in run.past]
    for row in resting(run, epoch=0).past:
        row["time_s"] -= 20.0 * (row["time_s"] < 26)
        row["paused"] = int(26 <= row["time_s"] < 27)
    found = history(run)
    assert found["stages"]["files"][4:9] == [100.0, 100.0, 0.0, 0.0, 101.0]
    assert [round(at_s - BEGUN_S, 2) for at_s in found["time_s"][5:9]] == [5.25, 6.25, 25.25, 26.25]


def test_gap_behind_an_epoch_with_few_rows():
    """Rows far apart in one epoch, as while its workers start, hide no gap behind it."""
    run = resting(photographs())
    run.past = [row for row in run.past if row["time_s"] < 1 or row["time_s"] > 5]
    assert history(run)["stages"]["files"].count(None) == 1


def test_gaps_are_bounded_with_the_points():
    """Epochs of a second, each after a rest, leave no more points than were asked for."""
    run = photographs()
    run.past = [
        {**row, "epoch": round(row["time_s"]), "time_s": 20 * row["time_s"]}
        for row in past_of(run.rows, seconds=90)
    ]
    found = history(run, 120)
    assert (len(found["time_s"]) <= 120, found["epoch"]) == (True, 89)
