"""The command line, as a process of its own, on real notebooks and modules."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nbpipe.cli import main

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "nbpipe"]
END_S = 40


def environment(**more):
    """Give the environment of the command: it finds this nbpipe."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "", **more}


def command(*arguments, cwd, python=("-m", "nbpipe"), **variables):
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, *python, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Give a function that calls the command in this process: for what ends before it begins."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return called


def write_notebook(path, *cells, language="python", kernel="python3"):
    """Write a notebook of code cells; a cell is its text, or its text and its tags."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from nbformat import v4

    pairs = [(cell, []) if isinstance(cell, str) else cell for cell in cells]
    spec = {"name": kernel, "display_name": kernel, "language": language}
    notebook = v4.new_notebook(
        cells=[v4.new_code_cell(text, metadata={"tags": tags}) for text, tags in pairs],
        metadata={"kernelspec": spec},
    )
    nbformat.write(notebook, path)
    return path


def execute(path, *arguments, cwd, **variables):
    """Run `nbpipe export --execute`, for a module in the folder that it is called from."""
    arguments = (path, "-o", "loader.py", "--execute", *arguments)
    return command("export", *arguments, cwd=cwd, **variables)


def is_gone(pid):
    """Tell whether a process has ended; nobody may have asked yet how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


PIPE = "import nbpipe\npipe = nbpipe.source(range(6), name='numbers').batch(2)"


# -- the command itself -------------------------------------------------------------------
def test_version(tmp_path):
    """`--version` gives the version of the package."""
    from nbpipe import __version__

    assert command("--version", cwd=tmp_path).stdout == f"nbpipe {__version__}\n"


@pytest.mark.parametrize("arguments", [["-h"], ["export", "-h"], ["run", "-h"]])
def test_help(arguments, tmp_path):
    """Help is written to stdout, and says what the exit codes mean."""
    done = command(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr, "exit code: 0 done" in done.stdout) == (0, "", True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required"),
        (["bench"], "invalid choice: 'bench'"),
        (["export", "n.ipynb"], "required: -o/--output"),
        (["export", "none.ipynb", "-o", "l.py"], "cannot read none.ipynb: No such file"),
        (["export", "text.ipynb", "-o", "l.py"], "text.ipynb is no notebook: "),
        (["export", "r.ipynb", "-o", "l.py"], "r.ipynb is written in R; only notebooks in Python"),
        (["export", "other.ipynb", "-o", "l.py"], "no kernel 'none' on this machine"),
        (["export", "n.ipynb", "-o", "l.txt"], "must end in .py, got 'l.txt'"),
        (["export", "n.ipynb", "-o", "json.py"], "must not have the name of another module"),
        (["export", "n.ipynb", "-o", "no/l.py"], "must lie in a folder that exists"),
        (["export", "n.ipynb", "-o", "l.py", "--pipeline", "a b"], "name of a variable, got 'a b'"),
        (["export", "n.ipynb", "-o", "l.py", "--set", "size"], "must be name=value, got 'size'"),
        (["export", "n.ipynb", "-o", "l.py", "--set", "siz=3"], "'siz'; did you mean 'size'?"),
        (["export", "n.ipynb", "-o", "l.py", "--set", "np=3"], "no cell of n.ipynb assigns 'np'"),
        (["export", "n.ipynb", "-o", "l.py", "--timeout", "0"], "seconds above 0, got '0'"),
        (["export", "n.ipynb", "-o", "l.py", "--timeout", "x"], "seconds above 0, got 'x'"),
        (["export", "n.ipynb", "-o", "l.py", "--check-items", "-1"], "at least 0 items, got '-1'"),
        (["export", "n.ipynb", "-o", "l.py", "--assets", "zip"], "invalid choice: 'zip'"),
        (["run", "none.py"], "no file none.py"),
    ],
)
def test_bad_usage(arguments, says, tmp_path, call):
    """What cannot be done is refused with exit code 2, before anything is run."""
    write_notebook(tmp_path / "n.ipynb", "import numpy as np\nsize = 3", "open('ran', 'w')")
    write_notebook(tmp_path / "r.ipynb", "x <- 1", language="R")
    write_notebook(tmp_path / "other.ipynb", "x = 1", kernel="none")
    (tmp_path / "text.ipynb").write_text("words")
    more = ["--execute"] if arguments[:1] == ["export"] else []
    done = call(*arguments, *more)
    seen = (done.returncode, says in done.err, done.out, (tmp_path / "ran").exists())
    assert seen == (2, True, "", False), done.err


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\xff",
        "[]",
        '{"cells": 3}',
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": 5}, "cells": []}',
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code"}]}',
    ],
)
def test_what_is_no_notebook(content, tmp_path, call):
    """A file that holds something else is refused in one line."""
    pytest.importorskip("nbformat")
    (tmp_path / "n.ipynb").write_text(content, encoding="latin-1")
    done = call("export", "n.ipynb", "-o", "loader.py")
    begins = done.err.startswith("nbpipe export: n.ipynb is no notebook: ")
    assert (done.returncode, begins, done.err.count("\n")) == (2, True, 1), done.err


