"""Widgets reach a kernel that is busy: every version of ipykernel, with subshells and without."""

import pytest

from tests.kernel.client import is_status, parent
from tests.kernel.conftest import ROUTED
from tests.kernel.inner import LIMIT

BUSY = "attend(knob)"
# More than one look takes. Each is answered by three messages, and a kernel drops what it sends
# where 500 wait for a client that the machine does not let run.
MANY = range(LIMIT + 20)
STUBBORN = """
while "end" not in knob.heard:
    try:
        knob.comm.send({"goes": "on"})
        stay(knob)
    except KeyboardInterrupt:
        pass
"""


def test_the_kernel_is_of_the_version_that_is_meant(talk):
    """The tests run on the version that their name says."""
    printed = talk.client.run("import ipykernel; print(ipykernel.__version__)")
    assert printed == f"{talk.version}\n"


def test_a_knob_is_heard_before_the_cell_ends(talk):
    """What a widget sends is answered while the cell runs."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    talk.say(knob, 1)
    talk.client.acked(knob, 1)
    running = [one for one in talk.client.heard if parent(one) == cell]
    ended = [one for one in running if is_status(one, "idle") or one["msg_type"] == "execute_reply"]
    talk.say(knob, "end")
    assert (ended, talk.client.reply(cell)["content"]["status"]) == ([], "ok")


def test_many_messages_are_answered_in_order(talk):
    """More messages than one look takes are answered, each once, in order."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    for number in MANY:
        talk.say(knob, number)
    talk.say(knob, "end")
    talk.client.reply(cell)
    talk.client.acked(knob, "end")
    assert talk.client.data(knob) == [{"ack": data} for data in [*MANY, "end"]]


@pytest.mark.parametrize("way", ROUTED, indirect=True)
def test_a_message_to_a_subshell_that_is_gone(talk):
    """A page that is loaded while cells run may delete the subshell of its new widgets."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    talk.client.say(knob, 1, subshell="deleted")
    talk.client.acked(knob, 1)
    talk.say(knob, "end")
    assert talk.client.reply(cell)["content"]["status"] == "ok"


@pytest.mark.slow
def test_queued_cells_run_afterwards_in_order(talk):
    """Cells and other requests that arrive in mid-cell are kept, each with its own output."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    queued = []
    for number in range(4):
        queued.append(talk.client.execute(f"print('cell', {number})"))
        talk.say(knob, number)
        talk.client.acked(knob, number)
    asked = talk.client.send("complete_request", {"code": "pum", "cursor_pos": 3})
    talk.say(knob, "end")
    replies = [talk.client.reply(request) for request in (cell, *queued, asked)]
    for number, request in enumerate(queued):
        talk.client.printed(request, f"cell {number}\n")
    assert [one for one in talk.client.heard if one in replies] == replies


def test_queued_cells_are_dropped_when_the_cell_fails(talk):
    """An error drops the cells behind it, those among them that a look had handed back."""
    knob = talk.knob()
    cell = talk.begin(f"{BUSY}\n1/0")
    queued = []
    for number in range(3):
        queued.append(talk.client.execute(f"print('cell', {number})"))
        talk.say(knob, number)
        talk.client.acked(knob, number)
    talk.say(knob, "end")
    found = [talk.client.reply(request)["content"]["status"] for request in (cell, *queued)]
    talk.client.run("print('goes on')")
    assert found == ["error", "aborted", "aborted", "aborted"]


@pytest.mark.slow
def test_interrupts_lose_no_message(talk):
    """Interrupts amid a flood of messages and cells: each is answered once, in order."""
    knob = talk.knob()
    cell = talk.client.execute(STUBBORN)
    queued = []
    for count in range(8):
        talk.client.wait(lambda _, n=count: turns(talk, knob) > n, "turn")
        for number in range(20):
            talk.say(knob, number)
            if number % 10 == count:
                queued.append(talk.client.execute(f"print('cell', {len(queued)})"))
        talk.client.wait(lambda _, n=count: len(acks(talk, knob)) > 20 * n, "first answer")
        talk.client.interrupt()  # amid the answers
    talk.client.wait(lambda _: turns(talk, knob) == 9, "last turn")
    talk.say(knob, "end")
    replies = [talk.client.reply(request) for request in (cell, *queued)]
    for number, request in enumerate(queued):
        talk.client.printed(request, f"cell {number}\n")
    in_order = [one for one in talk.client.heard if one in replies] == replies
    assert (acks(talk, knob), in_order) == ([*range(20)] * 8 + ["end"], True)


def acks(talk, knob):
    """Return what the knob has acknowledged so far."""
    return [one["ack"] for one in talk.client.data(knob) if "ack" in one]


def turns(talk, knob):
    """Count how often the cell has entered its loop: there it can bear an interrupt."""
    return talk.client.data(knob).count({"goes": "on"})


