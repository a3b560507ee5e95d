"""The parts of the suite: each test runs in one of them, and ends before its process is ended."""

from tests.run_all import FOLDERS, ROOT


def test_no_test_has_more_time_than_its_process(request):
    """A test that hangs is ended by its own limit, before the whole process is."""
    last_s = float(request.config.getini("faulthandler_timeout"))
    limits = {one.nodeid: one.get_closest_marker("timeout") for one in request.session.items}
    assert [name for name, limit in limits.items() if limit and limit.args[0] >= last_s] == []


def test_every_file_is_run_by_one_part():
    """`make test` leaves no file of tests out, and runs none twice."""
    loader = sorted(ROOT.glob("tests/loader/**/test_*.py"))
    paths = [ROOT / "tests" / folder for folders in FOLDERS.values() for folder in folders]
    files = [found for path in paths for found in ([path] if path.is_file() else files_in(path))]
    assert sorted([*files, *loader]) == sorted(files_in(ROOT / "tests"))


def files_in(folder):
    """List the files of tests in a folder."""
    return [path for path in folder.rglob("test_*.py") if "jobs" not in path.parts]
