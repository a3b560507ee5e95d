"""Lint: what ruff finds in a module is excused where it stands, and nothing else changes."""

import importlib.util
import sys

import pytest

from nbpipe.export import source
from nbpipe.export.source import Finding, linted, with_noqa

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="no ruff")


def codes(text):
    """List the codes that ruff finds in a text, with their lines."""
    return [(finding.code, finding.line) for finding in linted(text, "loader.py")]


def excused(text):
    """Excuse all that ruff finds in a text."""
    return with_noqa(text, linted(text, "loader.py"))


def test_findings():
    """A finding has its code, its line and ruff's words."""
    [finding] = linted("double = lambda x: 2 * x\n", "loader.py")
    assert (finding.code, finding.line) == ("E731", 1)
    assert "lambda" in finding.message


def test_a_clean_text_is_left_alone():
    """Nothing is found in it, and nothing is changed."""
    text = '"""Loader."""\n\nimport os\n\nHERE = os.sep   # as it was \n'
    assert (codes(text), excused(text)) == ([], text)


CASES = {
    "plain": ("f = lambda x: x\n", "f = lambda x: x  # noqa: E731\n"),
    "comment": ("f = lambda x: x  # mine\n", "f = lambda x: x  # mine  # noqa: E731\n"),
    "two codes": ("f = lambda l: l; g = 1\n", "f = lambda l: l; g = 1  # noqa: E702, E731, E741\n"),
    "a code excused already": (
        "l = 1; f = lambda x: x  # noqa: E741\n",
        "l = 1; f = lambda x: x  # noqa: E741, E702, E731\n",
    ),
    "a comment after it": (
        "l = 1; m = 2  # noqa:E741 why\n",
        "l = 1; m = 2  # noqa:E741, E702 why\n",
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
    "no newline at the end": ("l = 1", "l = 1  # noqa: E741"),
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


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_excused(text, expected):
    """The comment stands where ruff honours it, and merges with what is there."""
    assert excused(text) == expected


@pytest.mark.parametrize(("text", "_"), CASES.values(), ids=CASES)
def test_the_pinned_lint_passes_afterwards(text, _):
    """Ruff finds nothing any more, and excusing again changes nothing."""
    once = excused(text)
    assert (codes(once), excused(once)) == ([], once)


def test_user_text_is_only_added_to():
    """Without the comments it is what it was."""
    text = "def  f( x ):\n  if x == None :  return  x\n  l=lambda:  0 ; return l\n"
    changed = excused(text)
    assert "".join(line.split("  # noqa")[0] + "\n" for line in changed.splitlines()) == text


def test_the_order_of_imports_is_not_excused():
    """Export writes the imports itself: a finding there is left for it to see."""
    text = "import sys\nimport os\n\nX = os, sys\n"
    [finding] = linted(text, "loader.py")
    assert (finding.code, finding.excusable, excused(text)) == ("I001", False, text)


def test_a_syntax_error_is_not_excused():
    """It has no code that a comment could name."""
    text = "x = = 1\n"
    found = linted(text, "loader.py")
    assert ({finding.code for finding in found}, excused(text)) == ({""}, text)


def test_a_configuration_changes_nothing(tmp_path):
    """The rules are the pinned ones, wherever the module will stand; nothing is left there."""
    (tmp_path / "ruff.toml").write_text('lint.select = ["ALL"]\n')
    found = linted("def f(): return 1\n", "loader.py", folder=str(tmp_path))
    assert [finding.code for finding in found] == ["E704"] or found == []
    assert [path.name for path in tmp_path.iterdir()] == ["ruff.toml"]


def test_modules_of_the_folder_are_the_users_own(tmp_path):
    """They stand in the last section of the imports."""
    (tmp_path / "helpers.py").touch()
    text = "import numpy\n\nimport helpers\n\nX = helpers, numpy\n"
    assert linted(text, "loader.py", folder=str(tmp_path)) == []


def test_without_ruff(monkeypatch):
    """Nothing is found where it is not installed."""
    monkeypatch.setitem(sys.modules, "ruff", None)
    monkeypatch.setitem(sys.modules, "ruff.__main__", None)
    monkeypatch.setattr(source.shutil, "which", lambda *_, **__: None)
    assert linted("l = 1\n", "loader.py") == []


def test_without_its_package_the_program_is_found(monkeypatch):
    """An old package, or a program of the system, serves as well."""
    monkeypatch.setitem(sys.modules, "ruff", None)
    monkeypatch.setitem(sys.modules, "ruff.__main__", None)
    assert codes("l = 1\n") == [("E741", 1)]


def test_a_program_that_is_none(monkeypatch):
    """One that gives no findings finds nothing."""
    monkeypatch.setattr(source, "_find_ruff", lambda: "/bin/echo")
    assert linted("l = 1\n", "loader.py") == []


def test_findings_of_a_line_are_joined():
    """Each code stands once."""
    findings = [Finding("E741", 1, ""), Finding("E702", 1, ""), Finding("E741", 1, "")]
    assert with_noqa("l = 1; l = 2\n", findings) == "l = 1; l = 2  # noqa: E702, E741\n"
