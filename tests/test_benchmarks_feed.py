"""What a loader costs its loop: the counted calls, tiny rounds of every part, and the tables."""

import importlib.util
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gate
from benchmarks.feed import bare, calls, plan, report, slots, work
from benchmarks.feed.__main__ import main, parse
from benchmarks.feed.chains import CHAINS, opened
from benchmarks.feed.job import Job, measure_in_process
from benchmarks.job import ChildError
from benchmarks.results import FAILED, MISSING, Measurement, Results

TINY = {"size": 4, "workers": 2, "steps": 2, "skipped": 2, "ahead": 2, "ops": 10}
MACHINE = {
    "cores": 2,
    "cpu": "a CPU",
    "python": "CPython 3.11",
    "free_threaded": False,
    "system": "Linux",
    "versions": {"spdl": "0.8"},
    "load": [0.5, 2.0],
    "device": None,
}
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
needs_pillow = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs pillow")
needs_spdl = pytest.mark.skipif(importlib.util.find_spec("spdl") is None, reason="needs spdl")


def results_of(*measurements):
    """Make results from measurements."""
    return Results(MACHINE, "2000-01-01 00:00", "python -m benchmarks.feed", measurements)


def found(part, chain, number=0, **values):
    """Make a measurement."""
    return Measurement(part, chain, number, values=values)


# -- the exact row ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def calls_of_lists():
    """Count the calls for a batch where lists go through in one call."""
    return counted("lists")


def counted(chain):
    """Count the calls for a batch of 32 items, in a fresh process."""
    return measure_in_process(Job("calls", chain, steps=20, skipped=8), 60)["calls"]


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["joined", "as written"])
def test_batch_of_items_costs_hardly_more_calls_than_a_list(chain, calls_of_lists):
    """A process map and its batch take at most 1.25 times the calls of lists in one call."""
    assert counted(chain) <= 1.25 * calls_of_lists


def test_counter_counts_the_calls_of_nbpipe_alone():
    """Calls of this file and of the standard library do not count."""
    import nbpipe

    counter = calls.Counter()
    with counter.counting():
        Path("a").with_suffix(".b")
        before = counter.calls
        nbpipe.source(range(2))
        between = counter.calls
    nbpipe.source(range(2))
    assert (before, between > 0, counter.calls) == (0, True, between)


# -- tiny rounds -----------------------------------------------------------------------------------
OURS = [key for key in CHAINS if key.split()[0] not in ("spdl", "slots", "bare", "torch")]


def batches_of(job):
    """Take all batches of a job, as arrays."""
    with opened(job) as batches:
        return [np.asarray(batch).copy() for batch in islice(batches, job.batches)]


@forks
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("chain", [*OURS, "torch", "slots 1", "slots 8"])
def test_chain_gives_the_same_batches(chain):
    """Whatever the chain, the loop gets the same numbers in the same order."""
    job = Job("loop", chain, **TINY)
    expected = [
        np.stack([work.waits(number) for number in range(first, first + 4)])
        for first in range(0, 4 * job.batches, 4)
    ]
    assert all(map(np.array_equal, batches_of(job), expected))


@pytest.mark.slow
@needs_spdl
@pytest.mark.parametrize("chain", ["spdl threads", "spdl process", "spdl pool"])
def test_chain_of_spdl(chain):
    """SPDL's ways measure in a process of their own."""
    numbers = measure_in_process(Job("decode", chain, **TINY), 40)
    assert numbers["items_per_s"] > 0


@forks
def test_slots_of_uneven_chunks():
    """A slab is filled by chunks, and used again."""
    slabs = slots.Slabs(Job("loop", "slots 8", **{**TINY, "steps": 20}), 2)
    try:
        firsts = [int(batch[0, 0, 0, 0]) for batch in slabs]
    finally:
        slabs.close()
    assert firsts == list(range(0, 96, 4))


@pytest.mark.slow
@pytest.mark.torch
def test_tiny_loop():
    """The loop is measured alone and beside a chain."""
    numbers = measure_in_process(Job("loop", "joined", **TINY), 40)
    assert min(numbers[name] for name in ("whole", "own", "first_s", "step_s")) > 0
    assert set(numbers) >= {value for _, value, _ in plan.BY_KEY["loop"].columns}


