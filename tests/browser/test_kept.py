"""What stays of a run: in the file, after a restart, without its kernel."""

import pytest

from tests.browser.panel import RUN, SETUP, convert, start, train

pytestmark = pytest.mark.browser


def saved(open_cells, *cells, **options):
    """Open a notebook, run all of its cells and save it; return its page."""
    page = open_cells(SETUP, *cells, **options)
    page.run_cells(*range(len(cells) + 1))
    page.save()
    return page


EPOCH = "for item in run: pass"
SMALL = """
pipe = nbpipe.source(range(40)).map(slow, name='<i>decode< i>', concurrency=4)
run = pipe.start()
run
"""


def visible_pictures(page):
    """Return the text of the pictures of runs that can be seen."""
    page.page.locator(".nbpipe-kept").first.wait_for(state="attached")
    return page.page.locator(".nbpipe-kept:visible").all_inner_texts()


def test_picture_is_hidden_beside_a_live_panel(open_cells):
    """While the panel is alive, the picture that is kept is not seen."""
    page = open_cells(SETUP, SMALL, EPOCH)
    page.run_cells(*range(3))
    page.panel().wait_for()
    assert visible_pictures(page) == []


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
def test_notebook_opened_again_shows_the_last_snapshot(open_cells, closes):
    """Without its kernel, a saved notebook shows how the run ended, and no error."""
    page = saved(open_cells, SMALL, EPOCH, *(["run.close()"] if closes else []), fresh=True)
    page.shut_down()
    again = page.reopen()
    # What has its place on a page has no text before it is drawn.
    again.wait_text(again.page.locator(".nbpipe-kept:visible"), "", differs=True)
    (text,) = visible_pictures(again)
    errors = again.page.get_by_text("Error displaying widget").filter(visible=True).count()
    state = "closed" if closes else "finished"
    assert [word in text for word in ("<i>decode< i>", state, "40")] + [errors] == [True] * 3 + [0]


def test_notebook_converted_to_html_shows_the_last_snapshot(open_cells, chromium):
    """`jupyter nbconvert --to html` shows the picture; names in it are text."""
    page = saved(open_cells, SMALL, EPOCH)
    html = convert(page.folder / page.name)
    other = chromium.new_page()
    try:
        other.goto(html.as_uri())
        text = other.locator(".nbpipe-kept:visible").inner_text()
        tags = other.locator(".nbpipe-kept i").count()
    finally:
        other.close()
    assert ("<i>decode< i>" in text, "finished" in text, tags) == (True, True, 0)


def test_kernel_started_anew(open_cells):
    """After a restart of the kernel the notebook runs again, with a live panel."""
    page = open_cells(SETUP, RUN, train("stop-restart"))
    start(page)
    page.restart()
    page.run_cells(0, 1)
    page.start_cell(2)
    page.wait_state("running")
    page.nudge("slow")
    page.finish(2, "stop-restart")
    assert page.number("slow").input_value() == "3"


def test_kernel_restarted_in_mid_epoch(open_cells):
    """A panel whose kernel was restarted says that its run is gone; its cell is run again there."""
    page = open_cells(SETUP + RUN, train("stop-gone"), fresh=True)
    page.run_cell(0)
    page.panel().wait_for()
    page.start_cell(1)
    page.wait_state("running")
    page.restart(clears=False)
    page.wait_state("gone")
    seen = (
        page.field("gone").inner_text().partition(".")[0],
        page.field("state").inner_text(),
        page.button("pause").filter(visible=True).count(),
        page.number("slow").is_disabled(),
    )
    page.button("again").click()
    page.wait_state("ready")
    assert seen == ("The kernel was restarted; this run is gone", "gone", 0, True)
    assert page.panel().count() == page.page.locator(".nbpipe-panel").count() == 1


def test_run_that_nobody_holds_looks_closed(open_cells):
    """The panel of a run that was collected says that it is closed."""
    page = open_cells(SETUP, "display(nbpipe.source(range(9)).start())", "import gc; gc.collect()")
    page.run_cells(0, 1)
    page.panel().wait_for()
    page.run_cell(2)
    page.wait_state("closed")
    assert page.button("pause").filter(visible=True).count() == 0


def test_controls_and_figure_side_by_side(open_cells):
    """The controls and the figure of a run lie beside each other in an HBox."""
    page = open_cells(
        SETUP,
        SMALL + "\n" + EPOCH,
        "import ipywidgets, plotly.graph_objects as go\n"
        "ipywidgets.HBox([run.controls(), go.FigureWidget(run.plot())])",
        width=1400,
    )
    page.run_cells(*range(3))
    figure = page.page.locator(".js-plotly-plot").first
    figure.wait_for()
    boxes = page.page.locator(".widget-hbox > .widget-vbox").first.bounding_box()
    drawn = figure.bounding_box()
    room = page.page.locator(".jp-OutputArea-output:has(.js-plotly-plot)").first.bounding_box()
    found = (
        boxes["x"] + boxes["width"] <= drawn["x"] + 1,
        drawn["x"] + drawn["width"] <= room["x"] + room["width"] + 1,
        drawn["width"] > 400,
    )
    assert found == (True, True, True)
