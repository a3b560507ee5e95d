"""What the command can be asked for, and what it says without running anything."""

import os
import platform
import subprocess
import sys
from importlib import metadata

import pytest

from tests.cli.commands import PIPE, command, environment
from tests.export.leaks import filled
from tests.ipynb import write_notebook


@pytest.mark.slow
def test_version(tmp_path):
    """`--version` gives the version of the package, then what a report of a bug needs beside it."""
    from nbpipe import __version__

    first, python, _, *others = command("--version", cwd=tmp_path).stdout.splitlines()
    assert first == f"nbpipe {__version__}"
    assert python.split()[:2] == [platform.python_implementation(), platform.python_version()]
    assert f"numpy {metadata.version('numpy')}" in others


@pytest.mark.slow
def test_a_reader_of_the_versions_may_leave():
    """What is printed to nobody, as to `head` that has seen enough, is no failure."""
    reading, writing = os.pipe()
    os.close(reading)
    asked = [sys.executable, "-m", "nbpipe", "--version"]
    with os.fdopen(writing, "wb") as nobody:
        ended = subprocess.run(
            asked, stdout=nobody, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-h"], ["export", "-h"], ["run", "-h"], ["bench", "-h"]])
def test_help(arguments, tmp_path):
    """Help is written to stdout, and says what the exit codes mean."""
    done = command(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr, "exit code: 0 done" in done.stdout) == (0, "", True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required"),
        (["benchmark"], "invalid choice: 'benchmark'"),
        (["bench", "none.py"], "no file none.py"),
        (["export", "n.ipynb"], "required: -o/--output"),
        (["export", "none.ipynb", "-o", "l.py"], "cannot read none.ipynb: No such file"),
        (["export", "text.ipynb", "-o", "l.py"], "text.ipynb is no notebook: "),
        (["export", "train.py", "-o", "l.py"], "jupytext --to ipynb train.py"),
        (["export", "train.Rmd", "-o", "l.py"], "jupytext --to ipynb train.Rmd"),
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
        (["run", "loader"], "no file loader; did you mean 'loader.py'?"),
        (["run", "."], ". is a folder; give the file in it, as loader.py"),
    ],
)
def test_bad_usage(arguments, says, tmp_path, call):
    """What cannot be done is refused with exit code 2, before anything is run."""
    write_notebook(tmp_path / "n.ipynb", "import numpy as np\nsize = 3", "open('ran', 'w')")
    write_notebook(tmp_path / "r.ipynb", "x <- 1", language="R")
    write_notebook(tmp_path / "other.ipynb", "x = 1", kernel="none")
    (tmp_path / "text.ipynb").write_text("words")
    for name in ("loader.py", "train.py", "train.Rmd"):
        (tmp_path / name).write_text("open('ran', 'w')")
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
    (tmp_path / "n.ipynb").write_text(content, encoding="latin-1")
    done = call("export", "n.ipynb", "-o", "loader.py")
    begins = done.err.startswith("nbpipe export: n.ipynb is no notebook: ")
    assert (done.returncode, begins, done.err.count("\n")) == (2, True, 1), done.err


@pytest.mark.slow
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
        "pipeline    pipe",
        f"writes      {tmp_path / 'loader.py'}",
        "time limit  600 s for all of it",
        "To run it, type the same command with --execute.",
    ]
    there = sorted(file.name for file in tmp_path.iterdir())
    found = [one for one in wanted if one not in lines], done.returncode, there
    assert found == ([], 0, ["n.ipynb"])


@pytest.mark.slow
def test_explanation_hides_secrets_and_escapes(tmp_path):
    """Neither a secret nor a terminal's control sequence is shown, wherever it stands."""
    cells = ["API_KEY = 'abc123'", "login(\n  token='abc123')", "x = '\x1b[2J'"]
    path = write_notebook(tmp_path / "a\x1b[31m.ipynb", *cells)
    more = ["--set", "API_KEY=abc123"]
    done = command("export", path.name, "-o", "loader.py", *more, cwd=tmp_path)
    seen = ("abc123" in done.stdout, "\x1b" in done.stdout, "a\\x1b[31m.ipynb" in done.stdout)
    assert (done.returncode, *seen) == (0, False, False, True)


