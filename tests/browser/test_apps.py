"""A run in the pages of other programs: a notebook that Voila serves, an app of marimo."""

import sys
from contextlib import contextmanager
from textwrap import indent

import pytest

from tests.browser import lab
from tests.browser.lab import CELL_MS
from tests.browser.panel import HEIGHT, MEETING, PIPE, SETUP, WIDTH, PanelPage
from tests.ipynb import write_notebook

pytestmark = pytest.mark.browser

# Trains in the background: the cell ends at once.
TRAIN = "run.train(lambda item: None)"
CELL = """
@app.cell
def _():
{}
    return
"""
OPENS = """
[tool.marimo.runtime]
auto_instantiate = true  # cells run when the notebook is opened
"""
HEADLESS = ("--headless", "--no-token")
EDIT = ("marimo", "edit", *HEADLESS, "--skip-update-check")
LINE = "In marimo the panel is live between two cells"


class AppPage(PanelPage):
    """A page with panels and without a notebook; it keeps what it told and asked of others."""

    def __init__(self, page, address):
        self.page = page
        page.set_default_timeout(CELL_MS)  # Voila answers when its cells are done
        self.errors = []
        self.asked_abroad = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._look(request.url, address))
        page.goto(address)

    def _hear(self, message):
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location}")

    def _look(self, url, address):
        if not url.startswith((address.rstrip("/"), "data:", "blob:")):
            self.asked_abroad.append(url)

    def wait_state(self, *states, number=0):
        """Look at a panel, wherever it is in a tree of shadows, until it shows one of these."""
        panel = self.panel(number)
        panel.wait_for()
        self.page.wait_for_function(
            """([panel, states]) => {
                panel.scrollIntoView({block: 'nearest'});
                return states.includes(panel.dataset.state);
            }""",
            arg=[panel.element_handle(), list(states)],
        )


@contextmanager
def open_app(chromium, folder, *command):
    """Serve an app on a folder, and open it."""
    variables = lab.environment(folder / ".home") | {"XDG_CONFIG_HOME": str(folder / ".home")}
    served = lab.serve([sys.executable, "-m", *command], folder, variables)
    with (
        served as address,
        lab.open_address(chromium, address, WIDTH, HEIGHT, kind=AppPage) as page,
    ):
        page.folder = folder
        yield page


def turn(page):
    """Turn a stage up with the keyboard until so many of its calls run at once."""
    page.wait_state("running")
    page.hold("slow")
    for _ in range(10):
        page.page.keyboard.press("ArrowUp")
    page.wait_value(page.number("slow"), 12)
    (page.folder / "meet").touch()
    page.wait_file("meet-met")


def write_app(path, *cells):
    """Write a notebook of marimo."""
    text = "".join(CELL.format(indent(cell, "    ")) for cell in cells)
    path.write_text(f"import marimo\n\napp = marimo.App()\n{text}")


def test_voila(chromium, tmp_path):
    """A panel and plain controls act; a pipeline is a table; JupyterLab's extension is mute."""
    setup = SETUP + 'meet = "meet"' + MEETING
    write_notebook(tmp_path / "app.ipynb", setup, PIPE + TRAIN, "run.controls()", "pipe")
    with open_app(chromium, tmp_path, "voila", "--no-browser", "app.ipynb") as page:
        turn(page)
        page.page.locator(".widget-button", has_text="Pause").click()
        page.wait_state("paused")
        page.page.locator(".nbpipe-table").wait_for()
        offered = page.button("start", number=1).count()
        ours = [error for error in page.errors if "nbpipe" in error]
    assert (offered, ours) == (0, [])


def test_marimo_app(chromium, tmp_path):
    """Beside `run.train` the panel acts; nothing is loaded from afar."""
    write_app(tmp_path / "app.py", SETUP + 'meet = "meet"' + MEETING + PIPE + TRAIN)
    with open_app(chromium, tmp_path, "marimo", "run", *HEADLESS, "app.py") as page:
        turn(page)
        page.button("pause").click()
        page.wait_state("paused")
        told = page.errors, page.asked_abroad
    assert told == ([], [])


def test_marimo_notebook(chromium, tmp_path):
    """A line says when the panel answers: it does once a cell that iterates is done."""
    write_app(tmp_path / "notebook.py", SETUP + PIPE + "run", "times = training(run, 'stop')")
    (tmp_path / "pyproject.toml").write_text(OPENS)
    with open_app(chromium, tmp_path, *EDIT, "notebook.py") as page:
        page.page.get_by_text(LINE).wait_for()
        (tmp_path / "stop").touch()
        page.wait_state("cancelled")
        page.hold("slow")
        page.page.keyboard.press("ArrowUp")
        page.wait_value(page.number("slow"), 3)
        told = page.errors, page.asked_abroad
    assert told == ([], [])
