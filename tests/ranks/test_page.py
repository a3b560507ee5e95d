"""The page about ranks: its code runs in a process of its own, since gloo stays in it for good."""

import pytest

from tests.scripts import printed

pytestmark = pytest.mark.slow

CODE = """
import sys
from tests.test_docs import run_page
sys.exit("".join(run_page("docs/ranks.md")) or None)
"""


@pytest.mark.torch
def test_page_runs():
    """All code of the page runs from top to bottom, and gives what the page shows."""
    pytest.importorskip("torch")
    printed("-c", CODE)
