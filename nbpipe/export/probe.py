"""Probe: what a fresh process does with its question. Nothing here runs in the notebook."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import psutil

from .fresh import MARK, end_marked
from .inspection import inspect, unpickle
from .question import Question
from .rehearsal import rehearse

_TASKS: dict[str, Callable[[Question], None]] = {
    "rehearse": rehearse,
    "inspect": inspect,
    "unpickle": unpickle,
}


def main(given: dict[str, Any], answers: int) -> NoReturn:
    """Do the task and end the process, whatever threads still run."""
    os.set_inheritable(answers, False)  # noqa: FBT003
    question = Question(given, answers)
    os.register_at_fork(after_in_child=question.close_after_fork)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _watch_lifeline(given["litter"])
    _TASKS[given["task"]](question)
    question.say({"done": True})
    _exit()


def _exit() -> NoReturn:
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(0)


def _watch_lifeline(litter: str) -> None:
    """End with the notebook: its end closes our input; user code is given an empty one."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with, args=(lifeline, litter), daemon=True).start()


def _end_with(lifeline: int, litter: str) -> None:
    while os.read(lifeline, 1):
        pass
    end_marked(os.environ.get(MARK, ""), psutil.Process().create_time())
    shutil.rmtree(litter, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
