"""Photos: the JPEG files of W3, cut from the photographs of the notebooks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from .tasks import PHOTO_PIXELS

QUALITY = 90


def missing() -> str:
    """Name the line that installs what photographs need; an empty text where all is there."""
    if all(map(find_spec, ("PIL", "sklearn", "skimage"))):
        return ""
    return "photographs need: pip install pillow scikit-learn scikit-image"


def write_photos(folder: Path) -> int:
    """Write tiles of the photographs as JPEG files of 256x256 pixels; return their number."""
    from PIL import Image

    from notebooks import photographs

    count = 0
    for picture_HWC in photographs.load().values():
        height, width = picture_HWC.shape[:2]
        for top in range(0, height - PHOTO_PIXELS + 1, PHOTO_PIXELS // 2):
            for left in range(0, width - PHOTO_PIXELS + 1, PHOTO_PIXELS // 2):
                tile_HWC = picture_HWC[top : top + PHOTO_PIXELS, left : left + PHOTO_PIXELS]
                Image.fromarray(tile_HWC).save(folder / f"{count:03d}.jpg", quality=QUALITY)
                count += 1
    return count


def photo_paths(folder: str, items: int) -> list[str]:
    """Return `items` paths: the files of the folder in turn."""
    files = sorted(str(path) for path in Path(folder).glob("*.jpg"))
    return [files[index % len(files)] for index in range(items)]