@forks
@needs_pillow
def test_tiny_decode(tmp_path):
    """Bare processes decode all photographs of a batch."""
    work.write_photos(tmp_path, 2)
    job = Job("decode", "bare", work="photographs", photos=str(tmp_path), **TINY)
    with bare.opened(job) as shapes:
        assert list(shapes) == [[work.SHAPE] * 4] * job.batches


@pytest.mark.slow
@pytest.mark.torch
def test_tiny_train(monkeypatch):
    """A model takes steps on a resident batch, then on those of a chain."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin for each other on busy cores
    job = Job("train", "joined", "tokens", model="transformer", device="cpu", **TINY)
    numbers = measure_in_process(job, 40)
    assert set(numbers) >= {value for _, value, _ in plan.BY_KEY["train transformer"].columns}
    assert min(numbers["share"], numbers["alone_items_per_s"]) > 0


@pytest.mark.slow
@pytest.mark.torch
def test_resnet50_learns_from_arrays():
    """A step takes photographs as the chains give them, and changes the weights."""
    import torch

    from benchmarks.feed import models

    net, step = models.photograph_step("cpu")
    before, threads = net[-1].weight.clone(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step(np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3))
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(before, net[-1].weight)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["nbpipe", "pump"])
def test_tiny_overlap(way):
    """Both kinds of steps are measured beside copies."""
    numbers = measure_in_process(Job("overlap", way, steps=10), 40)
    assert set(numbers) >= {value for _, value, _ in plan.BY_KEY["overlap"].columns}


@pytest.mark.torch
def test_resnet50_is_the_known_one():
    """It has as many parameters as the ResNet-50 of torchvision."""
    import torch

    from benchmarks.feed import models

    with torch.device("meta"):
        net = models.resnet50()
        scores = net(torch.empty(2, 3, 224, 224))
    assert sum(one.numel() for one in net.parameters()) == 25_557_032
    assert scores.shape == (2, 1000)


# -- plan ------------------------------------------------------------------------------------------
def test_parts_that_cannot_be_measured_say_why(capsys, monkeypatch):
    """A line tells what a part needs that this machine does not have."""
    monkeypatch.setattr("benchmarks.machine.cores", lambda: 2)
    left = plan.possible(plan.PARTS, None)
    assert [part.key for part in left] == ["calls", "loop"]
    assert capsys.readouterr().out.splitlines() == [
        "decode skipped: it needs 4 cores, and there are 2",
        "train resnet50 skipped: it needs a CUDA GPU, and there is none",
        "overlap skipped: it needs a CUDA GPU, and there is none",
        "train transformer skipped: it needs a CUDA GPU, and there is none",
    ]


def test_rounds_are_interleaved_and_end_in_time(capsys):
    """Each round has every chain of every part; after the limit none begins."""
    parts = [replace(plan.BY_KEY["loop"], chains=("torch", "lists")), plan.BY_KEY["calls"]]

    def runner(job, _limit_s):
        return {"whole": job.steps, "calls": 1.0}

    taken = list(plan.run(parts, 2, quick=True, chains=("torch", "lists"), runner=runner))
    assert [(one.workload, one.contender, one.round) for one in taken] == [
        ("loop", "torch", 0),
        ("loop", "lists", 0),
        ("calls", "lists", 0),
        ("loop", "torch", 1),
        ("loop", "lists", 1),
        ("calls", "lists", 1),
    ]
    assert taken[0].values["whole"] == 40
    assert list(plan.run(parts, 2, quick=True, limit_s=-1.0, runner=runner)) == []
    assert "stopped after -1 s" in capsys.readouterr().out


def test_measured_says_why_there_is_no_number(monkeypatch):
    """Who is not installed, or fails, gives a measurement that says so."""

    def failing(_job, _limit_s):
        raise ChildError("ended after 60 s")

    part, job = plan.BY_KEY["loop"], Job("loop", "torch")
    assert plan.measured(part, "torch", 0, job, failing).note == "ended after 60 s"
    monkeypatch.setattr("benchmarks.feed.chains.installed_version", lambda _: None)
    missing = plan.measured(part, "spdl threads", 0, job, failing)
    assert (missing.status, missing.note) == (MISSING, "pip install spdl")


def test_workers_follow_the_cores(monkeypatch):
    """Decoding takes all cores, training leaves two, and a chain may have its own number."""
    monkeypatch.setattr("benchmarks.machine.cores", lambda: 16)
    train = plan.BY_KEY["train resnet50"]
    workers = [
        plan.BY_KEY["decode"].job("torch", "", quick=False).workers,
        train.job("threads", "", quick=False).workers,
        train.job("4 threads", "", quick=False).workers,
        plan.BY_KEY["loop"].job("torch", "", quick=False).workers,
    ]
    assert workers == [16, 14, 4, 8]


def test_parts_name_chains_that_there_are():
    """Every chain has a text, and every part a module and a number that it is divided by."""
    named = {chain for part in plan.PARTS for chain in part.chains}
    assert all(map(plan.text_of, named))
    assert named >= set(CHAINS)
    assert all(importlib.util.find_spec(f"benchmarks.feed.{name}") for name in plan.NAMES)
    for key, against in report._RATIOS.items():
        assert {to for _, _, to in against} <= set(plan.BY_KEY[key].chains)


def test_command_line():
    """The GPU's parts are one word; an unknown part names the known ones."""
    given = parse(["--gpu"])
    assert (given.parts, given.limit_s, given.rounds) == (["train", "overlap"], 400.0, 3)
    assert parse(["loop", "--quick"]).rounds == 1
    assert parse([]).parts == ["calls", "loop", "decode", "train", "overlap"]
    with pytest.raises(SystemExit):
        parse(["lop"])


