"""The sidebar in a real JupyterLab: the runs of the notebook in front, live, with their panels."""

import os
import re
import signal

import pytest

from tests.browser import lab
from tests.browser.lab import CELL_MS
from tests.browser.panel import HEIGHT, PIPE, SETUP, WIDTH, PanelPage, train
from tests.browser.sidebar import (
    SIDEBAR,
    names,
    open_row,
    row,
    show,
    start_rows,
    wait_row,
    wait_says,
)
from tests.ipynb import write_notebook

pytestmark = pytest.mark.browser

# Trains in a thread until the file `flag` is there: the cell ends at once.
BACKGROUND = """
{name} = nbpipe.source(range(10**9)).map(slow, concurrency=2).start()
threading.Thread(target=training, args=({name}, {flag!r}), daemon=True).start()
"""
# What a kernel logs, as a person sees it where JupyterLab was started.
LISTEN = """
import logging, sys
logged = []
class Listener(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
get_ipython().kernel.log.addHandler(Listener(logging.WARNING))
"""
HEARD = """
print(logged, 'nbpipe' in sys.modules, 'nbpipe.runs' in get_ipython().kernel.comm_manager.targets)
"""
# A kernel side of another version: it answers every hello with its own number.
OTHER = """
from comm import create_comm
other = create_comm(target_name="nbpipe.runs", primary=False)
get_ipython().kernel.comm_manager.register_comm(other)
hello = {{"type": "hello", "protocol": {protocol}, "version": "0.0.9", "runs": [{{"odd": 1}}]}}
other.on_msg(lambda message: other.send(hello))
"""


def test_live_in_a_busy_cell(open_cells):
    """The list is there before nbpipe is; while a cell trains it moves, and a knob is turned."""
    page = open_cells(SETUP, PIPE, train("stop-live"), fresh=True)
    show(page)
    wait_says(page, "No run in this kernel yet: it has not imported nbpipe")
    page.run_cell(0)
    wait_says(page, "No run in this kernel yet: start one")
    start_rows(page, 2)
    done = row(page).locator("[data-field=progress]")
    seen = page.wait_text(done, "0 of 1,000,000,000 items", differs=True)
    later = page.wait_text(done, seen, differs=True)
    open_row(page)
    page.nudge("slow")
    page.wait_value(page.number("slow"), 3)
    running = page.is_running(2)
    page.finish(2, "stop-live")
    wait_row(page, "cancelled")
    assert (running, later != seen, names(page), page.said(2)) == (
        *(True, True, ["run"]),
        "trained\n",
    )


def test_what_is_advised_is_applied_on_the_closed_card(open_cells):
    """The card says what limits; its button turns the knob while the cell trains."""
    page = open_cells(SETUP, PIPE, train("stop-card"), fresh=True)
    show(page)
    start_rows(page, 2)
    card = row(page)
    apply = card.locator("> button.nbp-apply")
    apply.wait_for(timeout=CELL_MS)
    offered = apply.inner_text()
    apply.click()
    open_row(page)
    page.wait_value(page.number("slow"), int(offered.split()[-1]))
    hidden = apply.is_hidden()
    running = page.is_running(2)
    page.finish(2, "stop-card")
    assert (offered.startswith("Set slow.concurrency to "), hidden, running) == (True,) * 3


def test_imported_in_the_cell_that_trains(open_cells):
    """A run is in the list though nothing was shown, and the cell that imported nbpipe trains."""
    page = open_cells(SETUP + PIPE + train("stop-one"), fresh=True)
    show(page)
    wait_says(page, "No run in this kernel yet: it has not imported nbpipe")
    start_rows(page, 0)
    open_row(page)
    page.nudge("slow")
    page.wait_value(page.number("slow"), 3)
    running = page.is_running(0)
    page.finish(0, "stop-one")
    assert (running, page.said(0)) == (True, "trained\n")


def test_page_loaded_again_in_mid_epoch(open_cells):
    """After each reload in mid-epoch the list is there, and the panel open in it acts."""
    page = open_cells(SETUP, PIPE, train("stop-again"), fresh=True)
    show(page)
    start_rows(page, 2)
    open_row(page)
    values = []
    for value in (3, 4, 5):
        page.reload()
        show(page)
        wait_row(page, "running")
        row(page).locator(".nbpipe-panel[data-link=live]").wait_for()
        page.nudge("slow")
        page.wait_value(page.number("slow"), value)
        values.append(page.number("slow").input_value())
    (page.folder / "stop-again").touch()
    wait_row(page, "cancelled")
    assert values == ["3", "4", "5"]


