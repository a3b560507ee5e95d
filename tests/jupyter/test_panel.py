"""The panel's end in the kernel: what it sends, and when."""

import gc
import gzip
import json
import threading
import weakref
from pathlib import Path

import pytest

pytest.importorskip("anywidget")

import nbpipe
from tests.gates import HANG_S, still_alive
from tests.jupyter.conftest import Outputs, publisher_of
from tests.jupyter.inner import RunDisplay, panel_module, panel_of, record_export
from tests.show.fakes import Report


@pytest.fixture
def publisher(monkeypatch):
    """Give the publisher of all panels, which looks only when it is told to."""
    with publisher_of(panel_module, monkeypatch) as publisher:
        yield publisher


@pytest.fixture(autouse=True)
def front_end(monkeypatch):
    """Be independent of whether the front end was built."""
    monkeypatch.setattr(panel_module, "front_end", lambda name: name)


@pytest.fixture
def sent(monkeypatch):
    """Give what panels sent."""
    sent = []
    monkeypatch.setattr(panel_module.Panel, "send", lambda _, content: sent.append(content))
    return sent


@pytest.fixture
def run():
    """Give a run."""
    with nbpipe.source(range(100)).map(abs, name="decode", concurrency=2).start() as run:
        yield run


@pytest.fixture
def panel(run, sent, publisher):
    """Give its panel."""
    panel = panel_of(run)
    yield panel
    panel.close()


def say(panel, **message):
    """Say something as a browser does."""
    panel._handle_custom_msg({"id": 1, **message}, [])


def kinds(sent):
    """List the types of messages."""
    return [message["type"] for message in sent]


def test_run_has_one_panel(run, panel):
    """However often a run is shown, there is one widget."""
    assert panel_of(run) is panel


def test_panel_knows_the_variable_of_its_run(run, panel):
    """The panel of a run that waits can name the run in the line that starts it."""
    display = RunDisplay(Outputs())
    display.variable_of = lambda shown: "train_run" if shown is run else ""
    display.show(run)
    assert panel.variable == "train_run"


def test_panel_that_was_closed_is_made_anew(run, panel):
    """A run whose panel was closed gets another."""
    panel.close()
    other = panel_of(run)
    found = (other is panel, other.comm is None)
    other.close()
    assert found == (False, False)


def test_panels_share_their_code(run, panel, sent):
    """A panel has a stub and the id of the code that all have in common; it is there again."""
    with nbpipe.source(range(3)).start() as other_run:
        other = panel_of(other_run)
        shared = panel_module.SharedCode.of("panel")
        found = [(one.get_state()["_esm"], one.code) for one in (panel, other)]
        other.close()
    known = shared.model_id
    shared.close()
    again = panel_module.SharedCode.of("panel")
    unpacked = json.loads(gzip.decompress(again.packed))
    assert found == [("stub.js", known)] * 2
    assert (again.model_id == known, again.digest) == (False, shared.digest)
    assert unpacked == ["panel.js", "panel.css"]


def test_nothing_is_sent_before_a_view_opens(panel, sent, publisher):
    """A panel that nobody looks at sends nothing, and has no thread."""
    assert (panel.feed.wanted, sent, publisher._thread) == (False, [], None)


def test_view_that_opens_gets_everything_at_once(panel, sent):
    """A view is greeted with the snapshot and the whole history in one message."""
    say(panel, op="view", view="a", open=True)
    hello = sent[0]
    found = kinds(sent)[:1], hello["snapshot"]["changes"], sorted(hello["history"])
    assert found == (["hello"], [], ["changes", "epoch", "stages", "time_s"])


def test_set_is_acknowledged(run, panel, sent):
    """A knob that is turned in the browser is turned, and acknowledged."""
    say(panel, op="set", stage="decode", knob="concurrency", value=12)
    assert (run["decode"].concurrency, sent) == (
        12,
        [{"type": "ack", "id": 1, "ok": True, "value": 12}],
    )


