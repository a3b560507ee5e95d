"""`nbpipe run` and `nbpipe bench` in a terminal: the table, its keys, the terminal afterwards."""

import os
import re
import signal
import subprocess
import sys

import pytest

import nbpipe

rich = pytest.importorskip("rich")
pytest.importorskip("pyte")

from nbpipe.cli.keys import keys_in  # noqa: E402
from nbpipe.cli.screen import Screen  # noqa: E402
from tests.cli.commands import COMMAND, command  # noqa: E402
from tests.cli.sessions import Session, command_in_terminal  # noqa: E402
from tests.gates import until  # noqa: E402

MODULE = """
import time
import nbpipe
def read(n):
    time.sleep(0.001)
    return n
def build_pipeline(*, read_concurrency: int = 2):
    numbers = nbpipe.source(range(COUNT), name="numbers")
    return numbers.map(read, concurrency=read_concurrency).batch(4)
"""
UP, DOWN, CTRL_C, CTRL_Z = "\x1b[A", "\x1b[B", "\x03", "\x1a"


@pytest.fixture
def module(tmp_path):
    """Write a module that takes minutes to run."""
    path = tmp_path / "loader.py"
    path.write_text(MODULE.replace("COUNT", "10**6"))
    return path


@pytest.fixture
def short(tmp_path):
    """Write a module that takes less than a second to run."""
    path = tmp_path / "short.py"
    path.write_text(MODULE.replace("COUNT", "40"))
    return path


# -- keys ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_keys(module, tmp_path):
    """Arrows choose a stage, + and - turn it, p pauses, a tunes, q ends; the last picture stays."""
    with command_in_terminal("run", module, cwd=tmp_path) as session:
        session.sees("> numbers", "/2", "q quit")
        assert not session.echoes
        session.press(UP + DOWN)
        session.sees("> read")
        session.press("++-+")
        session.sees("/4")
        session.press("p")
        session.sees("paused, epoch 0", "Press p to continue")
        session.press("p")
        session.sees("running, epoch 0")
        session.press(DOWN + "+")
        session.sees("> batch", "batch has no concurrency.")
        session.press("a")
        session.sees("autotune: ", "read.concurrency left alone")
        session.press("a")
        session.sees("autotune: stopped")
        session.press("xyz\x1b[6~é")
        session.press("q")
        code, text = session.ended(), session.text
        assert (code, session.settings) == (0, session.before)
    assert "stopped, epoch 0" in text
    assert "q quit" not in text
    assert "> " not in text


@pytest.mark.slow
def test_a_knob_has_its_limits(module, tmp_path):
    """What a knob does not take is written below the table, and nothing else happens."""
    with command_in_terminal("run", module, cwd=tmp_path) as session:
        session.sees("> numbers")
        session.press(DOWN + "--")
        session.sees("/1 ", "read.concurrency must be an int in [1, 1024] calls, got 0")
        session.press("q")
        assert session.ended() == 0


@pytest.mark.slow
def test_quit_in_a_pause_ends_all_epochs(module, tmp_path):
    """`q` ends a paused run, and no further epoch starts."""
    with command_in_terminal("run", module, "--epochs", 3, cwd=tmp_path) as session:
        session.sees("epoch 0 (1 of 3)", "q quit")
        session.press("p")
        session.sees("paused")
        session.press("q")
        assert session.ended() == 0
        assert "stopped, epoch 0 (1 of 3)" in session.text


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ctrl-c", "term"])
def test_an_interrupt_restores_the_terminal(way, module, tmp_path):
    """After Ctrl-C and after SIGTERM the terminal is as it was, and the exit code says which."""
    with command_in_terminal("run", module, cwd=tmp_path) as session:
        session.sees("q quit")
        assert not session.echoes
        if way == "ctrl-c":
            session.press(CTRL_C)
        else:
            os.kill(session.pid, signal.SIGTERM)
        code = session.ended()
        assert (code, session.settings) == (130 if way == "ctrl-c" else 143, session.before)
        assert ("interrupted" in session.text) == (way == "ctrl-c")


@pytest.mark.slow
def test_a_failure_restores_the_terminal(module, tmp_path):
    """A stage that fails ends the command with its error below the last picture."""
    module.write_text(module.read_text().replace("return n\n", "return 1 // (n < 999)\n"))
    with command_in_terminal("run", module, cwd=tmp_path) as session:
        assert (session.ended(), session.settings) == (1, session.before)
        assert "failed, epoch 0" in session.text
        assert "ZeroDivisionError" in session.text


