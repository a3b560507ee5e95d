"""Messages from a browser, checked and answered."""

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from tests.gates import set_clock
from tests.show.browser import Browser
from tests.show.fakes import FAILURE, FakeTuner, photographs
from tests.show.inner import LEASE_S, RunController, Views, knobs, snapshot_key


@pytest.fixture
def pipe():
    """Give a pipeline with knobs."""
    return nbpipe.source(range(100)).map(abs, name="decode", concurrency=4).batch(2)


@pytest.fixture
def run(pipe):
    """Give a run of it."""
    with pipe.start() as run:
        yield run


@pytest.fixture
def browser(run):
    """Give a browser that shows the run."""
    return Browser(run)


def setting(value, *, stage="decode", knob="concurrency", number=7):
    """Give a message that sets a knob."""
    return {"op": "set", "id": number, "stage": stage, "knob": knob, "value": value}


def test_set_turns_the_knob_and_is_acknowledged(run, browser):
    """A set is answered with the value in force, and on record as the panel's."""
    ack = browser.ask(setting(12))
    made = [(change.knob, change.old, change.new, change.by) for change in run.events]
    assert (ack, made) == (
        {"type": "ack", "id": 7, "ok": True, "value": 12},
        [("decode.concurrency", 4, 12, "panel")],
    )


@pytest.mark.parametrize("name", ["two  spaces", "<img src=x onerror=alert(1)>" + "x" * 70])
def test_stages_are_called_as_they_are_shown(name):
    """The name that a snapshot gives a stage is the one by which it is reached."""
    pipe = nbpipe.source(range(4)).map(abs, name=name)
    with pipe.start() as run:
        browser = Browser(run)
        shown = browser.snapshot()["stages"][1]["address"]
        ack = browser.ask(setting(2, stage=shown))
        assert (ack["ok"], browser.snapshot()["undo"]["stage"]) == (True, shown)
        assert pipe.stages[1].concurrency == 2


@pytest.mark.parametrize("value", [0, -1, 1025, 2.5, 4.0, "8", None, True, [8], 10**30])
def test_refused_value_is_answered_with_the_one_in_force(run, browser, value):
    """A value that no knob takes is refused, with the rule; nothing changes."""
    ack = browser.ask(setting(value))
    found = (ack["ok"], ack["value"], "decode.concurrency must be an int in" in ack["error"])
    assert (found, run["decode"].concurrency) == ((False, 4, True), 4)


@pytest.mark.parametrize(
    "message",
    [
        setting(8, stage="decod"),
        setting(8, knob="depth"),
        setting(8, stage=None),
        setting(8, stage=["decode"]),
        setting(8, knob={}),
        {"op": "close", "id": 7},
        {"op": None, "id": 7},
        {"op": ["set"], "id": 7},
        {"id": 7},
        {"op": "__class__", "id": 7},
        {"op": "undo", "id": 7},
    ],
)
def test_message_that_makes_no_sense_is_refused(run, browser, message):
    """An unknown operation, stage or knob is refused; nothing changes."""
    ack = browser.ask(message)
    assert (ack["type"], ack["id"], ack["ok"], bool(ack["error"]), run.events) == (
        *("ack", 7, False, True),
        (),
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
words = st.sampled_from(["set", "pause", "resume", "stop", "undo", "decode", "concurrency"])
messages = json_values | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("op", "id", "stage", "knob", "value"), words | json_values)
)


@given(st.lists(messages, max_size=5))
def test_no_message_does_harm(sent):
    """Whatever a browser sends is answered in bounded words, and knobs stay in range."""
    pipe = nbpipe.source(range(3)).map(abs, name="decode")
    with pipe.start() as run:
        browser = Browser(run)
        acks = [browser.ask(message) for message in sent]
    sound = [
        ack["type"] == "ack" and isinstance(ack["id"], int) and len(ack.get("error", "")) <= 500
        for ack in acks
    ]
    assert (all(sound), 1 <= pipe["decode"].concurrency <= 1024) == (True, True)


def test_pause_resume_and_stop(run, browser):
    """The buttons do what the methods do."""
    epoch = iter(run)
    next(epoch)
    states = []
    for op in ("pause", "resume", "stop"):
        browser.ask({"op": op, "id": 1})
        states.append(run.status().state)
    assert states == ["paused", "running", "stopped"]


