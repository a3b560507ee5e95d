"""The list of a kernel's runs: what is in it, what is sent, what is refused."""

import gc

import pytest

import nbpipe
from tests.jupyter.conftest import publisher_of
from tests.jupyter.inner import KernelRuns, runs_module


@pytest.fixture
def publisher(monkeypatch):
    """Give the publisher, which looks only when it is told to."""
    with publisher_of(runs_module, monkeypatch) as publisher:
        yield publisher


@pytest.fixture
def variables():
    """Give the user's variables."""
    return {}


@pytest.fixture
def sent(monkeypatch):
    """Give what was sent."""
    sent = []
    monkeypatch.setattr(KernelRuns, "_send", lambda _, message: sent.append(dict(message)))
    return sent


@pytest.fixture
def listed(publisher, sent, variables):
    """Give the list of a kernel without runs."""
    listed = KernelRuns(lambda: variables)
    yield listed
    listed.close()


@pytest.fixture
def run(listed, variables, sent):
    """Give the only run of a kernel, in a variable; the kernel has said that it is there."""
    with nbpipe.source(range(100)).map(abs, name="decode", concurrency=2).start() as run:
        listed.note(run, "cell-1")
        assert sent == [{"type": "here"}]
        sent.clear()
        variables["train"] = variables["_"] = run
        yield run


def hello(listed, view="a"):
    """Open a view."""
    listed.receive({"op": "hello", "protocol": 1, "view": view})


def published(listed, sent):
    """Return what one look sends, whenever the last one was."""
    sent.clear()
    listed._due_s = 0.0
    listed.publish()
    return list(sent)


def test_nothing_is_done_before_somebody_asks(listed, run, sent, publisher):
    """A kernel that nobody asks looks at no run, sends no more, and has no thread."""
    next(iter(run))
    listed.note(run, "cell-2")
    assert (sent, publisher._thread, listed._entries[0].feed) == ([], None, None)


def test_a_view_is_greeted_with_all_runs(listed, run, sent):
    """A row tells what a run is called and how far it is."""
    epoch = iter(run)
    next(epoch)
    hello(listed)
    epoch.close()
    (row,) = sent[0]["runs"]
    told = {name: row[name] for name in ("run", "title", "variable", "cell", "state", "total")}
    assert (sent[0]["type"], sent[0]["protocol"], told) == (
        "hello",
        1,
        {
            "run": 1,
            "title": "source > decode",
            "variable": "train",
            "cell": "cell-1",
            "state": "running",
            "total": 100,
        },
    )


def test_a_run_without_a_variable_has_no_name(listed, run, variables):
    """The variable of a run is found where there is one; `_` is none of the user's."""
    named = listed.variable_of(run)
    del variables["train"]
    assert (named, listed.variable_of(run)) == ("train", "")


def test_rows_are_sent_where_they_changed(listed, run, sent):
    """A look sends the list once it is another one; without a view it is not asked for."""
    hello(listed)
    same = published(listed, sent)
    run.pause()
    changed = published(listed, sent)
    listed.receive({"op": "view", "view": "a", "open": False})
    assert same == []
    assert [one["runs"][0]["state"] for one in changed] == ["paused"]
    assert not listed.wanted


def test_views_set_how_often_they_are_told(listed, run, sent, monkeypatch):
    """The view that asks for the most decides."""
    monkeypatch.setattr(runs_module, "monotonic", lambda: 7.0)
    hello(listed, "slow")
    hello(listed, "fast")
    for view, refresh_s in (("slow", 10), ("fast", 5.0)):
        listed.receive({"op": "settings", "id": 4, "view": view, "refresh_s": refresh_s})
    run.pause()
    listed.publish()  # it is due after a setting
    due = listed._due_s
    run.resume()
    listed.publish()
    kinds = [one["type"] for one in sent]
    assert kinds == ["hello", "hello", "ack", "ack", "runs"]
    assert due == listed._due_s


