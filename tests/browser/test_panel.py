"""The panel acts while a cell trains: every path a person takes, in a real JupyterLab."""

import json

import pytest
from playwright.sync_api import expect

from tests.browser.lab import CELL_MS
from tests.browser.panel import MEETING, PIPE, RUN, SETUP, start, train

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("way", ["keyboard", "mouse", "number"])
def test_concurrency_moves_while_a_cell_trains(open_cells, way):
    """Concurrency is turned in mid-cell: before the cell ends, so many calls run at once."""
    flag, meet = f"stop-{way}", f"meet-{way}"
    page = open_cells(SETUP + f"meet = {meet!r}\n" + MEETING, RUN, train(flag))
    start(page)
    if way == "keyboard":
        page.hold("slow")
        for _ in range(10):
            page.page.keyboard.press("ArrowUp")
    elif way == "mouse":
        for _ in range(10):
            page.step("slow").click()
    else:
        page.number("slow").fill("12")
        page.page.keyboard.press("Enter")
    page.wait_value(page.number("slow"), 12)
    took_ms = page.wait_acks(1)
    (page.folder / meet).touch()
    page.wait_file(f"{meet}-met")
    running = page.is_running(2)
    page.finish(2, flag)
    print(f"{way}: acks took {sorted(took_ms)} ms")
    assert (running, page.said(2)) == (True, "trained\n")


def test_reload_in_mid_epoch(open_cells):
    """A page that is loaded again in mid-epoch has its live panel back before the cell ends."""
    page = open_cells(SETUP, RUN, train("stop-reload"))
    start(page)
    page.save()
    page.reload()
    page.wait_state("running")
    page.nudge("slow")
    value = page.number("slow").input_value()
    (page.folder / "stop-reload").touch()
    page.wait_state("cancelled")
    assert value == "3"


def test_stop_ends_the_loop(open_cells):
    """The stop button ends the epoch, and with it the cell."""
    page = open_cells(SETUP, RUN, train("stop-never") + "; print(run.stopped)")
    start(page)
    page.button("stop").click()
    page.wait_ran(2)
    page.wait_state("stopped")
    assert page.said(2) == "trained\nTrue\n"


def test_pause_and_resume(open_cells):
    """A paused run hands out nothing until it is resumed."""
    page = open_cells(SETUP, RUN, train("stop-pause"))
    start(page)
    page.button("pause").click()
    page.wait_state("paused")
    page.button("resume").click()
    page.wait_state("running")
    page.finish(2, "stop-pause")
    assert page.said(2) == "trained\n"


def test_break_and_run_again(open_cells):
    """After a break the panel says so, and the next loop is live again."""
    page = open_cells(SETUP, RUN, "for item in run:\n    break", train("stop-again"))
    page.run_cells(0, 1, 2)
    page.wait_state("cancelled")
    page.start_cell(3)
    page.wait_state("running")
    page.nudge("slow")
    running = page.is_running(3)
    page.finish(3, "stop-again")
    assert running


def test_same_cell_again_closes_its_run(open_cells):
    """A panel that is still shown says that its run was closed; the new run has one of its own."""
    page = open_cells(SETUP, "run = nbpipe.source(range(9)).start()", "run")
    page.run_cells(0, 1, 2)
    page.panel().wait_for()
    page.run_cell(1)
    page.wait_state("closed")
    page.run_cell(2)
    page.wait_state("ready")
    assert page.page.locator(".nbpipe-panel").count() == 1


def test_two_notebooks_at_once(open_cells):
    """Two notebooks train at once; each panel turns its own run."""
    pages = [open_cells(SETUP, RUN, train(f"stop-two-{n}")) for n in range(2)]
    for page in pages:
        start(page)
    for page, presses in zip(pages, (1, 3), strict=True):
        page.hold("slow")
        for _ in range(presses):
            page.page.keyboard.press("ArrowUp")
    for page, value in zip(pages, (3, 5), strict=True):
        page.wait_value(page.number("slow"), value)
        page.wait_acks(1)
    for number, page in enumerate(pages):
        page.finish(2, f"stop-two-{number}")
    assert [page.number("slow").input_value() for page in pages] == ["3", "5"]


def test_two_panels_of_one_run(open_cells):
    """Both panels of a run follow what is done in one of them."""
    page = open_cells(SETUP, RUN, "run", train("stop-panels"))
    page.run_cells(0, 1, 2)
    page.panel(1).wait_for()
    page.start_cell(3)
    page.wait_state("running", number=1)
    page.nudge("slow")
    page.wait_value(page.number("slow", number=1), 3)
    page.finish(3, "stop-panels")
    assert page.number("slow").input_value() == "3"


