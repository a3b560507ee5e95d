"""JupyterLab as `make lab` starts it, opened in the system's Chromium."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"
START_S = 60
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NO_CHROMIUM = (
    "no Chromium found; type: apt-get update && apt-get install -y chromium "
    "(or set NBPIPE_CHROMIUM=/path/to/one)"
)


def find_chromium() -> str:
    """Return the path of the system's Chromium; raise with the line to type if there is none."""
    given = os.environ.get("NBPIPE_CHROMIUM")
    for name in (given,) if given else CHROMIUM_NAMES:
        path = shutil.which(name)
        if path:
            return path
    raise FileNotFoundError(NO_CHROMIUM)


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Open a headless Chromium, and close it."""
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=list(CHROMIUM_FLAGS),
            # playwright's own headless switch asks for a browser of its own
            ignore_default_args=["--headless"],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serve_lab(notebook: Path, *, theme: str = "JupyterLab Light") -> Iterator[str]:
    """Start JupyterLab on `notebook`, its settings beside it; yield the address, then end it."""
    home = notebook.parent / ".lab"
    write_settings(home, theme)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--LabApp.default_url=/lab/tree/{notebook.name}"]
    command += ["--ServerApp.port=0", "--expose-app-in-browser"]
    server = subprocess.Popen(
        command,
        cwd=notebook.parent,
        env=environment(home),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    log = ServerLog(server)
    try:
        yield log.wait_address()
    finally:
        server.terminate()
        try:
            server.wait(START_S)
        finally:
            server.kill()
            log.close()


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which nothing of the user's Jupyter is read or written."""
    folders = {
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return os.environ | {name: str(home / folder) for name, folder in folders.items()}


def write_settings(home: Path, theme: str) -> None:
    """Set the theme, and have JupyterLab ask nothing."""
    folder = home / "settings" / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (folder / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    (folder / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))


class ServerLog:
    """Reads what a server logs, until it ends: the address is in it, and why it failed."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server
        self._lines: list[str] = []
        self._address: str | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, name="lab-log")
        self._thread.start()

    def _read(self) -> None:
        for line in self._server.stderr:
            self._lines.append(line)
            found = re.search(r"http://(localhost|127\.0\.0\.1):\d+/lab\S*", line)
            if found and not self._address:
                self._address = found[0]
                self._ready.set()
        self._ready.set()

    def wait_address(self) -> str:
        """Wait until the server has said its address."""
        self._ready.wait(START_S)
        if self._address is None:
            raise RuntimeError("JupyterLab did not start:\n" + "".join(self._lines[-20:]))
        return self._address

    def close(self) -> None:
        """Wait for the end of the log."""
        self._thread.join()
        self._server.stderr.close()


class NotebookPage:
    """A notebook open in JupyterLab in a page of the browser."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        page.goto(address)
        page.wait_for_function("window.jupyterapp?.shell.currentWidget?.content?.widgets")
        self._run("await panel.context.ready; await panel.context.sessionContext.ready")

    def _run(self, script: str, **values: Any) -> Any:
        """Run JavaScript that sees the Lab's `app`, the notebook's `panel` and `values`."""
        names = ", ".join(values)
        return self.page.evaluate(
            f"""async ({{{names}}}) => {{
                const app = window.jupyterapp;
                const panel = app.shell.currentWidget;
                {script}
            }}""",
            values,
        )

    def command(self, name: str) -> None:
        """Execute a command of JupyterLab, and wait until it is done."""
        self._run("await app.commands.execute(name)", name=name)

    def run_all(self) -> None:
        """Run all cells, and wait until they are done and the kernel is idle."""
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
        )

    def show_output(self, text: str) -> bool:
        """Scroll to the first cell with `text` in an HTML output; tell whether there is one."""
        index = self._run(
            """return panel.content.model.toJSON().cells.findIndex(cell =>
                (cell.outputs ?? []).some(output =>
                    [output.data?.['text/html'] ?? ''].flat().join('').includes(text)))""",
            text=text,
        )
        if index >= 0:
            self._run(
                """panel.content.activeCellIndex = index;
                await panel.content.scrollToItem(index, 'start')""",
                index=index,
            )
        return index >= 0

    def code_cells(self) -> list[dict[str, Any]]:
        """Return the code cells as the notebook format has them, with their outputs."""
        return self._run(
            "return panel.content.model.toJSON().cells.filter(c => c.cell_type === 'code')"
        )


@contextmanager
def open_notebook(
    browser: Browser, source: Path, folder: Path, *, theme: str = "JupyterLab Light"
) -> Iterator[NotebookPage]:
    """Open `source` and the modules beside it, copied to `folder`, in a JupyterLab of its own."""
    for module in source.parent.glob("*.py"):
        shutil.copy(module, folder)
    notebook = Path(shutil.copy(source, folder))
    with serve_lab(notebook, theme=theme) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
        try:
            yield NotebookPage(page, address)
        finally:
            page.close()
