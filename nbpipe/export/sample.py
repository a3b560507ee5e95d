"""Sample: the first items of the notebook's own pipeline, twice, within a time limit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

from .question import error_words, portrayed

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Portraits of first items, and what was raised after them, in words; empty for nothing."""

    items: tuple[Any, ...]
    raised: str = ""


def own_samples(
    items: Callable[[], Iterator[object]], count: int, limit_s: float
) -> list[Sample] | str:
    """Run twice for the first items; words where both together take longer than the limit."""
    end = time.monotonic() + limit_s
    samples: list[Sample] = []
    for _ in range(2):
        with _Taking(items, count) as taking:
            sample = taking.result(end - time.monotonic())
        if sample is None:
            return f"not compared: took longer than {limit_s:g} s"
        samples.append(sample)
    return samples


@final
class _Taking:
    """Takes items in a thread, so that the one who asks can give up."""

    def __init__(self, items: Callable[[], Iterator[object]], count: int) -> None:
        self._items = items
        self._count = count
        self._iterator: Any = None
        self._sample: Sample | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._take, name="nbpipe-export-items", daemon=True)

    def __enter__(self) -> _Taking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._done.is_set():
            self._close()  # wakes the thread where it waits for an item
        self._thread.join(_GRACE_S)

    def result(self, limit_s: float) -> Sample | None:
        """Wait for the items; None where they take too long."""
        self._done.wait(max(limit_s, 0.0))
        return self._sample

    def _take(self) -> None:
        taken: list[Any] = []
        raised = ""
        try:
            self._iterator = iter(self._items())
            taken.extend(map(portrayed, islice(self._iterator, self._count)))
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            raised = error_words(error)
        finally:
            self._close()
        self._sample = Sample(tuple(taken), raised)
        self._done.set()

    def _close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # it is at work in the thread, or fails at its end
                close()
