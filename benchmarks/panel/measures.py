"""Measures: each opens notebooks and gives numbers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

from tests.browser.lab import WIRE
from tests.browser.panel import PanelPage

from ..measurement import Measurement
from ..ratios import median
from .cells import PACED, SIX, STEPS, TRAINED, TRAINING, W2, W2_LOOP
from .place import Place, cpu_s, end, look, train
from .scripts import KEYS, LOOK, MARKS

Window = tuple[float, float]  # from and until [s], time of day


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
        Measurement("six stages", name, turn, values={**spent, **_logged(rows, window)})
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
    since_s = time.time()
    before = len(page.page.evaluate("window.sizes"))
    time.sleep(5)
    sizes = page.page.evaluate("window.sizes")
    ticks_per_s = (len(sizes) - before) / (time.time() - since_s)
    values = {f"{kind}_bytes": median(size for one, size in sizes if one == kind)
              for kind in ("tick", "hello")}  # fmt: skip
    return {**values, "ticks_per_s": ticks_per_s}


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
        Measurement("W2", name, turn, values=_logged(rows, window))
        for turn, name, window in windows
    ]


def first_paint(place: Place) -> list[Measurement]:
    """Measure the time until a panel is painted, in a new page, and after a reload in mid-epoch."""
    found = []
    for turn in range(place.rounds):
        with place.page(MARKS, SIX, "run", PACED) as page:
            page.run_cell(1)
            page.run_cell(2)
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
    }


def acks(place: Place, way: str) -> list[Measurement]:
    """Measure the time from a key press to the acknowledgement while a cell trains."""
    found = []
    for name, step in STEPS.items():
        (place.folder / "trained.stop").unlink(missing_ok=True)
        with place.page(WIRE + KEYS, step + TRAINED, "run", TRAINING) as page:
            page.run_cell(1)
            train(page, 2)
            page.slider("slow").focus()
            for turn in range(place.presses):
                page.page.keyboard.press("ArrowLeft" if turn % 2 else "ArrowRight")
                page.page.wait_for_timeout(random.uniform(150, 350))
                waits_ms = page.wait_acks(turn + 1)
            took_s = sorted(_from_keys(page))
            page.finish(3, "trained.stop")
            step_s, threads = json.loads(page.said(3))
        values = {"median_s": median(took_s), "worst_s": took_s[-1], "step_s": step_s,
                  "wire_median_s": median(waits_ms) / 1000}  # fmt: skip
        note = f"handled in {', '.join(threads)}"
        found.append(Measurement("acks", f"{way}, {name}", 0, note=note, values=values))
    return found


def _from_keys(page: PanelPage) -> list[float]:
    wire = page.wire()
    acked = {one["id"]: one["at"] for one in wire if not one["out"]}
    asked = [one["id"] for one in wire if one["out"] and one["op"] == "set"]
    keys = page.page.evaluate("window.keys")
    return [(acked[one] - at) / 1000 for one, at in zip(asked, keys, strict=True)]


def _logged(rows: Sequence[Any], window: Window) -> dict[str, float]:
    """Give what a log says of a window."""
    inside = [row for row in rows if window[0] <= row[0] <= window[1]]
    (since_s, cpu_s, items, _), (until_s, cpu_until_s, items_until, _) = inside[0], inside[-1]
    elapsed_s = until_s - since_s
    found = {
        "kernel_share": (cpu_until_s - cpu_s) / elapsed_s,
        "items_per_s": (items_until - items) / elapsed_s,
        "cpu_us_per_item": 1e6 * (cpu_until_s - cpu_s) / max(1, items_until - items),
    }
    for name, last in inside[-1][3].items():
        first = inside[0][3][name]
        spent_s = sum(spent - first.get(thread, 0.0) for thread, spent in last.items())
        found[f"{name}_share"] = spent_s / elapsed_s
    return found
