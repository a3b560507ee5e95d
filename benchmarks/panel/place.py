"""Place: a JupyterLab, a browser, and notebooks in it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.browser.panel import PanelPage
from tests.ipynb import write_notebook

from .cells import SETUP

SETTLE_S = 1.5  # after a view was opened or closed
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the measurements are taken, and how long each takes."""

    browser: Browser
    address: str
    folder: Path
    rounds: int
    window_s: float
    presses: int

    @contextmanager
    def page(self, script: str, *cells: str) -> Iterator[PanelPage]:
        """Open a new notebook of these cells, the first of them run, in a page of its own."""
        name = f"{uuid.uuid4().hex}.ipynb"
        write_notebook(self.folder / name, SETUP, *cells)
        root, _, token = self.address.partition("/lab")
        context = self.browser.new_context(viewport={"width": 1280, "height": 900})
        try:
            context.add_init_script(f"window.wire = []; {script}")  # `PanelPage` asks for it
            query = token.partition("?")[2]
            url = f"{root}/lab/workspaces/{uuid.uuid4().hex}?{query}"
            page = PanelPage(context.new_page(), url)
            page.open(name)
            page.folder, page.name = self.folder, name
            page.run_cell(0)
            yield page
            page.shut_down()
        finally:
            context.close()

    def processes(self) -> dict[str, list[int]]:
        """Give the ids of Chromium's processes by kind."""
        session = self.browser.new_browser_cdp_session()
        found: dict[str, list[int]] = {}
        for one in session.send("SystemInfo.getProcessInfo")["processInfo"]:
            found.setdefault(one["type"], []).append(one["id"])
        session.detach()
        return found


def look(page: PanelPage, state: str) -> None:
    """Make the browser's tab "visible" or "hidden": the panel's view opens or closes."""
    page.page.evaluate(
        "look => { window.look = look; document.dispatchEvent(new Event('visibilitychange')); }",
        state,
    )
    time.sleep(SETTLE_S)


def train(page: PanelPage, index: int) -> None:
    """Show the run, and start the cell that iterates it."""
    page.run_cell(index)
    page.panel().scroll_into_view_if_needed()
    page.start_cell(index + 1)
    time.sleep(SETTLE_S)


def end(page: PanelPage, name: str) -> list[Any]:
    """End a training cell; give its log."""
    flag, log = page.folder / f"{name}.stop", page.folder / f"{name}.json"
    flag.touch()
    until_s = time.monotonic() + PATIENCE_S
    while not log.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the cell wrote no {log.name}")
        time.sleep(0.05)
    rows: list[Any] = json.loads(log.read_text())
    flag.unlink()
    log.unlink()
    return rows


def cpu_s(processes: Sequence[int]) -> float:
    """Return what processes have used of the processor; on Linux alone [s]."""
    return sum(time.clock_gettime((~process << 3) | 2) for process in processes)
