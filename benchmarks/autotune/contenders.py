"""Contenders: how each one builds a kind of pipeline, and what it does while it learns.

A contender is a generator of batches with `learn`, which is called before each batch while it may
learn, and `settle`, called once afterwards.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .kinds import BATCH, MB, Kind, index_of

if TYPE_CHECKING:
    import nbpipe

MANY = 10**9  # items: an epoch that does not end
MOST = 64  # calls, and places in a buffer, that a random search draws


class Written:
    """nbpipe with its knobs as written: the defaults.

    Args:
        kind: the pipeline.
        pace: how long things take: 1, or less in a quick run.
    """

    def __init__(self, kind: Kind, pace: float) -> None:
        import nbpipe

        self.kind, self.pace = kind, pace
        pipe = nbpipe.source(range(MANY), name="numbers")
        for stage in kind.stages:
            executor = "process" if stage.in_process else "thread"
            pipe = pipe.map(stage.call, name=stage.name, executor=executor)
        self.run: nbpipe.Run = pipe.batch(BATCH, collate=list).start()

    def batches(self) -> Iterator[list[Any]]:
        """Return the batches."""
        return iter(self.run)

    def begin(self, ceiling_bytes: int | None) -> None:
        """Begin to learn a load."""

    def learn(self, _count: int, _resident_bytes: int) -> None:
        """Look at the run before another batch."""

    def settle(self) -> None:
        """Learn no more."""

    def about(self) -> dict[str, Any]:
        """Return what it chose, and what it did."""
        return {"at": self.values(), "turns": self.turns()}

    def values(self) -> dict[str, int]:
        """Return the values of the knobs, by "stage.knob"."""
        stages = self.run.stages.items()
        return {f"{name}.{k}": knob.value for name, one in stages for k, knob in one.knobs.items()}

    def turns(self) -> list[tuple[float, str, int, int]]:
        """Return the knob changes: time [s], knob, old and new value."""
        return [(one.when_s, one.knob, one.old, one.new) for one in self.run.events]

    def close(self) -> None:
        """End the run."""
        self.run.close()

    def set(self, values: Mapping[str, int]) -> None:
        """Set knobs."""
        for name, value in values.items():
            stage, knob = name.rsplit(".", 1)
            setattr(self.run[stage], knob, value)


class Tuned(Written):
    """nbpipe with `run.autotune()`."""

    def begin(self, ceiling_bytes: int | None) -> None:
        """Begin to learn a load."""
        if self.run.tuner is None:
            self.run.autotune(memory=ceiling_bytes)

    def settle(self) -> None:
        """Learn no more."""
        assert self.run.tuner is not None
        self.run.tuner.stop()

    def about(self) -> dict[str, Any]:
        """Return what it chose, and what it did."""
        assert self.run.tuner is not None
        return {**super().about(), "log": [str(one) for one in self.run.tuner.log]}


class Tried(Written):
    """nbpipe with settings that are tried in turn, each for a window; the fastest one is kept."""

    settles_s, window_s = 0.7, 1.5

    def __init__(self, kind: Kind, pace: float) -> None:
        super().__init__(kind, pace)
        self._found: list[tuple[float, dict[str, int]]] = []

    def begin(self, ceiling_bytes: int | None) -> None:
        """Begin to learn a load."""
        self._ceiling_bytes = ceiling_bytes
        self._found = []
        self._draws = self.draws()
        self._next()

    def draws(self) -> Iterator[dict[str, int]]:
        """Yield the settings to try."""
        raise NotImplementedError

    def _next(self) -> None:
        self._values = next(self._draws, {})
        self.set(self._values)
        self._since_s = time.perf_counter() + self.pace * self.settles_s
        self._first: int | None = None
        self._peak = 0

    def learn(self, count: int, resident_bytes: int) -> None:
        """Look at the run before another batch."""
        now_s = time.perf_counter()
        if not self._values or now_s < self._since_s:
            return
        self._peak = max(self._peak, resident_bytes)
        if self._first is None:
            self._first, self._since_s = count, now_s
        elif now_s - self._since_s >= self.pace * self.window_s:
            rate = (count - self._first) / (now_s - self._since_s)
            if self._ceiling_bytes is None or self._peak <= self._ceiling_bytes:
                self._found.append((rate, self._values))
            self._next()

    def settle(self) -> None:
        """Learn no more."""
        self.set(self.best())

    def best(self) -> dict[str, int]:
        """Return the fastest setting; where one was tried more often, by its mean."""
        rates: dict[tuple[tuple[str, int], ...], list[float]] = {}
        for rate, values in self._found:
            rates.setdefault(tuple(values.items()), []).append(rate)
        most = max(map(len, rates.values()), default=0)
        often = {one: sum(some) for one, some in rates.items() if len(some) == most}
        return dict(max(often, key=lambda one: often[one])) if often else {}


class Drawn(Tried):
    """A random search: for each stage, any number of calls and any depth of its buffer."""

    def draws(self) -> Iterator[dict[str, int]]:
        """Yield the settings to try."""
        draw, names = random.Random(0), [stage.name for stage in self.kind.stages]
        for _ in itertools.count():
            yield {
                f"{name}.{knob}": round(MOST ** draw.random())
                for name in names
                for knob in ("concurrency", "prefetch")
            }


class Best(Tried):
    """The best setting of the kind's grid: all of them once, and the fastest three again."""

    @property
    def seconds(self) -> float:
        """How long that takes [s]."""
        settings = 1
        for values in self.kind.grid.values():
            settings *= len(values)
        return self.pace * (settings + 7) * (self.settles_s + self.window_s + 0.5)

    def draws(self) -> Iterator[dict[str, int]]:
        """Yield the settings to try."""
        grid = self.kind.grid
        yield from (
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        )
        fastest = sorted(self._found, key=lambda one: -one[0])[:3]
        for _ in range(2):
            yield from (values for _, values in fastest)


