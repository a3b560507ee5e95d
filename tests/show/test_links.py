"""Links: the address of a page is shown as a link only if it is one of the web."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.show.inner import page_link


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8787/status",
        "https://hub.example.org/user/ada/proxy/8787/status?tab=1#x",
        "HTTP://[::1]:8787",
    ],
)
def test_pages(address):
    """The address of a page is given as it is."""
    assert page_link(address) == address


@pytest.mark.parametrize(
    "address",
    [
        *("javascript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)", "vbscript:x"),
        *("data:text/html,<script>alert(1)</script>", "file:///etc/passwd", "//example.org"),
        *("/status", "http:example.org", "http://", "http://user:secret@example.org/", ""),
        *("http://example.org\\@evil.example.org", "http://example.org/a b", "http://e.org/\n"),
        *("http://example.org/\u202e", "http://example.org/" + "x" * 300, "\udcff"),
        *(None, 7, b"http://example.org/", ["http://example.org/"]),
    ],
)
def test_all_else_is_no_link(address):
    """What runs code, reads files, hides where it leads, or is too long is left out."""
    assert page_link(address) is None


@given(st.text(max_size=320) | st.from_regex(r"https?://\S*"))
def test_links_are_plain(address):
    """Whatever is given, a link has an address of the web, is short, and has no blanks."""
    link = page_link(address)
    plain = link is None or (
        link.lower().startswith(("http://", "https://")) and len(link) <= 300 and link.isascii()
    )
    assert (plain, link is None or link.split() == [link]) == (True, True)
