"""The rules for cells, in a real kernel."""

import pytest

pytest.importorskip("ipykernel")

pytestmark = pytest.mark.kernel


START = "run = nbpipe.source(range(5), name='files').start()\nruns.append(run)"
CLOSED = "print([run.closed for run in runs])"
THREADS = "print([t.name for t in threading.enumerate() if t.name.startswith('nbpipe')])"


def test_cell_run_again_closes_its_run(notebook):
    """Running a cell again closes the run that it started, in one line, also when edited."""
    notebook.run(START, "a")
    again = notebook.run(f"# edited\n{START}", "a")
    assert (again.said, notebook.run(CLOSED).said) == (
        "nbpipe: closed the run that this cell started before (files)\n",
        "[True, False]\n",
    )


def test_cells_without_ids_are_known_by_their_text(notebook):
    """A front end that sends no ids: the same text is the same cell, another text is not."""
    notebook.run(START)
    notebook.run(START)
    notebook.run(f"{START}  # another")
    assert notebook.run(CLOSED).said == "[True, False, False]\n"


def test_two_cells_live_side_by_side(notebook):
    """A training and a validation run of two cells are both open, and both iterate."""
    notebook.run(START, "train")
    notebook.run(START, "validate")
    said = notebook.run("print([list(run) for run in runs])", "loop").said
    assert said == "[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]\n"


LOADING = "for way in (nbpipe.unload_ipython_extension, nbpipe.load_ipython_extension):"
OWNING = {  # the output history keeps a run alive; a cell with a top-level await runs as a task
    "displays": "runs.append(nbpipe.source(range(5)).start())\nruns[-1]",
    "awaits": f"import asyncio\nawait asyncio.sleep(0)\n{START}",
    "imports nbpipe": f"if not runs:\n  {LOADING}\n    way(get_ipython())\n{START}",
}


@pytest.mark.parametrize("cell", OWNING)
def test_cell_owns_its_runs(notebook, cell):
    """Whatever else a cell does, its run is closed when it runs again."""
    notebook.run(OWNING[cell], "a")
    notebook.run(OWNING[cell], "a")
    assert notebook.run(CLOSED).said == "[True, False]\n"


WAITS = """
gate = threading.Event()
def wait(x):
    if x == 2:
        gate.wait()
    return x
run = nbpipe.source(range(5)).map(wait).start()
it = iter(run)
for x in it:
    print("got", x, flush=True)
"""


def test_interrupted_run_iterates_again(notebook):
    """After the stop button the run gives a whole new epoch, and closes without a thread left."""
    error = notebook.interrupted(WAITS, "loop", "got 1")
    said = notebook.run("gate.set()\nprint(run, list(it), list(run))").said
    assert (error, said) == ("KeyboardInterrupt", "Run(source > wait; open) [] [0, 1, 2, 3, 4]\n")
    assert notebook.run(f"run.close()\n{THREADS}").said == "[]\n"


def test_interrupted_pipeline_leaves_nothing(notebook):
    """A loop over a pipeline closes its run when it is interrupted."""
    code = """
import asyncio
async def wait(x):
    await asyncio.sleep(0 if x < 2 else 3600)
    return x
for x in nbpipe.source(range(5)).map(wait):
    print("got", x, flush=True)
"""
    error = notebook.interrupted(code, "loop", "got 1")
    said = notebook.run(f"print(len(nbpipe.runs()))\n{THREADS}").said
    assert (error, said) == ("KeyboardInterrupt", "0\n[]\n")


COMMS = "import comm\nprint(len(comm.get_comm_manager().comms))"


@pytest.mark.parametrize("shown", ["run", "pipe"])
def test_cell_run_again_leaves_no_comm(notebook, shown):
    """What a cell has shown goes with its output: a page that is loaded again asks for no more."""
    code = f"pipe = nbpipe.source(range(5))\nrun = pipe.start()\n{shown}"
    counts = []
    for _ in range(3):
        notebook.run(code, "a")
        counts.append(notebook.run(COMMS).said)
    assert counts == counts[:1] * 3


def test_panel_stays_where_another_cell_shows_it(notebook):
    """A run that is over keeps its panel as long as a cell shows it that was not run again."""
    notebook.run(f"{START}\nrun", "a")
    notebook.run("old = run\nold", "b")
    alive = "print(panel.comm is not None)"
    notebook.run("from nbpipe.jupyter import panel_of\npanel = panel_of(run)")
    notebook.run(START, "a")
    stays = notebook.run(alive).said
    notebook.run("print(old.closed)", "b")
    assert (stays, notebook.run(alive).said) == ("True\n", "False\n")


def test_failed_cell_cancels_its_epoch(notebook):
    """A cell that fails in mid-epoch leaves none, though its iterator is kept."""
    failed = notebook.run(f"{START}\nit = iter(run)\nnext(it)\n1 / 0", "a")
    assert (failed.error, notebook.run("print(list(it), list(run))").said) == (
        "ZeroDivisionError",
        "[] [0, 1, 2, 3, 4]\n",
    )


