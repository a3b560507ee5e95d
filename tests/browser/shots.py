"""Take the README's pictures: python -m tests.browser.shots [FOLDER]."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.lab import QUICKSTART, ROOT, open_chromium, open_notebook

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def take(browser: Browser, name: str, folder: Path) -> None:
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


def main(folder: Path) -> None:
    """Take the picture in every theme."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_chromium() as browser:
        for name in THEMES:
            take(browser, name, folder)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or [ROOT / "docs" / "images"]))
