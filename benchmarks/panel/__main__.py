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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.browser.lab import ROOT, open_chromium, serve_lab

from .. import machine
from ..plan import chosen
from ..results import Measurement, Results, say, write
from .lines import report
from .measures import acks, first_paint, io_work, six_stages
from .place import Place

SUBSHELLS, PUMP = "subshells", "pump"
_PACKAGES = ("jupyterlab", "ipykernel", "anywidget", "ipywidgets", "playwright", "torch")
_RESULTS = Path(__file__).parent.parent / "results" / "panel"
Part = Callable[[Place], list[Measurement]]
PARTS: dict[str, Part] = {"six": six_stages, "w2": io_work, "paint": first_paint}


def _write_settings(folder: Path) -> None:
    """Have JupyterLab send all comm messages to the kernel's main shell."""
    home = folder / ".lab" / "settings" / "@jupyterlab" / "apputils-extension"
    home.mkdir(parents=True)
    text = json.dumps({"commsOverSubshells": "disabled"})
    (home / "kernels-settings.jupyterlab-settings").write_text(text)


def measure(given: argparse.Namespace) -> list[Measurement]:
    """Take all measurements asked for, in a JupyterLab for each way in which messages go."""
    names = chosen((*PARTS, "acks"), given.only, str)
    keys = {way: [partial(acks, way=way)] for way in (SUBSHELLS, PUMP) if "acks" in names}
    plain = [PARTS[name] for name in names if name in PARTS]
    ways = {SUBSHELLS: plain + keys.get(SUBSHELLS, []), PUMP: keys.get(PUMP, [])}
    return [one for way, parts in ways.items() if parts for one in _in_lab(given, way, parts)]


def _in_lab(given: argparse.Namespace, way: str, parts: Sequence[Part]) -> list[Measurement]:
    window_s, presses = (4.0, 10) if given.quick else (10.0, 40)
    with tempfile.TemporaryDirectory(prefix="nbpipe-panel-") as name, open_chromium() as browser:
        folder = Path(name)
        if way == PUMP:
            _write_settings(folder)
        with serve_lab(folder) as address:
            place = Place(browser, address, folder, given.rounds, window_s, presses)
            return [one for part in parts for one in part(place)]


def main() -> None:
    """Measure and write `results/panel/<time>.json` and `<time>.md`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel", description=__doc__)
    parser.add_argument("--only", default="", help="parts, as six,acks (default: all)")
    parser.add_argument("--rounds", type=int, help="default 8; 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="short windows, few rounds")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    given = parser.parse_args()
    given.rounds = given.rounds or (3 if given.quick else 8)
    os.environ["PYTHONPATH"] = str(ROOT)  # the kernels find nbpipe and the workloads
    started = datetime.now(UTC).isoformat(" ", "minutes")
    found = measure(given)
    about = machine.describe(_PACKAGES)
    command = " ".join(["python -m benchmarks.panel", *sys.argv[1:]])
    results = Results(about, started, command, tuple(found))
    path = write(given.out, results.to_json(), report(results))
    say(f"\n{report(results)}\nraw numbers: {path}")


if __name__ == "__main__":
    main()
