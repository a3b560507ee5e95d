"""`nbpipe run` on real modules."""

import os
import signal
import subprocess
import threading
from time import perf_counter_ns

import pytest

import nbpipe
from nbpipe.cli.run import telling_hangs
from tests.cli.commands import COMMAND, command, environment, is_gone, run_in_terminal
from tests.gates import HANG_S, Calls, Gate, drained, held, set_clock, stage

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


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["decode.concurrency=3", "decode_concurrency=3"])
def test_run(setting, module, tmp_path):
    """A module runs for as many epochs as asked for, with a line for each."""
    done = command("run", module, "--set", setting, "--epochs", "2", cwd=tmp_path)
    lines = [line.partition(" items in")[0] for line in done.stderr.splitlines()]
    assert (done.returncode, lines) == (0, ["epoch 0: 6", "epoch 1: 6"])


@pytest.mark.slow
def test_run_with_a_tuner(module, tmp_path):
    """The last line has what the tuner came to."""
    done = command("run", module, "--autotune", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "autotune: measuring")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "code", "says"),
    [
        ("decode.concurrency=0", 2, "decode.concurrency must be an int in [1, 1024] calls, got 0"),
        ("decode.concurency=3", 2, "did you mean 'concurrency'?"),
        ("decod.concurrency=3", 2, "no stage 'decod'; did you mean 'decode'?"),
        ("decod_concurrency=3", 2, "did you mean 'decode_concurrency'?"),
        ("bad=2", 1, "stage 'decode' failed on item 2: ZeroDivisionError: "),
    ],
)
def test_run_that_fails(setting, code, says, module, tmp_path):
    """A bad setting is bad usage; a stage that fails is a failure, without a traceback."""
    done = command("run", module, "--set", setting, cwd=tmp_path)
    seen = (done.returncode, says in done.stderr, "Traceback" in done.stderr)
    assert seen == (code, True, False), done.stderr


@pytest.mark.slow
def test_cause_is_told_once(module, tmp_path):
    """The sentence of a failed stage holds its cause; it is not told again behind it."""
    done = command("run", module, "--set", "bad=2", cwd=tmp_path)
    assert done.stderr.count("ZeroDivisionError") == 1, done.stderr


@pytest.mark.slow
def test_run_of_a_broken_module(tmp_path):
    """A module that raises is a failure; --verbose shows where."""
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    done = command("run", "broken.py", "--verbose", cwd=tmp_path)
    seen = ("ModuleNotFoundError: No module" in done.stderr, "broken.py" in done.stderr)
    assert (done.returncode, *seen) == (1, True, True)


BROKEN = ["nbpipe.source(3)", "int('x')", "3", "nbpipe.source([1]).batch(0)", "exit(0)"]


@pytest.mark.slow
@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_module_is_a_failure(line, tmp_path):
    """Whatever `build_pipeline` raises is a failure, also what nbpipe raises of wrong arguments."""
    text = f"import nbpipe\ndef build_pipeline(*, size: int = 2):\n    return {line}\n"
    (tmp_path / "loader.py").write_text(text)
    plain = command("run", "loader.py", cwd=tmp_path)
    given = command("run", "loader.py", "--set", "size=3", cwd=tmp_path)
    assert (plain.returncode, given.returncode) == (1, 1), plain.stderr + given.stderr


@pytest.mark.slow
def test_a_value_that_the_module_refuses_is_bad_usage(module, tmp_path):
    """A setting that the module hands on, and that is out of range, is bad usage."""
    done = command("run", module, "--set", "decode_concurrency=0", cwd=tmp_path)
    assert (done.returncode, "got 0" in done.stderr) == (2, True), done.stderr


def test_skipped_items_are_counted(module, tmp_path):
    """The line of an epoch says how many items were skipped."""
    module.write_text(MODULE.replace("map(decode,", "map(decode, on_error='skip',"))
    done = command("run", module, "--set", "bad=2", cwd=tmp_path)
    assert (done.returncode, ", 1 item skipped" in done.stderr) == (0, True), done.stderr


ENDLESS = """
import os
import nbpipe
def work(x):
    if os.path.exists("pid"):
        with open("pid", "w") as file:
            file.write(str(os.getpid()))
        os.unlink("pid")
    return x
def build_pipeline(*, work_concurrency: int = 1):
    numbers = nbpipe.source(range(9)).repeat()
    return numbers.map(work, executor="process", concurrency=work_concurrency)
"""


def test_call_that_hangs_is_told_once(monkeypatch, capsys):
    """Where lines are written, a call that hangs gives one, though nothing else goes on."""
    hours = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + hours[0] * 3600 * 10**9)
    gate, looks = Gate(), Calls()
    with (
        nbpipe.source(range(1))
        .map(stage("thread", gate=lambda _: gate), name="fetch")
        .start() as run
    ):
        reader = threading.Thread(target=drained, args=(run,), daemon=True)
        reader.start()
        held(run, "fetch", 0)
        hours[0], stats = 1, run.stats
        monkeypatch.setattr(nbpipe.Run, "stats", lambda _: looks.enter(0) or stats())
        with telling_hangs(run, every_s=0.001):
            looks.wait_begun(9)
        gate.open()
        reader.join()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("fetch hangs: one call has been running for 1 h 0 min, on item 0 (in ")
    assert said.endswith(
        'Write executor="process", timeout_s=30 to end such calls: a thread cannot be stopped, a '
        "process can.\n"
    )


@pytest.mark.slow
def test_interrupt_ends_a_run_and_its_workers(tmp_path):
    """Ctrl-C ends a run with its worker processes, in one line."""
    (tmp_path / "loader.py").write_text(ENDLESS)
    os.mkfifo(tmp_path / "pid")
    with subprocess.Popen(
        [*COMMAND, "run", "loader.py"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        worker = int((tmp_path / "pid").read_text())  # once it is at work
        process.stderr.readline()  # of the first seconds
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=HANG_S)[1]
    last = said.splitlines()[-1]
    assert (process.returncode, last, is_gone(worker)) == (130, "nbpipe run: interrupted", True)


@pytest.mark.slow
def test_run_in_a_terminal_draws_a_table(module, tmp_path):
    """In a terminal the stages are a table that stays when the run has ended."""
    pytest.importorskip("rich")
    seen = run_in_terminal("run", module, cwd=tmp_path)
    words = ["numbers", "decode", "training loop", "finished, epoch 0, 6/6 items (100%)"]
    assert (seen.code, [word for word in words if word not in seen.drawn]) == (0, []), seen.drawn
