"""The benchmarks' own arithmetic and tables, and a tiny round of every workload."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import charts, gate, plan, readme, report, stream
from benchmarks.__main__ import setting
from benchmarks.catalogue import BY_NAME, CONTENDERS, Contender
from benchmarks.goals import Goal
from benchmarks.job import ChildError, Job, measure, measure_in_process
from benchmarks.live import percentile
from benchmarks.results import FAILED, MISSING, OK, REFUSED, Measurement, Results, ratios
from benchmarks.workload import BY_KEY, WORKLOADS, Workload

MACHINE = {
    "cores": 2,
    "cpu": "a CPU",
    "python": "CPython 3.11",
    "free_threaded": False,
    "system": "Linux",
    "versions": {"spdl": "0.8"},
}
SCENE = plan.Scene(quick=True, cores=2, loops_per_s=3000.0, photos="")


def rate(contender, items_per_s, number=0, workload="W2", **values):
    """Make a measurement of a stream."""
    numbers = {"items_per_s": items_per_s, **values}
    return Measurement(workload, contender, number, values=numbers)


def results_of(*measurements):
    """Make results from measurements."""
    return Results(MACHINE, "2000-01-01 00:00", "python -m benchmarks", measurements)


# -- arithmetic ------------------------------------------------------------------------------------


def test_ratio_is_median_of_rounds():
    """A ratio is the median of the quotients of the rounds, not the quotient of the medians."""
    rates = {"nbpipe": (10.0, 30.0, 8.0), "bare": (5.0, 3.0, 4.0)}
    found = [rate(who, one, n) for who, all_of in rates.items() for n, one in enumerate(all_of)]
    assert results_of(*found).ratio("W2", "nbpipe", "bare") == 2.0


def test_ratio_skips_rounds_without_both():
    """A round in which one of the two has no number does not count."""
    assert ratios({0: 10.0, 1: 30.0}, {1: 3.0, 2: 4.0}) == [10.0]
    assert (
        results_of(rate("nbpipe", 10.0), rate("bare", 3.0, 1)).ratio("W2", "nbpipe", "bare") is None
    )


@pytest.mark.parametrize(("percent", "expected"), [(50, 10), (95, 19), (100, 20), (1, 1)])
def test_percentile_is_nearest_rank(percent, expected):
    """A percentile is one of the values: the nearest rank."""
    assert percentile(list(range(20, 0, -1)), percent) == expected


def test_percentile_needs_a_value():
    """No values have no percentile."""
    with pytest.raises(ValueError, match="at least 1 value") as caught:
        percentile([], 50)
    assert "none" in str(caught.value)


def test_results_survive_json(tmp_path):
    """Raw numbers read back are the numbers that were written; files merge as further rounds."""
    results = results_of(rate("nbpipe", 10.0), rate("bare", 20.0, first_s=0.5))
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(results.to_json())
    merged = Results.merged(paths)
    assert Results.from_json(results.to_json()) == results
    assert merged.by_round("W2", "nbpipe", "items_per_s") == {0: 10.0, 1000: 10.0}


# -- tables ----------------------------------------------------------------------------------------


def test_markdown_aligns_numbers_to_the_right():
    """A column of numbers is aligned to the right; a bar in a cell does not break the table."""
    text = report.markdown(("who", "n"), [["a|b", "1"], ["c", "20"]])
    assert text.splitlines() == [
        "| who |  n |",
        "|-----|---:|",
        "| a/b |  1 |",
        "| c   | 20 |",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0, "0"), (12345.6, "12,346"), (1.2345, "1.23"), (0.00012, "1.2e-04")],
)
def test_number_has_three_digits(value, expected):
    """Numbers have three digits; none is a dash."""
    assert report.number(value) == expected


def test_report_shows_ratios_notes_and_goals():
    """A report has a row for who ran, a line for who could not, and a verdict for each goal."""
    results = results_of(
        rate("nbpipe", 84.0, lost=0, in_order=1.0),
        rate("spdl", 28.0, lost=3, in_order=0.0),
        rate("bare", 100.0),
        Measurement("W2", "grain", 0, MISSING, "grain is not installed: pip install grain"),
    )
    text = report.report(results)
    row = next(line for line in text.splitlines() if line.startswith("| spdl"))
    assert "3 x" in row
    assert "28%" in row
    assert "**grain**: not installed: grain is not installed: pip install grain" in text
    assert "**spdl**: **3 items lost**; **out of order**" in text
    assert "| W2       | at least 90% of bare" in text
    assert "missed" in text
    assert "W3" not in text


def goal(workload, bound, number, against=""):
    """Make a goal whose number is known."""
    return Goal(workload, "at least", lambda _: number, at_least=bound, against=against)


def test_verdict_of_a_goal():
    """A goal is met, missed or not measured; against a peer the share of bare can decide."""
    results = results_of(rate("nbpipe", 99.0), rate("bare", 100.0))
    verdicts = [
        goal("W2", 2, 3).verdict(results),
        goal("W2", 2, 1).verdict(results),
        goal("W2", 2, None).verdict(results),
        goal("W2", 2, 1, against="spdl").verdict(results),
        goal("W3", 2, 1, against="spdl").verdict(results),
    ]
    assert verdicts == ["met", "missed", "not measured", "met by share of bare", "missed"]


def test_readme_has_a_row_for_each_workload():
    """A peer stands with its fastest row, and the best of them is what we are held against."""
    results = results_of(
        rate("nbpipe", 96.0, cpu_us_per_item=2.0),
        rate("spdl", 32.0),
        rate("spdl with stats", 48.0),
        rate("grain", 40.0),
        rate("bare", 100.0),
        rate("nbpipe views", 10.0, workload="W6"),
    )
    rows = [line.split(" | ") for line in readme.table(results).splitlines()[2:]]
    assert [[cell.strip(" |") for cell in row] for row in rows] == [
        ["W2", "96", "96%", "2", "48", "-", "40", "-", "2 x spdl with stats"],
        ["W6 views", "10", "-", "-", "-", "-", "-", "-", "-"],
    ]


def test_pages_take_what_is_made():
    """It stands between the two marks; what stood there before is gone."""
    text = f"a\n{readme.BEGIN}\nold\n{readme.END}\nb"
    assert readme.between_marks(text, "new") == f"a\n{readme.BEGIN}\n\nnew\n\n{readme.END}\nb"
    for page in (readme.README, readme.PAGE):
        assert readme.between_marks(page.read_text(), "new").count("new\n\n<!--") == 1


def test_charts_have_a_bar_for_everyone(tmp_path):
    """A chart for each workload that has a rate names who took part, the fastest first."""
    pytest.importorskip("matplotlib")
    results = results_of(
        rate("spdl", 32.0),
        rate("nbpipe", 96.0),
        rate("bare", 100.0),
        rate("spdl", 7, workload="W7"),
    )
    light, dark = (path.read_text() for path in charts.draw(results, tmp_path))
    names = [text for text in (">spdl<", ">96<", ">bare<", "W2: 5 ms sleep", "W7") if text in light]
    assert names == [">spdl<", ">96<", ">bare<", "W2: 5 ms sleep"]
    assert dark != light
    assert charts.rates(results, "W2") == [("nbpipe", 96.0), ("spdl", 32.0)]


# -- plan ------------------------------------------------------------------------------------------


def test_rounds_are_interleaved():
    """Within a round every contender comes once; a workload has no more rounds than it is worth."""
    workloads = [Workload("A", "", "noop", (1, 1)), Workload("B", "", "noop", (1, 1), max_rounds=1)]
    contenders = [Contender("x", "bare"), Contender("y", "bare", only=("A",))]
    order = [
        (entry.workload.key, entry.contender.name, entry.round)
        for entry in plan.entries(workloads, contenders, 2)
    ]
    assert order == [("A", "x", 0), ("A", "y", 0), ("B", "x", 0), ("A", "x", 1), ("A", "y", 1)]


def entry_of(**fields):
    """Make an entry of a contender that does not exist."""
    return plan.Entry(BY_KEY["W1"], Contender("someone", "bare", **fields), 0, {"depth": 3})


def test_measure_says_why_there_is_no_number():
    """Who cannot, is not installed, or fails gives a measurement that says so."""

    def failing(_job, _limit_s):
        raise ChildError("ended after 60 s")

    found = [
        entry_of(refusals={"W1": "has none"}).measure(SCENE, failing),
        entry_of(packages=("no-such-package", "x")).measure(SCENE, failing),
        entry_of().measure(SCENE, failing),
        entry_of(share={"W1": 0.5}).measure(SCENE, lambda job, _: {"items": job.items}),
    ]
    assert [one.status for one in found] == [REFUSED, MISSING, FAILED, OK]
    assert found[1].note == "no-such-package is not installed: pip install no-such-package x"
    assert found[2].note == "ended after 60 s"
    assert found[3].values == {"items": 10_000}


@pytest.mark.parametrize(
    ("workload", "items", "limit_s", "said"),
    [
        ("W9", 1, 30, "exit code 1: KeyError: 'W9'"),
        ("W1", 10**12, 0.3, "ended after 0.3 s"),
    ],
)
def test_child_process_fails_in_one_line(workload, items, limit_s, said):
    """A child that fails is described by its last line; one that takes too long is ended."""
    with pytest.raises(ChildError) as caught:
        measure_in_process(Job(workload, "bare", items=items), limit_s)
    assert str(caught.value) == said


@pytest.mark.parametrize(("workload", "loops"), [("W1", 0), ("W2b", 9), ("W4", 6)])
def test_job_burns_as_long_as_its_workload_asks(workload, loops):
    """Who burns Python does so for as many loops as the machine does in that time."""
    entry = plan.Entry(BY_KEY[workload], Contender("someone", "bare"), 0, {})
    assert entry.job(SCENE).burn_loops == loops


def test_chosen_names_what_there_is():
    """An unknown name ends the program and names the known ones."""
    assert plan.chosen(WORKLOADS, "W3,W1", lambda one: one.key) == [BY_KEY["W3"], BY_KEY["W1"]]
    with pytest.raises(SystemExit) as caught:
        plan.chosen(WORKLOADS, "W9", lambda one: one.key)
    assert str(caught.value).startswith("no 'W9'; there are W1, W2")


def test_every_contender_answers_for_every_workload():
    """Settings, refusals and notes name workloads that exist."""
    named = {
        key
        for contender in CONTENDERS
        for mapping in (contender.options, contender.refusals, contender.notes, contender.share)
        for key in (*mapping, *contender.only)
    }
    assert named <= set(BY_KEY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("buffer=16", ("buffer", 16)), ("way=pool", ("way", "pool")), ("hooks=True", ("hooks", True))],
)
def test_settings_of_the_command_line(text, expected):
    """A setting is a Python value, or else a text; it stands in place of the catalogue's."""
    assert setting(text) == expected
    (entry,) = plan.entries([BY_KEY["W1"]], [BY_NAME["grain"]], 1, {"buffer": 4})
    assert dict(entry.options) == {"buffer": 4}


