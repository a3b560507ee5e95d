"""The two tiers of the suite: what `make test` runs, and what `make test-all` runs besides.

A test that takes over `LIMIT_S` carries `slow`, unless it is one of `ACCEPTANCE`. What a test
takes stands in `tests/data/durations.json`, which `make durations` writes: nothing is decided by
the time that a test happens to take. A test that the table does not know yet is not slow.
"""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter

import pytest

LIMIT_S = 0.35
MOMENT_S = 0.25  # what takes less is not written down
TABLE = Path(__file__).parent / "data" / "durations.json"
# What a change to the engine, the panel or the exporter usually breaks, though it takes longer:
# patterns of names, in which `[[]` stands for a bracket.
ACCEPTANCE = (
    # the promise: a slider acts while a cell trains
    "tests/browser/test_panel.py::test_concurrency_moves_while_a_cell_trains[[]keyboard]",
    # the rules of the house, which any change may break
    "tests/test_architecture.py::*",
    # the engine, and every executor but those in a process of their own
    "tests/engine/*",
    "tests/executors/test_contract.py::*[[]process*",
    "tests/executors/test_contract.py::*[[]dask*",
    "tests/run/test_interrupts.py::test_iterator_goes_on[[]*",
    # workers that are killed, turned up and down, and interrupted
    "tests/executors/processes/test_workers.py::test_thousands_of_changes_under_load[[]False]",
    "tests/executors/processes/test_scripts.py::test_interrupted_again_while_it_ends[[]0.0]",
    # states
    "tests/resume/test_random.py::test_every_cut_goes_on_exactly",
    "tests/resume/test_fresh_process.py::test_another_process_with_other_executors[[]stream]",
    # an export of cells, tried in a fresh process, from a notebook and from the command line
    "tests/export/test_cases.py::test_exported[[]0[15]*",
    "tests/export/test_realistic_files.py::test_loaded_back_and_tuned_again",
    "tests/cli/test_export.py::test_export",
    # a panel in a kernel
    "tests/kernel/test_panel.py::*[[]7.4.0*",
)
# How long a test may take before it counts as hung [s]: by its kind, that is a mark or a fixture
# that starts something large, or what pyproject.toml says and so many times what the table says
# besides, whichever is more.
HANGS_S = {"kernel": 120, "browser": 240, "ranks": 120, "torch": 120, "gpu": 120}
PATIENCE = 12
SPENT = pytest.StashKey[float]()


def mark(items: list[pytest.Item]) -> None:
    """Mark what is slow, and set the limits of hangs."""
    seconds = read()
    for item in items:
        _mark(item, seconds.get(item.nodeid, 0.0))


def read() -> dict[str, float]:
    """Return the seconds of every test that took more than a moment when they were recorded."""
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def _mark(item: pytest.Item, seconds: float) -> None:
    least_s = float(item.config.getini("timeout"))
    fixtures = getattr(item, "fixturenames", ())
    kinds = [kind for kind in HANGS_S if kind in fixtures or item.get_closest_marker(kind)]
    limits_s = [HANGS_S[kind] for kind in kinds]
    limit_s = max([least_s + PATIENCE * seconds, *limits_s])
    if limit_s > least_s and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(limit_s))
    is_long = seconds > LIMIT_S or item.get_closest_marker("browser")
    if is_long and not any(fnmatchcase(item.nodeid, pattern) for pattern in ACCEPTANCE):
        item.add_marker(pytest.mark.slow)


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
            item.user_properties.append(("took_s", (item.nodeid, took_s)))
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            name, took_s = dict(report.user_properties)["took_s"]
            self._seconds[name] = took_s

    def pytest_sessionfinish(self, session):
        kept = {name: took for name, took in self._seconds.items() if took >= MOMENT_S}
        TABLE.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n", encoding="utf-8")
