"""The page about ranks: its code runs in a process of its own, since gloo stays in it for good."""

import subprocess
import sys

import pytest

from tests.gates import HANG_S
from tests.ranks.world import ROOT

CODE = """
import sys
from tests.test_docs import run_page
sys.exit("".join(run_page("docs/ranks.md")) or None)
"""


@pytest.mark.torch
def test_page_runs():
    """All code of the page runs from top to bottom, and gives what the page shows."""
    pytest.importorskip("torch")
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=HANG_S,
    )
    assert ran.returncode == 0, ran.stderr
