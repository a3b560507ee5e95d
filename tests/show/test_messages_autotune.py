"""The tuner in a panel: what a browser may ask of it, and what it is shown."""

import time
from dataclasses import replace

import pytest

import nbpipe
from nbpipe import KnobChange
from tests.gates import finished
from tests.show.browser import Browser
from tests.show.fakes import BEGUN_S, FakeTuner, photographs
from tests.show.inner import Decision, snapshot


@pytest.fixture
def run():
    """Give a run with knobs."""
    pipe = nbpipe.source(range(100)).map(abs, name="decode", concurrency=4).batch(2)
    with pipe.start() as run:
        yield run


@pytest.fixture
def browser(run):
    """Give a browser that shows the run."""
    return Browser(run)


def tuning(browser):
    """Return what a browser may ask of the tuner, and whether it is at work."""
    shown = browser.snapshot()
    tuner = shown["tuner"]
    asks = [one for one in shown["actions"] if one.startswith("autotune")]
    return asks, None if tuner is None else (tuner["active"], tuner["state"])


def test_the_switch_starts_a_tuner_and_stops_it(run, browser):
    """It may be switched on where there is none or it has ended; it then has its old limits."""
    found = [tuning(browser)]
    for op in ("autotune", "autotune", "autotune_stop", "autotune"):
        assert browser.ask({"op": op, "id": 1})["ok"]
        found.append(tuning(browser))
    measuring = ["autotune_stop"], (True, "measuring")
    assert found == [
        (["autotune"], None),
        measuring,
        measuring,
        (["autotune"], (False, "stopped")),
        measuring,
    ]
    run.tuner.stop()


def test_limits_stay_when_it_is_switched_on_again(run, browser):
    """What code gave holds for the switch, too."""
    tuner = run.autotune(keep=["decode", "batch", "source"])
    browser.ask({"op": "autotune_stop", "id": 1})
    browser.ask({"op": "autotune", "id": 1})
    assert tuner.state == "nothing to tune: all its knobs were turned by others, or are to be kept"
    run.tuner.stop()


