"""JupyterLab as `make lab` starts it, opened in the system's Chromium."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"
START_S = 240
CELL_MS = 150_000  # on a crowded machine, a cell or anything else that a page waits for
# What makes a kernel as good as new for the next notebook; what was imported stays.
EMPTY = """
get_ipython().reset(new_session=True)
import gc, ipywidgets
ipywidgets.Widget.close_all()
gc.collect()
"""
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
def serve_lab(
    folder: Path,
    *,
    theme: str = "JupyterLab Light",
    python: str | Path = sys.executable,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Start JupyterLab on a folder, its settings in it; yield the address, then end it.

    Args:
        folder: where its notebooks are.
        theme: of the page.
        python: what it and its kernels run in.
        variables: more of the environment.
    """
    home = folder / ".lab"
    write_settings(home, theme)
    command = [str(python), "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", "--expose-app-in-browser"]
    command += ["--JupyterNotebookApp.expose_app_in_browser=True"]
    with serve(command, folder, environment(home) | variables, path="/lab") as address:
        yield address


@contextmanager
def serve(
    command: list[str], folder: Path, variables: Mapping[str, str], *, path: str = ""
) -> Iterator[str]:
    """Start a server of pages; yield the address that it logs, then end it.

    Args:
        command: starts it.
        folder: in which.
        variables: its environment.
        path: what the address goes on with behind the port.
    """
    server = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    log = ServerLog(server, path)
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


# Notes the panel's messages on the page's web sockets, with the time.
WIRE = r"""
window.wire = [];
const note = (data, out) => {
  const text = typeof data === 'string' ? data : new TextDecoder().decode(data);
  const asked = /"op":\s*"(\w+)"[^{}]*"id":\s*(\d+)|"id":\s*(\d+)[^{}]*"op":\s*"(\w+)"/.exec(text);
  const acked = /"type":\s*"ack",\s*"id":\s*(\d+)/.exec(text);
  const at = performance.now();
  if (out && asked) {
    window.wire.push({out, at, op: asked[1] ?? asked[4], id: +(asked[2] ?? asked[3])});
  }
  if (!out && acked) window.wire.push({out, at, op: 'ack', id: +acked[1]});
};
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (data) {
  if (!this.noted) {
    this.noted = true;
    this.addEventListener('message', event => note(event.data, false));
  }
  note(data, true);
  return send.call(this, data);
};
"""


class ServerLog:
    """Reads what a server logs, until it ends: the address is in it, and why it failed."""

    def __init__(self, server: subprocess.Popen[str], path: str) -> None:
        self._server = server
        self._pattern = re.compile(rf"http://(localhost|127\.0\.0\.1):\d+{path}\S*")
        self._lines: list[str] = []
        self._address: str | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, name="lab-log")
        self._thread.start()

    def _read(self) -> None:
        for line in self._server.stdout:
            self._lines.append(line)
            found = self._pattern.search(line)
            if found and not self._address:
                self._address = found[0]
                self._ready.set()
        self._ready.set()

    def wait_address(self) -> str:
        """Wait until the server has said its address, and listens there."""
        end = time.monotonic() + START_S
        self._ready.wait(START_S)
        while self._address and time.monotonic() < end:  # it says it first
            where = urlsplit(self._address)
            with suppress(OSError), socket.create_connection((where.hostname, where.port)):
                return self._address
            time.sleep(0.05)
        raise RuntimeError("the server did not start:\n" + "".join(self._lines[-20:]))

    def close(self) -> None:
        """Wait for the end of the log."""
        self._thread.join()
        self._server.stdout.close()


