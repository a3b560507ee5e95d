import math

import pytest

from nbpipe.base.format import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    parse_bytes,
)
from nbpipe.errors import ArgumentError, ArgumentTypeError


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
        (0.00042, "420 us"),
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
        (0.97, "97 %"),
        (1, "100 %"),
        (0, "0 %"),
        (0.004, "0.4 %"),
        (0.0001, "<0.1 %"),
        (0.0097, "1 %"),
        (-0.5, "-50 %"),
        (math.nan, "nan %"),
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
    with pytest.raises(ArgumentTypeError, match=r"limit must be an int or a text .*GiB") as caught:
        parse_bytes(size, what="limit")
    assert repr(size) in str(caught.value)