# -- processes -------------------------------------------------------------------------------------


def arrays(contender, workload, **options):
    """Measure a tiny job of W4 or W6 in a process of its own."""
    about = {"is_warm": True, "warmup": 4, "floats": 10, "burn_loops": 10}
    return measure_in_process(Job(workload, contender, items=8, options=options, **about), 30)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["W4", "W6"])
def test_bare_processes(workload):
    """Bare processes do all items, and their CPU time counts."""
    numbers = arrays("bare", workload)
    assert (numbers["items"], numbers["cpu_s"] > 0) == (8, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "options"), [("W4", {}), ("W6", {}), ("W6", {"copy": False, "workers": 1})]
)
def test_tiny_processes(workload, options):
    """Every array comes out of worker processes once, in order and whole."""
    numbers = arrays("nbpipe", workload, **options)
    assert (numbers["items"], numbers["lost"], numbers["in_order"]) == (8, 0, 1.0)


def warm_job(**numbers):
    """Make a job whose clock starts late."""
    return Job("W6", "someone", is_warm=True, **numbers)


@pytest.mark.slow
def test_warm_starts_its_clock_after_the_first_items():
    """What came before the clock started is checked for loss and order, but not counted."""
    rows = SimpleNamespace(open_pipeline=lambda job, _: nullcontext(full(job.items)))
    numbers = stream.measure(warm_job(items=8, warmup=4), "transport", rows)
    assert (numbers["items"], numbers["lost"], numbers["in_order"]) == (8, 0, 1.0)


