"""The trial: pieces run in a fresh process, and whatever user code does there stays there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

import nbpipe
from nbpipe.errors import ExportError
from nbpipe.export.fingerprint import fingerprint_of
from nbpipe.export.fresh import FreshProcess
from nbpipe.export.module import Piece, Spelling
from nbpipe.export.proof import Choice, NoTrueSpelling, tried
from nbpipe.export.source import LAZY
from tests.gates import HANG_S

ROOT = Path(__file__).resolve().parents[2]
LENGTH = f"{90_000 + os.getpid() / 1e7:.7f}"  # seconds that tell our processes from others


def piece(*texts, names=("x",), now=(), **expected):
    """Make a piece from its spellings; what it must be worth is given by name."""
    spellings = tuple(Spelling(text, frozenset(now)) for text in texts)
    fingerprints = {
        name: json.loads(json.dumps(fingerprint_of(value))) for name, value in expected.items()
    }
    return Piece(names, spellings, fingerprints)


SHORT_S = 5.0  # for what never ends; what stands before it takes less on a busy machine, too


def trial(*pieces, imports="", future=False, limit_s=30.0, where=None):
    """Try pieces as those of `my_loader`."""
    with where or FreshProcess.here() as fresh:
        return tried(imports, pieces, fresh, name="my_loader", future=future, limit_s=limit_s)[0]


def reason(result):
    """Give the reason of a failure, in one line."""
    assert isinstance(result, NoTrueSpelling)
    return " | ".join(line.strip() for line in result.reason.splitlines())


def processes():
    """List the programs called sleep that run for a time of ours; one that was killed may end."""
    listed = [(one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    found = [one for one, words in listed if words[:1] == ["sleep"] and LENGTH in words]
    _, alive = psutil.wait_procs(found, timeout=HANG_S)
    return [one.info["cmdline"] for one in alive]


def test_the_first_spelling_that_is_true():
    """A spelling that raises and one of another value are passed over."""
    pieces = [piece("x = 1 / 0", "x = 3", "x = 4", "x = 5", x=4)]
    assert trial(*pieces) == [Choice(2)]


def test_pieces_see_imports_and_one_another():
    """All run in one namespace, in order."""
    pieces = [piece("x = math.floor(3.5)", x=3), piece("y = x + 1", names=("y",), y=4)]
    assert trial(*pieces, imports="import math") == [Choice(0), Choice(0)]


def test_a_failed_spelling_leaves_nothing_bound():
    """Names bound before the exception are gone, and old values are back."""
    pieces = [
        piece("x = 1", x=1),
        piece("x = 2\nhalf = 3\nraise ValueError", "y = (x, 'half' in globals())", y=(1, False)),
    ]
    assert trial(*pieces) == [Choice(0), Choice(1)]


def test_a_failure_names_the_line_and_the_error():
    """The reason is that of the spelling as it was written."""
    [result] = trial(piece("x = 1\ny = int('a')", "x = 2", x=3))
    assert result == NoTrueSpelling("ValueError: invalid literal for int() with base 10: 'a'", 2)


def test_a_syntax_error_is_a_failure():
    """Text that does not compile fails with its line."""
    [result] = trial(piece("x = 1\ny = = 2"))
    assert (result.reason, result.line) == ("SyntaxError: invalid syntax", 2)


def test_a_difference_is_told_in_words():
    """A definition of another value is a failure."""
    [result] = trial(piece("x = [1, 3]", x=[1, 2]))
    assert reason(result).startswith("[1]: 2 in the notebook, 3 ")


def test_what_needs_a_failed_piece_fails_by_it():
    """A dependant says so, over any number of steps; the others go on."""
    pieces = [
        piece("x = 1 / 0"),
        piece("y = x", names=("y",), now=("x",)),
        piece("z = y", names=("z",), now=("y",)),
        piece("w = 1", names=("w",), w=1),
    ]
    results = trial(*pieces)
    assert [reason(result) for result in results[1:3]] == ["needs 'x'", "needs 'y'"]
    assert results[3] == Choice(0)


def test_a_literal_needs_no_failed_piece():
    """A spelling that reads nothing of it is taken."""
    wanted = Piece(
        ("y",), (Spelling("y = x", frozenset({"x"})), Spelling("y = 2")), {"y": fingerprint_of(2)}
    )
    assert trial(piece("x = 1 / 0"), wanted)[1] == Choice(1)


def test_an_import_that_fails_is_named():
    """A module that cannot be found is named, with its line and the way out."""
    with pytest.raises(ExportError) as caught:
        trial(imports="import os\nimport no_such_module_anywhere")
    assert str(caught.value).startswith(
        "`import no_such_module_anywhere` fails in a fresh process: no module named "
        "'no_such_module_anywhere'"
    )


def test_it_looks_like_a_module():
    """`inspect`, dataclasses and pickle find the module, its file and the source."""
    text = """
