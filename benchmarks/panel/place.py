"""Place: a JupyterLab, a browser, and notebooks in it."""

from __future__ import annotations

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
            context.add_init_script(script)
            query = token.partition("?")[2]
            url = f"{root}/lab/workspaces/{uuid.uuid4().hex}/tree/{name}?{query}"
            page = PanelPage(context.new_page(), url)
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


def _look(page: PanelPage, state: str) -> None:
    page.page.evaluate(
        "look => { window.look = look; document.dispatchEvent(new Event('visibilitychange')); }",
        state,
    )
    time.sleep(SETTLE_S)


def _train(page: PanelPage, index: int) -> None:
    """Show the run, and start the cell that iterates it."""
    page.run_cell(index)
    page.panel().wait_for()
    page.start_cell(index + 1)
    time.sleep(SETTLE_S)


def _end(page: PanelPage, index: int, name: str) -> list[Any]:
    """End the training cell; give its log."""
    page.finish(index, f"{name}.stop")
    rows: list[Any] = json.loads((page.folder / f"{name}.json").read_text())
    return rows


def _cpu_s(processes: Sequence[int]) -> float:
    """Give what processes have used of the processor [s]."""
    try:
        return sum(time.clock_gettime((~process << 3) | 2) for process in processes)
    except OSError:  # this is not Linux, or one has ended
        import psutil

        alive = [process for process in processes if psutil.pid_exists(process)]
        times = [psutil.Process(process).cpu_times() for process in alive]
        return sum(one.user + one.system for one in times)
