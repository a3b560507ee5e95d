"""The comm by which a front end finds the runs of a kernel, whatever else the kernel is doing."""

from itertools import count

import pytest

import nbpipe
from tests.kernel.client import is_status, parent, running
from tests.kernel.conftest import EPOCH, MEET

numbers = count(1)


class Sidebar:
    """What a front end does: it asks for the comm, says hello, and reads."""

    def __init__(self, talk):
        self.talk = talk
        self.comm = found(talk.client)
        self.view = f"view-{next(numbers)}"

    def ask(self, **message):
        """Send a message."""
        self.talk.say(self.comm, message)

    def told(self, wanted):
        """Return the first message that is wanted."""

        def is_wanted(one):
            content = one["content"]
            return content.get("comm_id") == self.comm and wanted(content["data"])

        return self.talk.client.wait(is_wanted, "message of the runs")["content"]["data"]

    def hello(self):
        """Open the view; return what it is greeted with."""
        self.ask(op="hello", protocol=1, view=self.view)
        hello = self.told(lambda one: one["type"] == "hello")
        self.ask(op="settings", id=1, view=self.view, refresh_s=0.25)
        assert self.told(lambda one: one.get("id") == 1)["ok"]
        return hello

    def row(self, state):
        """Wait until the run of the variable `run` is in a state; return its row."""

        def row_in(one):
            rows = (row for row in one.get("runs", ()) if row["variable"] == "run")
            return next((row for row in rows if row["state"] == state), None)

        return row_in(self.told(row_in))

    def in_run(self, number, **message):
        """Send a message of a panel to a run; return what it answers."""
        self.ask(op="run", run=number, message=message)
        wanted = {"type": "run", "run": number}
        answer = self.told(
            lambda one: wanted.items() <= one.items() and one["message"].get("id") == message["id"]
        )
        return answer["message"]


def comms_of(client):
    """Ask a kernel for the comm as a front end does."""
    asked = client.send("comm_info_request", {"target_name": "nbpipe.runs"})
    return client.reply(asked)["content"]["comms"]


def found(client):
    """Return the id of the comm."""
    (comm,) = comms_of(client)
    return comm


@pytest.fixture
def sidebar(talk):
    """Start a run whose stage gives one item, and more once four of its calls run at once."""
    talk.client.end(MEET, "start")
    sidebar = Sidebar(talk)
    yield sidebar
    sidebar.ask(op="view", view=sidebar.view, open=False)
    talk.client.run("barrier.abort(); run.close()")


def test_a_busy_kernel_is_asked_and_turned(sidebar, talk):
    """In mid-epoch the comm is found, tells of the run, and turns the knob that held it up."""
    cell = talk.begin(EPOCH)
    sidebar.comm = found(talk.client)
    hello = sidebar.hello()
    row = sidebar.row("running")
    turn = {"op": "set", "stage": "meet", "knob": "concurrency", "value": 4}
    ack = sidebar.in_run(row["run"], id=7, **turn)
    ended = [one for one in talk.client.heard if is_status(one, "idle") and parent(one) == cell]
    talk.client.printed(cell, "8\n")
    talk.client.reply(cell)
    done = sidebar.row("finished")
    assert (hello["protocol"], hello["version"]) == (1, nbpipe.__version__)
    assert (row["title"], row["cell"], row["total"]) == ("source > meet", "start", 9)
    assert (ack, ended) == ({"type": "ack", "id": 7, "ok": True, "value": 4}, [])
    assert (done["run"], done["done"]) == (row["run"], 9)


@pytest.mark.slow
def test_what_workers_print_stays_below_the_cell(sidebar, talk):
    """What workers print is not drawn away from the cell by a message in mid-cell."""
    loud = "print(*nbpipe.source(['of a worker']).map(print, executor='process'))"
    cell = talk.begin(EPOCH + loud)
    number = sidebar.hello()["runs"][-1]["run"]
    turn = {"op": "set", "stage": "meet", "knob": "concurrency", "value": 4}
    assert sidebar.in_run(number, id=7, **turn)["ok"]
    talk.client.printed(cell, "of a worker")
    talk.client.reply(cell)


def test_all_runs_are_stopped_while_one_waits(sidebar, talk):
    """One button ends the epoch that a cell waits in."""
    sidebar.hello()
    cell = talk.begin(EPOCH)
    sidebar.row("running")
    sidebar.ask(op="stop_all", id=3)
    reply = talk.client.reply(cell)
    ack = sidebar.told(lambda one: one.get("id") == 3)
    assert (ack, reply["content"]["status"]) == (
        {"type": "ack", "id": 3, "ok": True, "value": None},
        "ok",
    )


def test_a_run_is_looked_at_in_mid_epoch(sidebar, talk):
    """A view of one run is greeted, and gets ticks, as its panel would."""
    number = sidebar.hello()["runs"][-1]["run"]
    cell = talk.begin(EPOCH)
    sidebar.ask(op="run", run=number, message={"op": "view", "view": "details", "open": True})
    shown = [
        sidebar.told(lambda one, kind=kind: one.get("message", {}).get("type") == kind)["message"]
        for kind in ("hello", "tick")
    ]
    sidebar.ask(op="run", run=number, message={"op": "view", "view": "details", "open": False})
    stopped = sidebar.in_run(number, op="stop", id=2)
    talk.client.reply(cell)
    states = [one["snapshot"]["state"] for one in shown]
    assert (stopped["ok"], states) == (True, ["running", "running"])


