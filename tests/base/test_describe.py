import datetime as dt
import io
import pathlib
import zlib
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.base.describe import describe, summarize, thumbnail_png
from tests.samples import Pair, Sample

VALUES = st.recursive(
    st.integers() | st.text() | st.binary() | st.floats() | st.none() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


class Colour(Enum):
    RED = 1


class Broken:
    """An object that fails at every question."""

    def __getattribute__(self, name):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError

    def __len__(self):
        raise RuntimeError


def pixels(png):
    """Decode a PNG by Pillow, as a nested list."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(png))
    return np.asarray(image).tolist()


def shape(value, size=64):
    """Give the shape of a value's thumbnail, decoded by Pillow; None where there is none."""
    png = thumbnail_png(value, size)
    return None if png is None else np.asarray(pixels(png)).shape


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (7, "int 7"),
        (2**4000, "int of 4001 bits"),
        (1.5, "float 1.5"),
        ("a\nb", "str 'a\\nb'"),
        (b"ab", "bytes b'ab'"),
        (np.zeros((224, 224, 3), np.uint8), "ndarray (224, 224, 3) uint8"),
        (np.float32(1.5), "float32 1.5"),
        ((np.zeros(2), 3), "tuple of 2: ndarray (2,) float64, int 3"),
        ({"image": np.zeros(2), 3: "x"}, "dict image: ndarray (2,) float64, int 3: str 'x'"),
        ({"a": [1, 2]}, "dict a: (list of 2: int 1, int 2)"),
        (Pair(1, None), "Pair left: int 1, right: None"),
        (Sample(np.zeros(2), 3), "Sample image: ndarray (2,) float64, label: int 3"),
        ([], "list of 0"),
        ([[[[1]]]], "list of 1: list of 1: list of 1: list of 1"),
        (
            list(range(10)),
            "list of 10: int 0, int 1, int 2, int 3, int 4, int 5, int 6, int 7, ...",
        ),
        (Colour.RED, "Colour RED"),
        (pathlib.PurePosixPath("/a/b"), "PurePosixPath /a/b"),
        (dt.date(2024, 1, 2), "date 2024-01-02"),
        (object(), "object"),
        ({1, 2}, "set of 2"),
        (len, "builtin_function_or_method len"),
        (Sample, "type Sample"),
        (ValueError(f"bad {object()}"), "ValueError: bad <object>"),
    ],
)
def test_summaries(value, text):
    """A value is said by type, shape and contents, without a memory address."""
    assert summarize(value) == text


@pytest.mark.slow
@given(VALUES, st.integers(0, 300))
def test_summaries_are_bounded(value, limit):
    """Whatever the value, the summary is one line within the limit."""
    text = summarize(value, limit)
    assert len(text) <= limit
    assert "\n" not in text


def test_long_contents_are_cut():
    """Long texts and names are cut, and their length is said."""
    texts = [summarize("x" * 1000, 40), summarize({"k" * 100: 1}, 40)]
    assert texts == ["str 'xxxxxxxxxxxxxxxxxxxx' ... of 1000", "dict kkkkkkk...: int 1"]


def test_broken_objects():
    """An object that fails at every question still has a type and a size."""
    got = describe([Broken()])
    assert (summarize(Broken()), describe(Broken()).text, got.low) == ("Broken", "Broken", None)
    assert got.size_bytes > 0
    assert thumbnail_png(Broken()) is None


def test_description_of_an_array():
    """An array has shape, dtype, range without NaN, and size."""
    got = describe(np.array([[1, np.nan], [3, -2]], np.float32))
    assert (got.type, got.shape, got.dtype) == ("ndarray", (2, 2), "float32")
    assert (got.low, got.high, got.size_bytes) == (-2.0, 3.0, 16)
    assert got.text == "ndarray (2, 2) float32"


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (np.array([3, 1], np.uint8), 1, 3),
        (np.array([True, False]), 0, 1),
        (np.zeros(0), None, None),
        (np.array([np.nan]), None, None),
        (np.array([np.inf, 1]), 1, np.inf),
        (np.array(["a"]), None, None),
        (np.array([None]), None, None),
        (np.array(5), 5, 5),
        (5, 5, 5),
        (np.float32(0.5), 0.5, 0.5),
        (float("nan"), None, None),
        (2**4000, None, None),
        (True, None, None),
        ("a", None, None),
        ([1, 2], None, None),
    ],
)
def test_ranges(value, low, high):
    """Numbers and arrays of numbers have a range, other values none."""
    got = describe(value)
    assert (got.low, got.high) == (low, high)


