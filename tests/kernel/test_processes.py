"""Stages in other processes, in a real kernel: cells that define, redefine, print, stop, crash.

Workers of a stage, and a process that holds the whole pipeline.
"""

import ast
import os
import signal

import psutil
import pytest

from tests.gates import HANG_S
from tests.kernel.client import Client, Message, running

PREPARE = """
import os, threading
import nbpipe
def chain(fn, count=6, **options):
    options = {"concurrency": 2, **options}
    return nbpipe.source(range(count)).map(fn, name="fn", executor="process", **options)
def started(place, fn, count=6):
    if place == "workers":
        return chain(fn, count).start()
    return nbpipe.source(range(count)).map(fn, name="fn", concurrency=2).start(isolate=True)
def pids(run):
    own = getattr(run._core.engine, "pid", None)
    return run["fn"].pids if own is None else (own,)
"""
places = pytest.mark.parametrize("place", ["workers", "isolated"])


@pytest.fixture(scope="module", autouse=True)
def prepared(client) -> None:
    """Have what the cells of this file call."""
    client.run(PREPARE)


def interrupt_all(client: Client) -> None:
    """Interrupt the kernel and all that it has started, as a server does."""
    os.killpg(client.pid, signal.SIGINT)


def pids_in(text: str) -> list[int]:
    """Read process ids from what a cell has printed."""
    return [int(word) for word in text.replace(",", " ").strip("()\n ").split()]


def error_of(client: Client, code: str) -> Message:
    """Run a cell that fails; return what its reply says."""
    content = client.reply(client.execute(code))["content"]
    assert content["status"] == "error", content
    return content


@pytest.mark.slow
@places
def test_a_helper_that_is_redefined(notebook, place):
    """A helper and a global that a later cell changes are those of the next epoch."""
    notebook.run("SCALE = 1\ndef helper(n): return n * SCALE")
    notebook.run(f"def work(n): return helper(n)\nrun = started({place!r}, work)")
    printed = [notebook.run("print(list(run))")]
    notebook.run("first = pids(run); SCALE = 10")
    printed.append(notebook.run("print(list(run))"))
    notebook.run("def helper(n): return n * SCALE + 1")
    printed.append(notebook.run("print(list(run))"))
    assert [ast.literal_eval(text) for text in printed] == [
        [0, 1, 2, 3, 4, 5],
        [0, 10, 20, 30, 40, 50],
        [1, 11, 21, 31, 41, 51],
    ]
    assert notebook.run("print(set(first) <= set(pids(run)))") == "True\n"


@pytest.mark.slow
def test_a_stage_keeps_the_function_it_was_built_with(notebook):
    """As in a thread: redefining the function itself takes effect when the chain is built again."""
    notebook.run("def work(n): return 'old'")
    notebook.run("run = chain(work).start()")
    notebook.run("def work(n): return 'new'")
    printed = notebook.run("print(*set(run)); run = chain(work).start(); print(*set(run))")
    assert printed == "old\nnew\n"


def test_a_redefinition_reaches_an_epoch_under_way(notebook):
    """While `train` runs in the background, a later cell's function reaches its workers."""
    notebook.run("def helper(n): return 'old'")
    notebook.run(
        "seen, began, heard = [], threading.Event(), threading.Event()\n"
        "def step(word):\n"
        "    seen.append(word)\n"
        "    (heard if word == 'new' else began).set()\n"
        "def endless(): return iter(int, 1)\n"
        "run = nbpipe.source(endless).map(lambda n: helper(n), executor='process').start()\n"
        "_ = run.train(step)\n"
        f"assert began.wait({HANG_S})"
    )
    notebook.run("def helper(n): return 'new'")
    assert notebook.run(f"print(heard.wait({HANG_S}), seen[0]); run.stop()") == "True old\n"


def test_a_class_of_a_cell_comes_back_as_itself(notebook):
    """What a worker makes of a cell's class is an object of that class."""
    notebook.run(
        "from dataclasses import dataclass\n@dataclass\nclass Sample:\n    n: int\n"
        "run = chain(lambda n: Sample(n)).start()"
    )
    printed = notebook.run("got = list(run); print([type(one) is Sample for one in got], got[5])")
    assert printed == f"{[True] * 6} Sample(n=5)\n"