def test_training_and_validation_side_by_side(open_cells):
    """Two runs in one loop have a panel each."""
    page = open_cells(
        SETUP,
        "train = nbpipe.source(range(10**9)).map(slow).start(); train",
        "valid = nbpipe.source(range(5)).map(slow).start(); valid",
        "for item in train:\n    list(valid)\n    if Path('stop-side').exists(): break",
    )
    page.run_cells(*range(3))
    page.panel(1).wait_for()
    page.start_cell(3)
    page.wait_state("running")
    page.wait_state("running", "finished", number=1)
    page.nudge("slow", number=1)
    page.finish(3, "stop-side")
    values = [page.number("slow", number=n).input_value() for n in range(2)]
    assert values == ["1", "2"]


def test_refused_value_is_shown(open_cells):
    """A value out of range shows the rule beside the control, which goes back."""
    page = open_cells(SETUP, RUN, train("stop-refused"))
    start(page)
    page.number("slow").fill("5000")
    page.page.keyboard.press("Enter")
    error = page.stage("slow").locator(".nbpipe-knob-error:visible").first
    error.wait_for()
    page.wait_value(page.number("slow"), 2)
    page.finish(2, "stop-refused")
    assert "[1, 1024]" in error.inner_text()


def test_undo(open_cells):
    """Undo takes back the last change, and the controls follow."""
    page = open_cells(SETUP, RUN, train("stop-undo"))
    start(page)
    page.nudge("slow")
    page.wait_value(page.number("slow"), 3)
    page.button("undo").click()
    page.wait_value(page.number("slow"), 2)
    page.finish(2, "stop-undo")
    assert page.number("slow").input_value() == "2"


def test_stage_named_as_html_is_text(open_cells):
    """A stage called like a tag is shown as text everywhere; nothing of it runs."""
    name = "<img src=x onerror=alert(1)>"
    page = open_cells(
        SETUP,
        f"run = nbpipe.source(range(10**9)).map(slow, name={name!r}).start()\n"
        f"run[{name!r}].concurrency = 3\nrun",
        train("stop-html"),
        "run",
        "run.controls()",
        "display(run.stats(), pipe) if 'pipe' in globals() else display(run.stats())",
    )
    alerts = []
    page.page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    start(page)
    page.stage(name).wait_for()
    page.finish(2, "stop-html")
    page.run_cells(3, 4, 5)
    page.page.wait_for_timeout(300)  # an image that were made would alert soon
    page.panel().filter(has_text=name).wait_for()
    assert (alerts, page.page.locator("img[src=x]").count()) == ([], 0)


def test_twelve_stages(open_cells):
    """Twelve stages are all shown, bars as wide as their shares, and can be turned."""
    page = open_cells(
        SETUP,
        "pipe = nbpipe.source(range(10**9), name='files')\n"
        "for n in range(11):\n    pipe = pipe.map(slow, name=f'stage_{n}', concurrency=4)\n"
        "run = pipe.start()\nrun",
        train("stop-twelve"),
    )
    start(page)
    page.nudge("stage_10")
    page.finish(2, "stop-twelve")
    parts = [part for bar in page.bars() for part in bar]
    swatches = (
        page.panel().locator(".nbp-swatch").evaluate_all("all => all.map(one => one.offsetWidth)")
    )
    wrong = [
        p for p in parts if abs(p["drawn"] - p["meant"]) > 1 or abs(p["said"] - p["meant"]) > 1
    ]
    assert (len(parts), wrong, swatches) == (4 * 13, [], 4 * swatches[:1])
    steppers = page.panel().locator("input[data-knob=concurrency]").count()
    assert (steppers, page.number("stage_10").input_value()) == (11, "5")


# By which the rate of a stage ends before its calls begin, and these before its stepper [px]; where
# they are on another line, how far that is below.
BETWEEN = """row => {
    const boxes = ['rate', 'running'].map(field => {
        const range = document.createRange();
        range.selectNodeContents(row.querySelector(`[data-field=${field}]`));
        return range.getBoundingClientRect();
    });
    boxes.push(row.querySelector('.nbp-stepper').getBoundingClientRect());
    return [0, 1].map(at => Math.max(
        boxes[at + 1].left - boxes[at].right, boxes[at + 1].top - boxes[at].bottom));
}"""


