"""Notebooks as they are used: magics, cells run twice or out of order, odd text, local files."""

from tests.export.notebooks import Notebook

EXPORT = """
# ---- next cell
pipe = nbpipe.source(range(5)).map(decode)
report = pipe.export("loader.py")
"""


def test_magics(notebook: Notebook):
    """Cells under magics count, their magics and those beside them do not come along."""
    exported = notebook.exported(
        """
        import nbpipe
        %load_ext nbpipe
        !echo hello
        # ---- next cell
        %%time
        # as in the paper
        RATE = 3
        files = !ls
        # ---- next cell
        %%capture
        def half(x):
            # captured
            return x / 2
        print(half(3))
        # ---- next cell
        def decode(x):
            return half(x) * RATE
        %timeit -n1 -r1 decode(1)
        %who
        # ---- next cell
        display(decode(2))
        decode?
        # ---- next cell
        %%bash
        echo decode
        """
        + EXPORT
    )
    assert exported.has("# as in the paper\nRATE = 3")
    assert exported.has("def half(x):\n    # captured\n    return x / 2")
    assert [word for word in ("get_ipython", "files", "display") if word in exported.text] == []


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


def test_local_module(notebook: Notebook):
    """A file next to the notebook stays an import, and the report says that it must come along."""
    helpers = "FACTOR = 3\n\n\ndef scale(x):\n    return x * FACTOR\n"
    (notebook.folder / "helpers.py").write_text(helpers)
    notebook.run(
        """
        import nbpipe
        import helpers
        from helpers import scale as by_factor
        # ---- next cell
        def decode(x):
            return by_factor(x) + helpers.FACTOR
        """
        + EXPORT
    )
    exported = notebook.examined()
    assert exported.has("import helpers")
    assert exported.has("from helpers import scale as by_factor")
    assert "FACTOR = 3" not in exported.text
    assert exported.noted("helpers")


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


def test_setup_cell(notebook: Notebook):
    """A cell marked as set-up is kept whole, above what follows it."""
    setup = """
        import nbpipe
        import numpy as np
        # ---- next cell
        #| nbpipe: setup
        # one stream for all draws
        np.random.seed(7)
        np.seterr(divide="ignore")
        SCALE = 1
        # ---- next cell
        SCALE = 2  # from now on
        NOISE = np.random.rand(3)
        def decode(x):
            return float(NOISE[x % 3]) * SCALE
        """
    exported = notebook.exported(setup + EXPORT)
    assert exported.has(
        '# one stream for all draws\nnp.random.seed(7)\nnp.seterr(divide="ignore")\nSCALE = 1\n'
        "...\nSCALE = 2  # from now on\n...\nNOISE = np.random.rand(3)"
    )


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
    texts = set()
    for _ in range(3):
        texts.add((notebook.folder / "loader.py").read_bytes())
        (notebook.folder / "loader.py").unlink()
        notebook.kernel.run('report = pipe.export("loader.py", check_items=0)')
    assert len(texts) == 1
    notebook.examined()
