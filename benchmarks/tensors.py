"""What ends in torch tensors: the second stage of W2, and arrays that torch hands over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .tasks import CONVERT_S, JOURNAL

WIDTH = 8


def to_tensor(item: int) -> torch.Tensor:
    """Wait as a short conversion does and give a row that carries `item`: (8,) float32."""
    start_s = time.perf_counter()
    time.sleep(CONVERT_S)
    row = torch.full((WIDTH,), float(item))
    JOURNAL.append((start_s, time.perf_counter()))
    return row


def stack(rows: list[torch.Tensor]) -> torch.Tensor:
    """Stack rows into a batch: (32, 8) float32."""
    return torch.stack(rows)


@dataclass(frozen=True)
class Tensors:
    """The arrays of W4 and W6 as tensors, which torch's processes hand over in shared memory."""

    produce: Callable[[int], NDArray[np.float32]]

    def __call__(self, item: int) -> torch.Tensor:
        """Return the array of an item as a tensor, without a copy."""
        return torch.from_numpy(self.produce(item))
