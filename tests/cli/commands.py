"""The command as a process of its own, and notebooks for it."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil

from tests.gates import HANG_S, until

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "nbpipe"]


def environment(**more):
    """Give the environment of the command: it finds this nbpipe."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "", **more}


def command(*arguments, cwd, python=("-m", "nbpipe"), **variables):
    """Run the command to its end; what it notes of its files lies beside its folder.

    Where it hangs, the time limit of the test ends it.
    """
    cache = str(cwd.parent / f"{cwd.name}-cache")
    return subprocess.run(
        [sys.executable, *python, *map(str, arguments)],
        cwd=cwd,
        env=environment(NBPIPE_CACHE_DIR=cache, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def execute(path, *arguments, cwd, **variables):
    """Run `nbpipe export --execute`, for a module in the folder that it is called from."""
    arguments = (path, "-o", "loader.py", "--execute", *arguments)
    return command("export", *arguments, cwd=cwd, **variables)


def is_gone(pid):
    """Wait for the end of a process, which was told to by now; nobody may have asked yet how."""

    def has_ended():
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return until(has_ended)


PIPE = "import nbpipe\npipe = nbpipe.source(range(6), name='numbers').batch(2)"


def run_in_terminal(*arguments, cwd):
    """Run the command with a terminal as its stderr; give the exit code and what was drawn."""
    ours, theirs = pty.openpty()
    drawn = []
    try:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment(COLUMNS="120", TERM="xterm"),
            stderr=theirs,
        )
        os.close(theirs)
        while True:
            try:
                drawn.append(os.read(ours, 65536))
            except OSError:  # the other side is closed
                break
        code = process.wait(HANG_S)
    finally:
        os.close(ours)
    return SimpleNamespace(code=code, drawn=b"".join(drawn).decode())
