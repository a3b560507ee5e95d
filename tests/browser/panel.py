"""A run's panel in a page: what a person sees of it and does with it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, expect

from tests.browser.lab import CELL_MS, NotebookPage

POLL_MS = 50
WIDTH, HEIGHT = 1100, 900  # of a page [px]
# Cells of the tests' notebooks. A training cell goes on until the file `stop` is there.
SETUP = """
import threading, time
from pathlib import Path
import nbpipe

def slow(x):
    time.sleep(0.02)
    return x

def training(run, name):
    times = []
    for item in run:
        times.append(time.time())
        if Path(name).exists():
            break
    return times
"""
# A run with a stage that can be made faster; and one that is shown.
PIPE = """
pipe = nbpipe.source(range(10**9)).map(slow, concurrency=2)
run = pipe.start()
"""
RUN = PIPE + "run\n"
# A stage that notes when twelve of its calls run at once. Once the file `meet` is there, they wait
# for one another until that is so: where no more than eleven may run, none of them ever ends.
MEETING = """
inside, changed, met = set(), threading.Lock(), threading.Event()

def slow(x):
    with changed:
        inside.add(x)
        if len(inside) == 12:
            met.set()
            Path(meet + "-met").touch()
    if Path(meet).exists():
        met.wait()
    time.sleep(0.02)
    with changed:
        inside.remove(x)
    return x
"""
# By bar and part, the share [%] that is drawn, that is meant and that is said in words.
MEASURE = """panel => [...panel.querySelectorAll('[role=img].nbp-shares')].map(bar => {
    const whole = bar.getBoundingClientRect().width;
    const said = [...bar.getAttribute('aria-label').matchAll(/(\\d+)%/g)].map(m => +m[1]);
    return [...bar.children].map((part, place) => ({
        drawn: 100 * part.getBoundingClientRect().width / whole,
        meant: parseFloat(part.style.width),
        said: said[place] ?? 0,
    }));
})"""


# Whether a key was meant for a number that had lost the focus: a page that is loaded again gives it
# to the notebook when that is there.
LOST = """([number, value, count]) => {
    const asks = one => one.out && one.op === 'set';
    if (number.value !== value || window.wire.slice(count).some(asks)) return 'heard';
    return number.getRootNode().activeElement !== number && 'lost';
}"""


class PanelPage(NotebookPage):
    """A notebook with a panel.

    Attributes:
        root: finds panels; the buttons of a pipeline are in one, too.
    """

    root = ".nbpipe-panel"
    folder: Path
    name: str
    reopen: Callable[[], "PanelPage"]

    def panel(self, number: int = 0) -> Locator:
        """Find a panel."""
        return self.page.locator(self.root).nth(number)

    def state(self, number: int = 0) -> str:
        """Return the state that a panel shows."""
        return self.panel(number).get_attribute("data-state") or ""

    def wait_state(self, *states: str, number: int = 0) -> None:
        """Look at a panel, which is not drawn out of sight, until it shows one of these states."""
        self.page.wait_for_function(
            """([root, number, states]) => {
                const panel = document.querySelectorAll(root)[number];
                panel?.scrollIntoView({block: 'nearest'});
                return states.includes(panel?.dataset.state);
            }""",
            arg=[self.root, number, list(states)],
            timeout=CELL_MS,
        )

    def stage(self, name: str, number: int = 0) -> Locator:
        """Find a stage's row."""
        return self.panel(number).locator(f"[data-stage={json.dumps(name)}]").first

    def number(self, stage: str, knob: str = "concurrency", number: int = 0) -> Locator:
        """Find the number of a stepper."""
        return self.stage(stage, number).locator(f"input[type=number][data-knob={knob}]")

    def button(self, op: str, number: int = 0) -> Locator:
        """Find a button."""
        return self.panel(number).locator(f"button[data-op={op}]")

    def field(self, name: str, number: int = 0) -> Locator:
        """Find a field of the panel's head."""
        return self.panel(number).locator(f"[data-field={name}]").first

    def bars(self, number: int = 0) -> list[list[dict[str, float]]]:
        """Measure the bars of a panel: what each part is drawn as and what it is said to be [%]."""
        found: list[list[dict[str, float]]] = self.panel(number).evaluate(MEASURE)
        return found

    def step(self, stage: str, knob: str = "concurrency", sign: str = "+") -> Locator:
        """Find a button of a stage's stepper."""
        stepper = self.stage(stage).locator(f".nbp-knob[data-name={knob}]")
        return stepper.locator("button", has_text=sign)

    def open_row(self, stage: str) -> None:
        """Show what is behind the arrow of a stage's row."""
        self.stage(stage).locator("button.nbp-open").click()

    def hold(self, stage: str, number: int = 0) -> None:
        """Give a stage's number the focus, which it takes once the kernel has greeted the panel."""
        field = self.number(stage, number=number)
        expect(field).to_be_enabled(timeout=CELL_MS)
        field.focus()

    def nudge(self, stage: str, number: int = 0) -> None:
        """Move a stage's concurrency up by one with the keyboard; wait for the kernel's word."""
        self.hold(stage, number)
        field = self.number(stage, number=number).element_handle()
        before = field.evaluate("input => [input.value, window.wire.length]")
        self.page.keyboard.press("ArrowUp")
        while self.page.wait_for_function(LOST, arg=[field, *before]).json_value() == "lost":
            field.focus()
            self.page.keyboard.press("ArrowUp")
        self.wait_acks(1)

    def finish(self, index: int, flag: str) -> None:
        """Let a training cell end, and wait until it has."""
        (self.folder / flag).touch()
        self.wait_ran(index)

    def wait_file(self, name: str) -> None:
        """Wait until a cell has made a file; the page goes on meanwhile."""
        left_ms = CELL_MS
        while not (self.folder / name).exists():
            assert left_ms > 0, f"no cell made {name}"
            self.page.wait_for_timeout(POLL_MS)
            left_ms -= POLL_MS

    def wait_value(self, locator: Locator, value: int) -> None:
        """Look at a control until it shows a value."""
        handle = locator.element_handle()
        self.page.wait_for_function(
            """([input, value]) => {
                input.scrollIntoView({block: 'nearest'});
                return input.value === value;
            }""",
            arg=[handle, str(value)],
            timeout=CELL_MS,
        )

    def wait_text(self, locator: Locator, text: str, *, differs: bool = False) -> str:
        """Wait until a part of the panel says `text`, or something else; return what it says."""
        handle = locator.element_handle()
        said = self.page.wait_for_function(
            """([part, text, differs]) =>
                (part.innerText === text) !== differs && part.innerText""",
            arg=[handle, text, differs],
            timeout=CELL_MS,
        )
        return str(said.json_value())

    def wire(self) -> list[dict[str, Any]]:
        """Return what the panel's messages were, each with the time [ms] and its direction."""
        return list(self.page.evaluate("window.wire"))

    def wait_acks(self, count: int) -> list[float]:
        """Wait for so many acknowledgements of sets; return how long each took [ms]."""
        self.page.wait_for_function(
            """count => {
                const acked = new Set(window.wire.filter(m => !m.out).map(m => m.id));
                return window.wire.filter(m => m.out && m.op === 'set' && acked.has(m.id)).length
                    >= count;
            }""",
            arg=count,
            timeout=CELL_MS,
        )
        wire = self.wire()
        acked = {m["id"]: m["at"] for m in wire if not m["out"]}
        sets = [m for m in wire if m["out"] and m["op"] == "set" and m["id"] in acked]
        return [acked[m["id"]] - m["at"] for m in sets]


