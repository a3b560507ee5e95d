"""Take the pictures of pages and notebooks: python -m tests.browser.shots [FOLDER] [NAME...]."""

import io
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import Browser

from tests.browser.lab import CELL_MS, QUICKSTART, ROOT, open_chromium, open_notebook
from tests.browser.panel import PanelPage
from tests.ipynb import write_notebook

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
LIVE = ROOT / "notebooks" / "02_live.ipynb"
PROCESSES = ROOT / "notebooks" / "03_processes.ipynb"
EXPORT = ROOT / "notebooks" / "04_export.ipynb"
TRAINING = ROOT / "notebooks" / "05_training.ipynb"
AUTOTUNE = ROOT / "notebooks" / "06_autotune.ipynb"
WATCH_MS = 5000  # so long the panel is watched before and after the knob is turned
# The moving picture: of the panel and of the cell below it, which trains.
FRAME_MS, FRAMES, FIRST_TURN, TURNS = 500, 28, 8, 6
SIDEBAR_WIDTH, SIDEBAR_HEIGHT = 1340, 920
MOVING_WIDTH, MOVING_HEIGHT, COLOURS = 1100, 560, 96
LONG = """
chain = files.repeat(100).map(read, concurrency=2)
pipe = chain.map(decode).map(augment).batch(16)
"""
SECOND = """validation = files.map(read, concurrency=4).map(decode).batch(32).start()
held_out = list(validation)"""
LOOP = "for batch in run:  # this cell is busy until it ends\n    step(batch)"


class RunPage(PanelPage):
    """A notebook with panels of runs, and with pipelines, of whose buttons nothing is asked."""

    root = ".nbpipe-panel[aria-label='nbpipe run']"


@contextmanager
def opened(
    browser: Browser, path: Path, theme: str, *, scale: float = 2, **size: int
) -> Iterator[PanelPage]:
    """Open a notebook with its panel, and close it."""
    with (
        tempfile.TemporaryDirectory() as empty,
        open_notebook(
            browser, path, Path(empty), theme=THEMES[theme], kind=RunPage, scale=scale, **size
        ) as notebook,
    ):
        notebook.page.evaluate("window.jupyterapp.shell.collapseLeft()")
        yield notebook


def run_until(notebook: PanelPage, beginning: str) -> int:
    """Run all cells before the one that begins so, start that, and return its place."""
    sources = notebook.sources()
    last = next(n for n, source in enumerate(sources) if source.startswith(beginning))
    for index, source in enumerate(sources[:last]):
        if notebook.cell(index)["cell_type"] == "code":
            notebook.replace(index, re.sub(r"(?m)^seconds = .*", "seconds = 600", source))
            notebook.run_cell(index)
    notebook.panel().wait_for()
    notebook.start_cell(last)
    notebook.wait_state("running")
    notebook.page.wait_for_timeout(WATCH_MS)
    return last


def keep_chart_closed(notebook: PanelPage) -> None:
    """Open the chart and close it, so that it does not open by itself: the cell has its room."""
    for _ in range(2):
        notebook.panel().locator(".nbp-chart > summary").click()


def wait_advice(notebook: PanelPage, op: str) -> None:
    """Wait until the verdict has a button: other programs may use the cores for a while."""
    notebook.button(op).wait_for(timeout=CELL_MS)


def take_alone(
    browser: Browser, path: Path, beginning: str, name: str, file: Path, *, op: str = ""
) -> None:
    """Picture the panel alone, in a theme, while a cell of a notebook iterates.

    Args:
        browser: takes it.
        path: of the notebook.
        beginning: of the cell that iterates.
        name: of the theme.
        file: of the picture.
        op: of the button that the verdict shows there; without one, some time passes.
    """
    with opened(browser, path, name, width=1200, height=1500) as notebook:
        run_until(notebook, beginning)
        if op:
            wait_advice(notebook, op)
        else:
            notebook.page.wait_for_timeout(3 * WATCH_MS)
        notebook.panel().screenshot(path=file)
        notebook.button("stop").click()


def take_output(browser: Browser, path: Path, beginning: str, file: Path) -> None:
    """Picture what the cell of a notebook gives that begins so."""
    with opened(browser, path, "light", width=1100, height=1500) as notebook:
        sources = notebook.sources()
        last = next(n for n, source in enumerate(sources) if source.startswith(beginning))
        for index in range(last + 1):
            if notebook.cell(index)["cell_type"] == "code":
                notebook.run_cell(index)
        notebook.show_cell(last)
        notebook.page.locator(".jp-Cell.jp-mod-active .jp-OutputArea-output").screenshot(path=file)


def take_panel(browser: Browser, name: str, folder: Path) -> None:
    """Train as the second notebook does, turn a knob, and picture the panel meanwhile."""
    with opened(browser, LIVE, name, height=1000) as notebook:
        trains = run_until(notebook, "train(")
        notebook.number("read").focus()
        for _ in range(6):
            notebook.page.keyboard.press("ArrowUp")
        notebook.page.wait_for_timeout(WATCH_MS)
        notebook.show_cell(trains - 1)
        notebook.page.wait_for_timeout(WATCH_MS)
        # its text has a picture of this
        notebook.page.locator(".jp-Cell.jp-mod-active").evaluate("cell => cell.scrollIntoView()")
        notebook.page.wait_for_timeout(FRAME_MS)
        wait_advice(notebook, "apply")
        notebook.page.screenshot(path=folder / f"panel-{name}.png")
        notebook.button("stop").click()
        notebook.wait_ran(trains)


