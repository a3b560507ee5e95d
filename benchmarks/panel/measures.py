"""Measures: each opens notebooks and gives numbers."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from statistics import median

from tests.browser.lab import WIRE
from tests.browser.panel import PanelPage

from ..results import Measurement
from .cells import PACED, SIX, STEPS, TRAINED, TRAINING, W2, W2_LOOP
from .lines import Window, inside
from .place import Place, cpu_s, end, look, train

# What a page runs before anything else.
LOOK, MARKS, KEYS = (
    Path(__file__).with_name(f"{name}.js").read_text() for name in ("look", "marks", "keys")
)


def six_stages(place: Place) -> list[Measurement]:
    """Measure kernel, browser and messages with a view open and without."""
    windows = []
    with place.page(LOOK, SIX, "run", PACED) as page:
        page.run_cell(1)
        train(page, 2)
        for turn in range(place.rounds):
            order = ("open", "no view") if turn % 2 else ("no view", "open")
            windows += [(turn, name, *_chromium(place, page, name)) for name in order]
        sizes = _sizes(page)
        rows = end(page, "six")
    return [
        Measurement("six stages", name, turn, values={**spent, **inside(rows, window)})
        for turn, name, window, spent in windows
    ] + [Measurement("messages", "open", 0, values=sizes)]


def _chromium(place: Place, page: PanelPage, name: str) -> tuple[Window, dict[str, float]]:
    look(page, "visible" if name == "open" else "hidden")
    processes = place.processes()
    every = [process for kind in processes.values() for process in kind]
    since_s, renderer_s, all_s = time.time(), cpu_s(processes["renderer"]), cpu_s(every)
    time.sleep(place.window_s)  # nothing asks the page for anything meanwhile
    renderer_s, all_s = cpu_s(processes["renderer"]) - renderer_s, cpu_s(every) - all_s
    until_s = time.time()
    spent = {"renderer_share": renderer_s, "chromium_share": all_s}
    shares = {kind: used_s / (until_s - since_s) for kind, used_s in spent.items()}
    return (since_s, until_s), shares


def _sizes(page: PanelPage) -> dict[str, float]:
    """Count the panel's messages over some seconds; a view that opens gets a hello."""
    look(page, "hidden")
    page.page.evaluate("window.sizes = []")
    look(page, "visible")
    since_s, before = time.time(), len(page.page.evaluate("window.sizes"))
    time.sleep(5)
    sizes = page.page.evaluate("window.sizes")
    return {
        "tick_bytes": median(size for kind, size in sizes if kind == "tick"),
        "hello_bytes": median(size for kind, size in sizes if kind == "hello"),
        "ticks_per_s": (len(sizes) - before) / (time.time() - since_s),
    }


def io_work(place: Place) -> list[Measurement]:
    """Measure W2: a run that was never shown, one without an open view, one with."""
    windows = []
    names = ["plain", "no view", "open"]
    with place.page(LOOK, W2, "run", W2_LOOP) as page:
        page.run_cell(1)
        train(page, 2)
        for turn in range(2 * place.rounds):
            for name in (*names[turn % 3 :], *names[: turn % 3]):
                flag = page.folder / "shown"
                flag.unlink(missing_ok=True) if name == "plain" else flag.touch()
                look(page, "visible" if name == "open" else "hidden")
                since_s = time.time()
                time.sleep(place.window_s / 2)
                windows.append((turn, name, (since_s, time.time())))
        rows = end(page, "w2")
    return [
        Measurement("W2", name, turn, values=inside(rows, window)) for turn, name, window in windows
    ]


def first_paint(place: Place) -> list[Measurement]:
    """Measure the time until a panel is painted, in a new page, and after a reload in mid-epoch."""
    found = []
    for turn in range(place.rounds):
        with place.page(MARKS, SIX, "run", PACED) as page:
            page.run_cells(1, 2)
            shown = _painted(page, "display")
            page.start_cell(3)
            page.save()
            page.reload()
            again = _painted(page, "state")
            end(page, "six")
        found.append(Measurement("first paint", "shown", turn, values=shown))
        found.append(Measurement("first paint", "reload", turn, values=again))
    return found


def _painted(page: PanelPage, since: str) -> dict[str, float]:
    page.page.wait_for_function("window.marks.paint !== undefined")
    marks = page.page.evaluate("window.marks")
    return {
        "paint_s": (marks["paint"] - marks[since]) / 1000,
        "whole_s": (marks["paint"] - marks.get("execute", 0)) / 1000,
        "widget_bytes": marks["bytes"],
    }


def acks(place: Place, way: str) -> list[Measurement]:
    """Measure the time from a key press to the acknowledgement while a cell trains."""
    return [_acks(place, f"{way}, {name}", step) for name, step in STEPS.items()]


def _acks(place: Place, name: str, step: str) -> Measurement:
    flag = "trained.stop"
    (place.folder / flag).unlink(missing_ok=True)
    with place.page(WIRE + KEYS, step + TRAINED, "run", TRAINING) as page:
        page.run_cell(1)
        train(page, 2)
        page.number("slow").focus()
        for turn in range(place.presses):
            page.page.keyboard.press("ArrowDown" if turn % 2 else "ArrowUp")
            page.page.wait_for_timeout(random.uniform(150, 350))
            page.wait_acks(turn + 1)
        took_s = _from_keys(page)
        page.finish(3, flag)
        step_s, threads = json.loads(page.said(3))
    values = {"median_s": median(took_s), "worst_s": max(took_s), "step_s": step_s}
    note = f"answered in {', '.join(threads)}"
    return Measurement("acks", name, 0, note=note, values=values)


def _from_keys(page: PanelPage) -> list[float]:
    wire = page.wire()
    acked = {one["id"]: one["at"] for one in wire if not one["out"]}
    asked = [one["id"] for one in wire if one["out"] and one["op"] == "set"]
    keys = page.page.evaluate("window.keys")
    return [(acked[one] - at) / 1000 for one, at in zip(asked, keys, strict=True)]
