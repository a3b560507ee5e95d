"""Patched defaults: the defaults that moved are written into an edited file, and nothing else."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.export.store import Moved, merged, moved, patch_defaults

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
EDITED = """# mine
def build_pipeline(root="data", *, batch_size = (4), decode_prefetch: int=32,
                   decode_concurrency: int = 8 , extra=8):  # 8 and 4 were fine
    return [8, 4]
"""


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
    """A text that differs elsewhere is not patched."""
    assert (moved(OLD, other), patch_defaults(OLD, other, OLD)) == (None, None)


def test_an_unedited_file_becomes_the_new_text():
    """The result is the new text to the last byte."""
    assert patch_defaults(OLD, NEW, OLD) == NEW


def test_edits_stay():
    """Another order, other spaces, parentheses and comments survive."""
    expected = EDITED.replace("(4)", "(64)").replace("int = 8 ", "int = 12 ")
    assert patch_defaults(OLD, NEW, EDITED) == expected


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_mark_stay(end, mark):
    """Line ends of other systems and a byte order mark survive."""
    disk = mark + OLD.replace("\n", end)
    assert patch_defaults(OLD, NEW, disk) == mark + NEW.replace("\n", end)


def test_odd_characters_before_a_default():
    """Letters of several bytes, form feeds and line separators do not shift the place."""
    disk = OLD.replace("SIZE = 8", "SIZE = 'äé\u2028日本'\n\f\nx = 1").replace('"data"', '"dätä"')
    new = NEW.replace("SIZE = 8", "SIZE = 'äé\u2028日本'\n\f\nx = 1").replace('"data"', '"dätä"')
    assert patch_defaults(OLD, NEW, disk) == new


def test_two_on_one_line_and_over_lines():
    """Defaults on one line, and one that spans lines, are all found."""
    old = "def build_pipeline(a=1, b=[\n    1,\n    2,\n], /, c=3, *, d=-4): pass\n"
    new = "def build_pipeline(a=100, b=[3], /, c=300, *, d=None): pass\n"
    disk = "def build_pipeline(a=1, b=[1, 2], c=3, *, d=- 4): return 'edited'\n"
    assert patch_defaults(old, new, disk) == (
        "def build_pipeline(a=100, b=[3], c=300, *, d=None): return 'edited'\n"
    )


def test_what_the_user_moved_is_kept_while_we_do_not():
    """A default of the user's own stays where ours did not move."""
    disk = OLD.replace("prefetch: int = 32", "prefetch: int = 99")
    assert patch_defaults(OLD, NEW, disk) == NEW.replace("prefetch: int = 32", "prefetch: int = 99")


def test_both_moved_to_the_same_value():
    """There is no conflict where the user wrote the very value."""
    disk = OLD.replace("concurrency: int = 8", "concurrency: int = 0xC")
    assert patch_defaults(OLD, NEW, disk) == NEW.replace("= 12", "= 0xC")


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
    assert patch_defaults(OLD, NEW, disk) is None


def test_an_edited_file_stays_while_nothing_moves():
    """Where nothing moved the file is as it should be, even one that cannot be read."""
    assert patch_defaults(OLD, OLD, "def build_pipeline(") == "def build_pipeline("


@given(
    values=st.lists(st.tuples(st.integers(), st.integers()), min_size=1, max_size=6),
    space=st.sampled_from(["", " ", "\n  ", " \\\n"]),
    data=st.data(),
)
def test_any_order_and_spacing(values, space, data):
    """Whatever the order and spacing, the new values are read back by name."""
    names = [f"p{number}" for number in range(len(values))]
    pairs = list(zip(names, values, strict=True))
    old, new = (
        f"def build_pipeline(*, {', '.join(f'{name}={two[side]}' for name, two in pairs)}): pass"
        for side in (0, 1)
    )
    order = data.draw(st.permutations(pairs))
    disk = (
        "def build_pipeline(*, é='ü', "
        + ",".join(f"{name}{space}={space}{value[0]}" for name, value in order)
        + "): pass"
    )
    arguments = ast.parse(patch_defaults(old, new, disk)).body[0].args
    found = {
        one.arg: ast.literal_eval(default)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    assert found == {"é": "ü", **{name: value[1] for name, value in order}}


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
        (TUNED, OLD.replace("int = 32", "int = 33")),  # beside it
        (TUNED.replace("SIZE = 8", "SIZE = 10"), OLD.replace("Loader", "Mine")),  # and elsewhere
        (TUNED, "build_pipeline = 3\n"),
        (TUNED, "def build_pipeline(:\n"),
        ("build_pipeline = 3\n", OLD),
    ],
)
def test_what_cannot_be_written_into_an_edited_file(new, disk):
    """An edit of the same lines, and a change of more than `build_pipeline`, are left alone."""
    assert merged(OLD, new, disk) is None
