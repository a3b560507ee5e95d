"""The run of a loader: one for all epochs, there from the start, and how it is shown."""

import gc
import threading
import weakref

import pytest
import torch

import nbpipe
from tests.inner import snapshot
from tests.jupyter.conftest import Outputs
from tests.jupyter.inner import WIDGET_VIEW, RunDisplay
from tests.loader.conftest import WAYS, begun_everywhere
from tests.loader.datasets import Made, Numbers
from tests.show.browser import Browser
from tests.show.inner import RunController

THREADS = WAYS["thread"]


def broken(n):
    """Make a sample; the fifth cannot be made."""
    if n == 4:
        raise KeyError("no fourth")
    return n


def where(run):
    """Say where a run is."""
    status = run.status()
    return status.state, status.epoch, status.delivered, status.total


def test_there_is_one_run_from_the_start(way):
    """The run is there before the first epoch, and stays the same."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    run = loader.run
    found = [where(run)]
    for _ in range(2):
        found += [where(run) for _ in loader]
        found.append(where(run))
    steps = [("running", 1), ("running", 2), ("running", 3), ("finished", 3)]
    epochs = [(state, epoch, done, 3) for epoch in range(2) for state, done in steps]
    assert found == [("ready", 0, 0, 3), *epochs]
    assert loader.run is run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stays"), [("inline", False), ("thread", False), ("thread", True)]
)
def test_an_epoch_begins_at_one_moment(kind, stays):
    """At any moment in between, the run is finished with the last epoch or in the next one."""
    way = WAYS[kind] | {"persistent_workers": stays}

    def second():
        loader = nbpipe.DataLoader(Numbers(6), 2, **way)
        assert len(list(loader)) == 3
        return loader

    def look(loader):
        return where(loader.run), {row["epoch"] for row in loader.run.history()} <= {0}

    seen = [said for _, _, said in begun_everywhere(second, look, step=11)]
    before, after = (("finished", 0, 3, 3), True), (("running", 1, 0, 3), True)
    assert set(seen) == {before, after}


def test_an_epoch_that_cannot_begin_is_none():
    """Its number is that of the next one, and the one before it is still told of."""
    sampler = Fails()
    loader = nbpipe.DataLoader(Numbers(6), 2, sampler=sampler, persistent_workers=True, **THREADS)
    assert len(list(loader)) == 3
    sampler.errors = [ValueError("not now")]
    with pytest.raises(ValueError, match="not now"):
        iter(loader)
    assert where(loader.run) == ("finished", 0, 3, 3)
    assert (len(list(loader)), where(loader.run)) == (3, ("finished", 1, 3, 3))
    loader.close()


class Fails:
    """A sampler that fails with each of some errors, once."""

    errors = ()

    def __len__(self):
        return 6

    def __iter__(self):
        if self.errors:
            raise self.errors.pop()
        return iter(range(6))


def test_stats_are_those_of_the_newest_epoch(way):
    """Counts begin again with other workers, and go on with those that stayed; so does history."""
    stays = bool(way["num_workers"])
    loader = nbpipe.DataLoader(Made(torch.tensor, 6), 2, persistent_workers=stays, **way)
    found = []
    for _ in range(2):
        for _ in loader:
            threading.Event().wait(0.01)  # an epoch of more than 10 ms leaves a row
        stats = loader.run.stats()
        epochs = dict.fromkeys(row["epoch"] for row in loader.run.history())
        found.append((stats["fetch"].items_out, stats["consumer"].items_out, [*epochs]))
    loader.close()
    assert found == ([(3, 3, [0]), (6, 6, [0, 1])] if stays else [(3, 3, [0]), (3, 3, [1])])


@pytest.mark.slow
def test_how_an_epoch_ended(way):
    """The run says that an epoch was left, or why it failed."""
    loader = nbpipe.DataLoader(Made(broken, 6), 2, **way)
    for _ in loader:
        break
    found = [where(loader.run)[:3]]
    with pytest.raises(KeyError):
        list(loader)
    found.append(where(loader.run)[:3])
    assert found == [("cancelled", 0, 1), ("failed", 1, 2)]
    assert "no fourth" in loader.run.status().error


def test_stop_ends_the_epoch(way):
    """`stop()` ends the epoch as if it were exhausted; the next one is whole."""
    loader = nbpipe.DataLoader(Numbers(100), 2, **way)
    had, run = 0, loader.run
    found = [(run.epoch, run.stopped)]
    for had, _ in enumerate(loader, 1):  # noqa: B007
        assert repr(run).endswith("; open, epoch 0 in progress)")
        run.stop()
    found.append((run.epoch, run.stopped))
    assert (had, where(run)[0], len(list(loader))) == (1, "stopped", 50)
    assert [*found, (run.epoch, run.stopped)] == [(0, False), (0, True), (1, False)]


def test_pause_and_resume(way):
    """A run that is paused waits, answering its front end, until it goes on."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    run, states = loader.run, []

    def answer():
        if run.paused:
            states.append(where(run)[0])
            run.resume()

    run.between_waits = answer
    epoch = iter(loader)
    next(epoch)
    run.pause()
    if way["num_workers"]:
        run.resume()
    rest = len(list(epoch))
    assert (rest, states) == (2, [] if way["num_workers"] else ["paused"])


