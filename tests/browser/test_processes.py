"""Worker processes in a real JupyterLab: they follow the knob, the stop button and the kernel."""

import psutil
import pytest

from tests.browser.lab import CELL_MS
from tests.browser.panel import SETUP, start, train
from tests.gates import HANG_S

pytestmark = pytest.mark.browser

RUN = """
pipe = nbpipe.source(range(10**9)).map(slow, executor="process", concurrency=2)
run = pipe.start()
run
"""
KERNEL = "import os; print(os.getpid())"


def kernel_of(page, index):
    """Give the process of a page's kernel, which the cell `index` prints."""
    page.run_cell(index)
    return psutil.Process(int(page.said(index)))


def workers_of(kernel):
    """Give the processes that the kernel's fork server, its child, has forked."""
    return [worker for server in kernel.children() for worker in server.children()]


def wait_workers(page, count):
    """Wait until the panel shows so many workers, all of them at work."""
    page.page.wait_for_function(
        """said => document.querySelector('.nbpipe-panel [data-stage=slow] [data-field=workers]')
            ?.innerText.startsWith(said)""",
        arg=f"{count} workers, ",
        timeout=CELL_MS,
    )


def alive(processes):
    """Give those of the processes that do not end by themselves."""
    return psutil.wait_procs(processes, timeout=HANG_S)[1]


def test_knob_starts_and_ends_workers(open_cells):
    """The knob is turned in mid-epoch: workers are started, and sent away again."""
    page = open_cells(
        SETUP, RUN, train("stop-workers") + "; print(*run['slow'].pids)", KERNEL, fresh=True
    )
    kernel = kernel_of(page, 3)
    start(page)
    wait_workers(page, 2)
    before = workers_of(kernel)
    page.nudge("slow")
    page.page.keyboard.press("ArrowUp")
    wait_workers(page, 4)
    during = workers_of(kernel)
    for _ in range(2):
        page.page.keyboard.press("ArrowDown")
    wait_workers(page, 2)
    running = page.is_running(2)
    page.finish(2, "stop-workers")
    kept = {int(pid) for pid in page.said(2).split()[1:]}
    left = alive([worker for worker in during if worker.pid not in kept])
    assert (running, len(before), len(during), len(kept), left) == (True, 2, 4, 2, [])


def test_stop_button_leaves_the_workers(open_cells):
    """The stop button of the notebook ends the cell; the same workers serve the next one."""
    page = open_cells(SETUP, RUN, train("stop-never"), train("stop-served"), KERNEL, fresh=True)
    kernel = kernel_of(page, 4)
    start(page)
    wait_workers(page, 2)
    before = workers_of(kernel)
    page.command("notebook:interrupt-kernel")
    page.wait_ran(2)
    page.start_cell(3)
    page.wait_state("running")
    page.nudge("slow")
    wait_workers(page, 3)
    after = workers_of(kernel)
    page.finish(3, "stop-served")
    said = page.said(2), page.said(3)
    assert (said, set(before) <= set(after)) == (("KeyboardInterrupt", "trained\n"), True)


@pytest.mark.parametrize("way", ["restart", "shut_down", "kill"])
def test_kernel_that_ends_leaves_no_worker(open_cells, way):
    """Workers and their server go with the kernel, however it ends in mid-epoch."""
    page = open_cells(SETUP, RUN, train("stop-never"), KERNEL, fresh=True)
    page.page.on("dialog", lambda dialog: dialog.dismiss())
    kernel = kernel_of(page, 3)
    start(page)
    wait_workers(page, 2)
    family = [kernel, *kernel.children(), *workers_of(kernel)]
    if way == "kill":
        kernel.kill()
    else:
        getattr(page, way)()
    left = alive(family)
    if way == "kill":
        page.wait_idle()  # a server that is starting a kernel anew refuses to shut it down
    assert (len(family) >= 4, left) == (True, [])


def test_workers_print_under_the_cell(open_cells):
    """What a worker prints is shown under the cell whose loop it works for, while that runs."""
    page = open_cells(
        SETUP,
        "def loud(n):\n    print(f'item {n}')\n    return n\n"
        "run = nbpipe.source(range(10**9)).map(loud, executor='process').start()",
        "for n in run:\n    if n == 3: break\nfor n in run:\n    slow(n)\n"
        "    if Path('stop-print').exists(): break",
        "list(nbpipe.source(range(3)).map(loud, executor='process'))",
    )
    page.run_cells(0, 1)
    page.start_cell(2)
    page.wait_said(2, "item 40\n")
    running = page.is_running(2)
    page.finish(2, "stop-print")
    page.run_cell(3)
    assert (running, page.said(1), page.said(3)) == (True, "", "item 0\nitem 1\nitem 2\n")
