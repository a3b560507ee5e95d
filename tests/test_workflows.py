"""What runs elsewhere: workflows and pages name commands and files that are there."""

import json
import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/*.md")]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
MADE = re.compile(r"(?:`|^ *)make ([a-z-]+)(?=`| [a-z]+`| +[A-Z_]+=| *#| *$)", re.MULTILINE)
PINNED = re.compile(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)")
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path):
    """Return what a file of YAML holds; `on` is a truth value in YAML 1.1."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def values(thing, key):
    """Yield what stands under a key, at any depth."""
    for name, value in thing.items() if isinstance(thing, dict) else ():
        if name == key:
            yield value
        yield from values(value, key)
    for value in thing if isinstance(thing, list) else ():
        yield from values(value, key)


@each_workflow
def test_workflow_runs_what_is_there(path):
    """Every command is a target of the Makefile or a file of the repository."""
    jobs = read(path)["jobs"]
    commands = [*values(jobs, "run")]
    commands = [one for run in commands for one in (run if isinstance(run, list) else [run])]
    first = [one.split()[0] for one in commands if not one.startswith("${{")]
    scripts = set(first) - {"make", "test"}
    assert {one.split()[1] for one in commands if one.startswith("make ")} <= TARGETS
    assert [one for one in scripts if not (ROOT / one).exists()] == []
    local = [one for one in values(jobs, "uses") if one.startswith("./")]
    assert [one for one in local if not (ROOT / one).exists()] == []


@each_workflow
def test_workflow_is_bounded(path):
    """It may only read, jobs end by themselves, and actions have a major version."""
    whole = read(path)
    may = {name: job["permissions"] for name, job in whole["jobs"].items() if "permissions" in job}
    assert whole["permissions"] == {"contents": "read"}
    assert may == ({"publish": {"id-token": "write"}} if path.stem == "release" else {})
    assert set(whole["concurrency"]) == {"group", "cancel-in-progress"}
    steps = [job for job in whole["jobs"].values() if "steps" in job]
    assert [job for job in steps if "timeout-minutes" not in job] == []
    used = [one for job in steps for one in values(job, "uses")]
    assert [one for one in used if not PINNED.fullmatch(one)] == []


def test_every_python_that_is_promised_is_tested():
    """The classifiers, the least version and the matrix name the same versions of Python."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    promised = [one.rpartition(" ")[2] for one in about["classifiers"] if ":: 3." in one]
    tested = read(ROOT / ".github/workflows/tests.yml")["jobs"]["linux"]["strategy"]["matrix"]
    assert tested["python"] == promised
    assert about["requires-python"] == f">={promised[0]}"


def test_pages_name_targets_that_are_there():
    """What a page says that `make` makes, it makes."""
    wrong = [
        f"{path.name}: {name}"
        for path in PAGES
        for name in MADE.findall(path.read_text(encoding="utf-8"))
        if name not in TARGETS
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form(path):
    """A form of an issue has a name, a description and fields of their own ids."""
    form = read(path)
    if path.stem == "config":
        assert form == {"blank_issues_enabled": False}
        return
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert {"name", "description", "body"} <= set(form)
    assert ids
    assert len(ids) == len(set(ids))


def test_citation_is_of_this_project():
    """CITATION.cff, pyproject.toml and the changelog name one title, licence and version."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = read(ROOT / "CITATION.cff")
    assert (cited["title"], cited["license"]) == ("nbpipe", about["license"])
    assert "version" not in cited  # it stands in nbpipe/version.py alone
    assert json.dumps(cited["keywords"]) == json.dumps(about["keywords"])
