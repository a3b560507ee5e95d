"""The page of recipes as a whole; each recipe has a file in `recipes/`."""

import ast
import subprocess
import sys
from pathlib import Path

from .page import sections

FILES = Path(__file__).parent.glob("test_*.py")
PACKAGES = ["PIL", "av", "datasets", "fsspec", "pandas", "pyarrow", "soundfile"]


def titles_run(path):
    """List the recipes that a file of tests runs."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    runs = [call for call in calls if getattr(call.func, "id", "") == "run_recipe"]
    return {call.args[0].value for call in runs}


def test_every_recipe_is_run():
    """Each section of the page with code is run by a test of its own, and no other is named."""
    assert set(sections()) == set().union(*map(titles_run, FILES))


def test_nbpipe_needs_none_of_their_packages():
    """A fresh interpreter that imports nbpipe has loaded no package of the recipes."""
    code = f"import sys, nbpipe; print([name for name in {PACKAGES} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