# -- what would be run --------------------------------------------------------------------
def test_without_execute_nothing_runs(tmp_path):
    """Without --execute the command explains what it would do, and does nothing."""
    cells = ["open('ran', 'w')", "# how many\nSIZE = 3", "%%time\n" + PIPE]
    path = write_notebook(tmp_path / "n.ipynb", *cells)
    done = command("export", path.name, "-o", "loader.py", "--set", "SIZE=7", cwd=tmp_path)
    lines = [line.strip() for line in done.stdout.splitlines()]
    wanted = [
        "n.ipynb would be run, and the pipeline exported.",
        f"kernel      python3 ({sys.executable})",
        f"folder      {tmp_path}",
        "code cells  3",
        "1  open('ran', 'w')",
        "2  # how many",
        "--set SIZE = 7",
        "3  %%time",
        "pipeline    pipe, bound by cell 3",
        f"writes      {tmp_path / 'loader.py'}",
        "time limit  600 s for all of it",
        "To run it, type the same command with --execute.",
    ]
    there = sorted(file.name for file in tmp_path.iterdir())
    assert ([one for one in wanted if one not in lines], done.returncode, there) == (
        [],
        0,
        ["n.ipynb"],
    )


def test_explanation_hides_secrets_and_escapes(tmp_path):
    """Neither a secret nor a terminal's control sequence is shown, wherever it stands."""
    cells = ["API_KEY = 'abc123'", "login(\n  token='abc123')", "x = '\x1b[2J'"]
    path = write_notebook(tmp_path / "a\x1b[31m.ipynb", *cells)
    more = ["--set", "API_KEY=abc123"]
    done = command("export", path.name, "-o", "loader.py", *more, cwd=tmp_path)
    seen = ("abc123" in done.stdout, "\x1b" in done.stdout, "a\\x1b[31m.ipynb" in done.stdout)
    assert (done.returncode, *seen) == (0, False, False, True)


def test_unbound_pipeline_is_noted(tmp_path):
    """A pipeline that no cell binds is noted, with the near match."""
    path = write_notebook(tmp_path / "n.ipynb", PIPE)
    done = command("export", path, "-o", "loader.py", "--pipeline", "pip", cwd=tmp_path)
    assert "note: no cell binds 'pip'; did you mean 'pipe'?" in done.stdout


# -- running it ---------------------------------------------------------------------------
def test_failing_cell(tmp_path):
    """A cell that fails is named with its first line and its error in one line."""
    path = write_notebook(tmp_path / "n.ipynb", "x = 1", "# the second\nopen('no\\x1b[31m')", "y")
    done = execute(path, cwd=tmp_path)
    wanted = (
        "nbpipe export: cell 2 of 3 failed: # the second\n"
        "  FileNotFoundError: [Errno 2] No such file or directory: 'no\\x1b[31m'\n"
        "  (--verbose shows the traceback)\n"
    )
    assert (done.returncode, done.stdout, done.stderr.partition("nbpipe")[2]) == (
        1,
        "",
        wanted.removeprefix("nbpipe"),
    )