def test_silent_kernel_is_waited_for(open_cells):
    """A kernel that hears nothing while its cell runs is there when the cell has ended."""
    page = open_cells(
        SETUP + PIPE,
        "Path('deaf').touch()\nwhile not Path('hear').exists(): time.sleep(0.02)",
        fresh=True,
    )
    page.run_cell(0)
    page.start_cell(1)
    page.wait_file("deaf")
    page.reload()
    show(page)
    wait_says(page, "Connecting")
    (page.folder / "hear").touch()
    wait_row(page, "ready")
    assert names(page) == ["run"]


def test_restart_and_run_all(open_cells):
    """The kernel is restarted and all cells run, the list open: it has the new run, once."""
    page = open_cells(SETUP, PIPE, train("stop-first"), fresh=True)
    show(page)
    start_rows(page, 2)
    open_row(page)
    page.restart()
    wait_says(page, "No run in this kernel yet: it has not imported nbpipe")
    page.page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    wait_row(page, "running")
    open_row(page)
    page.nudge("slow")
    page.wait_value(page.number("slow"), 3)
    page.finish(2, "stop-first")
    assert (names(page), page.said(2)) == (["run"], "trained\n")


def test_kernel_that_dies_is_started_anew(open_cells):
    """Of a kernel that was killed the list forgets the runs, and has those of the one after it."""
    page = open_cells(SETUP + PIPE + "import os; print(os.getpid())", fresh=True)
    show(page)
    page.run_cell(0)
    wait_row(page, "ready")
    open_row(page)
    os.kill(int(page.said(0)), signal.SIGKILL)
    wait_says(page, "No run in this kernel yet: it has not imported nbpipe")
    page.page.locator(".jp-Dialog button.jp-mod-accept").click()
    page.wait_idle()
    page.start_cell(0)
    wait_row(page, "ready")
    assert (names(page), page.page.locator(f"{SIDEBAR} .nbpipe-panel").count()) == (["run"], 0)


def test_two_pages_of_one_kernel(open_cells):
    """What is turned in the list of one page is seen in that of the other."""
    page = open_cells(SETUP, PIPE, train("stop-pages"), fresh=True)
    show(page)
    start_rows(page, 2)
    other = page.reopen()
    show(other)
    wait_row(other, "running")
    for each in (page, other):
        open_row(each)
    page.nudge("slow")
    other.wait_value(other.number("slow"), 3)
    other.nudge("slow")
    page.wait_value(page.number("slow"), 4)
    page.finish(2, "stop-pages")
    wait_row(page, "cancelled")
    assert page.said(2) == "trained\n"


def test_kernel_that_is_shut_down(open_cells):
    """Where there is no kernel the list says so, and of the next one that it has no run."""
    page = open_cells(SETUP + PIPE, fresh=True)
    show(page)
    page.run_cell(0)
    wait_row(page, "ready")
    open_row(page)
    said = []
    page.page.on("console", lambda message: said.append((message.type, message.text)))
    page.shut_down()
    wait_says(page, "This notebook has no kernel")
    wrong = [one for one in said if one[0] in ("warning", "error")]
    page.page.evaluate(
        "window.jupyterapp.shell.currentWidget.sessionContext.changeKernel({name: 'python3'})"
    )
    wait_says(page, "No run in this kernel yet")
    assert (names(page), wrong) == ([], [])


def test_two_notebooks(open_cells, lab_folder):
    """The list follows the notebook in front; JupyterLab's own list has the runs of both."""
    page = open_cells(SETUP, BACKGROUND.format(name="first", flag="stop-two"), fresh=True)
    show(page)
    page.run_cells(0, 1)
    wait_row(page, "running", "first")
    other = SETUP, BACKGROUND.format(name="second", flag="stop-two")
    write_notebook(lab_folder / "beside.ipynb", *other)
    page.open("beside.ipynb")
    wait_says(page, "No run in this kernel yet")
    page.run_cells(0, 1)
    wait_row(page, "running", "second")
    shown = [names(page)]
    page.page.locator(".lm-TabBar-tab", has_text=page.name).first.click()
    wait_row(page, "running", "first")
    shown.append(names(page))
    page.page.evaluate("window.jupyterapp.shell.activateById('jp-running-sessions')")
    going = page.page.locator(".jp-RunningSessions-item", has_text=" · ")
    going.nth(1).wait_for()
    labels = going.locator(".jp-RunningSessions-itemLabel").all_inner_texts()
    items = sorted(one.partition(" · ")[0] for one in labels)
    second = going.filter(has_text="second")
    second.hover()
    second.locator("button[title=Stop], .jp-RunningSessions-itemShutdown").first.click()
    page.page.locator(".lm-TabBar-tab", has_text="beside.ipynb").first.click()
    wait_row(page, "stopped", "second")
    page.leave(keep=False)
    (page.folder / "stop-two").touch()
    wait_row(page, "cancelled", "first")
    page.page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert (shown, items) == ([["second"], ["first"]], ["first", "second"])