@dataclasses.dataclass
class Sample:
    size: int


def decode(x):
    # kept
    return x


x = [
    inspect.getsource(decode),
    inspect.getsource(Sample),
    pickle.loads(pickle.dumps(Sample(3))) == Sample(3),
    __name__,
    sys.modules[__name__].decode is decode,
]
"""
    expected = [
        "def decode(x):\n    # kept\n    return x\n",
        "@dataclasses.dataclass\nclass Sample:\n    size: int\n",
        True,
        "my_loader",
        True,
    ]
    imports = "import dataclasses\nimport inspect\nimport pickle\nimport sys"
    assert trial(piece("y = 1"), piece(text, x=expected), imports=imports) == [Choice(0)] * 2


@pytest.mark.parametrize("future", [True, False])
def test_future_annotations(future):
    """Annotations stay unread exactly where the module says so, or Python reads none at once."""
    [result] = trial(piece("def f(x: Unknown): pass", names=("f",)), future=future)
    assert isinstance(result, Choice) == (future or LAZY)


def test_relative_paths_are_the_notebooks(tmp_path):
    """Data and modules are found from the notebook's folder, that of the empty path entry too."""
    (tmp_path / "data.txt").write_text("here")
    (tmp_path / "my_helper.py").write_text("VALUE = 7")
    here = FreshProcess.here()
    where = FreshProcess(str(tmp_path), (str(tmp_path), *here.paths))
    pieces = [piece("x = (open('data.txt').read(), my_helper.VALUE)", x=("here", 7))]
    assert trial(*pieces, imports="import my_helper", where=where) == [Choice(0, is_data=True)]