@pytest.mark.slow
@places
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_prints_appear_in_the_cell(notebook, place, stream):
    """Lines that stages print stand in the cell that iterates, whole, as what they are."""
    notebook.run(
        f"import sys; run = started({place!r}, "
        f"lambda n: print('item', n, 'done', file=sys.{stream}), 40)"
    )
    for _ in range(2):
        lines = notebook.run("got = list(run)").splitlines()
        assert sorted(lines) == sorted(f"item {n} done" for n in range(40))
        heard = [one for one in notebook.heard if one["msg_type"] == "stream"]
        assert heard[-1]["content"]["name"] == stream


def test_an_exception_of_a_class_of_a_cell(notebook):
    """The traceback in the cell names the exception of a cell, and the line that raised it."""
    notebook.run(
        "class OddError(Exception): pass\n"
        "def fails(n):\n"
        "    raise OddError('in a worker')  # this very line\n"
        "run = chain(fails).start()"
    )
    content = error_of(notebook, "for _ in run: pass")
    shown = "\n".join(content["traceback"])
    assert (content["ename"], "OddError" in shown) == ("StageError", True)
    assert "this very line" in shown
    assert notebook.run("print(run.failures()[0].error)") == "OddError: in a worker\n"


@pytest.mark.slow
def test_a_worker_that_crashes(notebook):
    """A crash in a stage is an error of the cell, and no harm to the kernel."""
    notebook.run("run = chain(lambda n: os._exit(7)).start()")
    content = error_of(notebook, "for _ in run: pass")
    assert content["ename"] == "WorkerDiedError"
    assert "exit code 7" in content["evalue"]


@places
def test_the_stop_button(notebook, place):
    """An interrupt of all ends the cell; the processes live on, and the next epoch is whole."""
    notebook.run(f"run = started({place!r}, lambda n: n, 10**9)")
    logged = notebook.log.read_text()
    cell = notebook.execute(
        "for n in run:\n    if n == 100: before = pids(run); print('begun', flush=True)"
    )
    notebook.printed(cell, "begun\n")
    kernel = notebook.pid
    interrupt_all(notebook)
    reply = notebook.reply(cell)["content"]
    again = notebook.run(
        "from itertools import islice; got = list(islice(run, 50))\n"
        "print(got == list(range(50)), set(before) <= set(pids(run)))"
    )
    assert (reply["ename"], notebook.pid, again) == ("KeyboardInterrupt", kernel, "True True\n")
    assert "Traceback" not in notebook.log.read_text()[len(logged) :]


def test_the_stop_button_while_calls_are_slow(notebook):
    """Stopped amid long calls the kernel is free at once, and the next epoch works."""
    notebook.run(
        "def slow(n):\n"
        "    if n == 3 and EPOCH == 0: threading.Event().wait()\n"
        "    return n\n"
        "EPOCH = 0\n"
        "run = chain(slow).start()"
    )
    cell = notebook.execute("for n in run: print(n, flush=True)")
    notebook.printed(cell, "2\n")
    interrupt_all(notebook)
    reply = notebook.reply(cell)["content"]
    notebook.run("EPOCH = 1")
    assert reply["ename"] == "KeyboardInterrupt"
    again = notebook.run("print(list(run))")
    notebook.run("run.close(0.1)")
    assert "[0, 1, 2, 3, 4, 5]\n" in again


@places
def test_a_cell_that_is_run_again(notebook, place):
    """The processes of the run that the cell started before are gone."""
    code = f"run = started({place!r}, lambda n: n); _ = list(run); print(pids(run))"
    pids = [pids_in(notebook.run(code).splitlines()[-1]) for _ in range(2)]
    gone = [pid for pid in pids[0] if psutil.pid_exists(pid)]
    assert (gone, len(pids[0]) > 0, set(pids[0]) & set(pids[1])) == ([], True, set())


@pytest.mark.slow
def test_a_fresh_kernel_leaves_nobody():
    """When the kernel is killed, workers and the fork server are gone, those at work as well."""
    with running() as client:
        client.run(PREPARE)
        client.run("def stick(n):\n    print('stuck')\n    threading.Event().wait()")
        cell = client.execute("for _ in chain(stick): pass")
        client.printed(cell, "stuck\nstuck\n")
        kernel = psutil.Process(client.pid)
        started = kernel.children(recursive=True)
    _, alive = psutil.wait_procs(started, timeout=HANG_S)
    assert (len(started) >= 3, alive) == (True, [])
