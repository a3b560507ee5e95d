"""Every state of a panel fits its page, narrow and wide: nothing is cut, and nothing overlaps."""

import pytest
from playwright.sync_api import expect

from tests.browser.lab import CELL_MS
from tests.browser.panel import SETUP

pytestmark = pytest.mark.browser
WIDTHS = (350, 500, 620, 720, 860, 980, 1000, 1440)  # of a panel, on both sides of each break [px]
BESIDE = 140  # so much wider is the page [px]
STAGES = """
def pipe(read=slow, concurrency=2, items=10**6):
    files = nbpipe.source(range(items), name="photographs")
    read_in = files.map(read, name="read", concurrency=concurrency)
    return read_in.map(abs, name="decode_and_augment").batch(8)

def step(batch):
    time.sleep(0.01)

def sticks(item):
    stuck.wait() if item == 8 else None
    return slow(item)

def fails(item):
    return slow(item) if item < 8 else [][item]

stuck = threading.Event()
"""
STATES = {
    "ready": "run = pipe().start()\nrun",
    "running": "running = pipe().start()\nrunning.train(step)\nrunning",
    "paused": "held = pipe().start()\nheld.train(step)\nheld.pause()\nheld",
    "hung": "hung = pipe(sticks).start()\nhung.train(step)\nhung",
    "failed": "failed = pipe(fails).start()\nfailed.train(step)\nfailed",
    "finished": "empty = pipe(items=0).start()\nempty.train(step).wait()\nempty",
    "tuned": (
        "tuned = pipe().start()\ntuned['decode_and_augment'].concurrency = 2\n"
        "tuned.train(step)\ntuned.autotune()\ntuned"
    ),
}
END = "stuck.set()\nnbpipe.close_all()"
# Parts that are wider than their place, and whether numbers or the switch lie below a button.
AMISS = """panel => {
    const shown = one => one.offsetParent !== null;
    const all = selector => [...panel.querySelectorAll(selector)].filter(shown);
    const wide = one => one.scrollWidth > one.clientWidth + 1;
    const parts = '.nbp-top, .nbp-numbers, .nbp-buttons, .nbp-verdict, .nbp-acts, .nbp-tuner, '
        + '.nbp-stages, .nbp-row, .nbp-stepper, .nbp-foot, .nbp-chart';
    const boxes = all('.nbp-numbers > *, .nbp-buttons button, .nbp-state')
        .map(one => one.getBoundingClientRect());
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    return [...all(parts).filter(wide).map(one => one.className),
        ...boxes.flatMap((a, at) => boxes.slice(at + 1).filter(b => meet(a, b)).map(() => 'head'))];
}"""


def test_every_state_fits(open_cells):
    """At each width, in each state, with the chart open where there is one."""
    page = open_cells(SETUP + STAGES, *STATES.values(), END, fresh=True)
    page.run_cells(*range(len(STATES) + 1))
    tuned = list(STATES).index("tuned")
    page.show_cell(tuned + 1)
    expect(page.button("autotune_undo", tuned)).to_be_visible(timeout=CELL_MS)
    found = []
    for width in WIDTHS:
        page.page.set_viewport_size({"width": width + BESIDE, "height": 900})
        for number, state in enumerate(STATES):
            page.show_cell(number + 1)
            page.wait_state("running" if state in ("hung", "tuned") else state, number=number)
            amiss = page.panel(number).evaluate(AMISS)
            found += [(width, state, part) for part in amiss]
    page.run_cell(len(STATES) + 1)
    assert found == []
