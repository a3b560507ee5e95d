"""The rules for cells, with a shell that does what IPython's does, but without a kernel.

What a kernel itself can show stands in test_cells_in_kernel.py.
"""

import os
import threading
from contextvars import Context, copy_context
from types import SimpleNamespace

import pytest

import nbpipe
from tests.jupyter.conftest import Outputs
from tests.jupyter.inner import run_started
from tests.scripts import printed


class Events:
    """IPython's register of callbacks."""

    def __init__(self):
        self.callbacks = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event, function):
        if function not in self.callbacks[event]:
            self.callbacks[event].append(function)

    def unregister(self, event, function):
        self.callbacks[event].remove(function)

    def trigger(self, event, *arguments):
        for function in self.callbacks[event][:]:
            function(*arguments)


class Formatter:
    """IPython's register of functions that show objects of a type."""

    def __init__(self):
        self.printers = {}

    def for_type(self, kind, function):
        self.printers[kind] = function

    def pop(self, kind, default):
        return self.printers.pop(kind, default)


class Shell:
    """A shell with a kernel; a cell is a function."""

    def __init__(self, request=None):
        self.kernel = object()
        self.events = Events()
        self.magics_manager = SimpleNamespace(magics={"line": {}})
        self.display_pub = Outputs()
        self.displayhook = SimpleNamespace(write_format_data=self.display_pub.publish)
        self.display_formatter = SimpleNamespace(mimebundle_formatter=Formatter())
        self.request = request or {}

    def get_parent(self):
        return self.request

    def register_magic_function(self, function, kind, name):
        self.magics_manager.magics[kind][name] = function

    def set_hook(self, name, function, str_key):
        """Take no part in completion."""

    def run(self, function, cell_id=None, text="run"):
        """Run a cell, and say whether it failed."""
        info = SimpleNamespace(raw_cell=text, cell_id=cell_id)
        self.events.trigger("pre_run_cell", info)
        try:
            function()
        except Exception:
            success = False
        else:
            success = True
        self.events.trigger("post_run_cell", SimpleNamespace(info=info, success=success))
        return success


@pytest.fixture
def shell():
    """Give a shell in which nbpipe is loaded."""
    shell = Shell()
    nbpipe.load_ipython_extension(shell)
    yield shell
    nbpipe.unload_ipython_extension(shell)


@pytest.fixture
def runs():
    """Give a list for runs, which are closed in the end."""
    found = []
    yield found
    for run in found:
        run.close()


def starts(runs, stages=("decode",), **knobs):
    """Give a cell that starts a run."""

    def cell():
        pipe = nbpipe.source(range(3))
        for stage in stages:
            pipe = pipe.map(abs, name=stage, **knobs)
        runs.append(pipe.start())

    return cell


def closed(runs):
    """Say of each run whether it is closed."""
    return [run.closed for run in runs]


# -- a run belongs to its cell ---------------------------------------------------------------------


def test_several_runs_are_closed_in_one_line(shell, runs, capsys):
    """A cell that started two runs closes both, in one line."""
    cell = starts(runs)
    for _ in range(2):
        shell.run(lambda: (cell(), cell()), "a")
    said = "nbpipe: closed 2 runs that this cell started before\n"
    assert (closed(runs), capsys.readouterr().out) == ([True, True, False, False], said)


def test_closed_runs_are_not_spoken_of(shell, runs, capsys):
    """A run that the user closed is not mentioned when its cell runs again."""
    for _ in range(2):
        shell.run(starts(runs), "a")
        runs[-1].close()
    assert capsys.readouterr().out == ""


def test_cell_inside_a_cell_keeps_runs_apart(shell, runs):
    """A run started after an inner cell has ended belongs to the outer cell."""

    def outer():
        shell.run(starts(runs), "inner")
        starts(runs)()

    shell.run(outer, "outer")
    shell.run(lambda: None, "outer")
    assert closed(runs) == [False, True]


def test_empty_cell_changes_nothing(shell, runs):
    """IPython ends an empty cell without having begun it."""

    def outer():
        empty = SimpleNamespace(raw_cell="", cell_id="empty")
        shell.events.trigger("post_run_cell", SimpleNamespace(info=empty, success=True))
        starts(runs)()

    shell.run(outer, "outer")
    shell.run(lambda: None, "outer")
    assert closed(runs) == [True]


def test_task_left_behind_belongs_to_its_cell(shell, runs):
    """A run that a background task starts later belongs to the cell that made the task."""
    contexts = []
    shell.run(lambda: contexts.append(copy_context()), "a")
    shell.run(lambda: contexts[0].run(starts(runs)), "b")
    shell.run(lambda: None, "b")
    after_b = closed(runs)
    shell.run(lambda: None, "a")
    assert (after_b, closed(runs)) == ([False], [True])


