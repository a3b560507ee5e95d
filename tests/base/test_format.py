"""Text for people: tables as text and as HTML, numbers with their units."""

import math
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.base.format import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    html_table,
    parse_bytes,
    shortened,
    text_table,
)
from nbpipe.errors import ArgumentError, ArgumentTypeError

CELLS = st.text(max_size=80)


class Reader(HTMLParser):
    """Collects what a browser would show."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.titles = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_data(self, data):
        self.texts.append(data)


def read(html):
    """Parse HTML."""
    reader = Reader()
    reader.feed(html)
    return reader


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=5), CELLS)
def test_no_text_becomes_markup(rows, caption):
    """Whatever the cells hold, there are as many tags as the table needs."""
    reader = read(html_table(["a", "b", "c"], rows, caption=caption))
    own = ["div", "link", *["div"] * bool(caption), "table", "thead", "tr", *["th"] * 3, "tbody"]
    assert reader.tags == own + ["tr", "td", "td", "td"] * len(rows)


def test_cells_are_shown_in_short_and_in_whole():
    """A long cell is cut; its whole text is the tooltip."""
    long = "<word> & 'quote' " * 10
    reader = read(html_table(["a"], [[long]]))
    assert reader.titles == [long]
    assert shortened(long) in "".join(reader.texts)


def test_pictures_have_a_column():
    """Rows without one have an empty cell."""
    html = html_table(["a"], [["x"], ["y"]], pictures=[b"png", None])
    assert html.count("<img") == 1
    assert 'src="data:image/png;base64,cG5n"' in html
    assert html.count("<td") == 4


@given(st.text(max_size=200), st.integers(1, 80))
def test_short_text_is_one_line(text, limit):
    """No more characters than allowed, in one line."""
    line = shortened(text, limit)
    assert len(line) <= limit
    assert line == " ".join(line.split())


def test_columns_line_up():
    """Every column is as wide as its widest cell; nothing hangs over at the end."""
    lines = text_table(["a", "long"], [["wide cell", "1"], ["x", ""]]).splitlines()
    assert lines == ["a          long", "─────────  ────", "wide cell  1", "x"]


def test_a_table_without_rows():
    """The head stands alone."""
    assert text_table(["a", "b"], []).splitlines() == ["a  b", "─  ─"]


# -- numbers with their units ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.123, "0.12"),
        (0.96, "1"),
        (99.94, "99.9"),
        (99.96, "100"),
        (999.4, "999"),
        (999.6, "1 k"),
        (12345.0, "12.3 k"),
        (2_000_000, "2 M"),
        (-1500, "-1.5 k"),
        (1e30, "1000000000000 E"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_count(count, text):
    """A count has three digits and a prefix."""
    assert text == format_count(count)


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.00042, "420 µs"),
        (9.9996e-4, "1 ms"),
        (3e-8, "30 ns"),
        (1e-11, "0.01 ns"),
        (1.0, "1 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.7, "1 h 0 min"),
        (3725, "1 h 2 min"),
        (-90, "-1 min 30 s"),
        (-0.002, "-2 ms"),
        (math.inf, "inf s"),
    ],
)
def test_seconds(time_s, text):
    """A time has the unit that suits it."""
    assert text == format_seconds(time_s)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.97, "97%"),
        (1, "100%"),
        (0, "0%"),
        (0.004, "0.4%"),
        (0.0001, "<0.1%"),
        (0.0097, "1%"),
        (-0.5, "-50%"),
        (math.nan, "nan%"),
    ],
)
def test_share(share, text):
    """A share is shown in percent, and a small one does not vanish."""
    assert text == format_share(share)


def test_bytes_and_rates():
    """Sizes and rates carry their units."""
    shown = format_bytes(1.3e9), format_bytes(12), format_rate(12345.0), format_rate(3, "batches")
    assert shown == ("1.3 GB", "12 B", "12.3 k items/s", "3 batches/s")


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("2 GB", 2 * 10**9),
        ("2GB", 2 * 10**9),
        (" 1.5 kB ", 1500),
        ("1.5 GiB", 3 * 2**29),
        ("1 KiB", 1024),
        ("3 mb", 3 * 10**6),
        (".5 TB", 5 * 10**11),
        ("1 TiB", 2**40),
        ("9007199254740993 B", 9007199254740993),
    ],
)
def test_parse(size, count):
    """A size is read with decimal and binary units, exactly where it is whole."""
    assert count == parse_bytes(size)


@pytest.mark.parametrize(
    "size", [-1, "-1 GB", "", "GB", "1 XB", "1e9", "nan", "2 GB 3", "\uff11 GB"]
)
def test_parse_refuses_values(size):
    """A text or number that is no size is refused with the way out."""
    with pytest.raises(ArgumentError, match=r"memory must be .*1\.5 GiB") as caught:
        parse_bytes(size)
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize("size", [True, None, 1.5, [1], b"1 GB"])
def test_parse_refuses_types(size):
    """Something that is neither an int nor a text is refused with the way out."""
    with pytest.raises(ArgumentTypeError, match=r"memory must be an int or a text .*GiB") as caught:
        parse_bytes(size)
    assert repr(size) in str(caught.value)
