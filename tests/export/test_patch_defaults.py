"""Edited files: what is new in `build_pipeline` is written into them, and nothing else."""

import pytest

from nbpipe.export.store import Moved, merged, moved

OLD = '''"""Loader."""

import nbpipe

SIZE = 8


def build_pipeline(
    root: str = "data",
    *,
    decode_concurrency: int = 8,  # the disk's best
    decode_prefetch: int = 32,
    batch_size: int = 4,
) -> nbpipe.Pipeline:
    """Build."""
    return nbpipe.source([8, 32, 4])
'''
NEW = OLD.replace("concurrency: int = 8", "concurrency: int = 12").replace("int = 4", "int = 64")


def test_moved_names_what_moved():
    """Names, old and new values of the defaults that differ."""
    assert moved(OLD, NEW) == (
        Moved("decode_concurrency", "8", "12"),
        Moved("batch_size", "4", "64"),
    )


def test_nothing_moved():
    """Equal texts differ in no default."""
    assert moved(OLD, OLD) == ()


@pytest.mark.parametrize(
    "other",
    [
        NEW.replace("SIZE = 8", "SIZE = 9"),
        NEW.replace("# the disk's best", "# best"),
        NEW.replace("decode_prefetch: int", "decode_prefetch: int | None"),
        NEW.replace("    batch_size: int = 64,\n", ""),
        NEW.replace("build_pipeline", "build"),
        NEW + "def build_pipeline(): pass\n",
        "def build_pipeline(",
        "",
    ],
)
def test_more_than_defaults_moved(other):
    """A text that differs elsewhere has more than other defaults."""
    assert moved(OLD, other) is None


def test_an_unedited_file_becomes_the_new_text():
    """The result is the new text to the last byte."""
    assert merged(OLD, NEW, OLD) == NEW


def test_what_the_user_moved_is_kept_while_we_do_not():
    """A default of the user's own stays where ours did not move."""
    disk = OLD.replace("prefetch: int = 32", "prefetch: int = 99")
    assert merged(OLD, NEW, disk) == NEW.replace("prefetch: int = 32", "prefetch: int = 99")


def test_both_moved_to_the_same_value():
    """There is no conflict where the user wrote the very value."""
    disk = OLD.replace("concurrency: int = 8", "concurrency: int = 12")
    assert merged(OLD, NEW, disk) == NEW


@pytest.mark.parametrize(
    "disk",
    [
        OLD.replace("concurrency: int = 8", "concurrency: int = 16"),
        OLD.replace("    decode_concurrency: int = 8,  # the disk's best\n", ""),
        OLD.replace("concurrency: int = 8", "concurrency: int"),
        OLD.replace("build_pipeline", "build"),
        OLD + "def build_pipeline(): pass\n",
        OLD.replace(") ->", ""),
    ],
)
def test_conflicts(disk):
    """Moved by both, gone, without a default, or not readable: no answer."""
    assert merged(OLD, NEW, disk) is None


def test_an_edited_file_stays_while_nothing_moves():
    """Where nothing moved the file is as it should be, even one that cannot be read."""
    assert merged(OLD, OLD, "def build_pipeline(") == "def build_pipeline("


TUNED = NEW.replace("    batch_size", "    decode_timeout: int = 3,\n    batch_size").replace(
    "nbpipe.source([8, 32, 4])", "nbpipe.source([8, 32, 4], prefetch=decode_timeout)"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Loader."""', '"""Loader of mine."""\n\nimport os'),
        ("SIZE = 8", "SIZE = 9  # by hand"),
        ('    root: str = "data",\n', '    root: str = "elsewhere",\n'),
        ("SIZE = 8\n", "SIZE = 8\n\n\ndef mine():\n    pass\n"),
    ],
)
def test_a_new_knob_is_written_into_an_edited_file(before, after):
    """The lines of the knob come in, and the edit stays."""
    edited = OLD.replace(before, after)
    assert merged(OLD, TUNED, edited) == TUNED.replace(before, after)


@pytest.mark.parametrize(
    ("new", "disk"),
    [
        (TUNED, OLD.replace("[8, 32, 4])", "[8, 32, 4, 5])")),  # the same line
        (TUNED.replace("SIZE = 8", "SIZE = 10"), OLD.replace("Loader", "Mine")),  # and elsewhere
        (TUNED, "build_pipeline = 3\n"),
        (TUNED, "def build_pipeline(:\n"),
        ("build_pipeline = 3\n", OLD),
    ],
)
def test_what_cannot_be_written_into_an_edited_file(new, disk):
    """An edit of the same lines, and a change of more than `build_pipeline`, are left alone."""
    assert merged(OLD, new, disk) is None