def test_warm_sees_what_is_wrong():
    """An item that is lost, or whose array is not full of its number, is noticed."""
    broken = [[0, 0], [2, 2], [1, 9], [3, 3]]
    rows = SimpleNamespace(open_pipeline=lambda *_: nullcontext(iter(broken)))
    numbers = stream.measure(warm_job(items=4), "transport", rows)
    assert (numbers["lost"], numbers["in_order"]) == (1.0, 0.0)


def full(items):
    """Give arrays that are full of their numbers."""
    return ([item] * 3 for item in range(items))


# -- gate ------------------------------------------------------------------------------------------
STATS = "spdl with stats"


def held(*more):
    """Make results in which W1 and W6s hold."""
    return results_of(
        rate("nbpipe", 100.0, workload="W1"),
        rate(STATS, 1.0, workload="W1"),
        rate("nbpipe", 250.0, 1, workload="W1"),
        rate(STATS, 1.0, 1, workload="W1"),
        rate("nbpipe", 15.0, workload="W6s"),
        rate("spdl ring", 10.0, workload="W6s"),
        rate("nbpipe", 15.0),
        *more,
    )


def test_gate_takes_the_best_round():
    """The best of the rounds must reach the bound; a failure is one clear line."""
    assert gate.failures(held(rate(STATS, 10.0))) == [
        "W2: nbpipe must be at least 2 x spdl with stats, best is 1.50 x"
    ]