@pytest.mark.slow
def test_ctrl_z_and_back(module, tmp_path):
    """Stopped, the shell has its terminal back; continued, keys act again."""
    with Session(["/bin/sh", "-i"], tmp_path) as session:
        line = " ".join([*COMMAND, "run", str(module)])
        session.press(f"{line}\n")
        session.sees("q quit")
        assert not session.echoes
        session.press(CTRL_Z)
        session.sees("Stopped")
        assert session.echoes
        session.press("fg\n")
        session.sees("> numbers")
        session.press(DOWN)
        session.sees("> read")
        session.press("q")
        session.sees("stopped, epoch 0")
        until(lambda: session.echoes)  # keys that were typed before are dropped
        session.press("exit\n")
        assert session.ended() == 0


@pytest.mark.slow
def test_in_the_background(short, tmp_path):
    """A command in the background reads no keys, and is not stopped by the terminal."""
    with Session(["/bin/sh", "-i"], tmp_path) as session:
        session.press(f"{' '.join([*COMMAND, 'run', str(short)])} & wait $!; echo code $?\n")
        text = session.sees("code 0")
        assert "finished, epoch 0, 10/10 batches" in text
        assert "q quit" not in text
        session.press("exit\n")
        session.ended()


def test_keys_are_read_from_bytes():
    """Keys may come in any pieces; other sequences are passed over."""
    assert keys_in(b"a+\x1b[A\x1bOBq") == (["a", "+", "up", "down", "q"], b"")
    assert keys_in(b"p\x1b[") == (["p"], b"\x1b[")
    assert keys_in(b"\x1b[6~\x1b[1;5Cq") == (["q"], b"")
    assert keys_in(b"\x1bq") == (["q"], b"")  # escape alone, then q
    assert keys_in(b"\x1b[" + b"1" * 50) == ([], b"")


# -- the picture -----------------------------------------------------------------------------------
def double(n):
    """Return twice a number."""
    return 2 * n


@pytest.mark.parametrize("columns", [20, 60, 80, 140])
def test_picture_fits(columns):
    """Each stage has one line, no line is wider than the terminal, nothing is an escape."""
    from rich.console import Console

    names = ["files", "decode_and_augment_the_photographs_of_the_survey", "[red]x"]
    pipe = nbpipe.source(range(40), name=names[0])
    pipe = pipe.map(double, name=names[1], concurrency=3).map(double, name=names[2]).batch(4)
    with pipe.start() as run:
        list(run)
        console = Console(width=columns, height=30, color_system=None)
        with console.capture() as captured:
            console.print(Screen(run).table)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 60:
        begins = [re.split(r"  |…", line)[0] for line in lines]
        cut = names[1][:15] if columns == 60 else names[1][:23]
        assert [name for name in ("stage", "files", cut, names[2], "batch") if name in begins] == [
            "stage",
            "files",
            cut,
            names[2],
            "batch",
        ]
        assert lines[0].startswith("finished, epoch 0, 10/10 batches (100%)")


def test_a_low_terminal_shows_a_part():
    """Where there are more stages than lines, those around the chosen one are shown."""
    from rich.console import Console

    pipe = nbpipe.source(range(4))
    for number in range(12):
        pipe = pipe.map(double, name=f"double_{number}")
    with pipe.start() as run:
        console = Console(width=80, height=14, color_system=None)
        with console.capture() as captured:
            console.print(Screen(run).table)
    lines = captured.get().splitlines()
    assert lines[1].startswith("stage 1-5 of 13")
    assert len(lines) < 14


# -- progress(table=True), in a script -------------------------------------------------------------
SCRIPT = """
import sys, time
import nbpipe
def read(n):
    time.sleep(0.002)
    return n
pipe = nbpipe.source(range(COUNT), name="numbers").map(read, concurrency=2).batch(4)
for step, batch in enumerate(nbpipe.progress(pipe, epochs=2, table=True)):
    if step % 10 == 0:
        print("step", step, flush=True)
    if step == LEAVE:
        break
print("the end", nbpipe.runs())
"""


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [False, True])
def test_progress_as_a_table(leaves, tmp_path):
    """The table stays below what the loop prints; lines of epochs stay above; Ctrl-C is heard."""
    text = SCRIPT.replace("COUNT", "10**6" if leaves else "100").replace("LEAVE", "30")
    with Session([sys.executable, "-c", text], tmp_path) as session:
        session.sees("step 10", "training loop", "batch")
        assert session.echoes
        code, lines = session.ended(), session.lines
    begins = [line.split("  ")[0].split(",")[0] for line in lines]
    assert code == 0, lines
    assert ("epoch 0: 25 batches in" in "\n".join(lines)) is not leaves
    places = [begins.index(word) for word in ("step 10", "numbers", "training loop", "the end ()")]
    assert places == sorted(places)
    assert begins.count("training loop") == 1


