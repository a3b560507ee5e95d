"""The page of recipes as a whole; each recipe has a file in `recipes/`."""

import ast
from pathlib import Path

from .page import sections

FILES = Path(__file__).parent.glob("test_*.py")


def titles_run(path):
    """List the recipes that a file of tests runs."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    runs = [call for call in calls if getattr(call.func, "id", "") == "run_recipe"]
    return {call.args[0].value for call in runs}


def test_every_recipe_is_run():
    """Each section of the page with code is run by a test of its own, and no other is named."""
    assert set(sections()) == set().union(*map(titles_run, FILES))
