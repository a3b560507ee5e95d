"""A batch holds the values of its samples: a dtype that would change one is refused."""

import datetime as dt
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, StageError


def batch(samples, **options):
    """Batch samples under a field's name."""
    chain = nbpipe.source([{"x": sample} for sample in samples]).batch(len(samples), **options)
    return next(iter(chain))["x"]


def refusal(samples, **options):
    """Return the words with which a batch of samples is refused."""
    with pytest.raises(StageError) as raised:
        batch(samples, **options)
    assert isinstance(raised.value.__cause__, ArgumentError), raised.value
    return str(raised.value.__cause__)


def ragged(dtype, values):
    """Return two arrays of different lengths."""
    return [np.array(values[:1], dtype), np.array(values[:2], dtype)]


# -- pad -------------------------------------------------------------------------------------------
SAMPLES = {
    "text": ragged("U1", ["a", "b"]),
    "bytes": ragged("S1", [b"a", b"b"]),
    "date": ragged("M8[D]", ["2020-01-01"] * 2),
    "duration": ragged("m8[s]", [1, 2]),
    "bool": ragged("?", [1, 0]),
    "int8": ragged("i1", [1, 2]),
    "uint8": ragged("u1", [1, 2]),
    "int64": ragged("i8", [1, 2]),
    "uint64": ragged("u8", [1, 2]),
    "float16": ragged("f2", [1, 2]),
    "float32": ragged("f4", [1, 2]),
    "float64": ragged("f8", [1, 2]),
    "complex64": ragged("c8", [1, 2]),
    "record": ragged([("a", "u1"), ("b", "f4")], [(1, 2), (3, 4)]),
}
CHANGED = [
    *[("text", pad) for pad in (-100, 0, 0.5, np.str_("ab"), np.bytes_(b"a"))],
    *[("bytes", pad) for pad in (-1, 0, np.bytes_(b"ab"))],
    *[("date", pad) for pad in (0, 0.5, -100, np.datetime64("2020-01-01T12", "h"))],
    ("date", np.timedelta64(1, "D")),
    *[("duration", pad) for pad in (0, -1.5, np.timedelta64(1, "ms"), np.timedelta64(10**18, "D"))],
    *[("duration", pad) for pad in (np.timedelta64(5), np.datetime64("2020-01-01"))],
    *[("bool", pad) for pad in (-100, 2, 0.5, math.nan, 1j)],
    *[("int8", pad) for pad in (128, -129, 0.5, math.inf, math.nan, 1j, np.timedelta64(1, "s"))],
    *[("uint8", pad) for pad in (-1, -100, 256, np.float32(0.5))],
    *[("int64", pad) for pad in (2**63, 2.0**63, 1e300, 2**2000, np.uint64(2**63))],
    *[("uint64", pad) for pad in (-1, 2**64, 2.0**64)],
    *[("float16", pad) for pad in (1e9, 2049, 1e-10, 1j, -70_000, np.datetime64("2020-01-01"))],
    *[("float32", pad) for pad in (1j, 1e300, 2**24 + 1, np.int64(2**24 + 1), 1e-60)],
    *[("float64", pad) for pad in (2**53 + 1, 2**2000, 1 + 1e-300j)],
    *[("complex64", pad) for pad in (1e300, complex(0, 1e300), 2**24 + 1)],
    *[("record", pad) for pad in (-1, 300, 0.5)],
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "pad"), CHANGED)
def test_a_pad_that_would_change_is_refused(dtype, pad):
    """A pad value is in the batch as it was given, or the field and the value are named."""
    said = refusal(SAMPLES[dtype], pad=pad)
    assert said.startswith("sample['x']")
    assert f"got {pad!r}" in said


