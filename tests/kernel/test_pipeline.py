"""A pipeline as the last line of a cell: its buttons start it, and export it."""

import pytest

from tests.kernel.client import parent

WIDGET = "application/vnd.jupyter.widget-view+json"
# The front end is not what is tested, and need not be built.
START = """
import nbpipe
from nbpipe.jupyter import panel
panel.front_end = lambda name: "export default {}"
train = nbpipe.source(range(6), name="files").batch(2)
train
"""
BUSY = "attend(knob)"


class Shown:
    """A pipeline that a cell shows."""

    def __init__(self, talk, code=START):
        self.talk = talk
        self.cell, _ = talk.client.end(code, "shows")
        self.bar = self.outputs()[0]["data"][WIDGET]["model_id"]

    def outputs(self):
        """Return what the cell has shown."""
        kinds = ("display_data", "execute_result")
        return [
            one["content"]
            for one in self.talk.client.heard
            if one["msg_type"] in kinds and parent(one) == self.cell
        ]

    def ask(self, **message):
        """Press a button; return what is answered."""
        self.talk.say(self.bar, {"method": "custom", "content": message})
        return self.talk.told(self.bar, lambda one: one["id"] == message["id"])


@pytest.fixture
def shown(talk):
    """Show a pipeline."""
    talk.client.run("for name in ('train', 'train_run', 'train_run_2'): globals().pop(name, None)")
    yield Shown(talk)
    talk.client.run("nbpipe.close_all()")


def test_a_table_stays_and_the_buttons_stand_above(shown):
    """Without widgets the outputs are the table alone; the buttons have no text of their own."""
    buttons, beside, *empty, table = shown.outputs()
    texts = [one["data"]["text/plain"] for one in (buttons, beside, *empty)]
    places = [one["transient"].get("display_id") for one in empty]
    assert texts == [""] * 4
    assert [bool(place) for place in places] == [True, True]
    assert table["data"]["text/plain"].startswith("Pipeline of 2 stages, 3 batches an epoch")
    assert "<table" in table["data"]["text/html"]


def test_it_is_started_while_a_cell_runs(shown, talk):
    """In a busy kernel: the run has a variable, and its panel and picture stand in the cell."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    acks = [shown.ask(op="start", id=number) for number in (1, 2)]
    places = {one.get("transient", {}).get("display_id") for one in shown.outputs()}
    updates = {
        one["content"]["transient"]["display_id"]: list(one["content"]["data"])
        for one in talk.client.heard
        if one["msg_type"] == "update_display_data"
    }
    talk.say(knob, "end")
    talk.client.reply(cell)
    printed = talk.client.run("print(train_run, [len(batch) for batch in train_run])")
    assert acks == [{"type": "ack", "id": number, "ok": True, "value": None} for number in (1, 2)]
    assert updates.keys() < places
    assert [WIDGET in kinds for kinds in updates.values()] == [True, False]
    assert printed == "Run(files > batch; open) [2, 2, 2]\n"


def test_a_run_started_by_the_button_belongs_to_the_cell(shown, talk):
    """The cell that shows the pipeline closes the run when it runs again; a name that is free."""
    shown.ask(op="start", id=1)
    talk.client.run("first, train_run = train_run, 'mine'")
    again = Shown(talk)
    again.ask(op="start", id=1)
    printed = talk.client.run("print(first.closed, train_run, train_run_2.closed)")
    assert printed == "True mine False\n"


@pytest.mark.slow
def test_it_is_exported(shown, talk):
    """The module is written, and its path is told."""
    ack = shown.ask(op="export", id=4, path="shown.py")
    done = shown.talk.told(shown.bar, lambda one: one["type"] == "exported")
    assert (ack["ok"], done["ok"]) == (True, True)
    assert done["path"] == str(talk.client.folder.resolve() / "shown.py")


def test_what_it_does_not_know_is_refused(shown, talk):
    """Another word is refused; of a pipeline that nothing holds, the way out is told."""
    other = shown.ask(op="stop", id=1)
    bad = shown.ask(op="export", id=2, path="shown.txt")
    unheld = Shown(talk, "from IPython.display import display\ndisplay(nbpipe.source([1]))")
    gone = unheld.ask(op="start", id=3)
    told = [one["error"].partition(",")[0] for one in (other, bad)]
    assert told == ["op must be one of start", "path must be that of a module"]
    assert gone["error"] == "this pipeline is gone; run the cell that shows it again"