def test_undo_goes_back_step_by_step(run, browser):
    """Undo takes back the last change, then the one before, whoever made them; all is on record."""
    browser.ask(setting(8))
    for value in (16, 20):  # what code does in quick succession is no gesture
        run["decode"].concurrency = value
    values = []
    for _ in range(3):
        target = browser.snapshot()["undo"]
        browser.ask({"op": "undo", "id": 1})
        values.append((target["value"], run["decode"].concurrency))
    assert (values, browser.snapshot()["undo"]) == ([(16, 16), (8, 8), (4, 4)], None)
    assert [(change.new, change.why) for change in run.events][3:] == [
        *((16, "undo"), (8, "undo"), (4, "undo")),
    ]


@pytest.mark.parametrize("by", ["undo", "autotune_undo"])
def test_the_changes_of_a_tuner_are_undone_as_one(by):
    """A tuner makes many changes; undo has it take back all of them."""
    run = photographs(state="running")
    decode = run.stages["decode"]

    def undo():
        decode.knob("concurrency").set(first[0], by="autotune")
        decode.knob("prefetch").set(first[1], by="autotune")

    run.tuner = FakeTuner(undo=undo)
    first = decode.concurrency, decode.prefetch
    controller = RunController(run)
    controller.set("decode", "concurrency", first[0] + 1)
    first = decode.concurrency, decode.prefetch
    for value in (20, 30):
        decode.knob("concurrency").set(value, by="autotune")
        decode.knob("prefetch").set(value, by="autotune")
    if by == "undo":
        controller.undo()
    else:
        controller.autotune_undo()
    assert (decode.concurrency, decode.prefetch) == first
    assert controller.snapshot()["undo"]["value"] == first[0] - 1


def test_actions_are_those_that_make_sense(run, browser):
    """What may be asked for depends on the state and on what was changed."""
    found = [browser.snapshot()["actions"]]
    epoch = iter(run)
    next(epoch)
    browser.ask(setting(8))
    found.append(browser.snapshot()["actions"])
    run.pause()
    found.append(browser.snapshot()["actions"])
    run.close()
    found.append(browser.snapshot()["actions"])
    assert found == [
        ["autotune", "export"],
        ["pause", "stop", "undo", "autotune", "export"],
        ["resume", "stop", "undo", "autotune", "export"],
        ["export"],
    ]


def test_closed_run_refuses(run, browser):
    """A closed run is turned no more, and says so."""
    run.close()
    acks = [browser.ask(setting(8)), browser.ask({"op": "pause", "id": 8})]
    assert [(ack["ok"], "closed" in ack["error"]) for ack in acks] == [(False, True)] * 2


@pytest.mark.slow
def test_run_that_is_gone_looks_closed(pipe):
    """A browser does not keep the run; without it, the last look stays, as closed."""
    run = pipe.start()
    browser = Browser(run)
    del run
    gc.collect()
    shown = browser.snapshot()
    ack = browser.ask(setting(8))
    assert (shown["state"], shown["actions"], ack["ok"]) == ("closed", [], False)


# -- stages that share their workers ---------------------------------------------------------------


@pytest.fixture
def region():
    """Give a run of two stages in worker processes, which share one concurrency."""
    pipe = (
        nbpipe.source(range(100))
        .map(abs, name="decode", executor="process", concurrency=4)
        .map(float, name="widen", executor="process")
    )
    with pipe.start() as run:
        yield run


@pytest.fixture
def shared(region):
    """Give a browser that shows that run."""
    return Browser(region)


def concurrencies(browser):
    """Give the concurrency that is shown of each stage that has one."""
    return {
        stage["address"]: [stage["concurrency"], knob["value"]]
        for stage in browser.snapshot()["stages"]
        for knob in stage["knobs"]
        if knob["name"] == "concurrency"
    }