@pytest.mark.slow
def test_a_chain_is_written_as_it_is_tuned(sidebar, talk):
    """The code for a new cell has today's values, and gives the same stages where it is run."""
    talk.client.run(
        "pipe = nbpipe.source(range(9)).map(meet, concurrency=2).map(lambda n: -n).batch(3)"
    )
    talk.client.run("run.close(); run = pipe.start(); pipe['meet'].concurrency = 6")
    number = sidebar.hello()["runs"][-1]["run"]
    sidebar.ask(op="chain", run=number, id=5)
    chain = sidebar.told(lambda one: one.get("id") == 5)
    talk.client.run(chain["code"])
    told = talk.client.run("print(pipe['meet'].concurrency, [one.name for one in pipe.stages])")
    talk.client.run("del pipe")
    assert chain["code"] == (
        "pipe = nbpipe.source(range(9)).map(meet, concurrency=6).map(lambda n: -n).batch(3)"
    )
    assert told == "6 ['source', 'meet', 'map_2', 'batch']\n"


LOOP = """
looped = nbpipe.source(range(9))
for number in range(2):
    looped = looped.map(abs, name=f"abs_{number}")
looped['abs_1'].concurrency = 3
run.close(); run = looped.start()
"""
LOOPED = """
looped = nbpipe.source(range(9))
for number in range(2):
    looped = looped.map(abs, name=f"abs_{number}")
looped["abs_1"].concurrency = 3
"""
SECRET = """
import functools
def fetch(number, token): return number
chain = nbpipe.source(range(9)).map(functools.partial(fetch, token="hunter2-and-more"))
run.close(); run = chain.start()
"""


@pytest.mark.parametrize(
    ("cell", "code", "error"),
    [(LOOP, LOOPED.strip(), ""), (SECRET, "", "holds what looks like a secret")],
    ids=["loop", "secret"],
)
def test_a_chain_is_written_as_it_was_built_or_refused(sidebar, talk, cell, code, error):
    """What a loop built is written as the loop; a secret is not, and the sentence says why."""
    talk.client.run(cell)
    number = sidebar.hello()["runs"][-1]["run"]
    sidebar.ask(op="chain", run=number, id=6)
    chain = sidebar.told(lambda one: one.get("id") == 6)
    assert (chain["ok"], chain["code"]) == (not error, code)
    assert error in chain["error"]
    assert "hunter2" not in str(chain)


@pytest.mark.slow
@pytest.mark.torch
def test_a_loader_is_one_run(sidebar, talk):
    """What makes batches for a loader is no run of its own; its variable is the loader's."""
    talk.client.run("loader = nbpipe.DataLoader(list(range(8)), 2, num_workers=2)")
    talk.client.run("epoch = iter(loader); next(epoch)")
    rows = sidebar.hello()["runs"][-2:]
    talk.client.run("epoch = None; loader.close(); del loader")
    told = [(row["variable"], row["unit"]) for row in rows]
    assert told == [("run", "items"), ("loader", "batches")]


@pytest.mark.parametrize("protocol", [0, 2, None, "1"])
def test_another_protocol_is_told_ours_and_no_runs(sidebar, protocol):
    """A front end of another version can say which side is to be updated."""
    sidebar.ask(op="hello", protocol=protocol, view=sidebar.view)
    hello = sidebar.told(lambda one: one["type"] == "hello")
    assert (hello["protocol"], hello["runs"]) == (1, [])


def test_a_comm_that_a_page_closed_is_there_again(sidebar, talk):
    """What one page closes another one finds."""
    talk.client.send("comm_close", {"comm_id": sidebar.comm, "data": {}})
    again = found(talk.client)
    closed, sidebar.comm = sidebar.comm, again
    assert (again != closed, sidebar.hello()["type"]) == (True, "hello")


@pytest.mark.slow
def test_nobody_is_told_of_the_comm_and_each_kernel_has_its_own():
    """The import sends nothing; a kernel without it has no comm, nor has one that forgot it."""
    comms = []
    for _ in range(2):
        with running() as client:
            before = comms_of(client)
            client.run("import gc, nbpipe")
            comms += comms_of(client)
            client.run("nbpipe.unload_ipython_extension(get_ipython()); found = gc.collect()")
            assert (before, comms_of(client)) == ({}, {})
            sent = {one["msg_type"] for one in client.heard if one["msg_type"].startswith("comm_")}
            assert sent == {"comm_info_reply"}
    assert len(set(comms)) == 2


@pytest.mark.slow
def test_a_kernel_says_that_it_is_there_when_a_run_starts():
    """The cell that imports nbpipe may train: its first run tells a front end of the comm."""
    with running() as client:
        for _ in range(2):
            client.run("import nbpipe; nbpipe.source([1]).start().close()")
        comm = found(client)
        told = [one["content"] for one in client.heard if one["msg_type"].startswith("comm_msg")]
    assert told == [{"comm_id": comm, "data": {"type": "here"}}]