def test_command_without_a_gpu(monkeypatch, capsys, tmp_path):
    """Where nothing can be measured it says so, and writes nothing."""
    monkeypatch.setattr("benchmarks.gpu.cuda_device", lambda: None)
    assert main(["train", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was measured"
    assert list(tmp_path.iterdir()) == []


def test_command_writes_results(monkeypatch, capsys, tmp_path):
    """It leaves the raw numbers and the tables, with machine, versions and load."""
    monkeypatch.setattr("benchmarks.gpu.cuda_device", lambda: None)
    measured = [found("loop", "lists", whole=0.5), found("loop", "torch", whole=0.5)]
    monkeypatch.setattr("benchmarks.feed.__main__.run", lambda *args, **kwargs: measured)
    assert main(["loop", "--out", str(tmp_path)]) == 0
    raw, tables = sorted(tmp_path.iterdir())
    results = Results.from_json(raw.read_text())
    assert raw.name.startswith("feed-")
    assert len(results.machine["load"]) == 2
    assert report.report(results) == tables.read_text()


# -- tables ----------------------------------------------------------------------------------------
def test_table_has_medians_and_ratios_within_a_round():
    """A row has medians, the ratio to lists, and the range of its first number."""
    results = results_of(
        found("loop", "as written", whole=0.5, own=0.5, wait=0.02, first_s=0.6),
        found("loop", "lists", whole=1.0),
        found("loop", "as written", 1, whole=0.8),
        found("loop", "lists", 1, whole=0.8),
        Measurement("loop", "torch", 0, FAILED, "ended after 60 s"),
    )
    text = report.report(results)
    row = next(line for line in text.splitlines() if line.startswith("| `map(f, executor"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["0.65", "0.5", "0.02", "-", "-", "600", "0.75", "-", "0.5 to 0.8", "2"]
    assert "- **torch**: failed: ended after 60 s" in text
    assert "Load of the machine before and after: 0.5, 2." in text
    assert report.failed(results)


def test_readme_takes_the_table(tmp_path):
    """The table of `loop` stands between its marks; other tables stay."""
    page = tmp_path / "README.md"
    page.write_text(report.README.read_text())
    results = results_of(found("loop", "lists", whole=0.97))
    report.write_readme(results, [Path("results/feed-x.json")], page)
    text = page.read_text()
    assert "From `results/feed-x.json`: 2 cores, a CPU" in text
    assert "| W6 views" in text


def test_results_in_the_repository_can_be_read():
    """Every raw file of this benchmark still gives a report."""
    folder = report.README.parent / "results"
    texts = [
        report.report(Results.from_json(path.read_text())) for path in folder.glob("feed-*.json")
    ]
    assert texts
    assert all("## " in text for text in texts)


# -- gate ------------------------------------------------------------------------------------------
def test_gate_holds_the_loop():
    """A chain that keeps less of its loop's rate than lists do fails in one line."""
    held = results_of(
        found("loop", gate.FEED.ours, whole=0.5), found("loop", gate.FEED.peer, whole=1.0)
    )
    assert gate.failures(held, [gate.FEED]) == [
        f"loop: {gate.FEED.ours} must be at least 0.8 x lists, best is 0.50 x"
    ]
    assert {gate.FEED.ours, gate.FEED.peer} <= set(plan.BY_KEY["loop"].chains)
