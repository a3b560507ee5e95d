"""What a notebook shows of an error: the sentence and the user's own lines, in a real kernel."""

import re

import pytest

pytest.importorskip("ipykernel")

import nbpipe
from tests.kernel.client import running

pytestmark = pytest.mark.kernel

CELLS = """import json, nbpipe
def decode(text):
    return number_of(text)
def number_of(text):
    return int(text)
files = nbpipe.source(["1", "x"])
"""
OURS = "/nbpipe/"


@pytest.fixture(scope="module")
def kernel():
    """Give one kernel for all tests."""
    with running("--HistoryManager.enabled=False") as client:
        client.run(CELLS)
        yield client


def shown(kernel, code):
    """Run a cell that fails; return the text that the notebook shows, without colours."""
    _, content = kernel.end(code, None)
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))


def shown_again(kernel):
    """Return what %tb shows of the last error."""
    kernel.heard.clear()
    kernel.run("%tb")
    errors = [one["content"] for one in kernel.heard if one["header"]["msg_type"] == "error"]
    return "\n".join(line for content in errors for line in content["traceback"])


REFUSED = {
    "a knob": "pipe = files.map(decode, concurrency=0)",
    "an argument": "pipe = files.map(decode, num_workers=4)",
    "a source": "nbpipe.source(number for number in [1])",
    "a stage": "files['decod']",
    "a batch": "files.batch(0)",
    "a file": "nbpipe.load('nowhere.py')",
    "a lock": "list(files.map(lambda text: (lock, text), executor='process'))",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal(kernel, case):
    """A refusal is the user's line and the sentence."""
    kernel.run("import threading; lock = threading.Lock()")
    text = shown(kernel, REFUSED[case])
    assert (OURS in text, len(text.splitlines()) <= 7) == (False, True)
    assert f"1 {REFUSED[case]}" in text


def test_lines_of_the_user_are_kept(kernel):
    """A refusal inside a function of the user shows the way there."""
    text = shown(kernel, "def build(size):\n    return files.batch(size)\nbuild(0)")
    assert re.findall(r"-> +(\d) (.*)", text) == [
        ("3", "build(0)"),
        ("2", "    return files.batch(size)"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "executor='process'", "isolate"])
def test_error_of_a_stage(kernel, options):
    """An error of a stage's function shows its lines, and the loop's, wherever it ran."""
    chain, isolate = ("", "isolate=True") if options == "isolate" else (options, "")
    loop = f"with files.map(decode, {chain}).start({isolate}) as run:\n    list(run)"
    text = shown(kernel, loop)
    assert re.findall(r"line (\d)(?:, in (\w+))?", text)[:3] == [
        ("3", "decode"),
        ("5", "number_of"),
        ("2", ""),
    ]
    assert re.findall(r"-> +(\d) +(.*)", text)[:2] == [
        ("3", "return number_of(text)"),
        ("5", "return int(text)"),
    ]
    assert "return int(text)" in text
    assert ("ValueError: invalid literal" in text, OURS in text) == (True, False)


def test_error_of_a_library(kernel):
    """Where a stage is a function of Python's own, its lines are shown."""
    text = shown(kernel, "list(files.map(json.loads))")
    assert ("decoder.py" in text, OURS in text) == (True, False)


def test_whole_tracebacks(kernel):
    """A switch shows our frames, also of the error that was."""
    shown(kernel, REFUSED["a knob"])
    kernel.run("nbpipe.debug.full_tracebacks()")
    whole = shown_again(kernel)
    kernel.run("nbpipe.debug.full_tracebacks(False)")
    assert (whole.count(OURS) > 3, OURS in shown_again(kernel)) == (True, False)


SKIPS = """
def careful(text):
    try:
        return decode(text)
    except ValueError as error:
        raise RuntimeError(f"no number: {text}") from error
skips = files.map(careful, on_error="skip"%s)
with skips.start(%s) as run:
    list(run)
print(run.failures()[0].traceback)
"""


@pytest.mark.parametrize("options", ["", ", executor='process'", "isolate"])
def test_skipped_item(kernel, options):
    """What is kept of an item that was skipped begins with the user's line, as does its cause."""
    chain, isolate = ("", "isolate=True") if options == "isolate" else (options, "")
    text = kernel.run(SKIPS % (chain, isolate))
    assert re.findall(r"most recent call last\):\n.*, in (\w+)\n", text) == ["careful", "careful"]
    assert ("return int(text)" in text, OURS in text) == (True, False)


def test_skipped_item_whole(kernel):
    """The same switch keeps our frames in what is kept of a skipped item."""
    kernel.run("nbpipe.debug.full_tracebacks()")
    whole = kernel.run(SKIPS % ("", ""))
    kernel.run("nbpipe.debug.full_tracebacks(False)")
    assert OURS in whole


def test_modes(kernel):
    """The modes of %xmode are those of any other error."""
    code = "files.batch(0)"
    for mode, count in (("Plain", 6), ("Minimal", 1), ("Context", 6)):
        kernel.run(f"%xmode {mode}")
        text = shown(kernel, code).strip()
        assert (OURS in text, len(text.splitlines()) <= count) == (False, True)


def test_other_errors_are_left_alone(kernel):
    """An error that is not nbpipe's is shown as it would be without it."""
    code = "json.loads('x')"
    before = shown(kernel, code)
    assert "decoder.py" in before
    assert "hidden" not in before


STOPS = """import os, signal, threading
gate = threading.Event()
def stop(text):
    while not run.status().waited_s:
        pass
    os.kill(os.getpid(), signal.SIGINT)
    gate.wait()
run = files.map(stop).start()
"""


def test_stop_button(kernel):
    """Where the loop waits for data, an interrupt shows the loop, and not what waits in there."""
    kernel.run(STOPS)
    text = shown(kernel, "for text in run:\n    pass")
    again = re.sub(r"\x1b\[[0-9;]*m", "", shown_again(kernel))
    kernel.run("gate.set()\nrun.close()")
    found = [("----> 1 for text in run:" in one, OURS in one) for one in (text, again)]
    assert found == [(True, False)] * 2


def test_error_is_whole_behind_the_picture(kernel):
    """What is shown is a matter of the picture: the error itself keeps all frames and causes."""
    kernel.run(
        "import traceback\n"
        "try:\n    list(files.map(decode))\n"
        "except nbpipe.StageError as caught:\n    error = caught\n"
        "before = traceback.format_exception(error)\n"
        "_ = error._render_traceback_()"
    )
    assert kernel.run("print(traceback.format_exception(error) == before)") == "True\n"


def test_without_ipython():
    """Where no IPython shows it, an error is formatted as Python does, without our frames."""
    with pytest.raises(nbpipe.ArgumentError) as caught:
        nbpipe.source([1]).batch(0)
    lines = caught.value._render_traceback_()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("nbpipe.errors.ArgumentError: batch size must be")
    assert [line for line in lines if "/nbpipe/ops/" in line] == []
