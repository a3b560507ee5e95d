"""Other kinds of cells: with figures, with await, with tasks that outlive them; and the cures."""

import pytest

from tests.kernel.client import is_status, parent
from tests.kernel.conftest import AWAITED, BY_SUBSHELL

FIGURE = """
%matplotlib inline
import matplotlib.pyplot as plt
figure = plt.figure()
plt.plot([1, 2])
attend(knob)
print("open", plt.get_fignums() == [figure.number])
"""
AWAIT = """
import asyncio
print("begun", flush=True)
while "end" not in knob.heard:
    pump.poll()
    await asyncio.sleep(0.001)
"""
TASK = """
import asyncio
go = asyncio.Event()
async def stay_on():
    await go.wait()
    attend(knob)
    print("over", flush=True)
task = asyncio.ensure_future(stay_on())
"""
MISSING = """
import logging
from types import SimpleNamespace
class Strange:
    def __init__(self, missing):
        self._missing = missing
    def __getattr__(self, name):
        if name == self._missing:
            raise AttributeError(name)
        return getattr(get_ipython().kernel, name)
warned = []
handler = logging.Handler()
handler.emit = lambda record: warned.append(record.getMessage())
logging.getLogger("nbpipe").addHandler(handler)
for missing in ("session", "shell_handlers", "set_parent", "_parent_ident", "_publish_status"):
    shell = SimpleNamespace(kernel=Strange(missing))
    print(Pump.of(shell), Pump.of(shell), len(warned), missing in warned[-1])
logging.getLogger("nbpipe").removeHandler(handler)
"""


def figures_after(talk, knob):
    """Run the cell with the half-built figure; return what it saw, and how often it was shown."""
    cell = talk.begin(FIGURE)
    talk.say(knob, 1)
    talk.client.acked(knob, 1)
    talk.say(knob, "end")
    talk.client.reply(cell)
    talk.client.wait(lambda one: is_status(one, "idle") and parent(one) == cell, "idle")
    shown = [one for one in talk.client.heard if one["msg_type"] == "display_data"]
    return talk.client.output(cell), [parent(one) == cell for one in shown]


@pytest.mark.slow
def test_a_half_built_figure_survives_a_message(talk):
    """A figure that the cell has begun is shown once, whole, by the cell."""
    assert figures_after(talk, talk.knob()) == ("begun\nopen True\n", [True])


@pytest.mark.slow
def test_a_half_built_figure_survives_the_message_of_a_foreign_widget(direct):
    """The pump leaves figures alone, whosever widget it answers."""
    assert figures_after(direct, direct.knob("cured=False")) == ("begun\nopen True\n", [True])


@pytest.mark.parametrize("way", AWAITED, indirect=True)
def test_a_cell_that_awaits_is_reached(talk):
    """Knobs are heard while a cell awaits, where a look is taken now and then."""
    knob = talk.knob()
    cell = talk.begin(AWAIT)
    queued = talk.client.execute("print('queued')")
    talk.say(knob, "end")
    replies = [talk.client.reply(cell), talk.client.reply(queued)]
    assert [one["content"]["status"] for one in replies] == ["ok", "ok"]


def test_a_task_that_outlives_its_cell_is_no_cell(direct):
    """A look between two cells hands cells on, and does not say that the kernel is busy."""
    knob = direct.knob()
    cell = direct.client.execute(TASK)
    direct.client.reply(cell)
    direct.client.run("go.set()")
    direct.client.printed(cell, "begun\n")
    queued = [direct.client.execute(f"print('cell', {number})") for number in range(3)]
    direct.say(knob, 1)
    direct.client.acked(knob, 1)
    direct.say(knob, "end")
    direct.client.printed(cell, "over\n")
    states = [one["content"].get("execution_state") for one in direct.client.heard]
    state = [one for one in states if one][-1]
    replies = [direct.client.reply(request)["content"]["status"] for request in queued]
    assert (state, replies) == ("idle", ["ok"] * 3)


@pytest.mark.parametrize("way", BY_SUBSHELL, indirect=True)
def test_a_subshell_hears_without_the_pump(talk):
    """On a subshell, a cell that never looks is reached too; ipykernel 7.4 needs the cure."""
    knob = talk.knob()
    cell = talk.begin("knob.comm.send('published by the cell'); attend(knob, polls=False)")
    talk.say(knob, "end")
    assert talk.client.reply(cell)["content"]["status"] == "ok"


def test_a_thread_publishes_on_our_comm(talk):
    """Our comms publish from a plain thread, which ipykernel 7.0 does not allow of itself."""
    knob = talk.knob()
    talk.client.run(
        "import threading; thread = threading.Thread(target=knob.comm.send, args=({'ack': 1},))\n"
        "thread.start(); thread.join()"
    )
    assert talk.client.acked(knob, 1)["content"]["comm_id"] == knob


def test_a_kernel_that_lacks_a_part_is_told_once(talk):
    """Without a part that is needed there is no pump, and one warning that names the part."""
    wanted = [f"None None {number} True" for number in range(1, 6)]
    assert talk.client.run(MISSING).splitlines() == wanted


PRESSED = """
import comm, nbpipe
from nbpipe.jupyter.kernel import cure
pipe, runs = nbpipe.source(range(3)), []
def press(message):
    runs.append(pipe.start())
    button.send({"ack": message["content"]["data"]})
button = comm.create_comm(target_name="nbpipe.test")
button.on_msg(press)
cure(button, press)
print("id", button.comm_id)
"""


def test_a_run_of_a_callback_belongs_to_the_cell_that_defined_it(talk):
    """Be the kernel idle or busy with another cell, which leaves the run alone."""
    button = talk.client.run(PRESSED, "button").split()[-1]
    knob = talk.knob()
    talk.say(button, 1)
    talk.client.acked(button, 1)
    cell = talk.client.execute("attend(knob)", cell_id="busy")
    talk.client.printed(cell, "begun\n")
    talk.say(button, 2)
    talk.client.acked(button, 2)
    talk.say(knob, "end")
    talk.client.reply(cell)
    left = talk.client.run("print([run.closed for run in runs])", "busy")
    said = talk.client.run("print([run.closed for run in runs])", "button")
    wanted = "nbpipe: closed 2 runs that this cell started before\n[True, True]\n"
    assert (left, said) == ("[False, False]\n", wanted)
