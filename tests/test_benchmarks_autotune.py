"""The benchmark of autotune: a short round, how settings are chosen and judged, and its tables."""

import sys
from pathlib import Path

import pytest

from benchmarks.autotune import plan, report
from benchmarks.autotune.__main__ import QUICK, main, parse
from benchmarks.autotune.contenders import BATCH, CONTENDERS, Best, Drawn, in_order
from benchmarks.autotune.kinds import KINDS, World
from benchmarks.results import FAILED, Measurement, Results

MACHINE = {
    "cores": 2,
    "cpu": "a CPU",
    "python": "CPython 3.11",
    "free_threaded": False,
    "system": "Linux",
    "versions": {"nbpipe": "0.1.0"},
    "load": [0.5, 2.0],
}


def found(kind, contender, number=0, **values):
    """Make a measurement."""
    rates = {f"rate{turn}": values["rate"] for turn in range(plan.ROUNDS)}
    whole = {"calls": 4, "turns": 2, "reversals": 0, "learned_s": 3.0, "memory": 0.0}
    return Measurement(kind, contender, number, values={**rates, **whole, "identical": 1, **values})


def results_of(*measurements):
    """Make results from measurements."""
    return Results(MACHINE, "2000-01-01 00:00", "python -m benchmarks.autotune", measurements)


@pytest.mark.slow
def test_quick_round(tmp_path):
    """Every contender of nbpipe is measured on two kinds, with the batches that a loop gives."""
    assert main(["--quick", "--tensorflow", "/no/such/python", "--out", str(tmp_path)]) == 0
    raw, tables = sorted(tmp_path.iterdir())
    results = Results.from_json(raw.read_text())
    assert {(one.workload, one.contender) for one in results.measurements} == {
        (kind, name) for kind in QUICK for name in CONTENDERS if name != "tf.data"
    }
    assert all(one.values["identical"] == 1 for one in results.measurements)
    assert all(one.values["rate"] > 0 for one in results.measurements)
    assert report.report(results) == tables.read_text()


@pytest.mark.slow
def test_child_that_fails_says_why(capsys):
    """The last line of its error is in the measurement, and the other children are ended."""
    python = sys.executable
    (one,) = plan.measured("consumer", {"autotune": python, "no such": python}, pace=0.01)
    assert (one.status, one.note) == (FAILED, "no such failed: KeyError: 'no such'")
    assert "consumer: no such failed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_grids_name_knobs(kind):
    """Every value of a grid is one that the knob takes."""
    made = KINDS[kind](World())
    with_knobs = Best(made, 1.0)
    try:
        for values in with_knobs.draws():
            with_knobs.set(values)
            assert values.items() <= with_knobs.values().items()
        assert with_knobs.best() == {}  # nothing was measured
    finally:
        with_knobs.close()


def test_a_window_beyond_the_ceiling_does_not_count():
    """Of the settings that were tried, the fastest one under the ceiling is kept."""
    tried = Drawn(KINDS["io"](World()), pace=0.0)
    try:
        tried.begin(100)
        tried.learn(0, 50)
        first = tried.values()
        for count, resident_bytes in enumerate([50, 200, 200], 1):
            tried.learn(100 * count, resident_bytes)
        assert tried.values() != first
        tried.settle()
        assert tried.values() == first
        assert tried.best()["read.concurrency"] == first["read.concurrency"]
    finally:
        tried.close()


def test_order_is_that_of_a_loop():
    """A batch has the next items, by their numbers."""
    assert in_order(list(range(BATCH, 2 * BATCH)), 1)
    assert not in_order(list(range(BATCH)), 1)


def test_reversals_and_the_time_to_learn():
    """Changes of direction count from a moment on; a rate is near its last one after some time."""
    turns = [(1.0, "a", 1, 4), (25.0, "a", 4, 2), (26.0, "a", 2, 3), (27.0, "b", 2, 3)]
    assert plan.reversals(turns, 20.0, 30.0) == 1
    slow, fast = [0.5 * n for n in range(20)], [10 + 0.1 * n for n in range(200)]
    assert plan.learned_s([*slow, *fast], pace=1.0) == pytest.approx(10.0, abs=0.6)


def test_table_has_quotients_and_what_was_chosen():
    """A row has the rates as multiples, calls, turns, and whether the batches were the same."""
    results = results_of(
        found("io", "autotune", rate=48.0),
        found("io", "best", rate=50.0, calls=5),
        found("io", "written", rate=8.0, identical=0),
        Measurement("lock", "all", 0, FAILED, "best failed: it said nothing"),
    )
    text = report.report(results)
    row = next(line for line in text.splitlines() if line.startswith("| io"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "io",
        "48",
        "0.96",
        "0.96 to 0.96",
        "6",
        *"--",
        "3",
        "4",
        "5",
        "2",
        "0",
        "-",
        "NO",
    ]
    assert "- **lock**: best failed: it said nothing" in text
    assert "Load of the machine before and after: 0.5, 2." in text


def test_readme_takes_the_table(tmp_path):
    """The table stands between its marks; other tables stay."""
    page = tmp_path / "README.md"
    page.write_text(report.README.read_text())
    results = results_of(found("io", "autotune", rate=48.0), found("io", "best", rate=50.0))
    report.write_readme(results, [Path("results/autotune-x.json")], page)
    text = page.read_text()
    assert "From `results/autotune-x.json`: 2 cores, a CPU" in text
    assert "| W6 views" in text


def test_results_in_the_repository_can_be_read():
    """Every raw file of this benchmark still gives a report."""
    folder = report.README.parent / "results"
    files = list(folder.glob("autotune-*.json"))
    assert files
    assert all("| io" in report.report(Results.from_json(one.read_text())) for one in files)


def test_command_line():
    """An unknown kind names the known ones; a quick round has two."""
    assert parse([]).kinds == list(KINDS)
    assert parse(["--quick"]).kinds == list(QUICK)
    with pytest.raises(SystemExit):
        parse(["i/o"])
