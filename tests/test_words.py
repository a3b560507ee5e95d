"""Plain English: idioms that a reader stumbles over are in no page and in no text of the code."""

import ast
import io
import json
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What not to write, and what to write in its place.
BANNED = {
    r"\banew\b": "again",
    r"\bwhoever\b": "the code, the thread, the reader",
    r"\bnobody\b": "nothing, no one",
    r"\b(go(es)?|going|gone) on\b": "continue",
    r"\ball the same\b": "still",
    r"\b(is|are|was|were) (told|said)\b": "gets, reports",
    r"\bbrings? along\b": "contains",
    r"\blets? pass\b": "leaves as it is",
    r"\bin earnest\b": "really",
    r"\bwhat is (wanted|meant|asked)\b": "the needed items, the one meant",
    r"\b(those|one|each|him) who\b": "the thread, the caller, the user",
    r"^Tell (whether|which|how|what|where|why|if)\b": "Return",
    r"\d %(?!\()": "97%",
}
# On pages, too: sentences that begin with the object, and places that are times.
ON_PAGES = {
    r"\bbehind\b": "after",
    r"(?-i:(?:^|[.:] )(?:What|Whoever|Of) )": "a sentence that begins with its subject",
}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/api/*.md"),
    *ROOT.glob("notebooks/*.ipynb"),
]
CODE = sorted(ROOT.glob("nbpipe/**/*.py"))


def texts_of(path):
    """Give the lines of a page, of a notebook's cells, or of the texts and comments of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return [line for cell in json.loads(text)["cells"] for line in cell["source"]]
    if path.suffix == ".md":
        return text.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [*comments, *(one for one in constants if isinstance(one, str))]


@pytest.mark.parametrize(
    ("paths", "idioms"),
    [(PAGES, BANNED | ON_PAGES), (CODE, BANNED)],
    ids=["pages", "code"],
)
def test_idioms(paths, idioms):
    """Each of them has a common word in its place."""
    any_idiom = re.compile("|".join(idioms), re.IGNORECASE | re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}: write {better!r}: {line.strip()[:80]}"
        for path in paths
        for line in texts_of(path)
        if any_idiom.search(line)
        for idiom, better in idioms.items()
        for match in [re.search(idiom, line, re.IGNORECASE)]
        if match
    ]
    assert "\n".join(found) == ""