def test_verbose_shows_the_traceback_without_secrets(tmp_path):
    """With --verbose the traceback is shown as plain text, without lines that hold a secret."""
    path = write_notebook(tmp_path / "n.ipynb", "API_KEY = 'abc123'\n1 / 0")
    shown = execute(path, "--verbose", cwd=tmp_path).stderr
    assert ("----> 2 1 / 0" in shown, "abc123" in shown, "\x1b" in shown) == (True, False, False)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("name = input('name? ')", "it asks for input, and nobody is here to give it"),
        ("import os\nos._exit(7)", "the kernel died with exit code 7, while running cell 2 of 2"),
        ("import threading\nthreading.Event().wait()", "the time limit of 12 s is over, while run"),
        (PIPE.replace("pipe =", "pip ="), "no such variable; did you mean 'pip'?; the pipelines"),
        ("pipe = 3", "got 'pipe': it is of type 'int'; the notebook holds no pipeline"),
    ],
)
def test_ends_that_fail(code, says, tmp_path):
    """What a notebook may do instead of making a pipeline: each is one clear message."""
    path = write_notebook(tmp_path / "n.ipynb", "import os", code)
    done = execute(path, "--timeout", "12", cwd=tmp_path)
    assert (done.returncode, says in done.stderr, "Traceback" in done.stderr) == (1, True, False), (
        done.stderr
    )


STAGES = """
def decode(x):
    return x * SIZE + len(Path("data.txt").read_text())
pipe = nbpipe.source(range(6), name="numbers").map(decode, concurrency=2)
"""


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook that makes a pipeline, in a folder with the data that it reads."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "data.txt").write_text("7")
    first = "from pathlib import Path\nimport nbpipe\nSIZE = 3  # pixels"
    return write_notebook(home / "n.ipynb", first, STAGES, "pipe['decode'].concurrency = 5")


def test_export(notebook, tmp_path):
    """The module is written where the command is called, with tuned and set values."""
    done = execute(notebook, "--set", "SIZE=10", cwd=tmp_path)
    loader = tmp_path / "loader.py"
    wrote = f"wrote {loader}; the first 4 items are the same there\n"
    lines = loader.read_text().splitlines()
    wanted = ["SIZE = 10  # pixels", "    decode_concurrency: int = 5,"]
    assert (done.returncode, done.stdout, [line for line in wanted if line not in lines]) == (
        0,
        wrote,
        [],
    ), done.stderr + loader.read_text()


def test_exported_module_runs(notebook, tmp_path):
    """What one command wrote the other one runs, where its data are."""
    written = execute(notebook, "--check-items", "0", cwd=tmp_path)
    done = command(
        "run", tmp_path / "loader.py", "--set", "decode.concurrency=1", cwd=notebook.parent
    )
    assert (written.returncode, done.returncode, done.stderr.partition(" in ")[0]) == (
        0,
        0,
        "epoch 0: 6 items",
    )


def test_edited_module_stays(notebook, tmp_path):
    """A file that export did not write is not replaced, and the difference is shown in full."""
    loader = tmp_path / "loader.py"
    loader.write_text("mine = 1\n")
    done = execute(notebook, cwd=tmp_path)
    forced = execute(notebook, "--overwrite", cwd=tmp_path)
    seen = (done.returncode, "\n-mine = 1\n" in done.stderr, forced.returncode)
    assert (*seen, "mine" in loader.read_text()) == (1, True, 0, False), done.stderr