class Desk:
    """A page of JupyterLab for the notebooks of many tests, one after the other.

    Args:
        open_page: opens one; called again where a test has spoilt the last.
        kernels: ids of those that no notebook has.
    """

    def __init__(self, open_page: Callable[[], PanelPage], kernels: list[str]) -> None:
        self._open_page = open_page
        self._kernels = kernels
        self._page: PanelPage | None = None
        self._fresh = False
        self.taken = False

    def open(self, name: str, width: int, *, fresh: bool) -> PanelPage:
        """Open a notebook; `fresh`: with a kernel of its own."""
        if self._page is None:
            self._page = self._open_page()
        page, self._fresh, self.taken = self._page, fresh, True
        page.page.set_viewport_size({"width": width, "height": HEIGHT})
        page.open(name, self._kernels.pop() if self._kernels and not fresh else None)
        return page

    def leave(self) -> None:
        """Close the notebook; what cannot serve another one is not used again."""
        page, self._page, self.taken = self._page, None, False
        assert page is not None
        kernel, usable = page.leave(keep=not self._fresh)
        if kernel is not None:
            self._kernels.append(kernel)
        if usable:
            self._page = page


def convert(notebook: Path) -> Path:
    """Convert a notebook to HTML; return the file."""
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(notebook)]
    subprocess.run(command, check=True, capture_output=True)
    return notebook.with_suffix(".html")


def train(flag):
    """Give a cell that trains until the file `flag` is there."""
    return f"times = training(run, {flag!r}); print('trained')"


def start(page):
    """Run the first two cells and start the third, which trains."""
    page.run_cells(0, 1)
    page.panel().wait_for()
    page.start_cell(2)
    page.wait_state("running")
