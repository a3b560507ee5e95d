"""The two tiers of the suite: what `make test` runs, and what `make test-all` runs besides.

A test that takes over `LIMIT_S` carries `slow`, unless it is one of `ACCEPTANCE`. What a test
takes stands in `tests/data/durations.json`, which `make durations` writes: nothing is decided by
the time that a test happens to take. A test that the table does not know yet is not slow.
"""

import json
from collections import defaultdict
from pathlib import Path
from time import perf_counter

import pytest

LIMIT_S = 0.5
MOMENT_S = 0.1  # what takes less is not written down
TABLE = Path(__file__).parent / "data" / "durations.json"
# What a change to the engine, the panel or the exporter usually breaks, though it takes longer.
ACCEPTANCE = (
    # the promise: a slider acts while a cell trains
    "tests/browser/test_panel.py::test_concurrency_moves_while_a_cell_trains[keyboard]",
)
# How long a test of a kind may take before it counts as hung [s]; all others: pyproject.toml.
HANGS_S = {"kernel": 120, "browser": 240}
NAME = pytest.StashKey[str]()  # pytest-xdist adds the group to `nodeid`
SPENT = pytest.StashKey[float]()


def prepare(items: list[pytest.Item], *, grouped: bool) -> None:
    """Mark what is slow, and set the limits of hangs.

    Args:
        items: the tests that were collected; where `grouped`, they are put in order.
        grouped: tests are dealt to several processes. Those of a file go to the same one, as
            they share what is started for it; what takes longest goes first.
    """
    seconds = read()
    for item in items:
        item.stash[NAME] = item.nodeid
        _mark(item, seconds.get(item.nodeid, 0.0))
    if grouped:
        _group(items, seconds)


def read() -> dict[str, float]:
    """Return the seconds of every test that took more than a moment when they were recorded."""
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def _mark(item: pytest.Item, seconds: float) -> None:
    for kind, limit_s in HANGS_S.items():
        if item.get_closest_marker(kind) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit_s))
    is_long = seconds > LIMIT_S or item.get_closest_marker("browser")
    if is_long and not item.nodeid.startswith(ACCEPTANCE):
        item.add_marker(pytest.mark.slow)


def _group(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_group_of(item)].append(item)
    cost_s = {
        name: sum(seconds.get(item.nodeid, 0.0) for item in group) for name, group in groups.items()
    }
    items[:] = [
        item
        for name in sorted(groups, key=cost_s.__getitem__, reverse=True)
        for item in groups[name]
    ]
    for name, group in groups.items():
        for item in group:
            item.add_marker(pytest.mark.xdist_group(name))


def _group_of(item: pytest.Item) -> str:
    """Return what tests share: one JupyterLab, one kernel of a version, what a file starts."""
    if item.get_closest_marker("browser"):
        return "browser"
    if item.path.parent.name == "kernel" and hasattr(item, "callspec"):
        return f"kernel {item.callspec.params.get('way')}"
    return str(item.path)


class Recorder:
    """Writes down what each test took, without what fixtures of wider scope took to start."""

    def __init__(self) -> None:
        self._seconds = read()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        started_s = perf_counter()
        try:
            return (yield)
        finally:
            if fixturedef.scope == "function":
                spent_s = request.node.stash.get(SPENT, 0.0)
                request.node.stash[SPENT] = spent_s + perf_counter() - started_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "call":
            took_s = round(item.stash.get(SPENT, 0.0) + call.duration, 2)
            item.user_properties.append(("took_s", (item.stash[NAME], took_s)))
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            name, took_s = dict(report.user_properties)["took_s"]
            self._seconds[name] = took_s

    def pytest_sessionfinish(self, session):
        if not hasattr(session.config, "workerinput"):
            kept = {name: took for name, took in self._seconds.items() if took >= MOMENT_S}
            TABLE.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n", encoding="utf-8")
