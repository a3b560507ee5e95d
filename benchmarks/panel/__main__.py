"""`python -m benchmarks.panel`: measure the live panel in a real JupyterLab.

It needs what the tests in the browser need: JupyterLab, playwright, Chromium and a front end that
was built.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.browser.lab import ROOT, open_chromium, serve_lab

from .. import machine
from ..catalogue import installed_version
from ..plan import chosen, say
from ..results import Measurement, Results, write
from .lines import report
from .measures import acks, first_paint, io_work, six_stages
from .place import Place

SUBSHELLS, PUMP = "subshells", "pump"
_PACKAGES = ("jupyterlab", "ipykernel", "anywidget", "ipywidgets", "playwright", "torch")
_RESULTS = Path(__file__).parent.parent / "results" / "panel"
PARTS: dict[str, Callable[[Place], list[Measurement]]] = {
    "six": six_stages,
    "w2": io_work,
    "paint": first_paint,
}


def _write_settings(folder: Path) -> None:
    """Have JupyterLab send all comm messages to the kernel's main shell."""
    home = folder / ".lab" / "settings" / "@jupyterlab" / "apputils-extension"
    home.mkdir(parents=True)
    text = json.dumps({"commsOverSubshells": "disabled"})
    (home / "kernels-settings.jupyterlab-settings").write_text(text)


def measure(given: argparse.Namespace) -> list[Measurement]:
    """Take all measurements asked for."""
    names = chosen((*PARTS, "acks"), given.only, str)
    parts = {SUBSHELLS: [PARTS[name] for name in names if name in PARTS], PUMP: []}
    if "acks" in names:
        for way, todo in parts.items():
            todo.append(partial(acks, way=way))
    found: list[Measurement] = []
    for way, todo in parts.items():
        if todo:
            found += _measure_in_lab(given, way, todo)
    return found


def _measure_in_lab(
    given: argparse.Namespace, way: str, parts: list[Callable[[Place], list[Measurement]]]
) -> list[Measurement]:
    window_s, presses = (4.0, 10) if given.quick else (10.0, 40)
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="nbpipe-panel-") as name, open_chromium() as browser:
        folder = Path(name)
        if way == PUMP:
            _write_settings(folder)
        with serve_lab(folder) as address:
            place = Place(browser, address, folder, given.rounds, window_s, presses)
            for part in parts:
                say(f"{getattr(part, '__name__', f'acks, {way}')} ...")
                found += part(place)
    return found


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel", description=__doc__)
    parser.add_argument("--only", default="", help="parts, as six,acks (default: all)")
    parser.add_argument("--rounds", type=int, help="default 8; 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="short windows, few rounds")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    parser.add_argument("--report", type=Path, help="print the tables of a raw file, no more")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (3 if given.quick else 8)
    return given


def main() -> None:
    """Measure and write `results/panel/<time>.json` and `<time>.md`."""
    given = parse(sys.argv[1:])
    if given.report is not None:
        say(report(Results.from_json(given.report.read_text())))
        return
    os.environ["PYTHONPATH"] = str(ROOT)  # the kernels find nbpipe and the workloads
    now = datetime.now(UTC)
    found = measure(given)
    asked = f"--only {given.only} " if given.only else ""
    command = f"python -m benchmarks.panel {asked}--rounds {given.rounds}"
    command += " --quick" if given.quick else ""
    about = machine.describe()
    own = {name: version for name in _PACKAGES if (version := installed_version(name))}
    about["versions"] = {"nbpipe": about["versions"]["nbpipe"], **own}
    results = Results(about, now.isoformat(" ", "minutes"), command, tuple(found))
    path = write(given.out, results.to_json(), report(results))
    say(f"\n{report(results)}\nraw numbers: {path}")


if __name__ == "__main__":
    main()