CELLS = [
    "%env DB_PASSWORD=$WORD",
    "%env API_KEY $WORD",
    "%set_env HF_TOKEN=$HF",
    "!curl -u bob:$WORD https://example.org",
    "!curl -ubob:$HF https://example.org",
    "!curl -H 'Authorization: Bearer $WORD' https://example.org",
    "!curl -H 'X-Api-Key: $WORD' https://example.org",
    "!curl 'https://example.org/get?api_key=$WORD'",
    "!wget --user=bob --password=$WORD https://example.org",
    "!http -a bob:$WORD example.org",
    "!export TOKEN=$WORD && run",
    "!DB_PASSWORD=$WORD python run.py",
    "!huggingface-cli login --token $HF",
    "!wandb login $HEX",
    "!docker login -u bob -p $WORD example.org",
    "!mysql -u root -p$WORD data",
    "!sshpass -p $WORD ssh bob@example.org",
    "!git clone https://bob:$WORD@example.org/data.git",
    "!git clone https://$GHP@example.org/data.git",
    "!pip install git+https://bob:$WORD@example.org/data.git",
    "!aws configure set aws_secret_access_key $SLASHED",
    "!echo 'machine h login bob password $WORD' > ~/.netrc",
    "%sql postgresql://bob:$WORD@example.org/data",
    "%%bash -c 'export API_KEY=$WORD'",
    "os.environ['DB_PASSWORD'] = '$WORD'",
    "os.environ.update(API_KEY='$WORD')",
    "client = connect('db', auth=('bob', '$WORD'))",
    "login('bob', '$WORD')",
    "# password: $WORD",
    "URL = 'https://hooks.slack.com/services/T0AB/B0CD/$DENSE'",
    "if True: password = '$WORD'",
    "def connect(password='$WORD'):\n    pass",
]
SETTINGS = [
    "url=https://example.org/get?api_key=$WORD",
    "url=postgres://bob:$WORD@example.org/data",
    "password=$WORD",
    "password=swordfish",
    "login={'auth': ('bob', '$WORD')}",
    "headers={'Authorization': 'Bearer $WORD'}",
    "text=$HF",
]


@pytest.mark.parametrize("cell", CELLS)
def test_explanation_of_a_cell_with_a_secret(cell, tmp_path, call):
    """The list of cells shows no secret of a first line, whatever language that is in."""
    text, held = filled(cell, CELLS.index(cell))
    write_notebook(tmp_path / "n.ipynb", text)
    done = call("export", "n.ipynb", "-o", "loader.py")
    assert (done.returncode, "(a line that looks like a secret)" in done.out) == (0, True)
    assert [one for one in held if one in done.out + done.err] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_setting_with_a_secret(setting, tmp_path, call):
    """What `--set` gives is not shown where it is a secret, in no message of the command."""
    text, held = filled(setting, SETTINGS.index(setting))
    held = [*held, "swordfish"]
    name = setting.partition("=")[0]
    write_notebook(tmp_path / "n.ipynb", f"{name} = 3")
    (tmp_path / "loader.py").write_text("import nbpipe\ndef build_pipeline(*, a=1): raise\n")
    (tmp_path / "fails.py").write_text(
        f"import nbpipe\ndef build_pipeline(*, {name}):\n    raise ValueError({name})\n"
    )
    said = [
        call("export", "n.ipynb", "-o", "loader.py", "--set", text),
        call("export", "n.ipynb", "-o", "loader.py", "--set", f"x{text}"),
        call("export", "n.ipynb", "-o", text, "--set", text),
        call("run", "loader.py", "--set", text),
        call("run", "fails.py", "--set", text, "--verbose"),
        call("run", "loader.py", f"--{text}"),
        call("run", "loader.py", "--set", *text.split("=", 1)),
    ]
    assert [done.returncode for done in said] == [0, 2, 2, 2, 1, 2, 2]
    assert [one for one in held for done in said if one in done.out + done.err] == []


WITHOUT = (
    "import runpy, sys; sys.modules[{!r}] = None; runpy.run_module('nbpipe', None, '__main__')"
)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["IPython", "nbclient", "nbformat"])
def test_missing_package(package, tmp_path):
    """Where what runs notebooks is not installed, the message has the line to type."""
    path = write_notebook(tmp_path / "n.ipynb", PIPE)
    python = ("-c", WITHOUT.format(package))
    done = command("export", path, "-o", "loader.py", cwd=tmp_path, python=python)
    line = "type: pip install 'jupyter-nbpipe[export]'\n"
    assert (done.returncode, done.stderr.endswith(line)) == (1, True), done.stderr
