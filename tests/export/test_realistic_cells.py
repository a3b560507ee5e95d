"""Notebooks as they are used: magics, cells run twice or out of order, odd text, local files."""

import pytest

from tests.export.notebooks import Notebook

pytestmark = pytest.mark.slow

EXPORT = """
# ---- next cell
pipe = nbpipe.source(range(5)).map(decode)
report = pipe.export("loader.py")
"""


def test_imports_of_every_kind(notebook: Notebook):
    """Imports under a condition are copied with it; of `import *` come the names that are used."""
    exported = notebook.exported(
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import nbpipe
        if TYPE_CHECKING:
            from collections.abc import Sequence
            from fractions import Fraction
        try:
            import no_such_library_at_all as json_library
        except ImportError:
            import json as json_library
        # ---- next cell
        import os.path, email.mime.text as mime
        from itertools import *
        from math import tau as TURN, floor
        # ---- next cell
        def decode(x: int, scale: Sequence[float] = (1.0,)) -> Sequence[float]:
            words = json_library.dumps([x])
            parts = list(accumulate(chain(scale, [TURN])))
            parts = [floor(x * part) for part in parts]
            return parts + [os.path.basename("a/b"), mime.__name__, words]
        """
        + EXPORT
    )
    assert exported.has("from __future__ import annotations")
    assert exported.has("from collections.abc import Sequence")
    assert exported.has("from itertools import accumulate, chain")
    assert exported.has("import email.mime.text as mime")
    assert exported.has(
        "try:\n    import no_such_library_at_all as json_library\n"
        "except ImportError:\n    import json as json_library"
    )


def test_text_of_every_kind(notebook: Notebook):
    """Unicode, line separators in strings, tabs and long lines come through to the letter."""
    constant = "GREETING = 'a\u2028b\x0cc\u00a0é'  # naïve - ☃\n"
    function = "def décode(x):\n\treturn GREETING * x, '" + "x" * 300 + "'\n"
    notebook.run("import nbpipe")
    notebook.kernel.run(constant + function)
    exported = notebook.exported(
        """
        pipe = nbpipe.source(range(3)).map(décode, name="décode jpg!", concurrency=2)
        report = pipe.export("loader.py")
        """
    )
    assert constant in exported.text
    assert function in exported.text
    assert list(exported.tuned.values()) == [2]


def test_names_that_clash_with_the_frame(notebook: Notebook):
    """A user's `root`, `main` and `nbpipe` of another name do not meet those of the module."""
    exported = notebook.exported(
        """
        import nbpipe as nb
        # ---- next cell
        root = 3
        decode_concurrency = 5
        def main(x):
            return x * root + decode_concurrency
        # ---- next cell
        pipe = nb.source(range(4)).map(main, name="decode", concurrency=2)
        report = pipe.export("loader.py")
        """
    )
    assert exported.found["items"] == [["int", 5 + 3 * n] for n in range(4)]


def test_same_bytes_every_time(notebook: Notebook):
    """The same notebook gives the same bytes, also where sets are involved."""
    notebook.run(
        """
        import nbpipe
        # ---- next cell
        WORDS = {"b", "a", "c", "d"}
        WORDS.add("e")
        KINDS = frozenset(["x", "y"])
        # ---- next cell
        def decode(x):
            return sorted(WORDS)[x], sorted(KINDS)
        """
        + EXPORT
    )
    text = notebook.examined().text
    (notebook.folder / "loader.py").unlink()
    notebook.kernel.run('report = pipe.export("loader.py", check_items=0)')
    assert (notebook.folder / "loader.py").read_text() == text


SHELL = """
import nbpipe

# ---- next cell
lines = !printf 'a\\nb\\n'

# ---- next cell
pipe = nbpipe.source(lines).map(str.upper)
report = pipe.export("loader.py")
"""


def test_lines_of_the_shell_as_items(notebook: Notebook):
    """They are a plain list in the module."""
    notebook.run(SHELL)
    assert 'lines = ["a", "b"]' in (notebook.folder / "loader.py").read_text()
    assert notebook.imported()["items"] == [["str", "A"], ["str", "B"]]
