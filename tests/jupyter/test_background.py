"""Loops that outlive their cell, in threads, pools and tasks: running the cell again ends them."""

import pytest

pytest.importorskip("ipykernel")

pytestmark = pytest.mark.kernel

# The loops of one test have nothing in common with those of the next.
LOOP = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from tests.gates import HANG_S
pipe, pool = nbpipe.source(range(5), name="files"), ThreadPoolExecutor(4)
had = threading.Semaphore(0)
def made(runs):
    gate, go, errors = threading.Event(), threading.Event(), []
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    def start():
        runs.append(pipe.start())
        begun.release()
        return runs[-1]
    def loop(epochs=1):
        begun.release()
        go.wait(HANG_S)
        try:
            for _ in range(epochs):
                for x in start():
                    had.release()
                    gate.wait(HANG_S)
        except nbpipe.RunError as error:
            errors.append(str(error))
        ended.release()
    return gate, go, errors, begun, ended, start, loop
gate, go, errors, begun, ended, start, loop = made(runs)
"""
WAIT = "begun.acquire(timeout=HANG_S)"
STARTS = {
    "thread": "threading.Thread(target=loop).start()",
    "timer": "threading.Timer(0, loop).start()",
    "pool": "pool.submit(loop)",
    "pool of the cell": "ThreadPoolExecutor(1).submit(loop)",
    "executor of the kernel": "asyncio.get_running_loop().run_in_executor(None, loop)",
    "thread of a task": "waits = asyncio.gather(asyncio.to_thread(loop))\nawait asyncio.sleep(0)",
    "magic": "%%capture\nthreading.Thread(target=loop).start()",
}
CLOSED = "print([run.closed for run in runs])"
SAID = "nbpipe: closed the run that this cell started before (files)\n"


@pytest.fixture
def notebook(notebook):
    """Give the kernel with a loop; let all loops end."""
    notebook.run(LOOP)
    yield notebook
    notebook.run("nbpipe.close_all(); gate.set(); go.set(); pool.shutdown()")


@pytest.mark.slow
@pytest.mark.parametrize("way", STARTS)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_run_of_a_thread_belongs_to_its_cell(notebook, way, late):
    """A cell that starts a loop in the background closes the run of the last loop, in one line."""
    said = []
    notebook.run("" if late else "go.set()")
    for _ in "abc":
        said.append(notebook.run(f"{STARTS[way]}\n{WAIT}; {late} or {WAIT}", "a").said)
        notebook.run(f"go.set(); {late} and {WAIT}; {late} and go.clear()")
    assert (said[1:], notebook.run(CLOSED).said) == ([SAID, SAID], "[True, True, False]\n")


def test_loop_of_a_cell_that_has_run_again_starts_no_run(notebook):
    """The next epoch of such a loop over a pipeline is refused, and one line says why."""
    notebook.run("go.set(); threading.Thread(target=loop, args=(2,)).start()", "a")
    notebook.run("had.acquire(timeout=HANG_S)")  # else its first epoch would be refused
    notebook.run("pass", "a")
    said = notebook.run("gate.set(); ended.acquire(timeout=HANG_S); print(errors)").said
    assert said == (
        "nbpipe: closed the run that a loop started whose cell has run again since (files)\n"
        "['this run is closed; start another with pipe.start()']\n"
    )


def test_thread_of_a_pool_works_for_the_next_execution(notebook):
    """A thread that a pool uses again is no loop of the cell's last execution."""
    code = "print(pool.submit(list, pipe).result(HANG_S))"
    said = [notebook.run(code, "a").said for _ in "ab"]
    assert said == ["[0, 1, 2, 3, 4]\n"] * 2


TASKS = """
async def train():
    runs.append(pipe.start())
    for x in runs[-1]:
        await held.wait()
tasks, held = [], asyncio.Event()
"""


def test_run_of_a_task_belongs_to_its_cell(notebook):
    """A cell that trains in a task closes the run of the last task."""
    notebook.run(TASKS)
    code = "tasks.append(asyncio.create_task(train()))\nawait asyncio.sleep(0)"
    said = [notebook.run(code, "a").said for _ in "abc"]
    closed = notebook.run(CLOSED).said
    notebook.run("held.set(); await asyncio.gather(*tasks)")
    assert (said[1:], closed) == ([SAID, SAID], "[True, True, False]\n")


INNER = """
def inner(x):
    if not x:
        start()
        gate.wait(HANG_S)
    return x
run = nbpipe.source(range(3)).map(inner).start()
"""


def test_run_of_a_stage_belongs_to_no_cell(notebook):
    """A run that a stage starts for itself is left alone by the cell that iterates."""
    notebook.run(INNER, "a")
    notebook.run(f"it = iter(run); {WAIT}", "b")
    said = notebook.run("gate.set(); next(it)", "b").said
    assert (said, notebook.run(CLOSED).said) == ("", "[False]\n")


def test_other_page_leaves_runs_open(notebook):
    """A copy of a notebook has the ids of its cells: it says what is open, and closes nothing."""
    start = "runs.append(pipe.start())"
    notebook.run(start, "a")
    with notebook.client.other_page():
        said = [notebook.run(start, "a").said for _ in "abc"]
    again = notebook.run(start, "a").said
    open_there = "this cell started in another page or notebook (files)"
    assert (said, again) == (
        [f"nbpipe: left open the run that {open_there}; nbpipe.close_all() closes all runs\n"]
        + [SAID] * 2,
        SAID + f"nbpipe: left open the run that {open_there}; nbpipe.close_all() closes all runs\n",
    )
    assert notebook.run(CLOSED).said == "[True, True, True, False, False]\n"


LOADED = """
def loaded():
    for batch in loader:
        begun.release()
        gate.wait(HANG_S)
    ended.release()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_epoch_of_a_loader_in_a_thread_ends_with_its_cell(notebook):
    """A cell that iterates a loader in a thread ends the epoch of the last thread."""
    notebook.run(LOADED)
    code = "loader = nbpipe.DataLoader(range(8), 2)\nthreading.Thread(target=loaded).start()"
    said = [notebook.run(f"{code}\n{WAIT}", "a").said for _ in "ab"]
    notebook.run("gate.set(); ended.acquire(timeout=HANG_S); ended.acquire(timeout=HANG_S)")
    batches = notebook.run("print(begun._value)").said
    told = "nbpipe: ended the epoch that a thread of this cell iterated (indices > fetch)\n"
    assert (said, batches) == (["", told], "3\n")
