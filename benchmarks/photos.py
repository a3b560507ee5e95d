"""Photos: the JPEG files of W3, cut from sample photographs of scikit-learn and scikit-image."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .tasks import PHOTO_PIXELS

QUALITY = 90
_SCIKIT_IMAGE = ("astronaut", "chelsea", "coffee", "rocket")
PIP_LINE = "pip install pillow scikit-learn scikit-image"


def missing() -> str:
    """Say what to install where no photograph can be had; an empty text where all is there."""
    if find_spec("PIL") and (find_spec("sklearn") or find_spec("skimage")):
        return ""
    return f"photographs need: {PIP_LINE}"


def write_photos(folder: Path) -> int:
    """Write tiles of the sample photographs as JPEG files of 256x256 pixels.

    Returns:
        The number of files written.
    """
    from PIL import Image

    count = 0
    for picture_HWC in _pictures():
        for tile_HWC in _tiles(picture_HWC):
            path = folder / f"{count:03d}.jpg"
            Image.fromarray(tile_HWC).convert("RGB").save(path, quality=QUALITY)
            count += 1
    return count


def photo_paths(folder: str, items: int) -> list[str]:
    """Give `items` paths: the files of the folder in turn."""
    files = sorted(str(path) for path in Path(folder).glob("*.jpg"))
    return [files[index % len(files)] for index in range(items)]


def _pictures() -> Iterator[Any]:
    if find_spec("sklearn"):
        from sklearn.datasets import load_sample_images

        yield from load_sample_images().images
    if find_spec("skimage"):
        from skimage import data

        for name in _SCIKIT_IMAGE:
            yield getattr(data, name)()


def _tiles(picture_HWC: Any) -> Iterator[Any]:
    height, width = picture_HWC.shape[:2]
    for top in range(0, height - PHOTO_PIXELS + 1, PHOTO_PIXELS // 2):
        for left in range(0, width - PHOTO_PIXELS + 1, PHOTO_PIXELS // 2):
            yield picture_HWC[top : top + PHOTO_PIXELS, left : left + PHOTO_PIXELS]
