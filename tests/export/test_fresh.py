"""Fresh processes: what statements and modules do in them, and that nothing of them is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import nbpipe
import nbpipe.export.fresh as limits
from nbpipe.export.fingerprint import json_fingerprint
from nbpipe.export.fresh import FreshProcesses, ReplayStep, chain_prints, first_items
from tests.gates import HANG_S

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return tmp_path


def fresh(variables=(), file="/nowhere/loader.py"):
    """Return processes that import nothing ahead."""
    return FreshProcesses(variables=variables, modules=(), file=file)


def replay(processes, *steps, goal="pipe", **given):
    """Replay statements."""
    unless = {"below": [], "parameters": {}, "names": [], "modules": {}, "script": None}
    given = {**unless, "files": {}, "count": 0, **given}
    made = [ReplayStep(one) if isinstance(one, str) else one for one in steps]
    return processes.replay(made, goal=goal, future=given.pop("future", False), **given)


def prove(processes, text, stem="loader", *, files=None, names=(), count=0):
    """Prove a module."""
    return processes.prove(text, stem, files=files or {}, names=names, count=count)


def double(number):
    """Double a number."""
    return number * FACTOR


FACTOR = 2


def test_same_pipeline_in_a_replay_in_a_module_and_here(folder: Path):
    """Chains, values and items are the same in all three; knobs are set below."""
    pipe = nbpipe.source([1, 2, 3]).map(double).batch(2)
    pipe["double"].concurrency = 3
    text = "def double(number):\n    return number * FACTOR"
    made = "pipe = nbpipe.source([1, 2, 3]).map(double).batch(2)"
    body = [text, made, 'pipe["double"].concurrency = double_concurrency', "return pipe"]
    lines = "\n".join(body).replace("\n", "\n    ")
    head = "import nbpipe\nFACTOR = 2\n\ndef build_pipeline(double_concurrency=3):\n    "
    with fresh() as processes:
        replayed = replay(
            processes,
            *("import nbpipe", "FACTOR = 2", text, made),
            below=['["double"].concurrency = double_concurrency'],
            parameters={"double_concurrency": 3},
            names=["FACTOR", "double", "nothing"],
            count=5,
        )
        proved = prove(processes, head + lines, names=["FACTOR", "nothing"], count=5)
    assert [one.error for one in replayed.steps] == [""] * 4
    assert replayed.prints == {"FACTOR": json_fingerprint(2), "double": json_fingerprint(double)}
    assert proved.prints == {"FACTOR": json_fingerprint(2)}
    assert replayed.chain == proved.chain == chain_prints(pipe.chain)
    assert json.loads(json.dumps(replayed.chain)) == replayed.chain
    own = first_items(lambda: iter(pipe), 5)
    assert (replayed.items, replayed.raised) == (proved.items, proved.raised) == own
    assert len(own[0]) == 2
    assert (replayed.words, proved.words, proved.steps[0].reads) == ("", "", ())


def test_statements_that_fail(folder: Path):
    """The first that fails is the last in the answer; it says what was missing, and where."""
    local = "def f():\n    return g()\n\nf()"
    host = "import socket\n\nsocket.create_connection(('192.0.2.1', 80))"
    name = "try:\n    socket.getaddrinfo('example.com', 80)\nexcept OSError:\n    pass"
    with fresh() as processes:
        missing = replay(processes, "a = 1", local, "b = 1")
        connects = replay(processes, "import socket", name, host)
        own = replay(processes, "import socket", "socket.getaddrinfo('localhost', 80)", goal="1")
        goal = replay(processes, "a = 1", goal="a + b")
    assert [one.error for one in missing.steps] == ["", "NameError: name 'g' is not defined"]
    assert (missing.steps[1].missing, missing.steps[1].line) == ("g", 4)
    assert [one.connects for one in connects.steps] == [False, True, True]
    assert [bool(one.error) for one in connects.steps] == [False, False, True]
    assert [one.connects for one in own.steps] == [False, False]
    assert goal.goal.error == "NameError: name 'b' is not defined"


def test_modules_that_no_statement_imports(folder: Path):
    """They are absent, unless the package itself, or another statement, imports them."""
    modules = {"xml.dom": "xml.dom", "xml.sax": "x.sax", "xml.sax.handler": "xml.sax.handler"}
    with fresh() as processes:
        found = replay(processes, "import xml as x", "import xml.sax", modules=modules, goal="1")
    assert found.absent == ["xml.dom"]


def test_what_the_first_items_change(folder: Path):
    """Variables, and arguments of stages."""
    made = (
        "import nbpipe",
        "seen, fixed = [], [1]",
        "def add(n):\n    seen.append(n)\n    return n",
        "pipe = nbpipe.source(range(3)).map(add).map([4, 5, 6].pop)",
    )
    with fresh() as processes:
        found = replay(processes, *made, names=["seen", "fixed", "add"], count=2)
        unseen = replay(processes, *made, names=["seen", "fixed", "add"], count=0)
    assert list(found.moved) == ["pop fn", "seen"]
    assert unseen.moved == {}


def test_statements_that_change_nothing(folder: Path):
    """A statement that may change some names is idle where it has changed none of them."""
    with fresh() as processes:
        found = replay(
            processes,
            "a = [1]",
            ReplayStep("a.copy()", watch=("a",)),
            ReplayStep("a.sort()"),
            goal="1",
        )
        changed = replay(processes, "a = [1]", ReplayStep("a.pop()", watch=("a", "b")), goal="1")
    assert [one.idle for one in found.steps] == [False, True, False]
    assert [one.idle for one in changed.steps] == [False, False]


GARBAGE = """
import os

