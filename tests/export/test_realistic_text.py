"""Notebooks whose own words are to be found in the module: comments, names, quotes, layout."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.notebooks import NEXT, Notebook, holds


def unformatted(path: Path) -> str:
    """Return what ruff would write in another way; nothing where it is as it should be."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", "--diff"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    return done.stdout


CHAIN = """
import nbpipe


def decode(x):
    return x


def big(x):
    return x > 1


# ---- next cell
# The numbers, and what is done
# with them
pipe = (
    # those that were counted
    nbpipe.source(
        range(9),  # the small ones
        name="numbers",
    )
    # decoding is slow: several at once
    .map(
        decode,
        # two are enough
        concurrency=2,
    )
    .filter(big)  # drop the small ones
    .batch(size=3)  # as in the paper
)
# ---- next cell
report = pipe.export("loader.py")
"""


@pytest.mark.slow
def test_comments_of_a_chain(notebook: Notebook):
    """Comments stand at their calls, whatever becomes of the values there."""
    exported = notebook.exported(CHAIN)
    comments = re.findall(r"# (.+)", CHAIN.replace(NEXT, ""))
    assert re.findall(r"# (.+)", exported.text) == comments
    assert exported.has("# The numbers, and what is done\n# with them")
    assert exported.has("# decoding is slow: several at once")
    assert re.search(r"\.filter\(big\)  # drop the small ones\n", exported.text)
    assert exported.tuned == {"decode_concurrency": 2, "batch_size": 3}
    assert unformatted(notebook.folder / "loader.py") == ""


EVERY_COMMENT = """
import nbpipe
from nbpipe import source


def decode(x):
    return x


# ---- next cell
small = (nbpipe.source([1, 2, 3, 4], name="small")  # 1
    # 2
)
pipe = (
    # 3
    nbpipe.zip(  # 4
        # 5
        small,  # 6
        source(  # 7
            [  # 8
                n for n in range(9)  # 9
            ],  # 10
            # 11
        ).map(str),  # 12
        strict=False,
        # 13
    )
    .map(  # 14
        lambda pair: pair[0],  # 15
        # 16
        concurrency=2,  # 17
        **dict(  # 18
            prefetch=4,
        ),  # 19
    )  # 20
    # 21
    .map(
        lambda x: x,  # 22, twice
        concurrency=3,  # 22, twice
    )
    # 23
    .map(lambda x: x + 1)  # 24
    .map(decode, on_error=nbpipe.Retry(
        # 25
        2,  # 26
    ))
    .batch(
        # 27
        size=2,  # 28
        # 29
    )
    # 30
)  # 31
report = pipe.export("loader.py")
"""


@pytest.mark.slow
def test_no_comment_is_lost(notebook: Notebook):
    """Each stands there once, in whatever way the code around it is written."""
    exported = notebook.exported(EVERY_COMMENT)
    found = map(int, re.findall(r"# (\d+)\b", exported.text))
    assert sorted(found) == sorted([*range(1, 32), 22])


def test_comments_that_hold_secrets(notebook: Notebook):
    """A secret in a comment of the chain is in no file: it is left out, or refused."""
    token = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5"
    notebook.run(
        f"""
        import nbpipe

        # with {token}
        # and in order
        pipe = (
            nbpipe.source(range(9))
            # {token}
            .map(str)  # {token}
            .map(int)  # and back
            .batch(2)
        )
        # ---- next cell
        try:
            said = str(pipe.export("loader.py"))
        except nbpipe.ExportError as error:
            said = str(error)
        open("said.txt", "w").write(said)
        """
    )
    assert holds([notebook.folder, notebook.cache, notebook.temp], token) == []