def test_a_knob_that_a_person_turned_can_be_given_back(run, browser):
    """The tuner names it with its value; given back, it is the tuner's from that value on."""
    browser.ask({"op": "set", "id": 1, "stage": "decode", "knob": "concurrency", "value": 6})
    browser.ask({"op": "autotune", "id": 2})
    theirs = {"stage": "decode", "knob": "concurrency", "value": 6}
    assert browser.snapshot()["tuner"]["left_alone"] == [theirs]
    assert not run.tuner.turns("decode", "concurrency")
    ack = browser.ask({"op": "give_back", "id": 3, "stage": "decode", "knob": "concurrency"})
    assert (ack["ok"], browser.snapshot()["tuner"]["left_alone"]) == (True, [])
    assert run.tuner.turns("decode", "concurrency")
    assert run["decode"].concurrency == 6
    assert browser.snapshot()["tuner"]["done"][-1]["why"] == "decode.concurrency was given back"
    assert len(run.events) == 1
    run.tuner.stop()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"op": "autotune_stop"}, "this run has no tuner; start one with run.autotune()"),
        ({"op": "autotune_undo"}, "this run has no tuner; start one with run.autotune()"),
        (
            {"op": "give_back", "stage": "decode", "knob": "concurrency"},
            "this run has no tuner; start one with run.autotune()",
        ),
        (
            {"op": "give_back", "stage": "other", "knob": "concurrency"},
            "no knob 'concurrency' of a stage 'other' in this run",
        ),
        (
            {"op": "give_back", "stage": "decode"},
            "knob must be a text of at most 200 characters, got nothing",
        ),
        (
            {"op": "give_back", "stage": 3, "knob": "concurrency"},
            "stage must be a text of at most 200 characters, got 3",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(browser, message, told):
    """The refusal has the reason."""
    ack = browser.ask({**message, "id": 5})
    assert (ack["ok"], ack["error"]) == (False, told)


@pytest.mark.parametrize("op", ["autotune", "autotune_stop", "autotune_undo"])
def test_a_closed_run_refuses(run, browser, op):
    """Nothing is tuned any more."""
    run.autotune()
    run.close()
    assert browser.ask({"op": op, "id": 1})["error"].startswith("this run is closed")
    assert tuning(browser) == ([], (False, "stopped"))


DECISIONS = (
    Decision(BEGUN_S + 30, "the load has changed"),
    Decision(BEGUN_S + 31, "trying", "decode.concurrency", 5, 9, 12.5, 11.25, taken_back=True),
    Decision(BEGUN_S + 34, "the fewest calls", "decode.concurrency", 9, 6, 11.25),
)


def test_decisions_are_shown_with_the_rates_before_and_after():
    """A rate that was not measured is None; a trial that was taken back is marked."""
    run = photographs()
    run.tuner = FakeTuner(log=DECISIONS, left_alone=(("read", "prefetch", 16),))
    run.events += tuple(
        KnobChange(one.when_s, one.knob, one.old, one.new, "autotune", one.text)
        for one in DECISIONS[1:]
    )
    shown = snapshot(run)
    done = [
        (one["knob"], one["before"], one["after"], one["taken_back"])
        for one in shown["tuner"]["done"]
    ]
    assert done == [
        ("", None, None, False),
        ("decode.concurrency", 12.5, 11.25, True),
        ("decode.concurrency", 11.25, None, False),
    ]
    marks = [one["taken_back"] for one in shown["changes"]]
    assert marks == [False, False, True, False]


def test_decisions_are_sent_when_they_changed():
    """A tick has None for a list that is as before, and the state all the same."""
    run = photographs(state="running")
    run.tuner = FakeTuner(log=DECISIONS[:1])
    browser, ticks = Browser(run), []
    browser.channel._send = ticks.append
    browser.channel.receive({"op": "view", "id": 1, "view": "a", "open": True})
    for state, count in (("measuring", 1), ("raising decode", 2)):
        run.tuner = replace(run.tuner, state=state, log=DECISIONS[:count])
        browser.channel.publish(lately=False)
    told = [(one["snapshot"]["tuner"]["state"], one["snapshot"]["tuner"]["done"]) for one in ticks]
    assert [(state, done if done is None else len(done)) for state, done in told] == [
        ("searching decode", 1),
        ("measuring", None),
        ("raising decode", 2),
    ]


def nap(number):
    """Stand for a call that waits for a disk."""
    time.sleep(0.02)
    return number


def plain():
    """Give a run, what iterates it, and the knob that limits it."""
    run = nbpipe.source(range(10**6)).map(nap, name="read").start()
    return run, run, run["read"].knob("concurrency")


def isolated():
    """Give the same in a process of its own."""
    run = nbpipe.source(range(10**6)).map(nap, name="read").start(isolate=True)
    return run, run, run["read"].knob("concurrency")


class Naps:
    """A dataset whose items take a while."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return nap(index)


def loaded():
    """Give the same of a loader."""
    loader = nbpipe.DataLoader(Naps(), batch_size=1, num_workers=1, workers="thread")
    return loader.run, loader, loader.run.stages["fetch"].knobs["concurrency"]


@pytest.mark.slow
@pytest.mark.parametrize("made", [plain, isolated, pytest.param(loaded, marks=pytest.mark.torch)])
def test_a_run_is_tuned_and_all_is_undone(made):
    """Switched on in the panel while the loop goes; undone, the knobs are as they were."""
    run, iterated, knob = made()
    with run:
        browser = Browser(run)
        browser.ask({"op": "autotune", "id": 1})

        def train():
            for _ in iterated:
                done = browser.snapshot()["tuner"]["done"]
                if knob.value > 1 and done and done[0]["after"]:
                    break

        finished(train)
        first = browser.snapshot()["tuner"]["done"][0]
        assert (first["knob"], first["old"], first["before"] > 0) == (knob.name, 1, True)
        assert browser.ask({"op": "autotune_undo", "id": 2})["ok"]
        assert (knob.value, tuning(browser)) == (1, (["autotune"], (False, "undone")))
        shown = browser.snapshot()["tuner"]["done"]
        assert all(one["taken_back"] for one in shown if one["knob"] == knob.name)
