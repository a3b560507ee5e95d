"""What the workers do: the same functions for every chain, in any process.

No peer and no torch is imported here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tasks import PHOTO_PIXELS, SAMPLE_PIXELS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAIT_S = 0.001
SHAPE = (SAMPLE_PIXELS, SAMPLE_PIXELS, 3)  # uint8, 150 KB
TOKENS = 64  # of a sequence
MIXES = 8  # multiplications for each token
WORDS = 512  # of the vocabulary
PHOTOS = 64
QUALITY = 90
_COARSE = 32  # pixels of the noise that a photograph is made of

Array = Any


def waits(number: int) -> NDArray[np.uint8]:
    """Wait as a read does, then give an array of 150 KB."""
    time.sleep(WAIT_S)
    return np.full(SHAPE, number % 256, np.uint8)


def tokens(number: int) -> NDArray[np.int64]:
    """Make a sequence in pure Python, with the interpreter lock held."""
    value, made = number, []
    for _ in range(TOKENS):
        for _ in range(MIXES):
            value = (value * 1_664_525 + 1_013_904_223) % 2**32
        made.append(value % WORDS)
    return np.array(made, np.int64)


def photograph(path: str) -> NDArray[np.uint8]:
    """Decode a JPEG file with Pillow and resize it to 224x224."""
    return decode(path)


def shape_of(path: str) -> tuple[int, ...]:
    """Decode a JPEG file and drop it: what a bare worker process does."""
    return decode(path).shape


@dataclass(frozen=True)
class AllOf:
    """Makes a whole batch in one call, from the inputs of its items."""

    item: Callable[[Any], Array]

    def __call__(self, inputs: Sequence[Any]) -> Array:
        """Make the items one after another and stack them."""
        return np.stack([self.item(one) for one in inputs])


@dataclass(frozen=True)
class Samples:
    """A map-style dataset of the same items."""

    item: Callable[[Any], Array]
    inputs: Sequence[Any]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Array:
        """Make an item."""
        return self.item(self.inputs[index])


def inputs(name: str, count: int, folder: str = "") -> Sequence[Any]:
    """Return the inputs of `count` items of this work: numbers, or paths of photographs."""
    if ITEMS[name] is not photograph:
        return range(count)
    files = sorted(str(path) for path in Path(folder).glob("*.jpg"))
    return [files[number % len(files)] for number in range(count)]


def write_photos(folder: Path, count: int = PHOTOS) -> None:
    """Write JPEG files of 256x256 pixels: smooth noise, which needs no data set."""
    from PIL import Image

    side = (PHOTO_PIXELS, PHOTO_PIXELS)
    for number in range(count):
        noise = np.random.default_rng(number)
        coarse = noise.integers(0, 256, (_COARSE, _COARSE, 3), np.uint8)
        smooth_HWC = np.asarray(Image.fromarray(coarse).resize(side, Image.Resampling.BICUBIC))
        grain_HWC = noise.integers(0, 24, smooth_HWC.shape, np.uint8)
        photo_HWC = smooth_HWC // 10 * 9 + grain_HWC
        Image.fromarray(photo_HWC).save(folder / f"{number:03d}.jpg", quality=QUALITY)


ITEMS: dict[str, Callable[[Any], Array]] = {
    "waits": waits,
    "tokens": tokens,
    "photographs": photograph,
}
