"""The documentation: its code runs, what it shows is what comes out, its links lead somewhere."""

import ast
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nbpipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
)
# Recipes read files that their own tests write (tests/recipes); an export is of cells
# (tests/export/test_page.py); gloo keeps files open for good (tests/ranks/test_page.py).
ELSEWHERE = ("docs/recipes.md", "docs/export.md", "docs/ranks.md")
RUN_HERE = [page for page in PAGES if page not in ELSEWHERE]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")


def blocks(page: str) -> list[tuple[str, str, int]]:
    """Give the language, the code and the line of every block of Python."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (match[1], match[2], text.count("\n", 0, match.start(2))) for match in BLOCK.finditer(text)
    ]


def run_session(session: str, namespace: dict, page: str, line: int) -> str:
    """Run a block of `>>>` lines; return what came out otherwise than shown.

    Its name has the line: doctest shows a function's source by the name of the block it is from.
    """
    parsed = doctest.DocTestParser().get_doctest(session, {}, f"{page}:{line}", page, line)
    parsed.globs = namespace  # later blocks see what this one defines
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(parsed, out=report.append, clear_globs=False)
    return "".join(report)


def run_page(page: str) -> list[str]:
    """Run all blocks of a page, from top to bottom; give what came out otherwise than shown."""
    namespace = {"__name__": "page"}
    reports = []
    for language, code, line in blocks(page):
        if language == "pycon":
            reports.append(run_session(code, namespace, page, line))
        else:
            exec(compile("\n" * line + code, str(ROOT / page), "exec"), namespace)
    return [report for report in reports if report]


def write_photos(folder: Path) -> None:
    """Write a folder of JPEG files, as a page reads it."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(40):
        pixels_HWC = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        image.fromarray(pixels_HWC).save(folder / f"{number:02d}.jpg")


@pytest.mark.parametrize("page", RUN_HERE)
def test_page_runs(page, tmp_path, monkeypatch):
    """All code of a page runs from top to bottom, and gives what the page shows."""
    monkeypatch.chdir(tmp_path)
    if "photos" in (ROOT / page).read_text(encoding="utf-8"):
        write_photos(Path("photos"))
    if "distributed" in (ROOT / page).read_text(encoding="utf-8"):
        pytest.importorskip("distributed")
    if "import torch\n" in (ROOT / page).read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    assert run_page(page) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Every relative link and picture of a page is a file of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [one or other for one, other in LINK.findall(text)]
    local = [link.partition("#")[0] for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


def said_by_the_library():
    """Give all texts of the library's code."""
    for path in sorted((ROOT / "nbpipe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_are_those_of_the_library():
    """What the page on troubleshooting quotes as a message is one, but for names and numbers."""
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = [one.replace("\n", " ") for one in re.findall(r"`([a-zA-Z.][^`]*)`", text)]
    said = "|".join(said_by_the_library())
    long = [one for one in quoted if one.count(" ") > 3]
    parts = [re.split(r"\.\.\.|: |'\w+'|\d+ s\b", one) for one in long]
    known = [any(len(part) > 8 and part.strip() in said for part in one) for one in parts]
    assert [one for one, is_known in zip(parts, known, strict=True) if not is_known] == []
    assert len(parts) > 3


def test_reference_has_every_public_name():
    """What `import nbpipe` offers stands on the page that becomes the reference."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"auto\w+:: (?:nbpipe\.)?(\w+)", text)) | set(vars(nbpipe.errors))
    assert sorted(set(nbpipe.__all__) - listed - {"__version__"}) == []


def test_site_is_made_without_a_warning(tmp_path):
    """All pages become a site: every link leads somewhere, every page is found in the contents."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "."]
    done = subprocess.run(
        [*command, tmp_path],
        cwd=ROOT,
        env=os.environ | {"NBPIPE_DOCS_NOTEBOOKS": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.stem for path in (tmp_path / "docs").glob("*.html")}
    assert pages == {path.stem for path in ROOT.glob("docs/*.md")}
    assert "nbpipe.Pipeline.map" in (tmp_path / "docs/reference.html").read_text("utf-8")
    assert (tmp_path / "docs/images/panel-dark.png").exists()


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebook_looks_finished(path):
    """A notebook is stored without outputs: a picture stands for what it shows; no link is dead."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")
    links = [one.partition("#")[0] for one, _ in LINK.findall(text) if "://" not in one]
    assert [one for one in links if not (path.parent / one).exists()] == []
    assert any(one.endswith(".png") for one in links)