KEPT = [
    ("text", np.str_("b")),
    ("bytes", np.bytes_(b"b")),
    ("date", np.datetime64("NaT")),
    ("date", np.datetime64("1970-01-01", "ns")),
    ("duration", np.timedelta64(1, "h")),
    ("bool", 1),
    ("int8", -128.0),
    ("uint8", True),
    ("int64", -(2**63)),
    ("uint64", 2**64 - 1),
    ("float16", math.nan),
    ("float16", -math.inf),
    ("float16", 2048),
    ("float32", 1 + 0j),
    ("float64", np.float32(0.5)),
    ("complex64", 1j),
    ("record", 1),
]


@pytest.mark.parametrize(("dtype", "pad"), KEPT)
def test_a_pad_that_fits_is_taken(dtype, pad):
    """A pad value that the dtype of the samples holds stands in the batch."""
    made = batch(SAMPLES[dtype], pad=pad)
    assert made.dtype == SAMPLES[dtype][0].dtype
    found = made[0, 1]
    if dtype == "record":
        assert found.tolist() == (1, 1.0)
    else:
        assert found == pad or (found != found and pad != pad)  # noqa: PLR0124  NaN, NaT


def test_a_pad_with_a_fraction_is_rounded_as_its_samples_are():
    """Of a float, the nearest value that the samples' dtype has is meant."""
    assert batch(SAMPLES["float16"], pad=0.1)[0, 1] == np.float16(0.1)


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        *[("float16", pad) for pad in (1e9, 2049, 1j, 1e-10)],
        *[("bfloat16", pad) for pad in (1e39, 257, 1j, 2**2000)],
        *[("float32", pad) for pad in (1e300, 1j, 2**24 + 1)],
        *[("uint8", pad) for pad in (-1, 256, 0.5)],
        ("bool", -100),
        ("complex64", 1e300),
    ],
)
def test_a_pad_of_tensors_that_would_change_is_refused(dtype, pad):
    """The same holds for tensors."""
    torch = pytest.importorskip("torch")
    tensors = [torch.ones(size, dtype=getattr(torch, dtype)) for size in (1, 2)]
    assert f"pad must be a value of {dtype}, the samples' dtype, got {pad!r}" in refusal(
        tensors, pad=pad
    )


@pytest.mark.parametrize(("dtype", "pad"), [("bfloat16", -100), ("float16", 1 + 0j), ("bool", 1)])
def test_a_pad_of_tensors_that_fits_is_taken(dtype, pad):
    """What a tensor holds stands in the batch."""
    torch = pytest.importorskip("torch")
    tensors = [torch.ones(size, dtype=getattr(torch, dtype)) for size in (1, 2)]
    assert batch(tensors, pad=pad)[0, 1].item() == pad


# -- samples of several dtypes ---------------------------------------------------------------------
FAR, NEAR = np.array(["9999-01-01"], "M8[D]"), np.array(["2020-01-01"], "M8[ns]")
MIXED = {
    "dates": ([FAR, NEAR], "9999-01-01 (datetime64[D]) beside datetime64[ns]"),
    "single dates": ([FAR[0], NEAR[0]], "9999-01-01 (datetime64[D])"),
    "durations": ([np.array([10**15], "m8[D]"), np.array([1], "m8[ns]")], "timedelta64[D]"),
    "durations without a unit": ([np.array([5], "m8"), np.array([1], "m8[D]")], "one unit"),
    "years and days": ([np.array([5], "m8[Y]"), np.array([1], "m8[D]")], "timedelta64[Y]"),
    "large ints beside floats": ([np.array([2**53 + 1]), np.ones(1)], f"got {2**53 + 1}"),
    "unsigned ints beside floats": ([np.ones(1), np.array([2**64 - 1], "u8")], f"got {2**64 - 1}"),
    "large numbers": ([2**53 + 1, 0.5], f"got {2**53 + 1}"),
    "large scalars": ([np.int64(2**53 + 1), np.float32(1)], f"got {2**53 + 1}"),
    "large numbers beside complex ones": ([2**53 + 1, 1j], f"got {2**53 + 1}"),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_samples_whose_common_dtype_changes_one_are_refused(mixed):
    """The value that no common dtype holds is named with its field."""
    samples, named = MIXED[mixed]
    said = refusal(samples)
    assert said.startswith("sample['x']")
    assert named in said


def test_samples_of_two_units_keep_their_dates():
    """Dates of two units that hold them both are stacked."""
    days, none = np.array(["2020-01-01"], "M8[D]"), np.array(["NaT"], "M8")
    assert (batch([days, NEAR]) == np.stack([days, days])).all()
    assert np.isnat(batch([days, none])[1, 0])
    assert batch([dt.date(2020, 1, 1)] * 2) == [dt.date(2020, 1, 1)] * 2


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1), st.floats(allow_nan=False))
def test_ints_beside_floats_are_exact_or_refused(ints, one):
    """Whatever integers stand beside a float, none is rounded."""
    samples = [np.array(ints), np.full(len(ints), one)]
    try:
        made = batch(samples)
    except StageError:
        assert any(int(float(number)) != number for number in ints)
    else:
        assert [int(number) for number in made[0]] == ints


