"""The tuning guide has a row for each cause of a diagnosis, and the rules make each of them."""

import ast
import re
from pathlib import Path
from typing import get_args

from nbpipe.show.verdict import diagnosis

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tuning.md"
SHOW = ROOT / "nbpipe" / "show"
RULES = [SHOW / "diagnose.py", *sorted((SHOW / "verdict").glob("*.py"))]
CAUSES = [cause for cause in get_args(diagnosis.Cause) if cause]


def test_every_cause_has_a_row():
    """`cause` is the anchor of a row of the guide, and each row is of one cause."""
    rows = re.findall(r'^\| <a id="([^"]+)"></a>', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(CAUSES)


def test_every_cause_is_made_by_a_rule():
    """A row of the guide is of something that can be seen."""
    made = {
        node.value
        for path in RULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and path.name != "diagnosis.py"
    }
    assert [cause for cause in CAUSES if cause not in made] == []


def test_every_diagnosis_has_a_cause():
    """No rule makes one without."""
    calls = [
        node
        for path in RULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnosis"
    ]
    without = [one.lineno for one in calls if "cause" not in {word.arg for word in one.keywords}]
    assert (without, len(calls) > 10) == ([], True)