def test_run_started_outside_cells_is_nobodys(shell, runs):
    """A run that code starts in a context of its own is closed by no cell."""
    for _ in range(2):
        shell.run(lambda: Context().run(starts(runs)), "a")
    assert closed(runs) == [False, False]


# -- a cell that fails -----------------------------------------------------------------------------


def test_epoch_of_another_thread_goes_on(shell):
    """An epoch that a thread iterates in the background survives a cell that fails."""
    got, first, gate = [], threading.Event(), threading.Event()

    def loop(run):
        for item in run:
            got.append(item)
            first.set()
            gate.wait()

    with nbpipe.source(range(3)).start() as run:
        thread = threading.Thread(target=loop, args=(run,))

        def cell():
            thread.start()
            first.wait()
            raise ZeroDivisionError

        shell.run(cell, "a")
        gate.set()
        thread.join()
    assert got == [0, 1, 2]


def test_interrupted_await_has_no_result(shell):
    """IPython gives no result for an awaiting cell that was interrupted: it failed."""
    kept = []
    with nbpipe.source(range(3)).start() as run:

        def cell():
            kept.append(iter(run))
            next(kept[0])

        shell.events.trigger("pre_run_cell", SimpleNamespace(raw_cell="x", cell_id="a"))
        cell()
        shell.events.trigger("post_run_cell", None)
        assert list(kept[0]) == []


# -- tuned values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tuned", "built"), [(8, 8), (4, 2)])
def test_value_that_is_not_lost_is_not_named(shell, runs, capsys, tuned, built):
    """Nothing is lost where the code now says the tuned value, or where only the code changed."""
    shell.run(starts(runs, concurrency=4), "a")
    runs[-1]["decode"].concurrency = tuned
    shell.run(starts(runs, concurrency=built), "b")
    assert capsys.readouterr().out == ""


def test_shared_stage_loses_nothing(shell, runs, capsys):
    """A pipeline that has the very stage that was tuned has its value."""
    pipe = nbpipe.source(range(3)).map(abs, name="decode")
    shell.run(lambda: runs.append(pipe.start()), "a")
    pipe["decode"].concurrency = 8
    shell.run(lambda: runs.append(pipe.batch(2).start()), "b")
    assert capsys.readouterr().out == ""


# -- where the rules hold --------------------------------------------------------------------------


def test_loading_again_does_nothing(shell):
    """Loading the extension a second time registers nothing twice."""
    before = len(run_started)
    nbpipe.load_ipython_extension(shell)
    counts = [len(callbacks) for callbacks in shell.events.callbacks.values()]
    assert (counts, len(run_started)) == ([1, 1], before)


def test_unloading_forgets_the_rules(runs):
    """After unloading, nothing is registered, and unloading again does nothing."""
    shell, before = Shell(), len(run_started)
    nbpipe.load_ipython_extension(shell)
    for _ in range(2):
        nbpipe.unload_ipython_extension(shell)
    counts = [len(callbacks) for callbacks in shell.events.callbacks.values()]
    assert (counts, len(run_started)) == ([0, 0], before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    ["", "from IPython.core.interactiveshell import InteractiveShell as S; S.instance()"],
    ids=["python", "terminal"],
)
def test_import_outside_a_kernel_registers_nothing(before):
    """Where no kernel runs, the import loads no rules; in plain Python, no IPython either."""
    if before:
        pytest.importorskip("IPython")
    code = (
        f"import sys; {before}\nimport nbpipe, nbpipe.show.watch\n"
        "names = 'nbpipe.jupyter.cells', 'IPython'\n"
        "print(nbpipe.show.watch.run_started, *[name in sys.modules for name in names])"
    )
    assert printed("-c", code).strip() == f"[] False {bool(before)}"


@pytest.mark.torch
def test_workers_of_a_loader_stay_when_its_cell_runs_again(shell, capsys):
    """A cell that trains on a loader may be run again: the workers that stay are not ended."""
    loader = nbpipe.DataLoader(
        range(8),
        num_workers=1,
        persistent_workers=True,
        collate_fn=lambda _: os.getpid(),
    )
    workers = set()

    def train():
        workers.update(loader)

    for _ in range(2):
        shell.run(train, "train")
    loader.close()
    assert (len(workers), capsys.readouterr().out) == (1, "")


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_failed_cell_leaves_the_epoch_of_a_loader(shell, workers):
    """A cell that fails in a loader's epoch ends it, whoever holds the iterator; no other one."""
    loader = nbpipe.DataLoader(range(8), 2, num_workers=workers, workers="thread")
    other = nbpipe.DataLoader(range(8), 2, num_workers=workers, workers="thread")
    held, kept = [], iter(other)

    def fail():
        held.append(iter(loader))
        next(held[0])
        raise ValueError

    shell.run(fail)
    found = (loader.run.status().state, list(held[0]), len(list(kept)))
    loader.close()
    assert found == ("cancelled", [], 4)