class TfData:
    """`tf.data` with AUTOTUNE for calls and buffers.

    It takes calls to compute, and makes no more than there are cores; so it is given as many
    threads and cores as the others may make calls.
    """

    def __init__(self, kind: Kind, _pace: float) -> None:
        import tensorflow as tf

        result = tf.int64 if kind.memory_mb is None else tf.uint32
        data = tf.data.Dataset.range(MANY)
        for stage in kind.stages:
            data = data.map(self._function(tf, stage.call, result), tf.data.AUTOTUNE)
        options = tf.data.Options()
        options.threading.private_threadpool_size = MOST
        options.autotune.cpu_budget = MOST
        if kind.memory_mb is not None:
            options.autotune.ram_budget = kind.memory_mb * MB
        self._data = data.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options)

    @staticmethod
    def _function(tf: Any, call: Callable[[Any], Any], result: Any) -> Callable[[Any], Any]:
        def function(item: Any) -> Any:
            return tf.numpy_function(lambda one: call(index_of(one)), [item], result)

        return function

    def batches(self) -> Iterator[list[Any]]:
        """Return the batches."""
        return (list(batch) for batch in self._data.as_numpy_iterator())

    def begin(self, _ceiling_bytes: int | None) -> None:
        """Begin to learn a load."""

    def learn(self, _count: int, _resident_bytes: int) -> None:
        """Look at the run before another batch."""

    def settle(self) -> None:
        """Learn no more: nothing stops it."""

    def about(self) -> dict[str, Any]:
        """Return what it chose: it does not report that."""
        return {"at": {}, "turns": []}

    def close(self) -> None:
        """End it."""


CONTENDERS: dict[str, Callable[[Kind, float], Any]] = {
    "autotune": Tuned,
    "best": Best,
    "written": Written,
    "random": Drawn,
    "tf.data": TfData,
}


def in_order(batch: list[Any], number: int) -> bool:
    """Return whether a batch has the items that a plain loop gives."""
    first = number * BATCH
    return [index_of(item) for item in batch] == list(range(first, first + BATCH))