def test_moved_to_the_other_side(open_cells):
    """In the left sidebar it goes on: an open panel acts while the cell trains."""
    page = open_cells(SETUP, PIPE, train("stop-side"), fresh=True)
    show(page)
    start_rows(page, 2)
    open_row(page)
    sides = []
    for value in (3, 4):
        tab = page.page.locator(".jp-SideBar .lm-TabBar-tab[data-id=nbpipe-runs]")
        tab.click(button="right")
        page.page.locator(".lm-Menu-itemLabel", has_text="Switch Sidebar Side").click()
        show(page)
        open_row(page)
        page.nudge("slow")
        page.wait_value(page.number("slow"), value)
        sides.append(page.page.locator(f".jp-mod-left {SIDEBAR}, #jp-left-stack {SIDEBAR}").count())
    page.finish(2, "stop-side")
    assert sides == [1, 0]


def test_kernel_of_another_version(open_cells):
    """A kernel that speaks an older or newer protocol is said to, with what to update."""
    page = open_cells(OTHER.format(protocol=0), OTHER.format(protocol=2), fresh=True)
    show(page)
    page.run_cell(0)
    wait_says(page, "Update nbpipe in the kernel: nbpipe 0.0.9 there speaks protocol 0")
    page.restart()
    page.run_cell(1)
    wait_says(page, "Update jupyter-nbpipe where JupyterLab runs: nbpipe 0.0.9 there speaks")
    assert names(page) == []


def test_kernel_without_nbpipe_notices_nothing(open_cells):
    """Where nbpipe was not imported nothing is logged, in page or kernel, whatever happens."""
    page = open_cells(LISTEN, "1 + 1", "1 / 0", HEARD, fresh=True)
    said = []
    page.page.on("console", lambda message: said.append((message.type, message.text)))
    page.page.on("pageerror", lambda error: said.append(("error", str(error))))
    show(page)
    page.run_cells(*range(4))
    heard = page.said(3)
    wrong = [one for one in said if one[0] in ("warning", "error")]
    page.restart()  # of which JupyterLab itself has something to say
    page.run_cells(0, 3)
    wait_says(page, "No run in this kernel yet: it has not imported nbpipe")
    ours = [text for _, text in said if "nbpipe" in text or "comm" in text]
    nothing = "[] False False\n"
    assert (heard, page.said(3), wrong, ours) == (nothing, nothing, [], [])


def export_to(page, path):
    """Ask for an export, and type the file."""
    page.page.evaluate("void window.jupyterapp.commands.execute('nbpipe:export')")
    page.page.locator(".jp-Dialog input").fill(path)
    page.page.keyboard.press("Enter")


def test_commands(open_cells):
    """Pause, go on, export, insert: what one asks for in the palette comes about in the kernel."""
    page = open_cells(SETUP, BACKGROUND.format(name="run", flag="stop-asked"), fresh=True)
    show(page)
    page.run_cells(0, 1)
    wait_row(page, "running")
    status = page.page.locator(".nbpipe-status button")
    status.wait_for()
    page.page.wait_for_function(
        "() => document.querySelector('.nbpipe-status').innerText.endsWith('· bottleneck: slow')",
        timeout=CELL_MS,
    )
    page.page.evaluate("window.jupyterapp.shell.collapseRight()")
    page.page.locator(SIDEBAR).wait_for(state="hidden")
    status.click()
    page.page.keyboard.press("Enter")  # the first run has the focus
    page.panel().wait_for()
    open_row(page)
    page.nudge("slow")
    page.wait_value(page.number("slow"), 3)
    page.command("nbpipe:pause-all")
    wait_row(page, "paused")
    page.command("nbpipe:resume-all")
    wait_row(page, "running")
    page.show_cell(1)
    page.page.locator(
        ".jp-cell-toolbar [data-command='nbpipe:show-cell']:not(.lm-mod-hidden)"
    ).first.wait_for(state="attached")
    page.command("nbpipe:insert-chain")
    inserted = page.sources()[2]
    export_to(page, "asked.txt")
    refusal = page.page.locator(".jp-Dialog .nbpipe-said")
    refused = refusal.inner_text()
    page.page.keyboard.press("Enter")
    refusal.wait_for(state="detached")
    (page.folder / "asked.py").write_text("mine = 1\n")
    export_to(page, "asked.py")
    page.page.locator(".jp-Dialog button", has_text="Overwrite").click()
    page.page.locator(".Toastify__toast, .nbpipe-said", has_text="Wrote").wait_for()
    page.command("nbpipe:stop-all")
    wait_row(page, "stopped")
    assert refused.startswith("path must be that of a module")
    assert re.search(r"concurrency\w*: int = 3", (page.folder / "asked.py").read_text())
    assert inserted == "pipe = nbpipe.source(range(10**9)).map(slow, concurrency=3)"