def test_the_empty_path_entry_is_the_working_folder(monkeypatch, tmp_path):
    """`''` in `sys.path` is not the folder that the process starts in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "relative", *sys.path])
    assert FreshProcess.here().paths[:2] == (str(tmp_path), str(tmp_path / "relative"))


def test_the_environment_is_inherited(monkeypatch):
    """A look-up gives what it gives in the notebook; no windows are opened."""
    monkeypatch.setenv("SOME_VARIABLE", "value")
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    names = "os.environ['SOME_VARIABLE'], os.environ['MPLBACKEND']"
    assert trial(piece(f"x = ({names})", x=("value", "Agg")), imports="import os") == [Choice(0)]


HAZARDS = {
    "reads its input": ("input()", "EOFError: EOF when reading a line"),
    "exits": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "is interrupted": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "ends at once": ("import os\nos._exit(3)", "ended its process with exit code 3"),
    "crashes": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "ended its process: Segmentation fault (SIGSEGV)",
    ),
    "ends by a signal that has no name": (
        "import os\nos.kill(os.getpid(), 40)",
        "ended its process: Real-time signal 6 (signal 40)",
    ),
    "closes every file": (
        "import os\nos.closerange(0, 1000)\nwhile True: pass",
        "ended its process: Killed (SIGKILL)",
    ),
}


@pytest.mark.parametrize(("text", "words"), HAZARDS.values(), ids=HAZARDS)
def test_user_code_that(folder, text, words):
    """It becomes a failure in words, and what comes after it says so."""
    first, *others = trial(piece(text), piece("y = 1", names=("y",)))
    assert (reason(first), list(folder.iterdir())) == (words, [])
    assert others in ([Choice(0)], [NoTrueSpelling(f"was not tried: 'x' {words.split(' | ')[0]}")])


def test_one_process_forks_for_each_question(tmp_path):
    """A new one starts only where an answer ended it."""
    log = tmp_path / "parents"
    note = piece(f"import os\nopen({str(log)!r}, 'a').write(f'{{os.getppid()}} ')")
    crash = piece("import os\nos._exit(3)")
    with FreshProcess.here() as fresh:
        for one in (note, note, crash, note, note):
            tried("", [one], fresh, name="my_loader", future=False)
    first, second, third, fourth = log.read_text().split()
    assert (first == second, second == third, third == fourth) == (True, False, True)


def test_user_code_that_takes_for_ever(folder):
    """The time limit ends it."""
    text = "import time\ntime.sleep(1000)"
    [result] = trial(piece(text), limit_s=SHORT_S)
    assert (reason(result), list(folder.iterdir())) == ("took longer than 5 s", [])


SLOW = "import time\nx = time.sleep(1000)"


@pytest.mark.parametrize("text", [SLOW, "import os\nos._exit(1)"])
def test_a_spelling_that_ends_the_process_is_passed_over(text):
    """A constant that takes for ever to compute is written as its value; the rest is tried."""
    pieces = [
        piece("w = 1", names=("w",)),
        piece("x = 1 / 0", text, "x = 2", "x = 3", x=3),
        piece("y = 0", "y = x", names=("y",), y=3),
    ]
    assert trial(*pieces, limit_s=SHORT_S) == [Choice(0), Choice(3), Choice(1)]


def test_processes_are_started_a_few_times_at_most():
    """One spelling after the other that ends the process is a failure in the end."""
    pieces = [piece("import os\nos._exit(1)", "x = 1", x=1, names=(f"x{i}",)) for i in range(6)]
    results = trial(*pieces)
    assert [isinstance(result, Choice) for result in results] == [True] * 3 + [False] * 3


def test_while_a_run_iterates():
    """A trial does not disturb a run of this process, nor is it disturbed."""
    seen = []
    with nbpipe.source(lambda: range(8)).map(abs, concurrency=2).start() as run:
        for item in run:
            seen.append(item)
            if item == 3:
                seen += trial(piece("x = 1", x=1))
    assert seen == [0, 1, 2, 3, Choice(0), 4, 5, 6, 7]


def test_user_code_that_prints_without_end(folder):
    """Its output is neither kept nor waited for."""
    [result] = trial(piece("while True:\n    print('x' * 100_000)"), limit_s=SHORT_S)
    assert (reason(result)[:20], list(folder.iterdir())) == ("took longer than 5 s", [])


def test_user_code_that_prints_much(folder):
    """Megabytes do no harm."""
    assert trial(piece("x = 1\nfor _ in range(300):\n    print('x' * 100_000)", x=1)) == [Choice(0)]


def test_threads_are_not_waited_for():
    """A thread that never ends is no hindrance."""
    text = "import threading\nthreading.Thread(target=threading.Event().wait).start()"
    assert trial(piece(text)) == [Choice(0)]


PROGENY = f"""
import os, subprocess
subprocess.Popen(["sleep", "{LENGTH}"])
subprocess.Popen(["sleep", "{LENGTH}"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{LENGTH}"])
    os._exit(0)
"""


@pytest.mark.parametrize("end", ["", "os._exit(1)", "while True: pass"])
def test_processes_of_user_code_end_with_it(end):
    """Children go too, also those that left the process group."""
    trial(piece(PROGENY + end), limit_s=SHORT_S)
    assert processes() == []


CHAIN = """
import os
if os.fork() == 0:
    os.setsid()
    open({path!r}, "w").write(str(os.getsid(0)))
    for _ in range(30):
        if os.fork():
            os._exit(0)
    os.execvp("sleep", ["sleep", "90000"])
while not (os.path.exists({path!r}) and os.path.getsize({path!r})): pass
"""


def test_processes_that_hand_over_to_another_end(tmp_path):
    """A process that starts another and ends, again and again, does not slip by."""
    path = tmp_path / "session"
    trial(piece(CHAIN.format(path=str(path))), limit_s=SHORT_S)
    assert [one for one in psutil.pids() if session_of(one) == int(path.read_text())] == []


def session_of(pid):
    """Return the session of a process; None where it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)


def test_a_fork_that_goes_on_answers_nothing():
    """A child that runs on into the trial is no second answer."""
    assert trial(piece("import os\nx = os.fork() and 1", x=1), piece("y = 2")) == [Choice(0)] * 2


def test_libraries_may_clear_up(tmp_path):
    """Functions registered for the exit run."""
    mark = tmp_path / "mark"
    trial(piece(f"import atexit\natexit.register(open, {str(mark)!r}, 'w')"))
    assert mark.exists()


def test_secrets_are_not_shown(monkeypatch):
    """What user code raises is shown without them."""
    monkeypatch.setenv("MY_API_KEY", "abcd1234efgh5678")
    raised = "import os\nraise ValueError(os.environ['MY_API_KEY'])"
    shown = trial(piece(raised))[0].reason
    assert ("abcd1234efgh5678" in shown, "***" in shown) == (False, True)


def test_nothing_on_the_command_line():
    """The text of the module is given over the input."""
    text = "import psutil\nx = any('MARKER' in part for part in psutil.Process().cmdline())"
    assert trial(piece(text, x=False)) == [Choice(0)]


@pytest.mark.parametrize("executable", ["", None, "/no/such/python"])
def test_an_interpreter_that_does_not_know_where_it_is(monkeypatch, executable):
    """An embedded kernel is told what is missing."""
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(ExportError) as caught:
        trial(piece("x = 1"))
    assert "needs sys.executable to be the path" in str(caught.value)


def test_another_program_as_interpreter(monkeypatch):
    """A program that is no Python is told from a trial."""
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    with pytest.raises(ExportError) as caught:
        trial(piece("x = 1"))
    assert "ended its process with exit code 0" in str(caught.value)


def test_from_any_thread():
    """Several threads may try at once."""
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(trial(piece("x = 1", x=1))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[Choice(0)]] * 3


SCRIPT = '''
import sys
from nbpipe.export.fresh import FreshProcess
from nbpipe.export.module import Piece, Spelling
from nbpipe.export.proof import tried
text = """
import subprocess
subprocess.Popen(["sleep", "{LENGTH}"], start_new_session=True)
open({path!r}, "w").close()
while True: pass
"""
piece = Piece(("x",), (Spelling(text),))
try:
    with FreshProcess.here() as fresh:
        tried("", [piece], fresh, name="m", future=False)
except KeyboardInterrupt:
    print("interrupted")
'''


def script(folder, gate):
    """Start a script without a `__main__` guard, that tries a piece which opens `gate`."""
    text = SCRIPT.replace("{path!r}", repr(str(gate))).replace("{LENGTH}", LENGTH)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True
    )