for fd in range(3, 30):
    try:
        os.write(fd, b"x" * 9)
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nos._exit(3)", "ended its process with exit code 3"),
        ("import os\nos.kill(os.getpid(), 9)", "ended its process: Killed (SIGKILL)"),
        ("import os\nos.closerange(3, 1024)", "ended its process"),
        (GARBAGE, "ended its process"),
    ],
    ids=["exits", "killed", "closes", "garbage"],
)
def test_statements_that_end_the_process(folder: Path, text: str, words: str):
    """It is told how, at the statement, too; those before it are answered."""
    with fresh() as processes:
        found = replay(processes, "a = 1", text, "b = 1")
    assert found.words.startswith(words)
    assert [one.error for one in found.steps[:1]] == [""]
    assert found.steps[-1].error == found.words


def test_time_limits(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A statement, the items and a module that take too long are ended."""
    forever = "import threading\nthreading.Event().wait()"
    with fresh() as processes:
        monkeypatch.setattr(limits, "STATEMENT_S", 0.3)
        step = replay(processes, "a = 1", forever)
        module = prove(processes, forever)
        monkeypatch.setattr(limits, "STATEMENT_S", 60.0)
        monkeypatch.setattr(limits, "ITEMS_S", 0.3)
        wait = "def wait(_):\n    threading.Event().wait()"
        goal = "nbpipe.source([1]).map(wait)"
        items = replay(processes, "import nbpipe", "import threading", wait, goal=goal, count=1)
    assert [one.late for one in step.steps] == [False, True]
    assert [one.late for one in module.steps] == [True]
    assert (step.words, module.steps[0].error) == ("", "took longer than 0.3 s")
    assert items.items_late
    assert [row["name"] for row in items.chain] == ["source", "wait"]


def test_reads(folder: Path):
    """Files and folders that code looks into are noted; those of Python and packages are not."""
    (folder / "data.txt").write_text("1", encoding="utf-8")
    (folder / "own.py").write_text("text = open('data.txt').read()", encoding="utf-8")
    with fresh() as processes:
        found = replay(
            processes,
            "import json, os, inspect, own",
            "data = open('data.txt').read()",
            "names = os.listdir()",
            "text = inspect.getsource(json) + inspect.getsource(os)",
            "both = [*os.scandir('.')], inspect.getsource(inspect.currentframe())",
            goal="1",
        )
        proved = prove(
            processes,
            "from pathlib import Path\nbeside = Path(__file__).with_name('a.bin').read_bytes()\n"
            "open('data.txt')",
            files={"a.bin": b"1"},
        )
    reads = [one.reads for one in found.steps]
    assert reads == [(), (str(folder / "data.txt"),), (str(folder),), (), (str(folder),)]
    (module,) = proved.steps
    assert module.error.startswith("FileNotFoundError")
    assert (module.line, module.text) == (3, "open('data.txt')")


def test_environment(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A process gets the variables that are named, and those that any program needs."""
    monkeypatch.setenv("OWN_NAME", "a")
    monkeypatch.setenv("OWN_SECRET", "b")
    monkeypatch.setattr(sys, "argv", ["kernel", "-f", "x.json"])
    look = "import os, sys\nseen = {n for n in os.environ if n[:4] in ('OWN_', 'PATH', 'MPLB')}"
    with fresh(["OWN_NAME", "OWN_MISSING"]) as processes:
        found = replay(
            processes, look, "where = os.getcwd(), sys.argv", names=["seen", "where"], goal="1"
        )
        script = replay(
            processes, "import sys\nwhere = __file__, sys.argv, __name__", script="/a/b.py",
            names=["where"], goal="1",
        )  # fmt: skip
        module = prove(
            processes,
            "import os, sys\nhere = sys.argv == [os.path.abspath(__file__)], os.listdir()\n"
            "def build_pipeline():\n    raise ValueError(os.getcwd())\n",
            names=["here"],
        )
    assert found.prints["seen"] == json_fingerprint({"OWN_NAME", "PATH", "MPLBACKEND"})
    assert found.prints["where"] == json_fingerprint((str(folder), [""]))
    assert script.prints["where"] == json_fingerprint(("/a/b.py", ["/a/b.py"], "__main__"))
    assert module.prints["here"] == json_fingerprint((True, []))
    assert module.goal.error == f"ValueError: {folder}"
    assert module.goal.line == 4


def test_modules_that_fail(folder: Path):
    """The line of the module is named, and what was missing."""
    with fresh() as processes:
        syntax = prove(processes, "a = 1\nb = (\n")
        missing = prove(processes, "\n\na = b  # a note\n")
        exits = prove(processes, "import os\nos._exit(3)\n")
    assert syntax.steps[0].error.startswith("SyntaxError")
    assert syntax.steps[0].line == 2
    step = missing.steps[0]
    assert (step.line, step.text, step.missing) == (3, "a = b  # a note", "b")
    assert exits.words == "ended its process with exit code 3"


CHILDREN = """
import os, subprocess, sys
code = "import signal; signal.pause()"
options = {}, {"start_new_session": True}
pids = [subprocess.Popen([sys.executable, "-c", code], **one).pid for one in options]
if (pid := os.fork()) == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        import signal
        signal.pause()
    open("grandchild", "w").write(str(pid))
    os._exit(0)
os.waitpid(pid, 0)
open("pids", "w").write(" ".join([*map(str, pids), open("grandchild").read(), str(os.getpid())]))
"""


@pytest.mark.parametrize("end", ["", "\nos._exit(1)"])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a session of its own is left")
def test_nothing_is_left(folder: Path, end: str):
    """What statements have started ends with their process, whatever it did."""
    with fresh() as processes:
        found = replay(processes, f"{CHILDREN}{end}", goal="1")
        pids = [int(word) for word in (folder / "pids").read_text(encoding="utf-8").split()]
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    assert bool(found.words) == bool(end)


def test_nothing_is_left_behind_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Processes that wait for a question end with the block, and their folders are removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with contextlib.suppress(ZeroDivisionError), fresh() as processes:
        replay(processes, "a = 1", goal="1")
        assert list(folder.glob("nbpipe-*/*"))  # one waits for the module
        raise ZeroDivisionError
    assert list(folder.iterdir()) == []


def test_fork_that_goes_on(folder: Path):
    """A copy of the process answers nothing."""
    with fresh() as processes:
        found = replay(
            processes, "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)", goal="b"
        )
    assert len(found.steps) == 1
    assert found.goal.error == "NameError: name 'b' is not defined"


INTERRUPTED = """
import os, signal, sys, threading
from nbpipe.export.fresh import FreshProcesses, ReplayStep

def stop():
    with open("fifo") as file:
        print(file.read(), flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))

WAIT = '''
import os, signal
with open("fifo", "w") as file:
    file.write(str(os.getpid()))
signal.pause()
'''

if __name__ == "__main__":
    threading.Thread(target=stop).start()
    with FreshProcesses(variables=[], modules=[], file="") as processes:
        processes.replay([ReplayStep(WAIT)], goal="1", below=[], parameters={}, names=[],
                         modules={}, future=False, script=None, files={}, count=0)
"""


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_interrupt_ends_all(folder: Path, how: str):
    """Ctrl-C ends all processes, and so does the end of the notebook."""
    os.mkfifo("fifo")
    Path("script.py").write_text(INTERRUPTED, encoding="utf-8")
    command = [sys.executable, "script.py", how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(HANG_S)
    assert done.returncode == -getattr(signal, how)
    assert ("KeyboardInterrupt" in done.stderr) == (how == "SIGINT")
