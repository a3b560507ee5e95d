"""The tuning guide and the rules of `diagnose()`: each sentence has an entry, each entry one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tuning.md"
NAMES = ("rules.py", "diagnose.py", "empty.py", "slowed.py")
FILES = [ROOT / "nbpipe" / "show" / name for name in NAMES]
WORDS = 3  # what is shorter is no part of a sentence that one could look up


def plain(text):
    """Return words alone, parted by one space."""
    return " ".join(re.findall(r"[\w%=()'/.-]+", text.replace("`", ""))).strip()


def docstrings(tree):
    """Return the nodes that are docstrings."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, kinds)]
    return {body[0].value for body in bodies if isinstance(body[0], ast.Expr)}


def patterns(tree):
    """Return the nodes that are arguments of the functions of `re`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_re = [call for call in calls if getattr(getattr(call.func, "value", None), "id", "") == "re"]
    return {argument for call in of_re for argument in call.args}


def said():
    """Return all that the rules say: what stands between values."""
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        aside = docstrings(tree) | patterns(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in aside:
                yield plain(node.value)


def test_every_sentence_has_an_entry():
    """Whatever `diagnose()` can say stands in the guide, word for word."""
    page = plain(PAGE.read_text(encoding="utf-8"))
    missing = {one for one in said() if len(one.split()) >= WORDS and one not in page}
    assert sorted(missing) == []


def test_every_entry_is_a_sentence():
    """A heading is of words that can be said, and of `…` for what stands between them."""
    known = set(said())
    heads = re.findall(r"^### (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    pieces = {head: [one for one in map(plain, head.split("…")) if one] for head in heads}
    idle = [
        head
        for head, parts in pieces.items()
        if not any(part in one for part in parts for one in known)
    ]
    assert (idle, len(heads) > 0) == ([], True)