def test_failed_cell_leaves_other_epochs(notebook):
    """A cell that fails without having iterated leaves the epoch of an earlier cell."""
    notebook.run(f"{START}\nit = iter(run)\nnext(it)", "a")
    notebook.run("1 / 0", "b")
    assert notebook.run("print(list(it))").said == "[1, 2, 3, 4]\n"


def test_failed_loop_with_progress_closes_its_run(notebook):
    """A loop over `progress(pipe)` whose body fails closes the run that it started."""
    code = "for x in nbpipe.progress(nbpipe.source(range(5)), epochs=2):\n    1 / x"
    failed = notebook.run(code, "a")
    said = notebook.run(f"print(len(nbpipe.runs()))\n{THREADS}").said
    assert (failed.error, said) == ("ZeroDivisionError", "0\n[]\n")


def test_lost_value_is_named(notebook):
    """A tuned value that a pipeline built again does not have is named in one line."""
    build = "pipe = nbpipe.source(range(5)).map(abs, name='decode', concurrency=4)"
    notebook.run(build, "build")
    notebook.run("run = pipe.start()", "start")
    notebook.run("run['decode'].concurrency = 8\nrun.close()", "tune")
    notebook.run(build, "build")
    said = notebook.run("run = pipe.start()", "start").said
    assert said == "nbpipe: decode.concurrency was tuned to 8; this pipeline says 4\n"


def test_dropped_run_goes_with_its_threads(notebook):
    """Nothing of the rules keeps a run alive: what the user dropped is closed."""
    notebook.run("import weakref\nrun = nbpipe.source(range(500)).start()\nnext(iter(run))", "a")
    code = "old = weakref.ref(run)\nteam = [t for t in threading.enumerate() if 'nbpipe' in t.name]"
    notebook.run(f"{code}\ndel run\ngc.collect()\nfor t in team:\n    t.join()")
    assert notebook.run("print(old(), len(team) > 0)").said == "None True\n"


def test_peek_runs_coroutines_beside_the_kernels_loop(notebook):
    """The kernel's main thread has a running loop: a peek runs coroutines all the same."""
    code = "async def load(x):\n    return x + 1\npeek = nbpipe.source(range(5)).map(load).peek(2)"
    assert notebook.run(f"{code}\nprint(peek.items)\n{THREADS}").said == "(1, 2)\n[]\n"


# -- functions that were edited --------------------------------------------------------------------
DECODE = "def decode(x):\n    return x"
BUILD = "import functools\nfiles = nbpipe.source(range(3))\npipe = files.map({})"
BEGIN = "with pipe.start() as run:\n    print(list(run))"
EDITED = "nbpipe: {} was edited since this pipeline was built, which calls it as it was; run In["


@pytest.mark.slow
@pytest.mark.parametrize(
    "called", ["decode", "functools.partial(decode)", "decode, executor='process'"]
)
def test_edited_function_is_told(notebook, called):
    """A function edited since the pipeline was built is told where a run starts, in one line."""
    notebook.run(DECODE)
    notebook.run(BUILD.format(called))
    first = notebook.run(BEGIN).said
    notebook.run(f"# moved, not edited\n\n{DECODE}")
    second = notebook.run(BEGIN).said
    notebook.run(DECODE.replace("return x", "return x + 1"))
    third = notebook.run(BEGIN).said
    notebook.run(BUILD.format(called))
    found = first, second, notebook.run(BEGIN).said
    assert found == ("[0, 1, 2]\n", "[0, 1, 2]\n", "[1, 2, 3]\n")
    told, items = third.splitlines()
    assert (told.startswith(EDITED.format("decode")), items) == (True, "[0, 1, 2]")
    assert told.endswith(f"] again (line 3: pipe = files.map({called})), and what builds on it")


def test_edited_class_is_told(notebook):
    """So is the class of an object that a stage calls; one that stands above is not."""
    cell = "class Decoder:\n    def __call__(self, x):\n        return x"
    notebook.run(cell)
    notebook.run(BUILD.format("Decoder()"))
    notebook.run(f"# moved\n{cell}")
    moved = notebook.run(BEGIN).said
    notebook.run(cell.replace("return x", "return -x"))
    said = notebook.run(BEGIN).said
    assert (moved, said.startswith(EDITED.format("Decoder"))) == ("[0, 1, 2]\n", True)


def test_name_of_another_thing_is_not_told(notebook):
    """A name that means something else by now, or a helper that is looked up anew, is no edit."""
    notebook.run("def decode(x):\n    return helper(x)\ndef helper(x):\n    return x")
    notebook.run(BUILD.format("decode"))
    notebook.run("def helper(x):\n    return -x")
    helped = notebook.run(BEGIN).said
    notebook.run("decode = 3")
    assert (helped, notebook.run(BEGIN).said) == ("[0, -1, -2]\n", "[0, -1, -2]\n")
