"""One JupyterLab and one kernel for all browser tests, one page for those of a file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import lab
from tests.browser.panel import HEIGHT, WIDTH, Desk, PanelPage
from tests.ipynb import write_notebook


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


@pytest.fixture(scope="session")
def kernels() -> list[str]:
    """Ids of the kernels that no notebook has: one test after the other takes the same."""
    return []


@pytest.fixture(scope="module")
def desk(chromium: Browser, lab_address: str, kernels: list[str]) -> Iterator[Desk]:
    """The page of JupyterLab in which one test after the other opens its notebook."""
    with ExitStack() as pages:
        yield Desk(lambda: open_in(pages, chromium, lab_address), kernels)


def open_in(pages: ExitStack, chromium: Browser, address: str) -> PanelPage:
    """Open a page of JupyterLab that is closed with the others."""
    return pages.enter_context(lab.open_page(chromium, address, kind=PanelPage))


@pytest.fixture
def open_cells(
    chromium: Browser,
    lab_address: str,
    lab_folder: Path,
    desk: Desk,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., PanelPage]]:
    """Give a function that opens a new notebook of the given cells.

    It opens the first one of a test at the desk, with a kernel that other tests had, unless
    `fresh=True` asks for a new one; with `alone=True`, and any further notebook, in a page of its
    own with a kernel of its own. A flag by which a cell of an earlier test ended is gone.
    """
    for flag in lab_folder.glob("stop-*"):
        flag.unlink()
    with ExitStack() as pages:

        def open_one(
            *cells: str, width: int = WIDTH, fresh: bool = False, alone: bool = False
        ) -> PanelPage:
            name = f"{request.node.originalname}-{len(list(lab_folder.glob('*.ipynb')))}.ipynb"
            write_notebook(lab_folder / name, *cells)
            if alone or desk.taken:
                return open_file(name, width)
            page = desk.open(name, width, fresh=fresh)
            pages.callback(desk.leave)
            return told(page, name, width)

        def open_file(name: str, width: int) -> PanelPage:
            page = open_in(pages, chromium, lab_address)
            page.page.set_viewport_size({"width": width, "height": HEIGHT})
            page.open(name)
            pages.callback(page.shut_down)
            return told(page, name, width)

        def told(page: PanelPage, name: str, width: int) -> PanelPage:
            page.folder, page.name = lab_folder, name
            page.reopen = partial(open_file, name, width)
            return page

        yield open_one
