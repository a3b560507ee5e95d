"""The documentation: its code runs, what it shows is what comes out, its links lead somewhere."""

import ast
import doctest
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import nbpipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)
# Recipes read files that their own tests write (tests/recipes); exports are of cells
# (tests/export/test_page.py); gloo keeps files open for good (tests/ranks/test_page.py).
ELSEWHERE = ("docs/recipes.md", "docs/export.md", "docs/first-hour.md", "docs/ranks.md")
RUN_HERE = [
    pytest.param(page, marks=[pytest.mark.torch] * ("import torch\n" in (ROOT / page).read_text()))
    for page in PAGES
    if page not in ELSEWHERE
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# A block that imports another library of its kind is run where that is installed.
PEERS = {"spdl", "tensorflow", "torchdata"}
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")


def blocks(page: str) -> list[tuple[str, str, int]]:
    """Give the language, the code and the line of every block of Python."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (match[1], match[2], text.count("\n", 0, match.start(2))) for match in BLOCK.finditer(text)
    ]


def can_run(code: str) -> bool:
    """Return whether the peer that a block imports, if any, is installed."""
    imported = set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))
    return all(importlib.util.find_spec(peer) for peer in imported & PEERS)


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
        if not can_run(code):
            continue
        if language == "pycon":
            reports.append(run_session(code, namespace, page, line))
        else:
            exec(compile("\n" * line + code, str(ROOT / page), "exec"), namespace)
    if "theirs" in namespace:
        pairs = zip(namespace["theirs"], namespace["ours"], strict=True)
        reports += [f"{one} != {other}" for one, other in pairs if not np.array_equal(one, other)]
    return [report for report in reports if report]


def write_photos(folder: Path) -> None:
    """Write a folder of JPEG files, as a page reads it."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(40):
        pixels_HWC = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        image.fromarray(pixels_HWC).save(folder / f"{number:02d}.jpg")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata asks torch for
@pytest.mark.parametrize("page", RUN_HERE)
def test_page_runs(page, tmp_path, monkeypatch):
    """All code of a page runs from top to bottom, and gives what the page shows."""
    monkeypatch.chdir(tmp_path)
    if "photos" in (ROOT / page).read_text(encoding="utf-8"):
        write_photos(Path("photos"))
    if "distributed" in (ROOT / page).read_text(encoding="utf-8"):
        pytest.importorskip("distributed")
    assert run_page(page) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Every relative link and picture of a page is a file of the repository, with that heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [one or other for one, other in LINK.findall(text)]
    local = [link.partition("#") for link in links if "://" not in link]
    files = {link: (ROOT / page).parent / link if link else ROOT / page for link, _, _ in local}
    assert [link for link, file in files.items() if not file.exists()] == []
    asked = [(link, anchor) for link, _, anchor in local if anchor]
    assert [pair for pair in asked if pair[1] not in anchors(files[pair[0]])] == []


def anchors(file: Path) -> set[str]:
    """Give the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {word.replace(" ", "-") for word in words}


def said_by_the_library():
    """Give all texts of the library's code."""
    for path in sorted((ROOT / "nbpipe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.slow
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


def test_extras_are_those_of_the_page():
    """What `all` installs is what the page on installing says of each extra."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (everything,) = about["optional-dependencies"]["all"]
    page = (ROOT / "docs/install.md").read_text("utf-8")
    told = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(re.split(r"[\[\],]", everything)[1:-1]) == sorted(set(told) - {"all"})


def test_reference_has_every_public_name():
    """What `import nbpipe` offers stands on the pages that become the reference."""
    pages = sorted(ROOT.glob("docs/api/*.md"))
    text = "".join(path.read_text(encoding="utf-8") for path in pages)
    listed = set(re.findall(r"auto\w+:: (?:nbpipe\.)?(\w+)", text)) | set(vars(nbpipe.errors))
    assert sorted(set(nbpipe.__all__) - listed - {"__version__"}) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Make the site; give its folder and what was said."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "."]
    done = subprocess.run(
        [*command, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, (done.returncode, done.stderr)


def on_site(test):
    """Mark a test of the site: whichever comes first makes it, which takes its time."""
    return pytest.mark.slow(pytest.mark.timeout(240)(test))


@pytest.mark.slow
@on_site
def test_site_is_made_without_a_warning(site):
    """All pages become a site, and every page is found in the contents."""
    folder, said = site
    assert said == (0, "")
    pages = {path.stem for path in (folder / "docs").glob("*.html")}
    assert pages == {path.stem for path in ROOT.glob("docs/*.md")}
    assert (folder / "_images/panel-dark.png").exists()


@pytest.mark.slow
@on_site
def test_reference_has_what_completion_offers(site):
    """The pages on pipelines and runs have each method and attribute that a user is offered."""
    folder, _ = site
    pipe = nbpipe.source([1])
    with pipe.start() as run:
        for one in (pipe, run):
            name = type(one).__name__
            text = (folder / f"docs/api/{name.lower()}.html").read_text("utf-8")
            shown = {*re.findall(rf'id="nbpipe\.{name}\.(\w+)"', text)}
            assert sorted({each for each in dir(one) if each[0] != "_"} - shown) == []
            assert sorted({"chain", "begin_epoch", "node_state", "turn"} & shown) == []


@pytest.mark.slow
@on_site
def test_site_leads_nowhere_else(site):
    """Each link and picture of the site is a file of it, with that anchor; nothing is fetched."""
    folder, _ = site
    files = [path for path in folder.rglob("*.html") if "_static" not in path.parts]
    pages = {path: path.read_text("utf-8") for path in files}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for tag, link in re.findall(r'<(\w+)\b[^>]*?\b(?:href|src)="([^"]*)"', text):
            target, _, anchor = unquote(link).partition("#")
            if link.startswith("data:"):
                continue
            if "://" in link:
                wrong += [(path.name, link)] * (tag != "a")
                continue
            file = (path.parent / target.partition("?")[0]).resolve() if target else path
            known = ids.get(file, {anchor})
            if not file.exists() or (anchor and anchor not in known):
                wrong.append((path.name, link))
    assert wrong == []


@on_site
def test_every_page_has_an_icon(site):
    """A browser asks for no /favicon.ico, which a site in a folder of a server does not have."""
    folder, _ = site
    files = [path for path in folder.rglob("*.html") if "_static" not in path.parts]
    without = [one.name for one in files if 'rel="icon"' not in one.read_text("utf-8")]
    assert (without, (folder / "_static/icon.svg").is_file()) == ([], True)


# How far the picture of a page is from the words below it [px].
BELOW_PICTURE = """() => {
    const picture = document.querySelector('.bd-article img.only-light');
    const below = document.createRange();
    below.selectNodeContents(picture.parentElement.querySelector('img ~ p'));
    return below.getBoundingClientRect().top - picture.getBoundingClientRect().bottom;
}"""


@pytest.mark.slow
@on_site
@pytest.mark.browser
def test_site_in_a_browser(site):
    """The search finds a page; narrow, no page is wider than the window; nothing is fetched."""
    from tests.browser.lab import open_chromium

    folder, _ = site
    wide, said = [], []
    with open_chromium() as browser:
        page = browser.new_page(viewport={"width": 500, "height": 900}, base_url="http://site/")
        page.on("request", lambda asked: said.append(asked.url))
        page.on("console", lambda line: said.extend([line.text] * (line.type == "error")))
        page.route(
            "http://site/**",
            lambda route: route.fulfill(path=folder / urlsplit(route.request.url).path[1:]),
        )
        for name in ("index", "quickstart", "dataloader", "benchmarks", "api/pipeline"):
            page.goto(f"docs/{name}.html")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(name)
        page.goto("docs/panel.html")
        room_px = page.evaluate(BELOW_PICTURE)
        page.goto("search.html?q=StatefulDataLoader")
        page.locator("#search-results li", has_text="From torchdata").first.wait_for()
    assert (wide, room_px > 10) == ([], True)
    assert [one for one in said if not one.startswith(("http://site/", "data:"))] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebook_looks_finished(path):
    """A notebook has a picture for a reader who cannot run it; no link is dead."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")
    found = [one or other for one, other in LINK.findall(text)]
    links = [one.partition("#")[0] for one in found if "://" not in one]
    assert [one for one in links if not (path.parent / one).exists()] == []
    assert any(one.endswith(".png") for one in links)
