"""Auto in the panel: the switch, what it shows and how it is undone, in a real JupyterLab."""

import pytest
from playwright.sync_api import expect

from tests.browser.lab import CELL_MS
from tests.browser.panel import RUN, SETUP, start, train

pytestmark = pytest.mark.browser
STEP_PX = 3  # the cursor moves so far at a time: a mark is found within 6 px


def test_auto_tunes_while_a_cell_trains_and_undoes_all(open_cells):
    """Switched on in mid-cell, it turns a knob and says why; undone, all is as it was."""
    page = open_cells(SETUP, RUN, train("stop-auto") + "; print(run['slow'].concurrency)")
    start(page)
    page.button("auto").click()
    expect(page.button("auto")).to_have_attribute("aria-checked", "true", timeout=CELL_MS)
    expect(page.button("autotune_undo")).to_be_visible(timeout=CELL_MS)
    expect(page.number("slow")).not_to_have_value("2", timeout=CELL_MS)
    expect(page.button("apply")).to_be_hidden()
    page.panel().locator(".nbp-tuned > summary").click()
    deeds = page.panel().locator(".nbp-deed")
    expect(deeds.last).to_contain_text("slow.concurrency", timeout=CELL_MS)
    expect(deeds.last).to_contain_text("the loop waits")
    assert "by autotune: the loop waits" in said_at_a_mark(page)
    page.button("autotune_undo").click()
    expect(page.button("auto")).to_have_attribute("aria-checked", "false", timeout=CELL_MS)
    page.wait_value(page.number("slow"), 2)
    running = page.is_running(2)
    page.finish(2, "stop-auto")
    assert (running, page.said(2)) == (True, "trained\n2\n")


def said_at_a_mark(page):
    """Move the cursor over the chart until it is at a mark; return its text."""
    chart = page.panel().locator(".nbp-chart")
    if chart.get_attribute("open") is None:
        chart.locator("summary").click()
    plot = chart.locator(".u-over")
    plot.wait_for(timeout=CELL_MS)
    said = chart.locator(".nbp-tip p").first
    while not said.is_visible():
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        for left in range(0, int(box["width"]), STEP_PX):
            page.page.mouse.move(box["x"] + left, box["y"] + box["height"] / 2)
            if said.is_visible():
                break
    return said.inner_text()


def test_a_knob_is_given_back(open_cells):
    """What a person turned is named; given back, the tuner turns it."""
    page = open_cells(SETUP, RUN, train("stop-back"))
    start(page)
    page.nudge("slow")
    page.button("auto").click()
    yours = page.panel().locator(".nbp-yours")
    expect(yours).to_contain_text("slow.concurrency is yours", timeout=CELL_MS)
    yours.locator("button").click()
    expect(yours).to_have_count(0, timeout=CELL_MS)
    expect(page.number("slow")).not_to_have_value("3", timeout=CELL_MS)
    page.button("autotune_stop").click()
    expect(page.button("auto")).to_have_attribute("aria-checked", "false", timeout=CELL_MS)
    page.finish(2, "stop-back")
    assert page.said(2) == "trained\n"
