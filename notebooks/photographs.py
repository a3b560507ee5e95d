"""Photographs as JPEG files: random crops of the pictures that two packages bring along.

scikit-learn and scikit-image carry these photographs in their wheels; nothing is downloaded.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

SIDE = 192  # of a JPEG file, in pixels
TRAIN_SHARE = 0.7  # left part of each photograph; the crops for testing come from the rest


def load() -> dict[str, NDArray[np.uint8]]:
    """Load the photographs, by name, as arrays of shape (H, W, 3) uint8."""
    left_eye_HWC, _, _ = data.stereo_motorcycle()
    return {
        "astronaut": data.astronaut(),
        "cat": data.chelsea(),
        "china": load_sample_image("china.jpg"),
        "coffee": data.coffee(),
        "flower": load_sample_image("flower.jpg"),
        "motorcycle": left_eye_HWC,
        "retina": data.retina(),
        "rocket": data.rocket(),
    }


def write(
    folder: str | os.PathLike[str], *, train: int = 40, test: int = 10, seed: int = 0
) -> tuple[list[Path], list[Path]]:
    """Write crops of every photograph as `folder/train/cat/00.jpg`, `folder/test/...`.

    A crop for training and a crop for testing never share a pixel: the first come from the left
    of the photograph, the others from the right.

    Args:
        folder: where to write; files that are there already are written again.
        train: crops of each photograph for training.
        test: crops of each photograph for testing.
        seed: seed of the places and scales.

    Returns:
        The paths for training and the paths for testing, in the order of `load`.
    """
    rng = np.random.default_rng(seed)
    paths: dict[str, list[Path]] = {"train": [], "test": []}
    for name, picture_HWC in load().items():
        border = int(TRAIN_SHARE * picture_HWC.shape[1])
        parts = {
            "train": (picture_HWC[:, :border], train),
            "test": (picture_HWC[:, border:], test),
        }
        for part, (part_HWC, count) in parts.items():
            place = Path(folder, part, name)
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                path = place / f"{number:02d}.jpg"
                Image.fromarray(crop(part_HWC, rng)).resize((SIDE, SIDE)).save(path, quality=90)
                paths[part].append(path)
    return paths["train"], paths["test"]


def crop(picture_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Cut a square at a random place, half to all as wide as the short side."""
    height, width = picture_HWC.shape[:2]
    shorter = min(height, width)
    side = int(rng.integers(shorter // 2, shorter, endpoint=True))
    top = int(rng.integers(0, height - side, endpoint=True))
    left = int(rng.integers(0, width - side, endpoint=True))
    return picture_HWC[top : top + side, left : left + side]