def test_a_view_of_a_run_is_sent_its_ticks(listed, run, sent):
    """What concerns one run comes in an envelope, with the panel's own messages in it."""
    listed.receive({"op": "run", "run": 1, "message": {"op": "view", "view": "a", "open": True}})
    run.pause()
    tick = published(listed, sent)
    listed.receive({"op": "run", "run": 1, "message": {"op": "resume", "id": 8}})
    ack = {"type": "ack", "id": 8, "ok": True, "value": None}
    assert [(one["run"], one["message"]["type"]) for one in tick] == [(1, "tick")]
    assert (sent[-1], run.paused) == ({"type": "run", "run": 1, "message": ack}, False)


def test_what_one_front_end_did_the_other_undoes(listed, run, sent):
    """Panel and sidebar have one log of changes to take back."""
    other = runs_module.RunChannel(run, lambda _: None)
    set_to = {"op": "set", "id": 1, "stage": "decode", "knob": "concurrency", "value": 9}
    listed.receive({"op": "run", "run": 1, "message": set_to})
    other.receive({"op": "undo", "id": 2})
    assert (run["decode"].concurrency, other.snapshot()["undo"]) == (2, None)


def test_no_run_is_held(listed, sent):
    """A run that nobody holds goes; the newest is still told of, as it was last."""
    runs = [nbpipe.source(range(3)).start() for _ in range(2)]
    for run in runs:
        listed.note(run, "")
    hello(listed)
    del run, runs
    gc.collect()
    rows = published(listed, sent)[-1]["runs"]
    assert [(row["run"], row["state"]) for row in rows] == [(2, "closed")]
    assert nbpipe.runs() == ()


def test_closed_runs_leave_the_list(listed, run, sent):
    """A run that was closed is there as long as it is the newest."""
    run.close()
    hello(listed)
    with nbpipe.source(range(3)).start() as other:
        listed.note(other, "")
        rows = [sent[0]["runs"], published(listed, sent)[0]["runs"]]
    assert [[row["run"] for row in one] for one in rows] == [[1], [2]]


def test_a_run_that_is_gone_says_so(listed, sent):
    """Where a run went before anybody looked there is nothing to look at."""
    listed.note(nbpipe.source(range(3)).start(), "")
    gc.collect()
    hello(listed)
    listed.receive({"op": "run", "run": 1, "message": {"op": "pause", "id": 3}})
    listed.receive({"op": "chain", "run": 1, "id": 4})
    _, told, *said = (one.get("message", one) for one in sent)
    refused = [(one["id"], one["ok"]) for one in said]
    assert (told["runs"], refused) == ([], [(3, False), (4, False)])


def test_all_runs_are_paused_at_once(listed, run, sent):
    """What cannot be paused is left as it is."""
    with nbpipe.source(range(9)).start() as other:
        listed.note(other, "")
        epoch = iter(run)
        next(epoch)
        listed.receive({"op": "pause_all", "id": 1})
        paused = (run.paused, other.paused)
        listed.receive({"op": "resume_all", "id": 2})
        epoch.close()
    assert (paused, run.paused) == ((True, False), False)
    assert sent == [{"type": "ack", "id": number, "ok": True, "value": None} for number in (1, 2)]


@pytest.mark.parametrize(
    "message",
    [
        7,
        {},
        {"op": ["hello"]},
        {"op": "set"},
        {"op": "hello", "protocol": 1},
        {"op": "hello", "protocol": 1, "view": "x" * 65},
        {"op": "alive", "views": "a"},
        {"op": "run", "run": 2, "message": {"op": "pause"}},
        {"op": "run", "run": True, "message": {"op": "pause"}},
        {"op": "run", "run": "1"},
        {"op": "chain", "run": None},
        {"op": "settings", "refresh_s": 0.2},
        {"op": "settings", "refresh_s": True},
        {"op": "settings", "refresh_s": float("nan")},
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(listed, run, sent, message):
    """Whatever a browser sends, it is answered with a rule that it breaks."""
    listed.receive(message)
    (answer,) = sent
    assert (answer["type"], answer["ok"], " must be " in answer["error"]) == ("ack", False, True)
    assert not listed.wanted