def test_newest_of_two_iterators_is_shown(way):
    """A second iterator is an epoch of its own; when it ends, the first one is shown again."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    first = iter(loader)
    next(first)
    second = iter(loader)
    found = [where(loader.run)[:3]]
    list(second)
    found.append(where(loader.run)[:3])
    list(first)
    found.append(where(loader.run)[0])
    assert found == [("running", 1, 0), ("running", 0, 1), "finished"]


@pytest.mark.parametrize("persistent", [False, True])
def test_loops_side_by_side_are_whole(way, persistent):
    """A loader gives each of two loops every batch, also where its workers stay."""
    workers = {"persistent_workers": True} if persistent and way["num_workers"] else {}
    loader = nbpipe.DataLoader(Numbers(6), None, **way, **workers)
    assert [*zip(loader, loader, strict=True)] == [(n, n) for n in range(6)]
    loader.close()


def test_tuned_knobs_stay(way):
    """A knob that was turned holds for the epochs to come, and its change is an event."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    list(loader)
    loader.run["indices"].prefetch = 7
    list(loader)
    run = loader.run
    turned = [(change.knob, change.old, change.new) for change in run.events]
    assert (run["indices"].prefetch, turned) == (7, [("indices.prefetch", 2, 7)])


def test_panel_turns_knobs_that_come_later():
    """A panel that was opened without workers reaches the knobs of workers that came later."""
    loader = nbpipe.DataLoader(Numbers(6), 2, workers="thread")
    browser = Browser(loader.run)
    loader.num_workers = 1
    list(loader)
    browser.snapshot()
    ack = browser.ask({"op": "set", "id": 1, "stage": "fetch", "knob": "concurrency", "value": 3})
    undone = browser.ask({"op": "undo", "id": 2})
    assert (ack["ok"], undone["ok"], loader.num_workers) == (True, True, 1)


def test_loader_draws_itself(way):
    """Outside a notebook a loader is drawn as its run is, before the first epoch, too."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    before = loader._repr_mimebundle_()
    list(loader)
    after = loader._repr_mimebundle_()
    found = [
        "ready, epoch 0, 0/3 batches" in before["text/plain"],
        "finished, epoch 0, 3/3 batches (100%)" in after["text/plain"],
        "fetch" in after["text/html"],
    ]
    assert found == [True, True, True]


def test_display_follows_all_epochs(way):
    """What is shown before the first epoch is brought up to date at the end of each one."""
    pytest.importorskip("anywidget")
    outputs = Outputs()
    display = RunDisplay(outputs)
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    display.show(loader.run)
    found = [WIDGET_VIEW in outputs.shown[0].data]
    for _ in range(2):
        list(loader)
        display.keep_all()
        found.append(outputs.shown[-1].data["text/plain"].partition("batches")[0].split("\n")[1])
    assert found == [True, "finished, epoch 0, 3/3 ", "finished, epoch 1, 3/3 "]


def test_loader_without_workers_is_told_to_have_some():
    """Where the loop makes its batches itself, the advice is `num_workers`."""
    loader = nbpipe.DataLoader(Made(torch.tensor, 6), collate_fn=slow)
    list(loader)
    assert "num_workers=2" in loader.run.diagnose().advice


def test_what_the_loop_makes_itself_has_no_sliders(way):
    """Without workers no knob is shown, as none would have an effect; with workers all are."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    found = []
    for _ in range(2):
        shown = snapshot(loader.run)
        found += [len(stage["knobs"]) for stage in shown["stages"]]
        list(loader)
    assert found == [1, 2, 1, 2] if way["num_workers"] else [0] * 4


def test_undo_stays_for_what_has_an_effect():
    """A knob that was turned is not undone while the loop makes its batches itself."""
    loader = nbpipe.DataLoader(Numbers(6), 2, num_workers=1, workers="thread")
    remote = RunController.of(loader.run)
    offered = []
    for workers in (2, 0, 2):
        loader.num_workers = workers
        list(loader)
        shown = remote.snapshot()
        offered.append((shown["undo"] is not None, "undo" in shown["actions"]))
    assert offered == [(True, True), (False, False), (True, True)]


