"""The arithmetic and the table of the panel's benchmark; the measuring itself needs a browser."""

from pathlib import Path

import pytest

from benchmarks.panel import cells
from benchmarks.panel.lines import Line, inside, report
from benchmarks.results import Measurement, Results

MACHINE = {"cores": 2, "cpu": "a CPU", "python": "CPython 3.11", "versions": {"jupyterlab": "4.6"}}


def row(time_s, cpu_s, items, **threads):
    """Make a row of a log."""
    return [time_s, cpu_s, items, {"panels": threads}]


def results_of(*measurements):
    """Make results from measurements."""
    return Results(MACHINE, "2000-01-01 00:00", "python -m benchmarks.panel", measurements)


def test_window_is_read_from_the_rows_inside():
    """Rates of a window are those between its first row and its last."""
    rows = [row(0, 0, 0), row(1, 1, 10), row(2, 1.5, 20), row(3, 2, 30), row(4, 9, 99)]
    expected = {
        "kernel_share": 0.5,
        "items_per_s": 10.0,
        "cpu_us_per_item": 50_000.0,
        "panels_share": 0.0,
    }
    assert inside(rows, (0.5, 3.5)) == expected


def test_thread_that_began_in_the_window_counts_whole():
    """A thread without a first number is one that was started since."""
    rows = [row(0, 0, 0, a=1.0), row(2, 1, 1, a=1.5, b=0.5)]
    assert inside(rows, (0, 2))["panels_share"] == 0.5


def test_window_without_rows_is_refused():
    """A window in which nothing was noted says so."""
    with pytest.raises(ValueError, match="at least 2 rows") as caught:
        inside([row(0, 0, 0)], (0, 1))
    assert "got 1" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "at_most", "verdict"),
    [
        ([0.1, 0.2, 0.3], 0.5, "met"),
        ([0.1, 0.2, 0.6], 0.5, "met, within noise"),
        ([0.1, 0.6, 0.7], 0.5, "missed, within noise"),
        ([0.6, 0.7, 0.8], 0.5, "missed"),
        ([-0.1, 0.1, 0.2], 0.0, "met, within noise"),
        ([0.1, 0.1, 0.2], 0.0, "missed"),
        ([0.0, 0.0, 0.0], 0.0, "met"),
        ([0.1, 0.2], None, ""),
        ([], 0.5, "not measured"),
    ],
)
def test_verdict(values, at_most, verdict):
    """The median decides, and a goal inside the spread is said to lie in the noise."""
    assert Line("time", "s", values, at_most).cells()[-1] == verdict


def test_middle_half_leaves_outliers_out():
    """Of four rounds and more, the spread is that of the middle half."""
    assert Line("time", "s", [1, 2, 3, 4, 100]).cells()[2:4] == ["3 s", "2 s to 4 s"]


def test_report_compares_within_a_round():
    """What a view adds is the difference to the same round without one."""
    shares = {"no view": (0.02, 0.05), "open": (0.023, 0.054)}
    found = [
        Measurement("six stages", name, turn, values={"kernel_share": share})
        for name, both in shares.items()
        for turn, share in enumerate(both)
    ]
    lines = report(results_of(*found)).splitlines()
    (line,) = (line for line in lines if line.startswith("| six stages: an open view adds"))
    assert [cell.strip() for cell in line.split("|")[2:7]] == [
        "at most 0.5%",
        "0.35%",
        "0.3% to 0.4%",
        "2",
        "met",
    ]


def test_report_lists_key_presses():
    """Key presses have a table of their own."""
    values = {"median_s": 0.012, "worst_s": 0.05, "step_s": 0.05}
    found = Measurement("acks", "pump, sleep", 0, note="answered in MainThread", values=values)
    assert " 12 ms | 50 ms | " in report(results_of(found))


def test_results_in_the_repository_can_be_read():
    """Every raw file of the panel still gives a report."""
    folder = Path(cells.__file__).parents[1] / "results" / "panel"
    texts = [report(Results.from_json(path.read_text())) for path in folder.glob("*.json")]
    assert all("key press to ack" in text for text in texts)


def test_cells_are_python():
    """What the kernel is given to run compiles."""
    sources = [cells.SETUP, cells.SIX, cells.PACED, cells.W2, cells.W2_LOOP]
    sources += [cells.TRAINED, cells.TRAINING, *cells.STEPS.values()]
    assert all(compile(source, "cell", "exec") for source in sources)
