"""The two tiers: what takes long is slow, but for what is worth its time every day."""

from fnmatch import fnmatchcase

from tests import tiers
from tests.run_all import FOLDERS, ROOT


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
    assert sorted(name for name in files if not (ROOT / name).exists()) == []


def test_every_file_is_run_by_one_part():
    """`make test` leaves no file of tests out, and runs none twice."""
    loader = sorted(ROOT.glob("tests/loader/**/test_*.py"))
    paths = [ROOT / "tests" / folder for folders in FOLDERS.values() for folder in folders]
    files = [found for path in paths for found in ([path] if path.is_file() else files_in(path))]
    assert sorted([*files, *loader]) == sorted(files_in(ROOT / "tests"))


def files_in(folder):
    """List the files of tests in a folder."""
    return [path for path in folder.rglob("test_*.py") if "jobs" not in path.parts]