TENSORS = {
    "int64 beside float32": (("int64", 2**24 + 1), ("float32", 1), str(2**24 + 1)),
    "int64 beside float16": (("int64", 70_000), ("float16", 1), "70000"),
    "int64 beside float64": (("int64", 2**53 + 1), ("float64", 1), str(2**53 + 1)),
    "int64 beside complex64": (("int64", 2**24 + 1), ("complex64", 1), str(2**24 + 1)),
    "uint16 beside int16": (("uint16", 1), ("int16", 1), "torch.uint16"),
}


@pytest.mark.parametrize("mixed", TENSORS)
def test_tensors_whose_common_dtype_changes_one_are_refused(mixed):
    """The same holds for tensors, whose common dtypes are narrower."""
    torch = pytest.importorskip("torch")
    *parts, named = TENSORS[mixed]
    tensors = [torch.tensor([value], dtype=getattr(torch, dtype)) for dtype, value in parts]
    assert named in refusal(tensors)


# -- dtype -----------------------------------------------------------------------------------------
def test_a_cast_that_overflows_is_refused():
    """With `dtype=` values are rounded, but none becomes infinite."""
    for samples in ([np.array([1.0, 1e300])] * 2, [1.0, 1e300], ragged("f8", [1e300, 1])):
        said = refusal(samples, dtype="float32", pad=0)
        assert said.startswith("sample['x']")
        assert "got 1e+300" in said
    assert "got 70000" in refusal([np.array([70_000]), np.ones(1)], dtype="float16")


def test_a_cast_keeps_what_was_infinite():
    """Infinities of the samples stay."""
    samples = [np.array([np.inf, -np.inf, np.nan, 0.1])] * 2
    made = batch(samples, dtype="float16")
    np.testing.assert_array_equal(made, np.stack(samples).astype("f2"))


@pytest.mark.filterwarnings("error")
def test_a_cast_does_not_ask_how_the_loop_takes_errors():
    """Settings of numpy's floating-point errors decide nothing."""
    with np.errstate(all="ignore"):
        assert "got 1e+300" in refusal([1.0, 1e300], dtype="float32")
    with np.errstate(all="raise"):
        assert batch([1.0, 1e-300], dtype="float32").tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_cast_of_tensors_that_overflows_is_refused(dtype):
    """The same holds for tensors, and for numbers beside them."""
    torch = pytest.importorskip("torch")
    wide = [torch.tensor([1.0, 1e300], dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
    assert "got 1e+300" in refusal(wide, dtype=dtype)
    assert "got 1e+300" in refusal([wide[0], wide[1][:1]], dtype=dtype, pad=0)
    assert "got 1e+300" in refusal([{"n": 1e300, "t": wide[1]}] * 2, dtype=dtype)
    infinite = torch.tensor([math.inf, 1.0])
    assert batch([infinite] * 2, dtype=dtype).tolist() == [[math.inf, 1.0]] * 2
