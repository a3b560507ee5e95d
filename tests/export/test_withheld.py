"""Withheld: paths of this machine, and values of the environment, are written as no literal."""

import enum
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest

from nbpipe.export.literals import NoLiteral, literal
from nbpipe.export.secrets import environment_values


def spell(one):
    """Spell a function or class by its name."""
    return one.__name__


def untyped(_):
    """Say that the user typed no path."""
    return False


@dataclass
class Config:
    root: str


class Kind(enum.Enum):
    OLD = "/tmp/old"


AROUND = {
    "text": lambda one: one,
    "bytes": str.encode,
    "list": lambda one: [1, one],
    "key": lambda one: {one: 1},
    "nested": lambda one: {"a": [(one,)]},
    "set": lambda one: {one},
    "deque": lambda one: deque([one]),
    "path": Path,
    "pure path": PurePosixPath,
    "field": Config,
    "namespace": lambda one: SimpleNamespace(root=one),
    "array": lambda one: np.array(["a", one]),
    "array of bytes": lambda one: np.array([one.encode()]),
    "numpy text": np.str_,
    "sentence": lambda one: f"files of {one} and others",
    "address": lambda one: f"file://{one}/a.txt",
    "database": lambda one: f"sqlite:///{one}/a.db",
    "option": lambda one: f"--root={one}",
}


@pytest.mark.parametrize("kind", AROUND)
def test_path_of_this_machine(kind, tmp_path):
    """An absolute path that nobody typed is refused, wherever it stands, with the way out."""
    value = AROUND[kind](str(tmp_path))
    with pytest.raises(NoLiteral, match=r"absolute path .* which no cell has; write it in a cell"):
        literal(value, spell, typed=untyped)
    assert str(tmp_path.name) in literal(value, spell)


@pytest.mark.parametrize(
    "path",
    [
        str(Path.home() / "data"),
        str(Path.cwd()),
        f"{Path.cwd()}/made later/x.png",
        tempfile.gettempdir() + "/x.png",
        sys.prefix,
        sys.executable,
        "/usr/none_such",
        "/tmp/none_such/x",
    ],
)
def test_what_is_of_this_machine(path):
    """Home, working folder, temporary files, Python, and whatever is in a folder that exists."""
    with pytest.raises(NoLiteral, match="the absolute path"):
        literal(path, spell, typed=untyped)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "data/train",
            Path("data"),
            "../x",
            "/",
            "//",
            "a/b",
            "/none_such_folder/x.png",
            "~/data",
        ),
        *("https://example.org/tmp/x", "s3://tmp/x", "host:/tmp/x", "1/2", "and/or", Kind.OLD),
        *(b"\x00/\xff", 3, 1.5, None, True, ["/a_b_c"], {"group": "/none_such_group/images"}),
    ],
)
def test_no_path_of_this_machine(value):
    """Relative paths, addresses and names of groups are written."""
    assert literal(value, spell, typed=untyped) == literal(value, spell)


def test_typed_path(tmp_path):
    """A path that the user typed is written; the question is for the path alone."""
    asked = []

    def typed(path):
        asked.append(path)
        return True

    value = {"root": f"see {tmp_path}, or ask"}
    assert literal(value, spell, typed=typed) == literal(value, spell)
    assert set(asked) == {str(tmp_path)}


@pytest.fixture
def withheld(monkeypatch):
    """Give the values of variables that cells looked up."""
    monkeypatch.setenv("MY_BUCKET", "corpus-of-ours")
    monkeypatch.setenv("MY_PORT", "5432")
    monkeypatch.setenv("MY_COUNT", "8")
    monkeypatch.setenv("MY_EMPTY", "")
    return environment_values(["MY_BUCKET", "MY_PORT", "MY_COUNT", "MY_EMPTY", "NONE_SUCH"])


def test_values_of_the_environment(withheld):
    """They are those that there are."""
    assert withheld == {"corpus-of-ours", "5432", "8"}


@pytest.mark.parametrize("kind", AROUND)
def test_value_of_the_environment(kind, withheld):
    """A literal with the value of a variable is refused, wherever it stands, with the way out."""
    with pytest.raises(NoLiteral, match="a value of the environment; look it up"):
        literal(AROUND[kind]("corpus-of-ours"), spell, withheld=withheld)


@pytest.mark.parametrize(
    "value",
    [5432, [5432], "5432", "host:5432", 8, "8", b"s3://corpus-of-ours/x", "Y29ycHVzLW9mLW91cnM="],
)
def test_what_was_computed_from_it(value, withheld):
    """Numbers, longer texts and base64 count; a short value only where it is the whole literal."""
    with pytest.raises(NoLiteral, match="a value of the environment"):
        literal(value, spell, withheld=withheld)


@pytest.mark.parametrize("value", [[8], {"a": "8"}, "x8", 54321, "15432x", "corpus", None, True])
def test_what_was_not(value, withheld):
    """Other values are written."""
    assert literal(value, spell, withheld=withheld) == literal(value, spell)