def test_failures_name_the_stage(way):
    """A batch that cannot be made is among the failures, and the words are those of a loader."""
    loader = nbpipe.DataLoader(Made(broken, 6), 2, **way)
    run = loader.run
    found = [run.diagnose().advice]
    with pytest.raises(KeyError):
        list(loader)
    (failure,) = run.failures()
    found += [failure.stage, failure.path, "no fourth" in failure.traceback, run.diagnose().advice]
    assert found == [
        "Run `for batch in loader:` in a cell.",
        *("fetch", 2, True),
        "See loader.run.failures() for inputs and tracebacks.",
    ]
    assert run.stats()["fetch"].errors == 1


def test_sampler_that_fails_is_no_fault_of_the_dataset():
    """Without workers, too, what a sampler raises is told of the stage that reads it."""

    class Torn(torch.utils.data.Sampler):
        def __iter__(self):
            yield 0
            raise ValueError("torn")

    loader = nbpipe.DataLoader(Numbers(6), sampler=Torn())
    with pytest.raises(ValueError, match="torn"):
        list(loader)
    assert [failure.stage for failure in loader.run.failures()] == ["indices"]


def test_batches_are_counted_as_such():
    """Of an epoch that was left at once it is said how many batches it gave."""
    loader = nbpipe.DataLoader(Numbers(6), 2)
    next(iter(loader))
    assert str(loader.run.diagnose()).startswith("Cancelled after 1 batch: ")


@pytest.mark.parametrize("name", ["state_dict", "num_workers", "dataset"])
def test_what_is_not_of_the_run_is_told_where_it_is(name):
    """What a loader's run has not is refused with the way out."""
    run = (loader := nbpipe.DataLoader(Numbers(6), 2)).run
    with pytest.raises(AttributeError, match=f"the loader's: loader.{name}"):
        getattr(run, name)
    with pytest.raises(AttributeError, match=f"the loader's: loader.{name}"):
        setattr(run, name, 4)
    with pytest.raises(AttributeError, match="no 'statu'; did you mean 'status'"):
        run.statu  # noqa: B018
    assert not hasattr(run, "nothing_of_the_kind"), loader


def test_run_in_a_with_statement(way):
    """Leaving `with loader.run` ends the workers; the loader's next epoch is whole."""
    loader = nbpipe.DataLoader(Numbers(6), 2, persistent_workers=bool(way["num_workers"]), **way)
    with loader.run as run:
        next(iter(run))
    assert (run.status().state, len(list(loader))) == ("cancelled", 3)


def test_rates_of_a_pause():
    """In a pause all rates are 0 at once, where batches are made in the calling thread, too."""
    loader = nbpipe.DataLoader(Numbers(60), 2)
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    loader.run.pause()
    rates = {name: row.items_per_s for name, row in loader.run.stats().items()}
    assert rates == {"indices": 0.0, "fetch": 0.0, "consumer": 0.0}


def slow(samples):
    """Make a batch, which takes a while."""
    threading.Event().wait(0.05)
    return samples


def test_run_holds_no_loader():
    """The run, and what shows it, let the loader go; then it is closed."""
    loader = nbpipe.DataLoader(Numbers(6), 2)
    run, reference = loader.run, weakref.ref(loader)
    list(loader)
    del loader
    gc.collect()
    shown = snapshot(run)
    found = reference(), run.closed, shown["state"], shown["delivered"]
    assert found == (None, True, "closed", 3)
    with pytest.raises(nbpipe.RunClosedError):
        iter(run)


def test_iterating_the_run_is_iterating_the_loader(way):
    """`for batch in loader.run` is the loader's next epoch."""
    loader = nbpipe.DataLoader(Numbers(6), 2, **way)
    run = loader.run
    got = [batch.tolist() for batch in run]
    found = got, len(run), repr(run)
    assert found == ([[0, 1], [2, 3], [4, 5]], 3, f"LoaderRun({' > '.join(run.stages)}; open)")


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_of_a_loader(workers, capsys):
    """`nbpipe.progress(loader)` gives its batches, names its epochs, and leaves it open."""
    loader = nbpipe.DataLoader(range(6), batch_size=2, num_workers=workers, workers="thread")
    got = [batch.tolist() for batch in nbpipe.progress(loader, epochs=2)]
    lines = [line.partition(" in ")[0] for line in capsys.readouterr().err.splitlines()]
    assert got == [[0, 1], [2, 3], [4, 5]] * 2
    assert lines == ["epoch 0: 3 batches", "epoch 1: 3 batches"]
    assert (len(nbpipe.progress(loader)), len(list(nbpipe.progress(loader.run)))) == (3, 3)
