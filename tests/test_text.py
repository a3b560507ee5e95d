"""Tables as text and as HTML."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from nbpipe.base.format import html_table, shortened, text_table

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
    own = ["div", "style", *["div"] * bool(caption), "table", "thead", "tr", *["th"] * 3, "tbody"]
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
