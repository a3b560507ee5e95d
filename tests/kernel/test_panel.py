"""The real panel of a real run, in a kernel that is busy with the run's epoch."""

import pytest

from tests.kernel.client import is_status, parent
from tests.kernel.conftest import EPOCH, MEET, WAYS

# The front end is not what is tested, and need not be built.
START = f"""
{MEET}
from nbpipe.jupyter import panel
panel.front_end = lambda name: "export default {{}}"
print("id", panel.panel_of(run).model_id)
"""


@pytest.fixture
def panel(talk):
    """Start a run whose stage gives one item, and more once four of its calls run at once."""
    yield talk.client.run(START).split()[-1]
    talk.client.run("barrier.abort(); run.close(); panel.panel_of(run).close()")


def ask(talk, panel, message):
    """Send what a view sends; return what the panel answers."""
    talk.say(panel, {"method": "custom", "content": message})
    return talk.told(panel, lambda one: one.get("id") == message["id"])


def test_a_knob_is_turned_while_the_epoch_waits_for_it(talk, panel):
    """A cell that waits for an epoch goes on when its panel turns the knob that held it up."""
    cell = talk.begin(EPOCH)
    turn = {"op": "set", "id": 1, "stage": "meet", "knob": "concurrency", "value": 4}
    ack = ask(talk, panel, turn)
    ended = [one for one in talk.client.heard if is_status(one, "idle") and parent(one) == cell]
    talk.client.printed(cell, "8\n")
    talk.client.reply(cell)
    numbers = talk.client.output(cell).split()[1:]
    wanted = {"type": "ack", "id": 1, "ok": True, "value": 4}
    assert (ack, ended, numbers) == (wanted, [], [str(number) for number in range(1, 9)])


def test_a_view_is_kept_up_to_date_while_the_epoch_waits(talk, panel):
    """A view that opens in mid-epoch is greeted, and gets ticks from the panel's thread."""
    cell = talk.begin(EPOCH)
    talk.say(
        panel, {"method": "custom", "content": {"op": "view", "id": 1, "view": "v", "open": True}}
    )
    hello = talk.told(panel, lambda one: one["type"] == "hello")
    tick = talk.told(panel, lambda one: one["type"] == "tick")
    ask(talk, panel, {"op": "stop", "id": 2})
    talk.client.reply(cell)
    states = hello["snapshot"]["state"], tick["snapshot"]["state"]
    assert states == ("running", "running")


def test_a_stopped_epoch_ends_its_cell(talk, panel):
    """The panel's stop button ends the loop of a cell that waits."""
    cell = talk.begin(EPOCH)
    ack = ask(talk, panel, {"op": "stop", "id": 1})
    reply = talk.client.reply(cell)
    assert (ack["ok"], reply["content"]["status"]) == (True, "ok")


READY = """
ready = nbpipe.source(range(9)).map(lambda number: number, name="same").start()
print("id", panel.panel_of(ready).model_id)
"""
PAUSED = """
for number in ready:
    if number == 0:
        ready.pause()
        print("begun", flush=True)
print("had", number)
"""


@pytest.mark.parametrize(("click", "last"), [("resume", 8), ("stop", 0)])
def test_a_click_is_heard_in_a_pause(talk, panel, click, last):
    """A cell that waits in a pause, with items ready, hears the panel's buttons."""
    mine = talk.client.run(READY).split()[-1]
    cell = talk.begin(PAUSED)
    ack = ask(talk, mine, {"op": click, "id": 1})
    talk.client.printed(cell, f"had {last}\n")
    talk.client.reply(cell)
    talk.client.run("ready.close(); panel.panel_of(ready).close()")
    assert ack["ok"]


PRESSED = """
import comm
from nbpipe.jupyter.kernel import cure
def press(message):
    button.send({"ack": "begun"})
    button.send({"ack": list(run)})
button = comm.create_comm(target_name="nbpipe.test")
button.on_msg(press)
cure(button, press)
print("id", button.comm_id)
"""
# A subshell answers one message after the other.
ANSWERED = [way for way in WAYS if not way.values[0][1]]


@pytest.mark.parametrize("way", ANSWERED, indirect=True)
def test_a_loop_in_a_callback_is_turned(talk, panel):
    """A callback that iterates a run is answered as a cell is, where the kernel is idle."""
    button = talk.client.run(PRESSED).split()[-1]
    talk.say(button, 1)
    talk.client.acked(button, "begun")
    turn = {"op": "set", "id": 1, "stage": "meet", "knob": "concurrency", "value": 4}
    ack = ask(talk, panel, turn)
    talk.client.acked(button, [*range(9)])
    assert ack["ok"]


LOADER = """
loader = nbpipe.DataLoader([0, 1, 2], 1)
id_of = lambda: print("id", panel.panel_of(loader.run).model_id)
loader
"""
LOADED = """
for number, batch in enumerate(loader):
    if number == 0:
        loader.run.pause()
        print("begun", flush=True)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_loader_is_shown_and_answers_in_mid_epoch(talk, panel):
    """A loader without workers shows its panel as a cell's last line, which acts in mid-epoch."""
    shown = talk.client.execute(LOADER)
    talk.client.reply(shown)
    loaders = talk.client.run("id_of()").split()[-1]
    cell = talk.begin(LOADED)
    ack = ask(talk, loaders, {"op": "resume", "id": 1})
    talk.client.reply(cell)
    talk.client.run("panel.panel_of(loader.run).close()")
    kinds = [
        kind
        for one in talk.client.heard
        if parent(one) == shown and one["msg_type"] == "display_data"
        for kind in one["content"]["data"]
    ]
    assert (ack["ok"], kinds) == (
        True,
        [
            "application/vnd.jupyter.widget-view+json",
            "text/plain",
            "text/html",
            "text/markdown",
            "text/plain",
        ],
    )
