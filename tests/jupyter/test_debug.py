"""`%debug` after an error of nbpipe begins in the user's own frame, in a real session."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("IPython")

from tests.gates import HANG_S

CELLS = """
import nbpipe

def decode(text):
    mine = f"decode of {text}"
    return int(text)

async def wait(text):
    mine = f"wait of {text}"
    return int(text)

files = nbpipe.source(["1", "x"])
"""
FAILS = {  # what fails, and the function and its variable that the debugger begins with
    "thread": ("list(files.map(decode))", "decode", "decode of x"),
    "coroutine": ("list(files.map(wait))", "wait", "wait of x"),
    "process": ("list(files.map(decode, executor='process'))", "decode", None),
    "isolate": ("list(files.map(decode).start(isolate=True))", "decode", None),
    "peek": ("files.map(decode).peek(2)", "decode", "decode of x"),
    "shown again": ("%tb", "decode", "decode of x"),
    "%pdb": ("%pdb 1\nlist(files.map(decode))", "decode", "decode of x"),
    "refusal": ("%pdb 0\nfiles.batch(0)", "<module>", None),
}


def session(lines, folder):
    """Type lines into IPython; return what it prints."""
    env = dict(os.environ, IPYTHONDIR=str(folder))
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--colors=NoColor"]
    done = subprocess.run(
        [*command, "--no-banner", "--HistoryManager.enabled=False"],
        input="\n".join(lines) + "\n",
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=3 * HANG_S,
        check=True,
    )
    return done.stdout


@pytest.mark.slow
def test_debugger_begins_in_the_users_frame(tmp_path):
    """Wherever a stage ran, its frame comes first, with its variables where they are here."""
    lines = [CELLS]
    for name, (code, *_) in FAILS.items():
        begin = [] if name == "%pdb" else ["%debug"]
        lines += [code, *begin, f"p 'at {name}', locals().get('mine')", "q"]
    printed, found = session(lines, tmp_path), {}
    for name, (_, *wanted) in FAILS.items():
        before, _, told = printed.partition(f"('at {name}', ")
        function = re.findall(r"> \S+\(\d+\)(\S+)\(\)\n", before)[-1:]
        found[name] = [*function, told.partition(")\n")[0]], [wanted[0], repr(wanted[1])]
    assert {name: here for name, (here, _) in found.items()} == {
        name: wanted for name, (_, wanted) in found.items()
    }
