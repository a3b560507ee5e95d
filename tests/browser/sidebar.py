"""The sidebar in a page: what a person sees of it and does with it."""

from tests.browser.lab import CELL_MS

SIDEBAR = ".nbpipe-sidebar"
ROW = f"{SIDEBAR} > .nbp-runs > .nbp-run"


def show(page):
    """Open the sidebar."""
    page.command("nbpipe:show")
    page.page.locator(SIDEBAR).wait_for()


def row(page, number=0):
    """Find a run in the list."""
    return page.page.locator(ROW).nth(number)


def wait_row(page, state, name="run"):
    """Wait until the list shows a run of a name in a state."""
    page.page.wait_for_function(
        """([row, name, state]) => [...document.querySelectorAll(row)].some(one =>
            one.dataset.state === state
            && one.querySelector('[data-field=name]').textContent === name)""",
        arg=[ROW, name, state],
        timeout=CELL_MS,
    )


def wait_says(page, text):
    """Wait until the list says, in the place of runs, what begins so."""
    page.page.wait_for_function(
        """([sidebar, text]) => {
            const empty = document.querySelector(sidebar + ' > .nbp-empty');
            return !empty.hidden && empty.textContent.startsWith(text);
        }""",
        arg=[SIDEBAR, text],
        timeout=CELL_MS,
    )


def names(page):
    """Return what the runs in the list are called."""
    return page.page.locator(f"{ROW} [data-field=name]").all_inner_texts()


def open_row(page, number=0):
    """Open a run's panel in the list, and wait until its kernel has greeted it."""
    head = row(page, number).locator("button.nbp-head")
    if head.get_attribute("aria-expanded") == "false":
        head.click()
    row(page, number).locator(".nbpipe-panel[data-link=live]").wait_for()


def start_rows(page, index):
    """Run the cells before `index` and start that one, which trains."""
    page.run_cells(*range(index))
    page.start_cell(index)
    wait_row(page, "running")
