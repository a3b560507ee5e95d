"""`%nbpipe` in a notebook's kernel: what it does, what it says, what the Tab key offers."""

import re

import pytest

from tests.kernel.client import CellError
from tests.kernel.inner import HELP
from tests.scripts import printed

START = """
import nbpipe
for name in ("batch", "other"):  # of other tests
    globals().pop(name, None)
pipe = nbpipe.source(range(100), name="files").map(abs, name="decode", concurrency=2).batch(4)
run = pipe.start()
epoch = iter(run)
first = next(epoch)
"""
TABS = {
    "%nbp": ["%nbpipe"],
    "%nbpipe ": ["runs", "knobs", "pause", "resume", "stop", "undo", "export", "help"],
    "if run:\n    %nbpipe h": ["help"],
    "%nbpipe re": ["resume"],
    "%nbpipe runs": ["runs"],
    "%nbpipe knobs pip": ["pipe"],
    "%nbpipe knobs decode.": ["decode.concurrency=", "decode.prefetch="],
    "%nbpipe knobs pipe batch.": ["batch.prefetch="],
    "%nbpipe knobs ": [
        *("run", "pipe", "files.prefetch="),
        *("decode.concurrency=", "decode.prefetch=", "batch.prefetch="),
    ],
    "%nbpipe stop ": ["run", "all"],
    "%nbpipe stop al": ["all"],
    "pipe['dec": ["decode"],
    "run['decode'].": [
        *("concurrency", "prefetch"),
        *("executor", "fn", "knob", "knobs", "name", "op"),
    ],
    'pipe["batch"].p': ["prefetch"],
}


FORGET = """
import nbpipe
nbpipe.close_all()
for name in [name for name, value in globals().items() if hasattr(value, "graph")]:
    del globals()[name]  # the pipelines of other tests
"""


@pytest.fixture
def magic(notebook):
    """Give a function that runs a line of a kernel with one run; it returns what was printed."""
    notebook.run(FORGET)
    notebook.run(START)
    yield notebook.run
    notebook.run("epoch.close()")


def test_a_run_is_listed_tuned_and_stopped(magic):
    """Each line does what its button in the panel does, to the run under way."""
    listed = magic("%nbpipe runs")
    tuned = magic("%nbpipe knobs decode.concurrency=5 batch.prefetch=3")
    assert [line.split() for line in tuned.splitlines()[2:]] == [
        ["decode.concurrency", "5", "1", "to", "1024", "calls"],
        ["batch.prefetch", "3", "1", "to", "65536", "batches"],
    ]
    *_, row = (line for line in listed.splitlines() if "files > decode > batch" in line)
    said = [
        magic(f"%nbpipe {line}") for line in ("pause", "pause run", "resume", "stop", "stop all")
    ]
    state = magic("print(run['decode'].concurrency, [change.by for change in run.events])")
    number = row.split()[0]
    names = [one.replace(f"run {number} (run)", "R") for one in said]
    assert names == ["pause: R\n", "pause: R\n", "resume: R\n", "stop: R\n", "nothing to stop\n"]
    assert state == "5 ['%nbpipe', '%nbpipe']\n"


def test_the_changes_of_a_tuner_are_undone(magic):
    """A run without a tuner is told; else its knobs are as they were."""
    with pytest.raises(CellError, match="has no tuner; start one with"):
        magic("%nbpipe undo")
    magic("tuner = run.autotune(); pipe['decode'].knob('concurrency').set(7, by='autotune')")
    assert magic("%nbpipe undo").startswith("nothing to undo")  # it was no turn of the tuner
    assert magic("print(tuner.state)") == "undone\n"


def test_knobs_of_a_pipeline_are_turned_before_it_runs(magic):
    """A pipeline in a variable is as good as a run; its runs begin with the values."""
    magic("other = nbpipe.source(range(9)).map(abs, concurrency=1)")
    printed = magic("%nbpipe knobs other abs.concurrency=7")
    assert printed.splitlines()[2].split()[:2] == ["abs.concurrency", "7"]


