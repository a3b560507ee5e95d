"""The import block stands as ruff's isort rule wants it."""

import ast
import shutil
import subprocess
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.export.module import Import, import_block

MODULES = [
    "os", "os.path", "re", "xml.etree.ElementTree", "typing", "collections.abc", "nbpipe",
    "numpy", "torch", "torch.nn.functional", "cv2", "PIL", "x1", "x9", "x10", "x01", "x010", "X9",
    "a_very_long_name_of_a_package.with_a_long_name_of_a_module", "_private", "ünï",
]  # fmt: skip
MEMBERS = [
    "a", "B", "CONSTANT", "Classy", "function", "func9", "func10", "func09", "F", "f", "_under",
    "_UNDER", "_Under", "X1", "x_1", "A", "B2", "ABC_DEF", "a_very_long_name_of_a_function",
    "Z9z", "É", "é",
]  # fmt: skip
IMPORTS = st.builds(
    Import,
    st.sampled_from(MODULES),
    st.none() | st.sampled_from(MEMBERS),
    st.none()
    | st.sampled_from(["np", "F", "t", "long_alias_of_a_name_that_is_long_as_well", "x10"]),
)
RUFF = shutil.which("ruff") or f"{sys.prefix}/bin/ruff"
needs_ruff = pytest.mark.skipif(not shutil.which(RUFF), reason="ruff is not installed")


def complaints(text):
    """Return what ruff's isort rule and its formatter say in a folder without modules."""
    rule = [RUFF, "check", "--isolated", "--no-cache", "--select=I", "--diff", "--quiet", "-"]
    form = [RUFF, "format", "--isolated", "--no-cache", "--diff", "--quiet", "-"]
    with tempfile.TemporaryDirectory() as folder:
        options = {"cwd": folder, "capture_output": True, "text": True, "encoding": "utf-8"}
        runs = [subprocess.run(run, input=text, check=False, **options) for run in (rule, form)]
    return "".join(run.stdout + run.stderr for run in runs)


def bound(text):
    """Return what each import of a text is, as `Import` gives it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, None, alias.asname) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [(node.module, alias.name, alias.asname) for alias in node.names]
    return found


@needs_ruff
@given(st.lists(IMPORTS, max_size=25), st.booleans())
def test_ruff_changes_nothing(imports, future):
    """Whatever is imported, it is sorted, merged and wrapped as ruff would."""
    text = import_block(imports, future=future)
    assert complaints(f"{text}\n" if text else "") == ""


@given(st.lists(IMPORTS, max_size=25), st.randoms())
def test_each_import_is_written_once(imports, random):
    """Nothing is lost or doubled, and the order given does not matter."""
    shuffled = [*imports, *imports]
    random.shuffle(shuffled)
    text = import_block(shuffled, future=False)
    wanted = {(line.module, line.member, line.alias) for line in imports}
    assert text == import_block(imports, future=False)
    assert sorted(bound(text), key=repr) == sorted(wanted, key=repr)


def test_sections_follow_each_other():
    """First the future, then the standard library, other packages, the user's own files."""
    imports = [
        Import("helpers", "load", local=True),
        Import("numpy", alias="np"),
        Import("nbpipe"),
        Import("pathlib", "Path"),
        Import("math", "sqrt"),
        Import("math", "floor"),
        Import("re"),
    ]
    assert import_block(imports, future=True) == (
        "from __future__ import annotations\n\n"
        "import re\nfrom math import floor, sqrt\nfrom pathlib import Path\n\n"
        "import nbpipe\nimport numpy as np\n\n"
        "from helpers import load"
    )


def test_an_alias_stands_alone():
    """Members of a module are merged; one with another name has its own line."""
    imports = [Import("os", "path"), Import("os", "path", "p"), Import("os", "sep", "s")]
    assert import_block([*imports, Import("os", "sep")], future=False) == (
        "from os import path, sep\nfrom os import path as p\nfrom os import sep as s"
    )


def test_nothing_is_written_for_nothing():
    """Without imports there is no text."""
    assert import_block([], future=False) == ""
