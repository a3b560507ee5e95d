"""Lint: what ruff finds in a module is excused where it stands, and nothing else changes."""

import importlib.util
import json
import sys

import pytest

from nbpipe.export import source
from nbpipe.export.source import run_ruff, with_noqa

ruff = pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="no ruff")


def codes(text):
    """List the codes that the pinned lint finds in a text."""
    found = run_ruff("check", text, "--select", "E4,E7,E9,F,I", "--output-format", "json")
    return [one["code"] for one in json.loads(found)]


CASES = {
    "plain": ("f = lambda x: x\n", "f = lambda x: x  # noqa: E731\n"),
    "comment": ("f = lambda x: x  # mine\n", "f = lambda x: x  # mine  # noqa: E731\n"),
    "two codes": ("f = lambda l: l; g = 1\n", "f = lambda l: l; g = 1  # noqa: E702, E731, E741\n"),
    "a code excused already": (
        "l = 1; f = lambda x: x  # noqa: E741\n",
        "l = 1; f = lambda x: x  # noqa: E702, E731, E741\n",
    ),
    "noqa in a text": ("f = lambda: '# noqa'\n", "f = lambda: '# noqa'  # noqa: E731\n"),
    "lambda over lines": (
        "f = lambda x: (\n    x\n)\n",
        "f = lambda x: (  # noqa: E731\n    x\n)\n",
    ),
    "text over lines": (
        'x = """\n# no %s\n%s""" % (1, 2, 3)\n',
        'x = """\n# no %s\n%s""" % (1, 2, 3)  # noqa: F507\n',
    ),
    "continued line": ("l = 1 + \\\n    2\n", "l = 1 + \\\n    2  # noqa: E741\n"),
    "line ends of Windows": ("l = 1\r\nm = 2\r\n", "l = 1  # noqa: E741\r\nm = 2\r\n"),
    "tabs and spaces": ("l\t=  1 \t\n", "l\t=  1  # noqa: E741\n"),
    "separators within a text": ("l = '\u2028\x0c'\n", "l = '\u2028\x0c'  # noqa: E741\n"),
    "form feed": ("\x0cl = 1\n", "\x0cl = 1  # noqa: E741\n"),
    "import below code": (
        '"""A."""\nX = 1\nimport os\n\nY = os\n',
        '"""A."""\nX = 1\nimport os  # noqa: E402\n\nY = os\n',
    ),
    "unknown name": ("def f():\n    return nope\n", "def f():\n    return nope  # noqa: F821\n"),
    "class within brackets": (
        "def f(\n    l,\n):\n    return l\n",
        "def f(\n    l,  # noqa: E741\n):\n    return l\n",
    ),
}


@ruff
@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_excused(text, expected):
    """The comment stands where ruff honours it, and merges with what is there, once."""
    assert (with_noqa(text), with_noqa(expected), codes(expected)) == (expected, expected, [])


@ruff
@pytest.mark.parametrize(
    "text",
    [
        '"""Loader."""\n\nimport os\n\nHERE = os.sep   # as it was \n',
        "import sys\nimport os\n\nX = os, sys\n",  # export writes the imports itself
        "x = = 1\n",  # it has no code that a comment could name
    ],
)
def test_left_alone(text):
    """Nothing is changed where there is nothing to excuse."""
    assert with_noqa(text) == text


@ruff
def test_user_text_is_only_added_to():
    """Without the comments it is what it was."""
    text = "def  f( x ):\n  if x == None :  return  x\n  l=lambda:  0 ; return l\n"
    changed = with_noqa(text)
    assert "".join(line.split("  # noqa")[0] + "\n" for line in changed.splitlines()) == text


@ruff
def test_a_configuration_changes_nothing(tmp_path, monkeypatch):
    """The rules are the pinned ones, wherever the notebook runs; nothing is left there."""
    (tmp_path / "ruff.toml").write_text('lint.select = ["ALL"]\n')
    monkeypatch.chdir(tmp_path)
    text = "def f(a, b):\n    return a\n"
    assert (with_noqa(text), [path.name for path in tmp_path.iterdir()]) == (text, ["ruff.toml"])


def test_without_ruff(monkeypatch):
    """Nothing is excused where it is not installed."""
    monkeypatch.setitem(sys.modules, "ruff", None)
    monkeypatch.setitem(sys.modules, "ruff.__main__", None)
    monkeypatch.setattr(source.shutil, "which", lambda *_, **__: None)
    assert with_noqa("l = 1\n") == "l = 1\n"


@ruff
def test_without_its_package_the_program_is_found(monkeypatch):
    """An old package, or a program of the system, serves as well."""
    monkeypatch.setitem(sys.modules, "ruff", None)
    assert with_noqa("l = 1\n") == "l = 1  # noqa: E741\n"


def test_a_program_that_is_none(monkeypatch):
    """One that does nothing excuses nothing."""
    monkeypatch.setattr(source, "_find_ruff", lambda: "/bin/echo")
    assert with_noqa("l = 1\n") == "l = 1\n"