@pytest.mark.slow
def test_ctrl_c_ends_progress_as_a_table(tmp_path):
    """The cursor is there again, and the traceback can be read."""
    text = SCRIPT.replace("COUNT", "10**6").replace("LEAVE", "None")
    with Session([sys.executable, "-c", text], tmp_path) as session:
        session.sees("step 10", "training loop")
        session.press(CTRL_C)
        assert session.ended() != 0
        session.sees("KeyboardInterrupt")
        assert not session.hides_cursor


def test_progress_as_a_table_in_a_log(tmp_path):
    """Without a terminal there are lines, as without a table."""
    text = SCRIPT.replace("COUNT", "40").replace("LEAVE", "None")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert [line.partition(" in ")[0] for line in done.stderr.splitlines()] == [
        "epoch 0: 10 batches",
        "epoch 1: 10 batches",
    ]


# -- for machines, and bench -----------------------------------------------------------------------
def parsed(text):
    """Read lines of JSON."""
    import json

    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_json_of_a_run(short, tmp_path):
    """`--json` writes a line for each epoch to stdout, and nothing else there."""
    done = command("run", short, "--json", "--epochs", "2", cwd=tmp_path)
    lines = parsed(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(one["state"], one["epoch"], one["delivered"]) for one in lines] == [
        ("finished", 0, 10),
        ("finished", 1, 10),
    ]
    assert [stage["address"] for stage in lines[0]["stages"]] == ["numbers", "read", "batch"]


@pytest.mark.slow
def test_json_of_a_run_that_fails(short, tmp_path):
    """The last line says so, and the exit code is 1."""
    short.write_text(short.read_text().replace("return n\n", "return 1 // (n - 30)\n"))
    done = command("run", short, "--json", cwd=tmp_path)
    assert (done.returncode, parsed(done.stdout)[-1]["state"]) == (1, "failed")
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.slow
def test_bench_compares_values(module, tmp_path):
    """All combinations are measured; the fastest is printed as it is typed."""
    vary = "--vary", "read.concurrency=1,8", "--vary", "read.prefetch=8"
    done = command("bench", module, *vary, "--seconds", "0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [line.split()[:2] for line in done.stdout.splitlines()]
    assert table[0] == ["read.concurrency", "read.prefetch"]
    assert table[2:4] == [["1", "8"], ["8", "8"]]
    assert done.stdout.splitlines()[-1] == "fastest: --set read.concurrency=8 --set read.prefetch=8"
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        "read.concurrency=1, read.prefetch=8",
        "read.concurrency=8, read.prefetch=8",
    ]


@pytest.mark.slow
def test_bench_for_machines(short, tmp_path):
    """`--json` prints one document; a short pipeline is iterated again and again."""
    done = command("bench", short, "--json", "--seconds", "0.2", cwd=tmp_path)
    (found,) = parsed(done.stdout)
    (result,) = found["results"]
    assert (done.returncode, found["fastest"], result["unit"]) == (0, {}, "batches")
    assert result["items"] > 10
    assert result["items_per_s"] == pytest.approx(result["items"] / result["seconds"], rel=0.01)


@pytest.mark.slow
def test_bench_in_a_terminal(module, tmp_path):
    """It shows the table while it measures; `q` ends it, with what is known by then."""
    with command_in_terminal("bench", module, "--seconds", 3600, cwd=tmp_path) as session:
        session.sees("running", "read ", "q quit")
        session.press("q")
        assert (session.ended(), session.settings) == (0, session.before)
        assert re.search(r"batches/s over \d", session.text)


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ("read.concurrency", "--vary must be stage.knob=numbers, for example decode.concurrency=2"),
        ("read.concurrency=two", "got 'read.concurrency=two'"),
        ("concurrency=2", "got 'concurrency=2'"),
        ("raed.concurrency=2", "no stage 'raed'"),
        ("read.concurency=2", "did you mean 'concurrency'?"),
        ("read.concurrency=1,0", "read.concurrency must be an int in [1, 1024] calls, got 0"),
    ],
)
def test_bench_refuses_values(vary, says, module, call):
    """What no knob takes is bad usage, before anything is measured."""
    done = call("bench", str(module), "--vary", vary)
    assert (done.returncode, says in done.err, done.out) == (2, True, ""), done.err


@pytest.mark.slow
def test_bench_of_nothing(short, tmp_path):
    """A pipeline that gives nothing is a failure, and no endless loop."""
    short.write_text(short.read_text().replace("range(40)", "[]"))
    done = command("bench", short, cwd=tmp_path)
    assert (done.returncode, "gave no items" in done.stderr) == (1, True), done.stderr