@contextmanager
def long_quickstart(*more: str) -> Iterator[Path]:
    """Write a notebook of three cells and `more` before the last, which trains for long."""
    cells = [one.source for one in nbformat.read(QUICKSTART, 4).cells if one.cell_type == "code"]
    shown = next(n for n, source in enumerate(cells) if source.startswith("run = "))
    setup = "\n\n".join([*cells[:shown], LONG])
    with tempfile.TemporaryDirectory() as own:
        path = write_notebook(Path(own) / "photographs.ipynb", setup, cells[shown], *more, LOOP)
        for one in QUICKSTART.parent.glob("*.py"):
            (path.parent / one.name).write_bytes(one.read_bytes())
        yield path


def take_sidebar(browser: Browser, name: str, folder: Path) -> None:
    """Train beside the sidebar, which lists a second run, and picture panel and sidebar."""
    size = {"width": SIDEBAR_WIDTH, "height": SIDEBAR_HEIGHT}
    with long_quickstart(SECOND) as path, opened(browser, path, name, **size) as notebook:
        notebook.command("nbpipe:show")
        run_until(notebook, LOOP)
        keep_chart_closed(notebook)
        notebook.panel().evaluate("panel => panel.scrollIntoView({block: 'start'})")
        notebook.page.wait_for_timeout(WATCH_MS)
        notebook.page.screenshot(path=folder / f"sidebar-{name}.png")
        notebook.command("nbpipe:stop-all")


def take_moving(browser: Browser, name: str, folder: Path) -> None:
    """Film a knob that is turned while the cell below it trains."""
    with long_quickstart() as path:
        size = {"width": MOVING_WIDTH, "height": MOVING_HEIGHT}
        with opened(browser, path, name, scale=1, **size) as notebook:
            run_until(notebook, LOOP)
            keep_chart_closed(notebook)
            notebook.show_cell(2)
            notebook.number("read").focus()
            notebook.panel().evaluate("panel => panel.scrollIntoView({block: 'start'})")
            frames = []
            for number in range(FRAMES):
                if FIRST_TURN <= number < FIRST_TURN + TURNS:
                    notebook.page.keyboard.press("ArrowUp")
                frames.append(Image.open(io.BytesIO(notebook.page.screenshot())))
                notebook.page.wait_for_timeout(FRAME_MS)
            notebook.button("stop").click()
    save_moving(frames, folder / f"moving-{name}.gif")


def save_moving(frames: list[Image.Image], file: Path) -> None:
    """Write frames as one moving picture, with the colours of its first and last frame."""
    width, height = frames[0].size
    both = Image.new("RGB", (width, 2 * height))
    both.paste(frames[0], (0, 0))
    both.paste(frames[-1], (0, height))
    few = both.quantize(COLOURS)
    small = [one.convert("RGB").quantize(palette=few, dither=Image.Dither.NONE) for one in frames]
    pauses = [FRAME_MS] * (len(small) - 1) + [6 * FRAME_MS]
    small[0].save(file, save_all=True, append_images=small[1:], duration=pauses, loop=0)


def slim(file: Path) -> None:
    """Write a picture with few colours: a panel has no more."""
    picture = Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(file, optimize=True)


def main(folder: Path, wanted: list[str]) -> None:
    """Take the pictures that are wanted, in every theme; all where none is named."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_chromium() as browser:
        if "module" in wanted:
            take_output(browser, EXPORT, 'print(Path("photo_loader.py")', folder / "module.png")
        if "resumed" in wanted:
            take_output(browser, TRAINING, "figure, axis", folder / "resumed.png")
        for name in THEMES:
            if "quickstart" in wanted:
                file = folder / f"quickstart-{name}.png"
                take_alone(browser, QUICKSTART, "train(", name, file, op="apply")
            if "lock" in wanted:
                file = folder / f"lock-{name}.png"
                take_alone(browser, PROCESSES, "threads_per_s", name, file, op="copy-advice")
            if "autotune" in wanted:
                file = folder / f"autotune-{name}.png"
                take_alone(browser, AUTOTUNE, "tuner = run", name, file)
            if "panel" in wanted:
                take_panel(browser, name, folder)
            if "sidebar" in wanted:
                take_sidebar(browser, name, folder)
            if "moving" in wanted:
                take_moving(browser, name, folder)

    for file in folder.glob("*.png"):
        slim(file)


if __name__ == "__main__":
    main(
        Path(*sys.argv[1:2] or [ROOT / "docs" / "images"]),
        sys.argv[2:]
        or ["quickstart", "lock", "module", "resumed", "autotune", "panel", "sidebar", "moving"],
    )