def test_gate_names_what_failed():
    """Without a number the gate fails and says why there is none."""
    (line,) = gate.failures(held(Measurement("W2", STATS, 0, FAILED, "ended after 60 s")))
    assert line.endswith("best is 0.00 x; spdl with stats failed: ended after 60 s")


def test_gate_names_the_line_that_installs_a_peer(monkeypatch, capsys):
    """Where a peer is missing nothing is measured."""
    monkeypatch.setattr("benchmarks.catalogue.installed_version", lambda _: None)
    assert (gate.main(), capsys.readouterr().out) == (
        1,
        "gate failed: spdl is not installed: pip install spdl\n",
    )


def test_gate_compares_those_who_take_part():
    """Every bound has two contenders to be measured."""
    found = {(bound.workload, name) for bound in gate.BOUNDS for name in ("nbpipe", bound.peer)}
    assert all(BY_NAME[name].takes_part(workload) for workload, name in found)


# -- a tiny round of nbpipe ------------------------------------------------------------------------


def tiny(workload, folder=""):
    """Measure a tiny job of nbpipe in this process."""
    job = Job(
        workload,
        "nbpipe",
        items=10_000_000 if BY_KEY[workload].measure != "stream" else 64,
        cycles=2,
        window_s=0.02,
        burn_loops=10 if workload == "W2b" else 0,
        photos=str(folder),
        cores=2,
    )
    return measure(job)


@pytest.mark.parametrize(
    "workload",
    ["W1", *(pytest.param(name, marks=pytest.mark.torch) for name in ("W2", "W2b")), "W5"],
)
def test_tiny_stream(workload):
    """Every item comes out once and in order, or every row, in batches."""
    numbers = tiny(workload)
    assert (numbers["items"], numbers["lost"], numbers["in_order"]) == (64, 0, 1.0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs pillow")
def test_tiny_photos(tmp_path):
    """Photographs are decoded with as many threads as cores, one more, and twice as many."""
    from PIL import Image

    Image.new("RGB", (256, 256)).save(tmp_path / "0.jpg")
    numbers = tiny("W3", tmp_path)
    assert (numbers["items"], numbers["lost"], numbers["in_order"]) == (64, 0, 1.0)


@pytest.mark.torch
def test_tiny_restart():
    """A pipeline closed after five batches leaves no thread and starts no further call."""
    numbers = tiny("W7")
    assert numbers["threads_left"] == 0


@pytest.mark.torch
def test_tiny_live():
    """Growing and shrinking loses nothing and keeps the order."""
    numbers = tiny("live")
    assert numbers["disordered"] == 0


@pytest.mark.torch
def test_tiny_polling(monkeypatch):
    """A reader beside an epoch is timed on its own."""
    from benchmarks import polling

    monkeypatch.setattr(polling, "SWITCH_S", 0.01)
    numbers = tiny("metrics")
    assert min(numbers["added_share"], numbers["cpu_us_per_item_plain"]) > 0


@pytest.mark.torch
def test_tiny_idle(monkeypatch):
    """A blocked and a paused epoch both give their share of a core."""
    from benchmarks import idle

    monkeypatch.setattr(idle, "SETTLE_S", 0.01)
    assert set(tiny("idle")) == {"blocked_share", "paused_share", "processes"}


def test_results_in_the_repository_can_be_read():
    """Every raw file beside the benchmarks still gives a report."""
    folder = Path(report.__file__).parent / "results"
    raw = folder.glob("2*.json")  # named by their time; those of devices are of another kind
    texts = [report.report(Results.from_json(path.read_text())) for path in raw]
    assert all("## Goals" in text for text in texts)


def test_contenders_have_modules():
    """Every contender has a module of its own; variants share one."""
    folder = Path(report.__file__).parent / "peers"
    assert all((folder / f"{one.module}.py").exists() for one in CONTENDERS)
    assert BY_NAME["nbpipe"].module == "ours"