def test_a_page_that_is_reloaded_is_answered(talk):
    """What a page asks before its widgets come back is answered while the cell runs."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    kinds = ("kernel_info", "comm_info")
    answers = [talk.client.reply(talk.client.send(f"{kind}_request", {})) for kind in kinds]
    talk.say(knob, "end")
    found = [one["msg_type"] for one in answers]
    ended = talk.client.reply(cell)["content"]["status"]
    assert (found, ended) == (["kernel_info_reply", "comm_info_reply"], "ok")


def test_what_is_shown_after_a_look_lands_in_the_cell(talk):
    """Looking changes nothing of where the cell's prints and displays go."""
    knob = talk.knob()
    cell = talk.begin(
        f"from IPython.display import display; {BUSY}\nprint('after')\ndisplay('shown')\n'result'"
    )
    talk.say(knob, "print")
    talk.say(knob, "end")
    talk.client.reply(cell)
    talk.client.printed(cell, "after\n")
    kinds = ("display_data", "execute_result")
    for kind in kinds:
        talk.client.wait(lambda one, kind=kind: one["msg_type"] == kind, kind)
    owners = [parent(one) for one in talk.client.heard if one["msg_type"] in kinds]
    assert owners == [cell, cell]


def test_what_a_thread_prints_after_a_look_lands_in_the_cell(direct):
    """Looking changes nothing of where the cell's threads print to."""
    knob = direct.knob()
    cell = direct.begin(
        f"import threading; {BUSY}\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()"
    )
    direct.say(knob, "print")
    direct.say(knob, "end")
    direct.client.reply(cell)
    direct.client.printed(cell, "thread\n")
    assert direct.client.output(cell) == "begun\nthread\n"


TWO_CELLS = """
import nbpipe
def say(number):
    print("item", number)
async def say_async(number):
    print("item", number)
"""


@pytest.mark.parametrize("function", ["say", "say_async"])
def test_what_stages_print_lands_in_the_cell_that_reads_on(direct, function):
    """An epoch that one cell begins and a later cell reads prints below the later one."""
    direct.client.run(TWO_CELLS)
    direct.client.run(
        f"run = nbpipe.source(range(200)).map({function}).start(); items = iter(run); next(items)"
    )
    assert "item 199\n" in direct.client.run("got = list(items); run.close()")


NUMBERS = """
import gc, threading
gc.disable()  # the kernel forgets threads that are gone as garbage is collected
barrier = threading.Barrier(40)
threads = [threading.Thread(target=barrier.wait) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_what_stages_print_lands_there_where_threads_of_other_cells_are_gone(direct):
    """The numbers of these threads are used again, by those of the run."""
    direct.client.run(TWO_CELLS)
    direct.client.run(NUMBERS)
    direct.client.run(
        "runs = [nbpipe.source(range(200)).map(say, concurrency=1).start() for _ in range(10)]\n"
        "begun = [iter(run) for run in runs]\n"
        "for items in begun: next(items)"
    )
    printed = direct.client.run(
        "got = [list(items) for items in begun]\nfor run in runs: run.close()\ngc.enable()"
    )
    assert printed.count("item 199\n") == 10


CIRCLE = """
import sys, threading
def show():
    known, me = getattr(sys.stdout, "_thread_to_parent", {}), threading.get_ident()
    known[me] = -1
    known[-1] = me  # as where both numbers are those of threads that came later
    print("thread")
thread = threading.Thread(target=show, daemon=True)
thread.start()
thread.join(HANG_S)
"""


AGAIN = """
import threading
def started(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()
for number in range(50):
    started(started, started, int)
    started(print, number)
"""


@pytest.mark.parametrize(
    ("code", "lines"), [(CIRCLE, ["thread"]), (AGAIN, range(50))], ids=["circle", "again"]
)
def test_a_thread_prints_where_numbers_of_threads_were_used_again(direct, code, lines):
    """Threads get the numbers of others: what is printed belongs to the cell that started them."""
    cell, _ = direct.client.end(code)
    assert direct.client.output(cell) == "".join(f"{line}\n" for line in lines)


def test_what_a_handler_prints_belongs_to_its_message(talk):
    """A handler's output belongs to the message, as it does outside a cell."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    message = talk.say(knob, "print")
    talk.client.printed(message, "from the handler\n")
    talk.say(knob, "end")
    talk.client.reply(cell)
    assert talk.client.output(cell) == "begun\n"


def test_the_kernel_says_that_it_is_still_busy(direct):
    """After an answer in mid-cell a front end hears that the kernel is still busy."""
    knob = direct.knob()
    cell = direct.begin(BUSY)
    message = direct.say(knob, 1)
    direct.client.acked(knob, 1)
    direct.client.wait(lambda _: is_status(direct.client.heard[-1], "busy"), "busy")
    statuses = [one for one in direct.client.heard if one["msg_type"] == "status"][-3:]
    found = [(parent(one), one["content"]["execution_state"]) for one in statuses]
    direct.say(knob, "end")
    direct.client.reply(cell)
    assert found == [(message, "busy"), (message, "idle"), (cell, "busy")]


def test_a_handler_that_fails_does_the_cell_no_harm(talk):
    """A handler's error is the kernel's to log; the cell and later messages go on."""
    knob = talk.knob()
    cell = talk.begin(BUSY)
    talk.say(knob, "fail")
    talk.say(knob, 1)
    talk.client.acked(knob, 1)
    talk.say(knob, "end")
    assert talk.client.reply(cell)["content"]["status"] == "ok"
