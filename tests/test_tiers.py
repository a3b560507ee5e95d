"""The two tiers: what takes long is slow, but for what is worth its time every day."""

from fnmatch import fnmatchcase

from tests import tiers
from tests.run_all import DEALT
from tests.scripts import printed

NOTING = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(6))
def test_notes_its_process(number):
    with pathlib.Path(__file__).with_suffix(".log").open("a") as log:
        print(os.getpid(), file=log)
"""


def test_what_takes_long_is_slow(request):
    """Of the tests that were collected, those over the limit carry `slow`, unless accepted."""
    seconds = tiers.read()
    wrong = [
        item.nodeid
        for item in request.session.items
        if seconds.get(item.nodeid, 0.0) > tiers.LIMIT_S
        and not item.get_closest_marker("slow")
        and not any(fnmatchcase(item.nodeid, name) for name in tiers.ACCEPTANCE)
    ]
    assert wrong == []


def test_no_test_has_more_time_than_its_process(request):
    """A test that hangs is ended by its own limit, before the whole process is."""
    last_s = float(request.config.getini("faulthandler_timeout"))
    limits = {one.nodeid: one.get_closest_marker("timeout") for one in request.session.items}
    assert [name for name, limit in limits.items() if limit and limit.args[0] >= last_s] == []


def test_every_pattern_stands_for_tests():
    """No pattern outlives the tests that it was written for."""
    names = list(tiers.read())
    idle = [name for name in tiers.ACCEPTANCE if not any(fnmatchcase(one, name) for one in names)]
    assert idle == []


def test_the_table_is_of_files_that_are_there():
    """A file that was renamed is recorded again."""
    files = {name.partition("::")[0] for name in tiers.read()}
    root = tiers.TABLE.parents[2]
    assert sorted(name for name in files if not (root / name).exists()) == []


def test_a_file_is_dealt_to_one_process(tmp_path):
    """Tests that share what their file starts run in one process."""
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_xdist_make_scheduler\n"
    )
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(NOTING)
    printed("-m", "pytest", "-n", "2", *DEALT, "-p", "no:nbval", ".", cwd=tmp_path)
    pids = {log.name: set(log.read_text().split()) for log in tmp_path.glob("*.log")}
    assert {name: len(found) for name, found in pids.items()} == {
        f"test_{number}.log": 1 for number in range(4)
    }