def test_refused_export(tmp_path):
    """A refusal is shown in full: the culprit, and who uses it."""
    cells = ["log = open('log.txt', 'w')", "def decode(x):\n    log.write(x)\n    return x"]
    last = "import nbpipe\npipe = nbpipe.source(range(3)).map(decode)"
    done = execute(write_notebook(tmp_path / "n.ipynb", *cells, last), cwd=tmp_path)
    wanted = (
        "nbpipe export: variable 'log' is a live TextIOWrapper on 'log.txt'; open it inside the "
        "stage instead\n  used by: decode() [In[2]] <- stage 'decode'\n"
    )
    assert (done.returncode, done.stdout, done.stderr.endswith(wanted)) == (1, "", True), (
        done.stderr
    )


def write_kernel(folder, *arguments):
    """Write a kernel named "odd"."""
    place = folder / "kernels" / "odd"
    place.mkdir(parents=True)
    spec = {"argv": arguments, "display_name": "odd", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/none/python", "{connection_file}"], "kernel did not start ([Errno 2] No such file"),
        ([sys.executable, "-c", "exit('no')"], "died with exit code 1, while starting the kernel"),
        ([sys.executable, "-c", "exit('no')"], "; its last words: no"),
        (
            ["env", "-u", "PYTHONPATH", sys.executable, "-Im", "ipykernel", "-f{connection_file}"],
            "has no nbpipe, or an older one",
        ),
    ],
)
def test_kernels_that_will_not_do(arguments, says, tmp_path):
    """A kernel that does not start, or has no nbpipe, is said to be such."""
    write_kernel(tmp_path, *arguments)
    path = write_notebook(tmp_path / "n.ipynb", "import sys\nsys.modules['nbpipe'] = None")
    more = {"JUPYTER_PATH": str(tmp_path)}
    done = execute(path, "--kernel", "odd", cwd=tmp_path, **more)
    seen = (done.returncode, says in done.stderr, "Traceback" in done.stderr)
    assert seen == (1, True, False), done.stderr


HANGS = """
import os, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                         start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {child.pid}")
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_ends_the_kernel_and_its_children(sent, code, tmp_path):
    """Ctrl-C in mid-notebook ends the kernel and what it started; so does SIGTERM."""
    path = write_notebook(tmp_path / "n.ipynb", HANGS, "threading.Event().wait()")
    arguments = ["export", str(path), "-o", "loader.py", "--execute"]
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        said = []
        while "cell 2 of 2" not in "".join(said):
            said.append(process.stderr.readline())
        process.send_signal(sent)
        said.append(process.communicate(timeout=END_S)[1])
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert (process.returncode, [is_gone(pid) for pid in pids]) == (code, [True, True]), said


def test_cells_run_as_in_a_notebook(tmp_path):
    """Folder, magics, tags, plots and settings are a notebook's; its file stays as it is."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "data.txt").write_text("7")
    path = write_notebook(
        home / "n.ipynb",
        "%matplotlib inline\nfrom pathlib import Path\n%time SIZE = 3",
        ("N = 5\nROOT = 'x'", ["parameters"]),
        "number = int(Path('data.txt').read_text())\n!echo shell",
        ("1 / 0", ["raises-exception"]),
        ("import os\nos._exit(1)", ["skip-execution"]),
        "assert (N, ROOT, number, len(In), Path.cwd().name) == (9, 'a b', 7, 6, 'home')",
        "%%capture\nmade = 1",
        "assert made == 1\n" + PIPE,
    )
    before = path.read_bytes()
    done = execute(path, "--set", "N=9", "--set", "ROOT=a b", cwd=tmp_path)
    assert (done.returncode, path.read_bytes() == before) == (0, True), done.stderr


WITHOUT = "import sys; sys.modules[{!r}] = None; from nbpipe.cli import main; sys.exit(main())"


@pytest.mark.parametrize("package", ["nbformat", "IPython", "jupyter_client.kernelspec"])
def test_missing_package(package, tmp_path):
    """Where what runs notebooks is not installed, the message has the line to type."""
    path = write_notebook(tmp_path / "n.ipynb", PIPE)
    python = ("-c", WITHOUT.format(package))
    done = command("export", path, "-o", "loader.py", cwd=tmp_path, python=python)
    line = "type: pip install 'jupyter-nbpipe[export]'\n"
    assert (done.returncode, done.stderr.endswith(line)) == (1, True), done.stderr


