"""Take the README's pictures: python -m tests.browser.shots [FOLDER]."""

import re
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.lab import QUICKSTART, ROOT, open_chromium, open_notebook
from tests.browser.panel import PanelPage

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
LIVE = ROOT / "notebooks" / "02_live.ipynb"
WATCH_MS = 5000  # so long the panel is watched before and after the slider moves


def take_quickstart(browser: Browser, name: str, folder: Path) -> None:
    """Run the quickstart in a theme, and picture it with the pipeline's table at the top."""
    with (
        tempfile.TemporaryDirectory() as empty,
        open_notebook(browser, QUICKSTART, Path(empty), theme=THEMES[name]) as notebook,
    ):
        notebook.command("application:toggle-left-area")
        notebook.run_all()
        notebook.show_output("nbpipe-table")
        notebook.page.locator(".nbpipe-table:visible").first.wait_for()
        notebook.page.screenshot(path=folder / f"quickstart-{name}.png")


def take_panel(browser: Browser, name: str, folder: Path) -> None:
    """Train as the second notebook does, move a slider, and picture the panel meanwhile."""
    with (
        tempfile.TemporaryDirectory() as empty,
        open_notebook(
            browser, LIVE, Path(empty), theme=THEMES[name], kind=PanelPage, height=1000
        ) as notebook,
    ):
        notebook.command("application:toggle-left-area")
        sources = notebook.sources()
        trains = next(n for n, source in enumerate(sources) if source.startswith("train("))
        for index, source in enumerate(sources[:trains]):
            if notebook.cell(index)["cell_type"] == "code":
                notebook.replace(index, re.sub(r"^seconds = \d+", "seconds = 600", source))
                notebook.run_cell(index)
        notebook.panel().wait_for()
        notebook.start_cell(trains)
        notebook.wait_state("running")
        notebook.page.wait_for_timeout(WATCH_MS)
        notebook.slider("read").focus()
        for _ in range(6):
            notebook.page.keyboard.press("ArrowRight")
        notebook.page.wait_for_timeout(WATCH_MS)
        notebook.show_cell(trains - 2)
        notebook.page.wait_for_timeout(WATCH_MS)
        notebook.page.screenshot(path=folder / f"panel-{name}.png")
        notebook.button("stop").click()
        notebook.wait_ran(trains)


def main(folder: Path) -> None:
    """Take the pictures in every theme."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_chromium() as browser:
        for name in THEMES:
            take_quickstart(browser, name, folder)
            take_panel(browser, name, folder)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or [ROOT / "docs" / "images"]))