def test_tensors(torch):
    """Tensors are described as arrays are, in any floating dtype, and drawn."""
    got = describe(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True))
    assert (got.shape, got.dtype, got.low, got.high) == ((2,), "bfloat16", 1.0, 2.0)
    assert summarize(torch.zeros(2, 3)) == "Tensor (2, 3) float32"
    assert shape(torch.zeros(2, 3, 16, 8, dtype=torch.bfloat16)) == (16, 8, 3)


@pytest.mark.parametrize(
    ("value", "size", "drawn"),
    [
        (np.zeros((20, 10), np.uint8), 64, (20, 10)),
        (np.zeros((20, 10, 1)), 64, (20, 10)),
        (np.zeros((20, 10, 3), np.float16), 64, (20, 10, 3)),
        (np.zeros((20, 10, 4), np.uint8), 64, (20, 10, 4)),
        (np.zeros((3, 20, 10)), 64, (20, 10, 3)),
        (np.zeros((1, 20, 10)), 64, (20, 10)),
        (np.zeros((5, 20, 10, 3), np.uint8), 64, (20, 10, 3)),
        (np.zeros((5, 3, 20, 10), np.uint8), 64, (20, 10, 3)),
        (np.zeros((5, 28, 28)), 64, (28, 28)),
        (np.zeros((20, 10), bool), 64, (20, 10)),
        (np.zeros((200, 100, 3), np.uint8), 64, (64, 32, 3)),
        (np.zeros((3000, 2, 3), np.uint8), 64, (64, 1, 3)),
        (np.zeros((100, 333), np.float32), 7, (2, 7)),
        (np.zeros((20, 10, 3), np.uint8), 1, (1, 1, 3)),
        (np.zeros((20, 10), np.int64), 64, None),
        (np.zeros((20, 2)), 64, None),
        (np.zeros((0, 20, 3)), 64, None),
        (np.zeros(20), 64, None),
        (np.zeros((2, 2, 20, 20, 3)), 64, None),
        (np.zeros((20, 10), complex), 64, None),
        ([1, 2], 64, None),
        ("text", 64, None),
        (np.zeros((20, 20), np.uint8), 0, None),
    ],
)
def test_what_is_drawn(value, size, drawn):
    """What looks like an image is drawn, of a batch the first; the rest is not."""
    assert shape(value, size) == drawn


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        (np.array([0, 0.5, 1]), [0, 128, 255]),
        (np.array([0.25, 0.5, 0.75]), [64, 128, 191]),
        (np.array([-1, 0, 1]), [0, 128, 255]),
        (np.array([0, 100, 200]), [0, 128, 255]),
        (np.array([np.nan, 0, 1]), [0, 0, 255]),
        (np.array([np.nan, np.nan, np.nan]), [0, 0, 0]),
        (np.array([-np.inf, 2, np.inf]), [0, 128, 255]),
        (np.array([7, 7, 7]), [128, 128, 128]),
        (np.array([-1e308, 0, 1e308]), [0, 128, 255]),
        (np.array([0, 77, 255], np.uint8), [0, 77, 255]),
        (np.array([False, True, True]), [0, 255, 255]),
    ],
)
def test_brightness(values, drawn):
    """Numbers in 0..1 are drawn as they are, others scaled; NaN is black."""
    values = values.astype(np.float64) if values.dtype == np.int64 else values
    plane = np.tile(values, (9, 3))
    assert pixels(thumbnail_png(plane))[0][:3] == drawn


def test_reduction_averages():
    """A picture that is too large is reduced by the mean of areas."""
    board = np.tile(np.array([[0, 200], [200, 0]], np.uint8), (16, 16))
    assert pixels(thumbnail_png(board, 8)) == [[100] * 8] * 8


def test_png_is_whole():
    """The file begins and ends as the specification says, and its chunks are checked."""
    png = thumbnail_png(np.zeros((8, 8), np.uint8))
    end = png[-8:-4]
    assert png.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\0\0\0\0")
    assert (end, zlib.crc32(end)) == (b"IEND", int.from_bytes(png[-4:], "big"))


@pytest.mark.parametrize("mode", ["RGB", "P", "L", "RGBA", "1", "CMYK", "I;16"])
def test_pil_images(mode):
    """Pillow's images are described by size and mode, and drawn."""
    image = pytest.importorskip("PIL.Image").new(mode, (30, 20))
    assert summarize(image) == f"Image 30x20 {mode}"
    assert shape(image)[:2] == (20, 30)


def test_an_archive_is_summed_up_by_its_names(tmp_path, monkeypatch):
    """Of a mapping that has to read what it gives, only the names are looked at."""
    np.savez(tmp_path / "one.npz", image=np.zeros(9), label=np.ones(1))
    with np.load(tmp_path / "one.npz") as archive:
        monkeypatch.setattr(type(archive), "__getitem__", lambda *_: pytest.fail("was read"))
        assert summarize([archive]) == "list of 1: NpzFile of 2: image, label"
        assert describe(archive).size_bytes > 0