# -- what --set sets ----------------------------------------------------------------------
def plan(*texts, **sets):
    """Make a plan of cells; a cell is its text, or its text and its tags."""
    pytest.importorskip("IPython")
    from nbpipe.cli.notebook import Notebook, code_cell
    from nbpipe.cli.plan import Plan

    pairs = [(text, ()) if isinstance(text, str) else text for text in texts]
    cells = [code_cell(n, text, frozenset(tags)) for n, (text, tags) in enumerate(pairs, 1)]
    return Plan(
        notebook=Notebook(Path("n.ipynb"), "python3", tuple(cells)),
        pipeline="pipe",
        target=Path("loader.py"),
        sets=sets,
        kernel=("python3", "python"),
        overwrite=False,
        check_items=4,
        assets=None,
        limit_s=600,
    )


def after(made):
    """Give what is set after each cell."""
    return [made.assignments_after(cell) for cell in made.notebook.cells]


def test_settings_follow_the_first_assignment():
    """A variable is set after the first cell that assigns it."""
    made = plan("a = 1", "b = 2\nc: int = 3", "a = 4", a=[1], b="x")
    assert after(made) == ["a = [1]", "b = 'x'", ""]


def test_settings_follow_the_tagged_cell():
    """The cell that is tagged `parameters` comes before others that assign the variable."""
    made = plan("a = 1\nb = 1", ("a = 2", ["parameters"]), a=3, b=3)
    assert after(made) == ["b = 3", "a = 3"]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["a = 1", "b = a"], []),
        (["a = 1\ndef f():\n    return a"], []),
        (["a = 1\ndef f(x=a):\n    pass"], ["cell 1 assigns 'a' and reads it in the same cell"]),
        (["a = 1\nb = [a for _ in b]"], ["cell 1 assigns 'a' and reads it in the same cell"]),
        (["%%time\na = 1", "if True:\n    a = 2"], ["cell 2 assigns 'a' again"]),
    ],
)
def test_settings_that_may_not_act(cells, says):
    """Where a cell reads or assigns what is set, that is said."""
    warnings = list(plan(*cells, "pipe = 1", a=3).warnings())
    assert [line for line, start in zip(warnings, says, strict=True) if start not in line] == []


@pytest.mark.parametrize(
    "text",
    [
        "pipe = 1",
        "a, (pipe, b) = 1, (2, 3)",
        "pipe: int = 1",
        "if (pipe := 1):\n    pass",
        "for pipe in []:\n    pass",
        "with a as pipe:\n    pass",
        "def pipe():\n    pass",
        "import pipe.inner",
        "from a import b as pipe",
        "match a:\n    case {**pipe}:\n        pass",
        "%%time\npipe = 1",
        "%%capture out\n%%time\npipe = 1",
        "!ls\npipe = 1",
        "await b\npipe = 1",
    ],
)
def test_cells_that_bind(text):
    """A name is bound by many statements, also below magics."""
    assert plan("x = 1", text).binders() != []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    pipe = 1",
        "[pipe for pipe in a]",
        "class A:\n    pipe = 1",
        "a.pipe = 1",
        "a['pipe'] = 1",
        "import a.pipe",
        "f(pipe=1)",
    ],
)
def test_cells_that_do_not_bind(text):
    """A name inside of a function, a class or an object is another one."""
    cell = plan(text).notebook.cells[0]
    assert ("pipe" in cell.binds, "pipe" in cell.assigns, cell.may_hide) == (False, False, False)


@pytest.mark.parametrize("text", ["from a import *", "%run b.ipynb", "exec(c)", "def ("])
def test_cells_that_may_hide_names(text):
    """Where names may come from elsewhere, a missing one is not noted."""
    assert list(plan(text).warnings()) == []


