"""The two tiers: what takes long is slow, but for what is worth its time every day."""

from fnmatch import fnmatchcase

from tests import tiers


def test_what_takes_long_is_slow(request):
    """Of the tests that were collected, those over the limit carry `slow`, unless accepted."""
    seconds = tiers.read()
    wrong = [
        item.nodeid
        for item in request.session.items
        if seconds.get(item.stash[tiers.NAME], 0.0) > tiers.LIMIT_S
        and not item.get_closest_marker("slow")
        and not any(fnmatchcase(item.stash[tiers.NAME], name) for name in tiers.ACCEPTANCE)
    ]
    assert wrong == []


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