class NotebookPage:
    """A notebook open in JupyterLab in a page of the browser."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._is_reloaded = False
        page.set_default_timeout(CELL_MS)
        page.goto(address)
        self._wait_restored()
        self._run("app.shell.collapseLeft?.()")

    def _wait_restored(self) -> None:
        """Wait until the page has everything that it had before it was loaded."""
        self.page.wait_for_function("window.jupyterapp")
        self._run("await app.restored")

    def open(self, name: str, kernel: str | None = None) -> None:
        """Open a notebook, with the kernel of this id or with one of its own."""
        self._run(
            """window.wire.length = 0;
            const given = kernel ? {kernel: {id: kernel}} : {};
            await app.commands.execute('docmanager:open',
                {path: name, factory: 'Notebook', ...given})""",
            name=name,
            kernel=kernel,
        )
        self.wait_ready()

    def leave(self, *, keep: bool) -> tuple[str | None, bool]:
        """Close the notebook.

        Args:
            keep: its kernel may serve another notebook; else it is ended.

        Returns:
            The id of the kernel, emptied, or None; and whether the page may show another notebook.
        """
        kernel, asks = self._run(
            """const kernel = panel.sessionContext.session?.kernel;
            const idle = async () => {
                for (let left = 100; kernel.status !== 'idle' && left; left -= 1) {
                    await new Promise(then => setTimeout(then, 50));
                }
                return kernel.status === 'idle';
            };
            const emptied = async () => {  // a cell of a failed test may run for ever
                const future = kernel.requestExecute({code, silent: true, store_history: false});
                const late = new Promise(then => setTimeout(then, ms, null));
                return await Promise.race([future.done, late]) !== null;
            };
            let kept = null;
            if (kernel && keep && await idle() && await emptied()) {
                kept = kernel.id;
            } else if (kernel) {
                await panel.sessionContext.shutdown();
            }
            panel.dispose();
            return [kept, document.querySelector('.jp-Dialog') !== null]""",
            keep=keep,
            code=EMPTY,
            ms=CELL_MS // 2,
        )
        # JupyterLab may yet bring to the front, once more, what the address names.
        return kernel, not asks and not self._is_reloaded

    def wait_ready(self) -> None:
        """Wait until the notebook is open and has its kernel."""
        self.page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.content?.widgets?.length"
        )
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

    def shut_down(self) -> None:
        """End the notebook's kernel."""
        self._run("await panel.sessionContext.shutdown()")

    def restart(self, *, clears: bool = True) -> None:
        """Start the kernel anew, and clear what the cells gave."""
        self._run("await panel.sessionContext.restartKernel()")
        if clears:
            self.command("notebook:clear-all-cell-outputs")
        self.wait_idle()

    def reload(self) -> None:
        """Load the page again, as a person does in mid-epoch; the same notebook is in front."""
        path = self._run("return panel.context.path")
        self.page.reload()
        self._is_reloaded = True
        self._wait_restored()
        self._run("await app.commands.execute('docmanager:open', {path})", path=path)
        self.wait_ready()

    def save(self) -> None:
        """Save the notebook."""
        self.command("docmanager:save")

    def command(self, name: str) -> None:
        """Execute a command of JupyterLab, and wait until it is done."""
        self._run("await app.commands.execute(name)", name=name)

    def run_all(self) -> None:
        """Run all cells, and wait until they are done and the kernel is idle."""
        self.command("notebook:run-all-cells")
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until the kernel is idle."""
        self.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
        )

    def start_cell(self, index: int) -> None:
        """Send a cell to the kernel, and do not wait for it.

        JupyterLab asks the kernel for a subshell with the first widget that it is told of; what a
        widget says before that is there waits for the end of the cell, so it is waited for.
        """
        self._run(
            """const kernel = panel.sessionContext.session?.kernel;
            const comms = kernel?.supportsSubshells ? [...kernel._comms.values()] : [];
            const late = new Promise(then => setTimeout(then, ms));
            await Promise.race([late, Promise.all(comms.map(comm => comm.subshellStarted))]);
            panel.content.activeCellIndex = index;
            panel.content.deselectAll();
            void app.commands.execute('notebook:run-cell')""",
            index=index,
            ms=CELL_MS,
        )

    def run_cell(self, index: int) -> None:
        """Run a cell to its end, with whatever was queued before it."""
        before = self.cell(index)["execution_count"]
        self.start_cell(index)
        self.wait_ran(index, after=before)

    def run_cells(self, *indices: int) -> None:
        """Run cells to their end, one after the other."""
        for index in indices:
            self.run_cell(index)

    def wait_ran(self, index: int, *, after: int | None = None) -> None:
        """Wait until a cell has run, again after execution `after`."""
        self.page.wait_for_function(
            """([index, before]) => {
                const model = window.jupyterapp.shell.currentWidget.content.widgets[index].model;
                return model.executionState !== 'running' && model.executionCount !== null
                    && model.executionCount !== before;
            }""",
            arg=[index, after],
            timeout=CELL_MS,
        )

    def is_running(self, index: int) -> bool:
        """Return whether a cell runs, or waits to."""
        return self._run(
            "return panel.content.widgets[index].model.executionState === 'running'", index=index
        )

    def cell(self, index: int) -> dict[str, Any]:
        """Return a cell as the notebook format has it, with its outputs."""
        return self._run("return panel.content.model.toJSON().cells[index]", index=index)

    def said(self, index: int) -> str:
        """Return what a cell printed, and the name of its error."""
        return "".join(
            "".join(output.get("text", "")) + output.get("ename", "")
            for output in self.cell(index)["outputs"]
        )

    def wait_said(self, index: int, text: str) -> None:
        """Wait until a cell printed `text`."""
        self.page.wait_for_function(
            """([index, text]) => window.jupyterapp.shell.currentWidget.content.model.toJSON()
                .cells[index].outputs.some(output => [output.text ?? ''].flat().join('')
                .includes(text))""",
            arg=[index, text],
            timeout=CELL_MS,
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

    def show_cell(self, index: int) -> None:
        """Scroll to a cell."""
        self._run(
            """panel.content.activeCellIndex = index;
            await panel.content.scrollToItem(index, 'start')""",
            index=index,
        )

    def sources(self) -> list[str]:
        """Return the source of every cell."""
        return self._run(
            "return panel.content.model.toJSON().cells.map(c => [c.source].flat().join(''))"
        )

    def replace(self, index: int, source: str) -> None:
        """Write another source into a cell."""
        self._run(
            "panel.content.widgets[index].model.sharedModel.setSource(source)",
            index=index,
            source=source,
        )

    def code_cells(self) -> list[dict[str, Any]]:
        """Return the code cells as the notebook format has them, with their outputs."""
        return self._run(
            "return panel.content.model.toJSON().cells.filter(c => c.cell_type === 'code')"
        )


Opened = TypeVar("Opened", bound=NotebookPage)


@contextmanager
def open_page(
    browser: Browser,
    address: str,
    *,
    width: int = 1280,
    height: int = 900,
    scale: float = 1,
    kind: type[Opened] = NotebookPage,
    alone: str = "",
) -> Iterator[Opened]:
    """Open a JupyterLab that runs, in a workspace and a page of its own.

    Args:
        browser: in which.
        address: of the JupyterLab.
        width: of the page [px].
        height: of the page [px].
        scale: dots of a pixel's side.
        kind: what drives it.
        alone: a notebook that Notebook 7 is to show, in the place of JupyterLab.
    """
    root, _, token = address.partition("/lab")
    token = token.partition("?")[2]
    path = f"notebooks/{alone}" if alone else f"lab/workspaces/{uuid.uuid4().hex}"
    address = f"{root}/{path}?{token}"
    with open_address(browser, address, width, height, scale=scale, kind=kind) as opened:
        yield opened


@contextmanager
def open_address(
    browser: Browser,
    address: str,
    width: int,
    height: int,
    *,
    scale: float = 1,
    kind: type[Opened] = NotebookPage,
) -> Iterator[Opened]:
    """Open an address in a page of its own, its messages noted, and close it."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale
    )
    try:
        context.add_init_script(WIRE)
        yield kind(context.new_page(), address)
    finally:
        context.close()


@contextmanager
def open_notebook(
    browser: Browser,
    source: Path,
    folder: Path,
    *,
    theme: str = "JupyterLab Light",
    kind: type[Opened] = NotebookPage,
    scale: float = 2,
    **size: int,
) -> Iterator[Opened]:
    """Open `source` and the modules beside it, copied to `folder`, in a JupyterLab of its own."""
    for module in source.parent.glob("*.py"):
        shutil.copy(module, folder)
    notebook = Path(shutil.copy(source, folder))
    with (
        serve_lab(folder, theme=theme) as address,
        open_page(browser, address, scale=scale, kind=kind, **size) as page,
    ):
        page.open(notebook.name)
        page.command("notebook:clear-all-cell-outputs")  # stored ones, and their numbers
        yield page
