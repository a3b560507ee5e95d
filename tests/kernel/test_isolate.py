"""A pipeline in a process of its own, in a real kernel: cells, prints, stop button, panel."""

import psutil
import pytest

from tests.kernel.test_processes import interrupt_all

PREPARE = """
import os, threading
import nbpipe
def start(fn, count=6, **options):
    return nbpipe.source(range(count)).map(fn, name="fn", **options).start(isolate=True)
"""


@pytest.fixture(scope="module", autouse=True)
def prepared(client) -> None:
    """Have what the cells of this file call."""
    client.run(PREPARE)


def test_functions_of_cells(notebook):
    """Functions, classes and globals of cells go along; what a later cell changes does, too."""
    notebook.run("SCALE = 1\ndef helper(n): return n * SCALE")
    notebook.run("def work(n): return helper(n)\nrun = start(work)")
    printed = [notebook.run("print(list(run), run._machine.pid)")]
    notebook.run("SCALE = 10")
    printed.append(notebook.run("print(list(run), run._machine.pid)"))
    notebook.run("def helper(n): return n * SCALE + 1")
    printed.append(notebook.run("print(list(run), run._machine.pid)"))
    assert [text.split("] ")[0] for text in printed] == [
        "[0, 1, 2, 3, 4, 5",
        "[0, 10, 20, 30, 40, 50",
        "[1, 11, 21, 31, 41, 51",
    ]
    assert len({text.split("] ")[1] for text in printed}) == 1


def test_prints_appear_in_the_cell(notebook):
    """Lines that stages print stand in the cell that iterates, whole."""
    notebook.run("run = start(lambda n: print('item', n, 'done'), count=40, concurrency=4)")
    for _ in range(2):
        lines = notebook.run("got = list(run)").splitlines()
        assert sorted(lines) == sorted(f"item {n} done" for n in range(40))


def test_the_stop_button(notebook):
    """An interrupt of all processes ends the cell; the next epoch is whole, in the same process."""
    notebook.run("run = start(lambda n: n, 10**9)")
    logged = notebook.log.read_text()
    cell = notebook.execute(
        "pid = 0\nfor n in run:\n"
        "    if n == 100: pid = run._machine.pid; print('begun', flush=True)"
    )
    notebook.printed(cell, "begun\n")
    interrupt_all(notebook)
    reply = notebook.reply(cell)["content"]
    again = notebook.run(
        "from itertools import islice; got = list(islice(run, 50))\n"
        "print(got == list(range(50)), run._machine.pid == pid)"
    )
    assert (reply["ename"], again) == ("KeyboardInterrupt", "True True\n")
    assert "Traceback" not in notebook.log.read_text()[len(logged) :]


def test_a_cell_that_is_run_again(notebook):
    """The process of the run that the cell started before is gone."""
    code = "run = start(lambda n: n); _ = list(run); print(run._machine.pid)"
    pids = [int(notebook.run(code).splitlines()[-1]) for _ in range(2)]
    assert (psutil.pid_exists(pids[0]), psutil.pid_exists(pids[1])) == (False, True)


def test_what_a_cell_shows_of_the_run(notebook):
    """The snapshot that the panel draws has the stages and their numbers."""
    notebook.run("run = start(lambda n: n); _ = list(run)")
    printed = notebook.run(
        "from nbpipe.show.snapshot import snapshot\n"
        "shown = snapshot(run); print(shown['state'], [s['address'] for s in shown['stages']])"
    )
    assert printed == "finished ['source', 'fn']\n"