# -- running a module ---------------------------------------------------------------------
MODULE = """
import nbpipe
def decode(x):
    return 10 // (x - BAD)
BAD = -1
def build_pipeline(*, decode_concurrency: int = 2, bad: int = -1):
    global BAD
    BAD = bad
    return nbpipe.source(range(6), name="numbers").map(decode, concurrency=decode_concurrency)
"""


@pytest.fixture
def module(tmp_path):
    """Write a module that builds a pipeline."""
    path = tmp_path / "loader.py"
    path.write_text(MODULE)
    return path


@pytest.mark.parametrize("setting", ["decode.concurrency=3", "decode_concurrency=3"])
def test_run(setting, module, tmp_path):
    """A module runs for as many epochs as asked for, with a line for each."""
    done = command("run", module, "--set", setting, "--epochs", "2", cwd=tmp_path)
    lines = [line.partition(" items in")[0] for line in done.stderr.splitlines()]
    assert (done.returncode, lines) == (0, ["epoch 0: 6", "epoch 1: 6"])


@pytest.mark.parametrize(
    ("setting", "code", "says"),
    [
        ("decode.concurrency=0", 2, "decode.concurrency must be an int in [1, 1024] calls, got 0"),
        ("decode.concurency=3", 2, "did you mean 'concurrency'?"),
        ("decod.concurrency=3", 2, "no stage 'decod'; did you mean 'decode'?"),
        ("decod_concurrency=3", 2, "did you mean 'decode_concurrency'?"),
        ("bad=2", 1, "(cause: ZeroDivisionError: "),
    ],
)
def test_run_that_fails(setting, code, says, module, tmp_path):
    """A bad setting is bad usage; a stage that fails is a failure, without a traceback."""
    done = command("run", module, "--set", setting, cwd=tmp_path)
    seen = (done.returncode, says in done.stderr, "Traceback" in done.stderr)
    assert seen == (code, True, False), done.stderr


def test_run_of_a_broken_module(tmp_path):
    """A module that raises is a failure; --verbose shows where."""
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    done = command("run", "broken.py", "--verbose", cwd=tmp_path)
    seen = ("ModuleNotFoundError: No module" in done.stderr, "broken.py" in done.stderr)
    assert (done.returncode, *seen) == (1, True, True)


def run_in_terminal(*arguments, cwd):
    """Run the command with a terminal as its stderr; give the exit code and what was drawn."""
    ours, theirs = pty.openpty()
    drawn = []
    try:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment(COLUMNS="120", TERM="xterm"),
            stderr=theirs,
        )
        os.close(theirs)
        while True:
            try:
                drawn.append(os.read(ours, 65536))
            except OSError:  # the other side is closed
                break
        code = process.wait(END_S)
    finally:
        os.close(ours)
    return SimpleNamespace(code=code, drawn=b"".join(drawn).decode())


def test_run_in_a_terminal_draws_a_table(module, tmp_path):
    """In a terminal the stages are a table that stays when the run has ended."""
    pytest.importorskip("rich")
    seen = run_in_terminal("run", module, cwd=tmp_path)
    words = ["numbers", "decode", "consumer", "epoch 0, finished: 6 of 6 delivered (100 %)"]
    assert (seen.code, [word for word in words if word not in seen.drawn]) == (0, []), seen.drawn


def test_export_in_a_terminal_draws_a_bar(tmp_path):
    """In a terminal a bar shows which cell is running; the message stands below."""
    pytest.importorskip("rich")
    path = write_notebook(tmp_path / "n.ipynb", "x = 1", "['[red]'][x]")
    seen = run_in_terminal("export", path, "-o", "loader.py", "--execute", cwd=tmp_path)
    words = ["cell 2 of 2: ['[red]'][x]", "━", "IndexError: list index out of range"]
    assert (seen.code, [word for word in words if word not in seen.drawn]) == (1, []), seen.drawn


def test_installed_as_a_command():
    """The package declares the command."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"nbpipe": "nbpipe.cli:main"}