@pytest.mark.parametrize("width", [1100, 500, 350])
def test_many_calls_stay_beside_the_rate(open_cells, width):
    """The numbers of thousands of calls run into nothing, nor those of a deep queue."""
    page = open_cells(
        f"{SETUP}\npipe = nbpipe.source(range(9)).map(slow, concurrency=1000, prefetch=64000)\n"
        "run = pipe.start()\nrun",
        width=width,
    )
    page.run_cell(0)
    page.panel().wait_for()
    page.open_row("slow")
    queue = page.stage("slow").locator("[data-field=queue]")
    assert page.wait_text(queue, "", differs=True) == "0/65000"
    assert min(page.stage("slow").evaluate(BETWEEN)) >= 0


def test_stage_that_fails(open_cells):
    """The panel says which stage failed on which item, and shows the traceback."""
    page = open_cells(
        SETUP,
        "def decode(x):\n    if x == 30: raise ValueError('bad <b>header</b>')\n"
        "    return slow(x)\n"
        "run = nbpipe.source(range(100)).map(decode).start()\nrun",
        "for item in run: pass",
    )
    page.run_cells(0, 1, 2)
    page.wait_state("failed")
    shown = page.field("diagnosis").inner_text()
    found = "decode" in shown, "bad <b>header</b>" in shown, "StageError" in page.said(2)
    assert found == (True, True, True)


def test_kernel_that_dies(open_cells):
    """When the kernel dies and is started anew, the panel says that its run is gone, and stays."""
    page = open_cells(
        SETUP, RUN, "for n, item in enumerate(run):\n    if n > 50: os._exit(1)", fresh=True
    )
    page.page.on("dialog", lambda dialog: dialog.dismiss())
    page.run_cells(0, 1)
    page.panel().wait_for()
    page._run(
        "panel.content.widgets[2].model.sharedModel.setSource('import os\\n' +"
        "panel.content.widgets[2].model.sharedModel.getSource())"
    )
    page.start_cell(2)
    page.wait_state("gone")
    said = page.field("gone").inner_text()
    page.wait_idle()  # a server that is starting a kernel anew refuses to shut it down
    assert ("this run is gone" in said, page.number("slow").count()) == (True, 1)


def test_interrupt_leaves_a_live_panel(open_cells):
    """The stop button of the notebook ends the cell; the run goes on in the next one."""
    page = open_cells(SETUP, RUN, train("stop-never"), train("stop-after"))
    start(page)
    page.command("notebook:interrupt-kernel")
    page.wait_ran(2)
    page.wait_state("cancelled")
    page.start_cell(3)
    page.wait_state("running")
    page.nudge("slow")
    page.finish(3, "stop-after")
    assert (page.said(2), page.said(3)) == ("KeyboardInterrupt", "trained\n")


def test_figure_in_the_training_cell(open_cells):
    """A matplotlib figure that is half built when a knob is turned stays whole."""
    page = open_cells(
        SETUP + "\nimport matplotlib.pyplot as plt\n%matplotlib inline",
        RUN,
        "figure, axis = plt.subplots()\naxis.plot([1, 2])\n"
        "times = training(run, 'stop-figure')\naxis.plot([2, 1])\nprint(len(plt.get_fignums()))",
    )
    start(page)
    page.nudge("slow")
    page.finish(2, "stop-figure")
    images = [o for o in page.cell(2)["outputs"] if "image/png" in o.get("data", {})]
    assert (page.said(2), len(images)) == ("1\n", 1)


def test_training_in_the_background(open_cells):
    """`run.train` returns at once; the panel is live, and what the step raises is shown there."""
    page = open_cells(
        SETUP,
        RUN,
        "def step(x):\n    slow(x)\n    if Path('stop-background').exists(): 1 / 0\n"
        "run.train(step)\nprint('returned')",
        "run.wait()",
    )
    start(page)
    page.wait_ran(2)
    page.nudge("slow")
    (page.folder / "stop-background").touch()
    page.wait_state("failed")
    page.run_cell(3)
    shown = page.field("diagnosis").inner_text()
    found = ("returned" in page.said(2), "ZeroDivisionError" in shown, page.said(3))
    assert found == (True, True, "ZeroDivisionError")


def test_controls_act_while_a_cell_trains(open_cells):
    """The ordinary widgets of `run.controls()` turn knobs in a busy cell too."""
    page = open_cells(
        SETUP, PIPE + "run.controls()", train("stop-controls") + "; print(run['slow'].concurrency)"
    )
    page.run_cells(0, 1)
    number = page.page.locator(".widget-text input[type=number]").nth(1)
    number.wait_for()
    page.start_cell(2)
    number.fill("7")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function(  # the slider beside it has the kernel's word
        "() => +document.querySelectorAll('.noUi-handle')[1].getAttribute('aria-valuenow') === 7"
    )
    running = page.is_running(2)
    events = page.page.locator(".widget-text input[type=number]").nth(1).input_value()
    page.finish(2, "stop-controls")
    assert (running, events, json.loads(page.said(2).split()[-1])) == (True, "7", 7)


