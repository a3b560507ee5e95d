"""Process: one measurement in a fresh Python process, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from .job import Job

_ROOT = Path(__file__).resolve().parent.parent


class ChildError(RuntimeError):
    """A child process gave no numbers."""


def measure_in_process(job: Job, limit_s: float) -> dict[str, float]:
    """Measure a job in a process of its own.

    Raises:
        ChildError: it failed, or took longer than `limit_s`; it and its children are ended.
    """
    with subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    ) as child:
        try:
            answer, errors = child.communicate(job.to_json(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"ended after {limit_s:g} s") from None
        finally:
            _end(child)
    if child.returncode != 0:
        raise ChildError(f"exit code {child.returncode}: {_last_line(errors)}")
    numbers: dict[str, float] = json.loads(answer)
    return numbers


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end(child: subprocess.Popen[str]) -> None:
    """End what is left of the child's session: itself and the workers it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