@pytest.mark.parametrize("views", [["a"], []])
def test_closed_run_shows_its_export(run, panel, sent, monkeypatch, views):
    """A view of a closed run, where there is one, is sent the file its knobs were written to."""
    done = threading.Event()

    def export(_, path, **options):
        knobs = {knob: 9 for stage in run.stages.values() for knob in stage.knobs.values()}
        record_export(knobs, Path(path))
        return Report(Path(path))

    def send(content):
        sent.append(content)
        if content["type"] == ("tick" if views else "exported") and "exported" in kinds(sent):
            done.set()

    for view in views:
        say(panel, op="view", view=view, open=True)
    run.close()
    panel.feed.publish()
    monkeypatch.setattr(type(run), "export", export, raising=False)
    monkeypatch.setattr(panel.feed, "_send", send)
    say(panel, op="export", path="a.py")
    assert done.wait(HANG_S)
    assert not still_alive([one for one in threading.enumerate() if one.name == "nbpipe-export"])
    ticks = [message["snapshot"] for message in sent if views and message["type"] == "tick"]
    told = {message["type"]: message["ok"] for message in sent if "ok" in message}
    assert [tick["export"]["file"] for tick in ticks[-1:]] == ["a.py"] * len(views)
    assert told == {"ack": True, "exported": True}


def test_run_at_rest_sends_nothing(run, panel, sent):
    """After an epoch the numbers stay as they are, and nothing more is sent."""
    say(panel, op="view", view="a", open=True)
    list(run)
    panel.feed.publish()
    before = len(sent)
    for _ in range(3):
        panel.feed.publish()
    assert len(sent) == before


def test_tick_leaves_out_long_lists(run, panel, sent):
    """The log of changes is sent when it grew, not with every tick."""
    say(panel, op="view", view="a", open=True)
    run["decode"].concurrency = 3
    panel.feed.publish()
    run.pause()
    panel.feed.publish()
    grown, same = [message["snapshot"]["changes"] for message in sent[-2:]]
    assert (len(grown), same) == (1, None)


def test_view_that_closes_ends_the_ticks(panel, sent):
    """Without a view, the panel is left alone."""
    say(panel, op="view", view="a", open=True)
    say(panel, op="view", view="a", open=False)
    assert not panel.feed.wanted


def test_run_that_comes_to_rest_is_kept(run, panel, sent):
    """After an epoch, the synced snapshot is what a page without a kernel shows."""
    settled = []
    panel.settled = settled.append
    say(panel, op="view", view="a", open=True)
    epoch = iter(run)
    next(epoch)
    panel.feed.publish()
    list(epoch)
    panel.feed.publish()
    assert (json.loads(panel.snapshot)["state"], settled) == ("finished", [run])


def test_closed_run_is_told_once(run, panel, sent):
    """The view hears that the run is closed; then there is nothing more to say."""
    say(panel, op="view", view="a", open=True)
    run.close()
    panel.feed.publish()
    assert (sent[-1]["snapshot"]["state"], panel.feed.wanted) == ("closed", False)


def test_page_that_is_reloaded_sees_the_run_as_it_is(run, panel):
    """What a page asks of all widgets holds a fresh snapshot."""
    run["decode"].concurrency = 7
    stages = json.loads(panel.get_state()["snapshot"])["stages"]
    assert stages[-1]["concurrency"] == 7


def test_panel_keeps_no_run(sent, publisher):
    """A run that nobody holds goes, though its panel is still shown; it then looks closed."""
    run = nbpipe.source(range(3)).start()
    panel = panel_of(run)
    say(panel, op="view", view="a", open=True)
    reference = weakref.ref(run)
    del run
    gc.collect()
    panel.feed.publish()
    found = (reference(), sent[-1]["snapshot"]["state"])
    panel.close()
    assert found == (None, "closed")


def test_what_is_kept_of_a_run_under_way_has_its_buttons(sent, publisher):
    """A page takes what is kept: without them, its buttons would be gone until the next tick."""
    display = RunDisplay(Outputs())
    with nbpipe.source(range(9)).map(abs, name="decode").start() as run:
        display.show(run)
        run["decode"].concurrency = 2
        epoch = iter(run)
        next(epoch)
        display.keep(run)
        kept = json.loads(panel_of(run).snapshot)
        del epoch
    assert (kept["state"], kept["undo"]["value"]) == ("running", 1)
    assert kept["actions"] == ["pause", "stop", "undo", "autotune", "export"]