@pytest.mark.slow
def test_names_of_intermediate_pipelines(notebook: Notebook):
    """Each variable is there with its comments, and what only showed it is not."""
    exported = notebook.exported(
        """
        import nbpipe

        def decode(x):
            return x
        # ---- next cell
        # all that there is
        files = nbpipe.source(range(9), name="numbers").shuffle(seed=1)
        # ---- next cell
        decoded = files.map(decode, concurrency=4)
        decoded.peek()
        # ---- next cell
        pipe = decoded.filter(lambda x: x > 1)  # drop the small ones
        pipe = pipe.batch(3)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has(
        "# all that there is\n"
        'files = nbpipe.source(range(9), name="numbers").shuffle(seed=1)\n...\n'
        "decoded = files.map(decode, concurrency=decode_concurrency)"
    )
    assert exported.tuned == {"decode_concurrency": 4, "batch_size": 3}
    assert "peek" not in exported.text


@pytest.mark.slow
def test_names_of_joined_pipelines(notebook: Notebook):
    """What is joined keeps its name, and stands there once."""
    exported = notebook.exported(
        """
        import nbpipe

        def small(x):
            return -x
        # ---- next cell
        base = nbpipe.source(range(5)).map(small, concurrency=2)  # for both
        small_ones = base.map(str)
        batch_size = nbpipe.source(list("abcde"))
        pipe = nbpipe.zip(small_ones, base, batch_size).batch(2)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("small_ones = base.map(str)")
    assert exported.text.count("  # for both\n") == 1
    assert list(exported.tuned.values()) == [2, 2]


@pytest.mark.slow
def test_a_name_that_means_something_else(notebook: Notebook):
    """A variable of the chain whose name is a function by now."""
    exported = notebook.exported(
        """
        import nbpipe

        def decode(x):
            return x
        # ---- next cell
        decode_all = nbpipe.source(range(4))
        pipe = decode_all.map(decode).map(str)
        # ---- next cell
        def decode_all(x):
            return decode(x)
        # ---- next cell
        pipe = pipe.map(decode_all)
        report = pipe.export("loader.py")
        """
    )
    assert exported.has("def decode_all(x):\n    return decode(x)")


FORMATTED = """
from collections import Counter

import nbpipe
import numpy as np

# ---- next cell
NAMES = ["a", "b"]
NAMES.append("c")
CONFIG = {"mean": 0.5, "std": [1, 2, 3], "names": NAMES, "long": "-" * 40}
CONFIG["more"] = 'it is "all"'
SHIFT = np.array([1.0, 2.0], dtype="float32")
SHIFT += 1
COUNTS = Counter("abc")
COUNTS["d"] += 1
MANY = list(range(30))
MANY.append(30)


# ---- next cell
def decode(x):
    return NAMES[x % 3], CONFIG["mean"], float(SHIFT.sum()), COUNTS["a"], MANY[-1]


# ---- next cell
pipe = (
    nbpipe.source(range(9), name="the numbers")
    .map(lambda x, k="one": x + len(k), concurrency=2, prefetch=3)
    .map(decode, executor="process", concurrency=2, prefetch=8, max_items_per_worker=50)
    .batch(2, collate=lambda items: [str(i) for i in items], drop_last=True)
)
report = pipe.export("loader.py")
"""


ARGUMENTS = """
from functools import partial

import nbpipe


def collate(items, *, value, other, third):
    return items


# ---- next cell
numbers = list(range(5))
numbers = nbpipe.source(numbers, name="numbers")
pipe = numbers.batch(
    2,
    collate=partial(
        collate, value=[1, 2, 3], other="something that is rather long", third="and more of it"
    ),
)
report = pipe.export("loader.py")
"""


@pytest.mark.slow
def test_arguments_over_lines(notebook: Notebook):
    """An argument over several lines; a list and a pipeline had one name."""
    exported = notebook.exported(ARGUMENTS)
    assert exported.tuned == {"batch_size": 2}


@pytest.mark.slow
def test_formatted_cells_give_a_formatted_module(notebook: Notebook):
    """Where the cells are as ruff formats them, so is the module, with all that it adds."""
    exported = notebook.exported(FORMATTED)
    assert unformatted(notebook.folder / "loader.py") == ""
    assert "'it is \"all\"'" in exported.text
