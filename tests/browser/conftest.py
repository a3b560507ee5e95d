"""One Chromium and one JupyterLab for all browser tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import lab
from tests.browser.panel import PanelPage


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, started once a file; without one the tests fail with the line to type.

    As long as playwright is there its event loop counts as running, which tests of other files
    would take amiss.
    """
    try:
        lab.find_chromium()
    except FileNotFoundError as missing:
        pytest.fail(str(missing), pytrace=False)
    with lab.open_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebooks of all tests are."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def lab_address(lab_folder: Path) -> Iterator[str]:
    """JupyterLab, started once."""
    with lab.serve_lab(lab_folder) as address:
        yield address


@pytest.fixture
def open_cells(
    chromium: Browser, lab_address: str, lab_folder: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., PanelPage]]:
    """Give a function that opens a new notebook of the given cells in a page."""
    with ExitStack() as pages:

        def open_one(*cells: str, width: int = 1280) -> PanelPage:
            name = f"{request.node.originalname}-{len(list(lab_folder.glob('*.ipynb')))}.ipynb"
            lab.write_notebook(lab_folder / name, *cells)
            return open_file(name, width)

        def open_file(name: str, width: int) -> PanelPage:
            page = pages.enter_context(
                lab.open_page(chromium, lab_address, name, width=width, kind=PanelPage)
            )
            page.folder, page.name = lab_folder, name
            page.reopen = partial(open_file, name, width)
            pages.callback(page.shut_down)
            return page

        yield open_one