def set_up(page, *, opens, refresh_s):
    """Set both settings as a person does, in the editor; wait until they are kept, and act."""
    before = len(rates(page))
    page.page.evaluate(
        "void window.jupyterapp.commands.execute('settingeditor:open', {query: 'nbpipe'})"
    )
    page.page.locator(".jp-SettingsPanel [id$='_openAtStart']").set_checked(opens)
    page.page.locator(".jp-SettingsPanel [id$='_refresh']").fill(str(refresh_s))
    page.page.wait_for_function(
        """before => {
            const acked = new Set(window.wire.filter(one => !one.out).map(one => one.id));
            const asked = window.wire.filter(one => one.op === 'settings' && acked.has(one.id));
            return asked.length > before;
        }""",
        arg=before,
        timeout=CELL_MS,
    )


def rates(page):
    """Return the messages that asked the kernel for another rate."""
    return [one for one in page.wire() if one["op"] == "settings"]


def test_settings_act_at_once(open_cells):
    """Once it is set, the list is open, and the kernel is asked for another rate."""
    page = open_cells(SETUP + PIPE, fresh=True)
    page.run_cell(0)
    page.page.evaluate("window.jupyterapp.shell.collapseRight()")
    page.page.locator(SIDEBAR).wait_for(state="hidden")
    set_up(page, opens=True, refresh_s=0.25)
    page.page.locator(SIDEBAR).wait_for()
    wait_row(page, "ready")
    set_up(page, opens=False, refresh_s=0.5)
    page.page.evaluate("window.jupyterapp.shell.currentWidget.dispose()")


def test_notebook_7(chromium, lab_address, lab_folder):
    """In Notebook 7 the list is a sidebar too, from its menu: a knob acts while a cell trains."""
    write_notebook(lab_folder / "seven.ipynb", SETUP, PIPE, train("stop-seven"))
    size = {"width": WIDTH, "height": HEIGHT}
    opened = lab.open_page(chromium, lab_address, kind=PanelPage, alone="seven.ipynb", **size)
    with opened as page:
        page.folder = lab_folder
        page.wait_ready()
        page.page.get_by_role("menuitem", name="View", exact=True).click()
        page.page.locator(".lm-Menu-itemLabel", has_text="Right Sidebar").click()
        page.page.locator(".lm-Menu-itemLabel", has_text="nbpipe").click()
        page.page.locator(SIDEBAR).wait_for()
        start_rows(page, 2)
        open_row(page)
        page.nudge("slow")
        page.wait_value(page.number("slow"), 3)
        running = page.is_running(2)
        page.finish(2, "stop-seven")
        page.shut_down()
    assert running


# How far a stage's name ends before its rate [px].
APART = """rows => rows.map(row => {
    const rate = row.querySelector('[data-field=rate]');
    rate.textContent = '12.3\u202fk batches/s';
    const words = document.createRange();
    words.selectNodeContents(rate);
    const name = row.querySelector('.nbp-name').getBoundingClientRect();
    return words.getBoundingClientRect().left - name.right;
})"""


def test_numbers_stand_apart_in_the_sidebar(open_cells):
    """In a sidebar as wide as it is at first the name of a stage ends before its rate."""
    page = open_cells(SETUP, PIPE, width=1400)
    page.run_cells(0, 1)
    show(page)
    open_row(page)
    rows = row(page).locator(".nbpipe-panel .nbp-row:not(.nbp-loop)")
    apart = rows.evaluate_all(APART)
    assert (len(apart), min(apart) > 0) == (2, True)


# How far the words beside the bar end before the frame does [px].
WITHIN = """panel => {
    const words = document.createRange();
    words.selectNodeContents(panel.querySelector('.nbp-count'));
    const frame = panel.querySelector('.nbp-inner').getBoundingClientRect();
    return frame.right - words.getBoundingClientRect().right;
}"""


def test_what_was_skipped_is_told_inside_the_sidebar(open_cells):
    """In a sidebar as wide as it is at first, the words beside the bar end inside the frame."""
    page = open_cells(SETUP, PIPE, width=1400, fresh=True)
    page.run_cells(0, 1)
    show(page)
    open_row(page)
    panel = row(page).locator(".nbpipe-panel")
    panel.locator(".nbp-count").evaluate(
        "count => { count.textContent = '1,225 of 9,000,000 batches · 1,002 skipped'; }"
    )
    assert panel.evaluate(WITHIN) > 0
