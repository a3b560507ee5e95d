"""Imports of a module, as isort sorts them."""

import ast

from hypothesis import given
from hypothesis import strategies as st

from nbpipe.export.module import Import, rendered

from .building import module

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


def block(imports, *, future=False):
    """Return the imports of a module, with nbpipe's own."""
    text = rendered(module([], "nbpipe.source(s)", imports=imports, future=future))
    return text.partition('"""\n\n')[2].partition("\n\n\ndef ")[0]


def bound(text):
    """Return what each import of a text is, as `Import` gives it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, None, alias.asname) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [(node.module, alias.name, alias.asname) for alias in node.names]
    return found


@given(st.lists(IMPORTS, max_size=25), st.randoms())
def test_each_import_is_written_once(imports, random):
    """Nothing is lost or doubled, and the order given does not matter."""
    shuffled = [*imports, *imports]
    random.shuffle(shuffled)
    text = block(shuffled)
    wanted = {(line.module, line.member, line.alias) for line in [*imports, Import("nbpipe")]}
    assert text == block(imports)
    assert sorted(bound(text), key=repr) == sorted(wanted, key=repr)


def test_sections_follow_each_other():
    """First the future, then the standard library, other packages, the user's own files."""
    imports = [
        Import("helpers", "load", local=True),
        Import("numpy", alias="np"),
        Import("pathlib", "Path"),
        Import("math", "sqrt"),
        Import("math", "floor"),
        Import("re"),
    ]
    assert block(imports, future=True) == (
        "from __future__ import annotations\n\n"
        "import re\nfrom math import floor, sqrt\nfrom pathlib import Path\n\n"
        "import nbpipe\nimport numpy as np\n\n"
        "from helpers import load"
    )


def test_an_alias_stands_alone():
    """Members of a module are merged; one with another name has its own line."""
    imports = [Import("os", "path"), Import("os", "path", "p"), Import("os", "sep", "s")]
    assert block([*imports, Import("os", "sep")]) == (
        "from os import path, sep\nfrom os import path as p\nfrom os import sep as s\n\n"
        "import nbpipe"
    )