@pytest.mark.slow
def test_a_run_is_exported(magic, notebook):
    """The module is written with the values that were turned."""
    magic("%nbpipe knobs decode.concurrency=6")
    printed = magic("%nbpipe export tuned.py")
    text = (notebook.folder / "tuned.py").read_text()
    assert printed.startswith(f"wrote {notebook.folder.resolve() / 'tuned.py'}")
    assert re.search(r"\bdecode_concurrency\b.*= ?6\b", text)


@pytest.mark.slow
def test_an_edited_file_is_replaced_where_the_line_says_so(magic, notebook):
    """What export did not write is told with the word that replaces it."""
    file = notebook.folder / "edited.py"
    file.write_text("mine = 1\n")
    with pytest.raises(CellError, match="add --overwrite to replace it"):
        magic("%nbpipe export edited.py")
    magic("%nbpipe export edited.py --overwrite")
    assert "mine" not in file.read_text()


def test_of_several_knobs_all_are_turned_or_none(magic):
    """A mistake in the last of them leaves the first as it was."""
    before = magic("print(pipe['decode'].concurrency)")
    with pytest.raises(CellError, match="must be an int"):
        magic("%nbpipe knobs decode.concurrency=9 batch.prefetch=none")
    assert magic("print(pipe['decode'].concurrency)") == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "rns",
            "one of runs, knobs, pause, resume, stop, undo, export, help, got 'rns'",
        ),
        ("rns", "did you mean 'runs'?"),
        ("runs all", "%nbpipe runs takes nothing more, got 'all'"),
        ("knobs decode.concurency=5", "did you mean 'decode.concurrency'?"),
        ("knobs decode.concurrency=many", "must be an int in [1, 1024] calls, got 'many'"),
        ("knobs decode.concurrency=0", "must be an int in [1, 1024] calls, got 0"),
        ("pause 0", "%nbpipe pause must name one of run"),
        ("export", "needs one path that ends in .py, got nothing"),
        ("export 'a", "cannot read this line: No closing quotation"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(magic, line, said):
    """A mistake is told in one line, without a traceback."""
    with pytest.raises(CellError) as refused:
        magic(f"%nbpipe {line}")
    assert (refused.value.kind, said in refused.value.text) == ("UsageError", True)


def test_several_runs_are_told_apart(magic):
    """Where two runs could be paused, neither is until the line says which."""
    magic("other = pipe.start(); second = iter(other); first = next(second)")
    with pytest.raises(
        CellError, match=r"must name one of run \d+ \(run\), run \d+ \(other\); or: all"
    ):
        magic("%nbpipe pause")
    with pytest.raises(CellError, match=r"run \d+ \(other\) has no knob 'x'"):
        magic("%nbpipe knobs x=1")  # the newest
    magic("%nbpipe pause other")
    paused = magic("print(run.paused, other.paused); second.close(); other.close()")
    assert paused == "False True\n"


@pytest.mark.slow
def test_tab_offers_runs_knobs_and_stages(magic, notebook):
    """Tab offers commands, what they may name, and the knobs of a stage, before all else."""
    found = {}
    for code in TABS:
        request = notebook.send("complete_request", {"code": code, "cursor_pos": len(code)})
        matches = notebook.reply(request)["content"]["matches"]
        # Loaders that other tests have shown are there, too; without a variable, by a number.
        found[code] = [one for one in matches if not one.isdecimal()]
    assert found == TABS


TERMINAL = """
import nbpipe
run = nbpipe.source(range(3), name="files").start()
%load_ext nbpipe
%nbpipe runs
%nbpipe pause
%nbpipe help
run.close()
%unload_ext nbpipe
"""


@pytest.mark.slow
def test_a_terminal_has_it_too(tmp_path):
    """In IPython without a kernel `%load_ext nbpipe` brings the magic."""
    script = tmp_path / "session.ipy"
    script.write_text(TERMINAL)
    told = printed("-m", "IPython", "--no-banner", script, cwd=tmp_path)
    head, _, row, said, *rest = told.splitlines()
    assert head.split()[:3] == ["run", "variable", "state"]
    assert (row.split()[:3], said) == (["1", "run", "ready"], "nothing to pause")
    assert rest == HELP.splitlines()
