"""Scenery: what has to stand before the first measurement, and is cleared away after the last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import machine, photos
from .plan import Scene
from .tasks import burn_loops

BURN_S = 0.003


@contextmanager
def scenery(rounds: int, *, quick: bool) -> Iterator[Scene]:
    """Write the photographs and time the interpreter."""
    with tempfile.TemporaryDirectory(prefix="nbpipe-photos-") as folder:
        missing = photos.missing()
        if not missing:
            photos.write_photos(Path(folder))
        yield Scene(
            rounds=rounds,
            quick=quick,
            cores=machine.cores(),
            loops_per_s=burn_loops(BURN_S) / BURN_S,
            photos=folder,
            no_photos=missing,
        )
