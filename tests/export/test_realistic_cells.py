"""Notebooks as they are used: magics, cells run twice or out of order, odd text, local files."""

import pytest

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
    assert exported.names == ["RATE", "half", "decode"]
    assert "# as in the paper\nRATE = 3\n" in exported.text
    assert "get_ipython" not in exported.text


def test_progress_bar_in_a_cell(notebook: Notebook):
    """A bar around a loop of the notebook is no part of the module."""
    pytest.importorskip("tqdm")
    exported = notebook.exported(
        """
        import nbpipe
        from tqdm.auto import tqdm, trange
        # ---- next cell
        TOTALS = {}
        for n in tqdm(range(4), disable=True):
            TOTALS[n] = n * n
        for _ in trange(2, disable=True): pass
        # ---- next cell
        def decode(x):
            return TOTALS.get(x, -1)
        """
        + EXPORT
    )
    assert "TOTALS = {0: 0, 1: 1, 2: 4, 3: 9}\n" in exported.text
    assert exported.imports == []


def test_imports_of_every_kind(notebook: Notebook):
    """Imports under a condition are kept as they were needed."""
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
    assert exported.text.split('"""')[2].lstrip().startswith("from __future__ import annotations")
    assert "if TYPE_CHECKING:\n    from collections.abc import Sequence\n" in exported.text
    assert "Fraction" not in exported.text
    assert "from itertools import accumulate, chain\n" in exported.text
    assert "from math import floor" in exported.text
    assert "tau as TURN" in exported.text
    assert "import email.mime.text as mime\n" in exported.text
    assert "import json as json_library\nimport os.path\n" in exported.text


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
    assert exported.imports == ["import helpers", "from helpers import scale as by_factor"]
    assert exported.names == ["decode"]
    assert any("helpers" in note for note in exported.notes)


def test_cell_run_twice(notebook: Notebook):
    """The cell as it ran last counts, also where the same cell was edited."""
    notebook.run("import nbpipe")
    old = "K = 1\ndef decode(x):\n    return x + K"
    new = "K = 2\ndef decode(x):\n    return x * K  # new"
    for text in (old, new):
        notebook.kernel.run(text, cell_id="edited")
        notebook.kernel.run(text, cell_id="edited")
    exported = notebook.exported(EXPORT)
    assert "K = 2\n" in exported.text
    assert "    return x * K  # new\n" in exported.text
    assert "K = 1" not in exported.text


def test_cell_failed_halfway(notebook: Notebook):
    """What a cell bound before it failed counts; what it did not reach does not."""
    notebook.run("import nbpipe\nSCALE = 2\ndef decode(x):\n    return x * SCALE")
    error = notebook.failed("SCALE = 5  # tried\n1 / 0\nSCALE = 7")
    exported = notebook.exported(EXPORT)
    assert error.kind == "ZeroDivisionError"
    assert "SCALE = 5  # tried\n" in exported.text
    assert "SCALE = 7" not in exported.text


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
    assert exported.parameters == "*, décode_jpg_concurrency: int=2"
    assert exported.chain == (
        "nbpipe.source(range(3)).map(décode, name='décode jpg!', "
        "concurrency=décode_jpg_concurrency)"
    )


def test_windows_line_ends(notebook: Notebook):
    """A cell with carriage returns gives the module of one without."""
    notebook.run("import nbpipe")
    cell = "RATE = 3  # Hz\r\ndef decode(x):\r\n    # scaled\r\n    return x * RATE\r\n"
    notebook.kernel.run(cell)
    exported = notebook.exported(EXPORT)
    assert "\r" not in exported.text
    assert "def decode(x):\n    # scaled\n    return x * RATE\n" in exported.text


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
        # ---- next cell
        NOISE = np.random.rand(3)
        def decode(x):
            return float(NOISE[x % 3])
        """
    exported = notebook.exported(setup + EXPORT)
    kept = '# one stream for all draws\nnp.random.seed(7)\nnp.seterr(divide="ignore")\n'
    assert kept in exported.text
    assert exported.text.index("np.seterr") < exported.text.index("NOISE = ")


def test_state_that_the_module_changes(notebook: Notebook):
    """A counter and a cache begin in the module with their first values, and the report says so."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        seen = 0  # items so far
        CACHE = {"zero": 0}
        TOTAL = [0, 0]
        # ---- next cell
        def decode(x):
            global seen
            seen += 1
            CACHE.setdefault(x, x * x)
            TOTAL[0] += 0
            return CACHE[x]
        # ---- next cell
        [decode(n) for n in range(7)]
        """
        + EXPORT
    )
    assert 'seen = 0  # items so far\nCACHE = {"zero": 0}\nTOTAL = [0, 0]\n' in exported.text
    for name in ("seen", "CACHE"):
        assert any(name in note for note in exported.notes)


def test_values_computed_in_cells(notebook: Notebook):
    """Loops, conditions, walrus, unpacking and deletion: the live value is what counts."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        SIZES = {}
        for side in (1, 2):
            SIZES[side] = side * side
        if len(SIZES) > 1:
            MODE = "many"
        else:
            MODE = "one"
        # ---- next cell
        first, *REST = [4, 5, 6]
        (LIMIT := 10)
        A = B = [1]
        B.append(2)
        LIMIT += 5  # raised
        # ---- next cell
        def decode(x):
            return SIZES.get(x), MODE, REST, LIMIT, A, first, B
        """
        + EXPORT
    )
    assert set(exported.names) == {"SIZES", "MODE", "REST", "LIMIT", "A", "B", "first", "decode"}


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


@pytest.mark.parametrize("times", [10])
def test_same_bytes_every_time(notebook: Notebook, times: int):
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
    for _ in range(times):
        texts.add((notebook.folder / "loader.py").read_bytes())
        (notebook.folder / "loader.py").unlink()
        notebook.kernel.run('report = pipe.export("loader.py", check_items=0)')
    assert len(texts) == 1
    assert notebook.examined().names == ["WORDS", "KINDS", "decode"]
