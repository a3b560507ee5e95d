"""The second stage of W2, which ends in torch tensors."""

from __future__ import annotations

import time

import torch

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