def await_gate(gate, process):
    """Wait until user code runs: a pipe with a name opens once both ends are there."""
    with gate.open():
        assert process.poll() is None


def test_an_interrupt_ends_all(tmp_path):
    """Ctrl-C raises KeyboardInterrupt in the notebook; the process and its children are gone."""
    gate, folder = tmp_path / "gate", tmp_path / "temporary"
    os.mkfifo(gate)
    folder.mkdir()
    with script(folder, gate) as process:
        await_gate(gate, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert (output, list(folder.iterdir()), processes()) == ("interrupted\n", [], [])


def test_the_end_of_the_notebook_ends_it(tmp_path):
    """A kernel that is killed leaves no process and no folder."""
    gate, folder = tmp_path / "gate", tmp_path / "temporary"
    os.mkfifo(gate)
    folder.mkdir()
    with script(folder, gate) as process:
        await_gate(gate, process)
        [child] = psutil.Process(process.pid).children()
        process.kill()
        process.communicate()
    psutil.wait_procs([child], timeout=HANG_S)
    assert (list(folder.iterdir()), processes()) == ([], [])


def test_an_answer_of_any_size():
    """Many pieces and long texts go through the pipes."""
    text = f"x = {'a' * 1_000_000!r}"
    assert trial(*[piece(text)] * 3) == [Choice(0)] * 3


WORD = "horse9battery"


def test_secret_reaches_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A secret that two pieces give away together is refused before a file holds it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    pieces = (piece("def login(password): pass", names=("login",)), piece(f"x = login('{WORD}')"))
    with pytest.raises(ExportError, match=r"^'x' holds what looks like a secret") as caught:
        trial(*pieces)
    assert WORD not in str(caught.value)


@pytest.mark.parametrize("labels", [["a", "b"], ["b", "a"]])
def test_order_of_a_set(labels: list[str], monkeypatch: pytest.MonkeyPatch):
    """Text whose order is another in each process is never taken, even if one agrees."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = "x = list({'a', 'b'})"
    assert trial(piece(text, f"x = {labels}", x=labels)) == [Choice(1)]


def test_set_as_written(monkeypatch: pytest.MonkeyPatch):
    """A set is equal to itself in any order."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert trial(piece("x = {'b', 'a', 'c'}", x={"a", "b", "c"})) == [Choice(0)]


def test_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where no temporary folder can be made, the error says what to set."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ExportError, match="set TMPDIR to a folder that can be written"):
        trial(piece("x = 1"))
    assert list(tmp_path.iterdir()) == []
