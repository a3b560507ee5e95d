"""`nbpipe profile` on real modules."""

import json

import pytest

from tests.cli.commands import command

MODULE = """
import nbpipe
def decode(x):
    return 10 // (x - BAD)
BAD = -1
def build_pipeline(*, decode_concurrency: int = 2, bad: int = -1):
    global BAD
    BAD = bad
    return nbpipe.source(range(60), name="numbers").map(decode, concurrency=decode_concurrency)
"""


@pytest.fixture
def module(tmp_path):
    """Write a module that builds a pipeline."""
    path = tmp_path / "loader.py"
    path.write_text(MODULE)
    return path


QUICK = ("--seconds", "0.03", "--concurrency", "1", "2")


@pytest.mark.slow
def test_table(module, tmp_path):
    """The verdict and the table come on stdout, the progress on stderr."""
    done = command("profile", module, *QUICK, "--set", "decode.concurrency=3", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line[:14] for line in lines if line.startswith("decode  ")] == [
        "decode   1    ",
        "decode   2    ",
        "decode   → 3  ",
    ]
    assert done.stderr.startswith("profile: one pass: numbers\n")


@pytest.mark.slow
def test_json(module, tmp_path):
    """The same as data, and nothing else on stdout."""
    done = command("profile", module, *QUICK, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert [(row["stage"], row["calls"]) for row in found["rows"]] == [
        ("numbers", None),
        ("decode", 1),
        ("decode", 2),
    ]
    assert found["complete"]
    assert found["suggest"].keys() == {"decode"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--set", "decod.concurrency=3"], 2, "no stage 'decod'; did you mean 'decode'?"),
        (["--set", "bad=2"], 1, "stage 'decode' failed on item 2: ZeroDivisionError: "),
        (["--concurrency", "0"], 2, "must be a number of at least 1 calls, got '0'"),
        (["--concurrency", "2000"], 1, "at most 1024 calls for 'decode', got 2000"),
        (["--seconds", "0"], 2, "must be a number of seconds above 0, got '0'"),
    ],
)
def test_refusals(arguments, code, says, module, tmp_path):
    """The exit code and the message name the fault; nothing is printed."""
    done = command("profile", module, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