@pytest.mark.torch
def test_loader_has_one_panel_for_all_epochs(open_cells):
    """A loader is shown before its first epoch; two epochs move that panel, and it says the end."""
    page = open_cells(
        SETUP,
        "from torch.utils.data import Dataset\n"
        "class Photographs(Dataset):\n"
        "    def __len__(self): return 16\n"
        "    def __getitem__(self, index): return slow(index)\n"
        "loader = nbpipe.DataLoader(Photographs(), num_workers=2, workers='thread')\nloader",
        "for epoch in range(2):\n    for n, batch in enumerate(loader):\n"
        "        while epoch and n == 8 and not Path('stop-loader').exists(): time.sleep(0.02)",
    )
    page.run_cells(0, 1)
    page.wait_state("ready")
    rate = page.stage("fetch").locator("[data-field=rate]")
    seen = [(page.field("progress").inner_text(), rate.inner_text())]
    page.start_cell(2)
    page.wait_text(page.field("epoch"), "1")
    seen.append(page.wait_text(rate, seen[0][1], differs=True))
    seen.append(page.wait_text(rate, seen[1], differs=True))
    page.nudge("fetch")
    running = page.is_running(2)
    page.finish(2, "stop-loader")
    page.wait_state("finished")
    said = page.field("diagnosis").inner_text()
    assert (running, seen[0][0], page.page.locator(".nbpipe-panel").count()) == (
        *(True, "0 of 16 batches", 1),
    )
    assert (
        page.field("progress").inner_text(),
        page.field("time").inner_text().startswith("in "),
        said.startswith("Finished"),
        page.number("fetch").input_value(),
    ) == ("16 of 16 batches", True, True, "3")


# Ten runs, each with its panel.
TEN = """
for _ in range(10):
    runs.append(nbpipe.source(range(5)).map(slow).start())
    display(runs[-1])
"""


def test_thirty_runs_in_one_notebook_cost_what_is_in_sight(open_cells):
    """Panels that are scrolled out of sight are closed; one that comes back is up to date."""
    page = open_cells(
        SETUP + "from nbpipe.jupyter.panel import panel_of\nruns = []",
        *[TEN] * 3,
        "print(sum(panel_of(one).feed.wanted for one in runs))",
        "print(list(runs[-1]))",
    )
    page.run_cells(*range(4))
    page.panel(29).wait_for(state="attached")
    page.page.wait_for_function(
        "() => window.wire.filter(one => one.out && one.op === 'view').length >= 30"
    )
    page.run_cell(4)
    while int(page.said(4)) > 10:  # those that are drawn are closed soon after
        page.run_cell(4)
    page.run_cell(5)
    page.wait_state("finished", number=29)  # brought into sight until it stays: pages scroll late
    page.wait_text(page.field("state", 29), "finished")
    assert page.field("progress", 29).inner_text() == "5 of 5 items"


# Whether what may stand beside the bars has room there.
FITS = """words => words.map(one => {
    one.textContent = 'blocked 100%';
    return one.scrollWidth <= one.clientWidth;
})"""


@pytest.mark.parametrize("width", [930, 1400])
def test_shares_have_room_beside_the_bars(open_cells, width):
    """In a panel of middling width the words beside a bar are not cut."""
    page = open_cells(SETUP, RUN, width=width)
    page.run_cells(0, 1)
    page.panel().wait_for()
    fits = page.panel().locator("[data-field=shares]").evaluate_all(FITS)
    assert fits == [True] * len(fits), page.panel().bounding_box()


# Contrast of a button's words, as WCAG 2 has it.
CONTRAST = """button => {
    const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const drawn = colour => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = colour => drawn(colour)
        .map(part => part / 255)
        .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    const style = getComputedStyle(button);
    const both = [style.color, style.backgroundColor].map(luminance);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""


def test_words_of_buttons_are_read_under_the_mouse(open_cells):
    """Also on the grey of a button that is pointed at they have a contrast of 4.5."""
    page = open_cells(SETUP, RUN, "for item in run: pass")
    page.run_cells(0, 1)
    page.start_cell(2)
    page.wait_state("running")
    page.button("export").click()
    apply = page.panel().locator(".nbp-apply")
    expect(apply).to_be_enabled(timeout=CELL_MS)
    found = []
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page._run("await app.commands.execute('apputils:change-theme', {theme})", theme=theme)
        for button in (page.button("export"), page.button("export-go"), apply):
            button.hover()
            found.append(button.evaluate(CONTRAST))
    page.button("stop").click()
    page.wait_ran(2)
    assert min(found) >= 4.5, found
