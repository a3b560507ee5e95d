"""`nbpipe export --execute` on real notebooks, in real kernels."""

import json
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.commands import COMMAND, PIPE, command, environment, execute, is_gone
from tests.gates import HANG_S
from tests.ipynb import write_notebook

pytestmark = pytest.mark.kernel


@pytest.mark.slow
def test_failing_cell(tmp_path):
    """A cell that fails is named with its first line and its error in one line."""
    path = write_notebook(tmp_path / "n.ipynb", "x = 1", "# the second\nopen('no\\x1b[31m')", "y")
    done = execute(path, cwd=tmp_path)
    wanted = (
        "nbpipe export: cell 2 of 3 failed: # the second\n"
        "  FileNotFoundError: [Errno 2] No such file or directory: 'no\\x1b[31m'\n"
        "  (--verbose shows the traceback)\n"
    )
    found = done.returncode, done.stdout, done.stderr.partition("nbpipe")[2]
    assert found == (1, "", wanted.removeprefix("nbpipe"))


@pytest.mark.slow
def test_verbose_shows_the_traceback_without_secrets(tmp_path):
    """With --verbose the traceback is shown as plain text, without lines that hold a secret."""
    path = write_notebook(tmp_path / "n.ipynb", "API_KEY = 'abc123'\n1 / 0")
    shown = execute(path, "--verbose", cwd=tmp_path).stderr
    assert ("----> 2 1 / 0" in shown, "abc123" in shown, "\x1b" in shown) == (True, False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("name = input('name? ')", "it asks for input; pass a value with --set instead"),
        ("import os\nos._exit(7)", "the kernel died with exit code 7, while running cell 2 of 2"),
        (PIPE.replace("pipe =", "pip ="), "no such variable; did you mean 'pip'?; the pipelines"),
        ("pipe = 3", "got 'pipe': it is of type 'int'; the notebook holds no pipeline"),
    ],
)
def test_ends_that_fail(code, says, tmp_path):
    """What a notebook may do instead of making a pipeline: each is one clear message."""
    path = write_notebook(tmp_path / "n.ipynb", "import os", code)
    done = execute(path, cwd=tmp_path)
    assert (done.returncode, says in done.stderr, "Traceback" in done.stderr) == (1, True, False), (
        done.stderr
    )


@pytest.mark.slow
def test_a_notebook_that_takes_for_ever(tmp_path):
    """What was under way when the time for all of it was over is named."""
    stuck = "import pathlib, threading\npathlib.Path('begun').touch()\nthreading.Event().wait()"
    path, limit_s = write_notebook(tmp_path / "n.ipynb", "import os", stuck), 6
    while not (tmp_path / "begun").exists():  # on a busy machine a kernel takes longer to start
        limit_s *= 2
        done = execute(path, "--timeout", str(limit_s), cwd=tmp_path)
    says = f"the time limit of {limit_s} s is over, while running cell 2 of 2"
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
    text = loader.read_text()
    assert done.returncode == 0, done.stderr + text
    assert done.stdout.startswith(f"wrote {loader}")
    assert "first 4 items" in done.stdout
    assert re.search(r"^SIZE = 10\b", text, re.MULTILINE)
    assert re.search(r"\bdecode_concurrency\b.*= ?5\b", text)


@pytest.mark.slow
@pytest.mark.torch
def test_a_loader_is_exported(tmp_path):
    """Its variable is named as that of a pipeline."""
    call = "loader = nbpipe.DataLoader(range(12), batch_size=4)"
    path = write_notebook(tmp_path / "n.ipynb", "import nbpipe", call)
    done = execute(path, "--pipeline", "loader", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "loader = nbpipe.DataLoader(range(12)" in (tmp_path / "loader.py").read_text()


@pytest.mark.slow
def test_exported_module_runs(notebook, tmp_path):
    """What one command wrote the other one runs, where its data are."""
    written = execute(notebook, "--check-items", "0", cwd=tmp_path)
    done = command(
        "run", tmp_path / "loader.py", "--set", "decode.concurrency=1", cwd=notebook.parent
    )
    found = written.returncode, done.returncode, done.stderr.partition(" in ")[0]
    assert found == (0, 0, "epoch 0: 6 items")


@pytest.mark.slow
def test_edited_module_stays(notebook, tmp_path):
    """A file that export did not write is not replaced, and the difference is shown in full."""
    loader = tmp_path / "loader.py"
    loader.write_text("mine = 1\n")
    done = execute(notebook, cwd=tmp_path)
    forced = execute(notebook, "--overwrite", cwd=tmp_path)
    seen = (done.returncode, "\n-mine = 1\n" in done.stderr, forced.returncode)
    assert "; give --overwrite to replace it" in done.stderr
    assert (*seen, "mine" in loader.read_text()) == (1, True, 0, False), done.stderr


@pytest.mark.slow
def test_refused_export(tmp_path):
    """A refusal is shown in full: the culprit, and who uses it."""
    cells = ["log = open('log.txt', 'w')", "def decode(x):\n    log.write(x)\n    return x"]
    last = "import nbpipe\npipe = nbpipe.source(range(3)).map(decode)"
    done = execute(write_notebook(tmp_path / "n.ipynb", *cells, last), cwd=tmp_path)
    wanted = (
        *("nbpipe export: ", "variable 'log'", "is a live TextIOWrapper"),
        *("open it inside the stage", "\n  used by: ", "decode() [In[2]]"),
    )
    missing = [word for word in wanted if word not in done.stderr]
    assert (done.returncode, done.stdout, missing) == (1, "", []), done.stderr


def write_kernel(folder, *arguments):
    """Write a kernel named "odd"."""
    place = folder / "kernels" / "odd"
    place.mkdir(parents=True)
    spec = {"argv": arguments, "display_name": "odd", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/none/python", "{connection_file}"], ["kernel did not start ([Errno 2] No such file"]),
        (
            [sys.executable, "-c", "exit('no')"],
            ["kernel did not start (Kernel died", "while starting the kernel; its last words: no"],
        ),
        (
            ["env", "-u", "PYTHONPATH", sys.executable, "-Im", "ipykernel", "-f{connection_file}"],
            ["has no nbpipe, or an older one"],
        ),
    ],
)
def test_kernels_that_will_not_do(arguments, says, tmp_path):
    """A kernel that does not start, or has no nbpipe, is said to be such."""
    write_kernel(tmp_path, *arguments)
    path = write_notebook(tmp_path / "n.ipynb", "import sys\nsys.modules['nbpipe'] = None")
    more = {"JUPYTER_PATH": str(tmp_path)}
    done = execute(path, "--kernel", "odd", cwd=tmp_path, **more)
    missing = [words for words in says if words not in done.stderr]
    assert (done.returncode, missing, "Traceback" in done.stderr) == (1, [], False), done.stderr


HANGS = """
import os, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                         start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {child.pid}")
"""


@pytest.mark.slow
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
        said.append(process.communicate(timeout=HANG_S)[1])
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert (process.returncode, [is_gone(pid) for pid in pids]) == (code, [True, True]), said


@pytest.mark.slow
def test_cells_run_as_in_a_notebook(tmp_path):
    """Folder, magics, tags, plots and settings are a notebook's; its file stays as it is."""
    pytest.importorskip("matplotlib")
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
