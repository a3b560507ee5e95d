"""The photographs of the notebooks."""

import sys

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

NAMES = ["astronaut", "cat", "china", "coffee", "flower", "motorcycle", "retina", "rocket"]


@pytest.fixture(scope="module")
def photographs():
    """Give the module, which takes a second to load."""
    return pytest.importorskip("notebooks.photographs")


@pytest.fixture(scope="module")
def pictures(photographs):
    """Give the photographs, loaded once."""
    return photographs.load()


def test_photographs_are_in_colour(pictures):
    """Every photograph is an array (H, W, 3) of bytes."""
    kinds = {(picture.ndim, picture.shape[-1], picture.dtype) for picture in pictures.values()}
    assert (NAMES, {(3, 3, np.dtype("uint8"))}) == (sorted(pictures), kinds)


def test_photographs_need_no_download(pictures):
    """The package with which scikit-image downloads is never loaded."""
    assert ("pooch" in sys.modules, len(pictures)) == (False, 8)


def test_write_gives_as_many_files_as_asked_for(photographs, tmp_path):
    """Each photograph gives the crops asked for, in the folder that names it."""
    train, test = photographs.write(tmp_path, train=3, test=2)
    found = {
        part: sorted({path.parent.name for path in paths if path.parent.parent.name == part})
        for part, paths in (("train", train), ("test", test))
    }
    on_disk = sorted(tmp_path.glob("*/*/*.jpg"))
    expected = (24, 16, {"train": NAMES, "test": NAMES}, sorted(train + test))
    assert expected == (len(train), len(test), found, on_disk)


def test_write_gives_jpeg_files_of_one_size(photographs, tmp_path):
    """Crops of every scale are written as squares of one size."""
    train, _ = photographs.write(tmp_path, train=1, test=1)
    kinds = set()
    for path in train:
        with Image.open(path) as image:
            kinds.add((image.format, image.mode, image.size))
    assert {("JPEG", "RGB", (photographs.SIDE, photographs.SIDE))} == kinds


@pytest.mark.slow
def test_write_depends_on_the_seed_alone(photographs, tmp_path):
    """The same seed writes the same bytes again, another seed other ones."""
    folders = [(tmp_path / "a", 1), (tmp_path / "b", 1), (tmp_path / "c", 2)]
    first, again, other = (
        [path.read_bytes() for path in photographs.write(folder, train=1, test=1, seed=seed)[0]]
        for folder, seed in folders
    )
    assert (first == again, first == other) == (True, False)


def test_crops_for_testing_share_no_pixel_with_those_for_training(
    photographs, tmp_path, monkeypatch
):
    """On pictures that are dark on the left and bright on the right, the parts stay apart."""
    split_HWC = np.full((200, 1000, 3), 255, np.uint8)
    split_HWC[:, : int(photographs.TRAIN_SHARE * 1000)] = 0
    monkeypatch.setattr(photographs, "load", lambda: {"split": split_HWC})
    shades = [
        {int(np.asarray(Image.open(path)).mean()) for path in paths}
        for paths in photographs.write(tmp_path, train=20, test=20)
    ]
    assert [{0}, {255}] == shades


def test_crop_is_a_square_within_the_picture(photographs):
    """A crop is a square, half to all as wide as the picture's short side."""
    rng = np.random.default_rng(0)
    picture_HWC = np.zeros((40, 90, 3), np.uint8)
    shapes = {photographs.crop(picture_HWC, rng).shape for _ in range(500)}
    assert {(side, side, 3) for side in range(20, 41)} == shapes