def test_undo_of_a_shared_knob(region, shared, monkeypatch):
    """A drag over both rows is one gesture; undo names the first of them, as the log does."""
    monkeypatch.setattr(knobs, "time", SimpleNamespace(time=lambda: 7.0))  # however slow it is here
    for value, stage in enumerate(("widen", "decode", "widen"), start=5):
        assert shared.ask(setting(value, stage=stage))["value"] == value
        assert concurrencies(shared) == {"decode": [value] * 2, "widen": [value] * 2}
    target = shared.snapshot()["undo"]
    ack = shared.ask({"op": "undo", "id": 8})
    assert (target, ack["ok"], concurrencies(shared), shared.snapshot()["undo"]) == (
        {"stage": "decode", "knob": "concurrency", "value": 4},
        True,
        {"decode": [4, 4], "widen": [4, 4]},
        None,
    )
    assert [(change.knob, change.new) for change in region.events] == [
        ("decode.concurrency", value) for value in (5, 6, 7, 4)
    ]


# -- views -----------------------------------------------------------------------------------------


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_views_are_counted_by_name():
    """A view that opened twice is closed once."""
    views = Views()
    for is_open in (True, True, False):
        (views.open if is_open else views.close)("a")
    assert not views


def test_view_that_says_nothing_is_gone():
    """A page that was reloaded never says goodbye: its lease runs out."""
    clock = Clock()
    views = Views(clock)
    views.open("a")
    found = []
    for step_s in (LEASE_S - 1, 2):
        clock.now_s += step_s
        found.append(bool(views))
    assert found == [True, False]


@pytest.mark.parametrize(
    "message",
    [
        {"op": "view"},
        {"op": "view", "view": "x" * 65, "open": True},
        {"op": "alive", "views": "a"},
        {"op": "alive", "views": [1]},
        {"op": "view", "view": "a", "open": 1},
    ],
)
def test_odd_names_of_views_are_refused(browser, message):
    """What is no short name is refused."""
    ack = browser.ask(message)
    assert (ack["ok"], " must be " in ack["error"], browser.channel.wanted) == (False, True, False)


def test_number_of_views_is_bounded():
    """A page that invents views does not fill the memory."""
    views = Views()
    for number in range(1000):
        views.open(str(number))
    assert len(views._until_s) == 64


# -- a look several times a second -----------------------------------------------------------------
@pytest.fixture
def watched():
    """Return a run of fixed numbers."""
    return photographs()


def test_quick_look_reads_numbers_alone(watched, monkeypatch):
    """Who looks again at once sees the new numbers beside the sentence of before."""
    set_clock(monkeypatch, lambda: 1.0, "monotonic")
    remote = RunController(watched)
    before = remote.snapshot()
    watched.now = replace(watched.now, delivered=413)
    watched.rows["decode"] = replace(watched.rows["decode"], busy=0.1, starved=0.9, running=1)
    soon, fresh = remote.snapshot(lately=True), remote.snapshot()
    numbers = [(one["delivered"], one["stages"][2]["running"]) for one in (before, soon, fresh)]
    assert numbers == [(412, 5), (413, 1), (413, 1)]
    assert soon["diagnosis"] == before["diagnosis"] != fresh["diagnosis"]


def turn(watched):
    """Turn a knob."""
    watched.stages["decode"].knobs["concurrency"].set(6)


def fail(watched):
    """Let an item fail."""
    watched.rows["decode"] = replace(watched.rows["decode"], errors=2)
    watched.lost = (*watched.lost, replace(FAILURE, input="the next"))


def pause(watched):
    """Pause the run."""
    watched.pause()


@pytest.mark.parametrize("change", [turn, fail, pause])
def test_quick_look_sees_what_a_person_waits_for(watched, change):
    """A knob that was turned, an item that failed, another state: all of it is read at once."""
    remote = RunController(watched)
    remote.snapshot()
    change(watched)
    found = [remote.snapshot(lately=lately) for lately in (True, False)]
    assert snapshot_key(found[0]) == snapshot_key(found[1])


def test_glance_sees_what_was_published_just_now(watched, monkeypatch):
    """What a view is sent serves the list of runs of that moment; a second later it is old."""
    now_s = [1.0]
    set_clock(monkeypatch, lambda: now_s[0], "monotonic")
    remote = RunController(watched)
    watched.now = replace(watched.now, delivered=413)
    shown = [remote.glance(), remote.publish(lately=True)]
    watched.now = replace(watched.now, delivered=414)
    shown.append(remote.glance())
    now_s[0] += 1
    shown.append(remote.glance())
    assert [one["delivered"] for one in shown] == [413, 413, 413, 414]
