"""Pages with an export: their blocks are cells of a notebook; files and outputs are as shown."""

import doctest
import re
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
from tests.kernel.client import running
from tests.test_docs import write_photos

pytestmark = [pytest.mark.kernel, pytest.mark.torch, pytest.mark.slow]


ROOT = Path(__file__).resolve().parents[2]
# A file that the page shows, or a cell and what it prints.
BLOCK = re.compile(
    r"^(?:<!-- the file (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)^```\n"
    r"(?:\n```text\n(?P<said>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """Give a kernel."""
    monkeypatch.setenv("NBPIPE_CACHE_DIR", str(tmp_path))
    with running() as client:
        yield client


def is_as_shown(shown, got):
    """Compare texts but for where lines end; `...` of the page stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown, got, flags)


@pytest.mark.parametrize("page", ["export", "first-hour"])
def test_page(kernel, page):
    """Every cell of the page prints what is shown, and every file holds what is shown."""
    wrong = []
    write_photos(kernel.folder / "photos")
    for block in BLOCK.finditer((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        if block["file"]:
            shown, got = block["code"], (kernel.folder / block["file"]).read_text(encoding="utf-8")
        else:
            shown, got = block["said"] or "", kernel.run(block["code"])
        if not is_as_shown(shown, got):
            wrong.append((block["code"], shown, got))
    assert wrong == []
