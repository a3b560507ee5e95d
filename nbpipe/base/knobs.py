"""Knob: a bounded integer that may change at any moment, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsIndex

from ..errors import KnobError, UnknownKnobError, near_match
from .checks import as_int

Watcher = Callable[["KnobChange"], None]
AUTOTUNE = "autotune"  # who sets a knob by measured gain


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One change of a knob.

    Attributes:
        when_s: time of the change [seconds since the Unix epoch].
        knob: full name, for example "decode.concurrency".
        old: value before.
        new: value after.
        by: the author: "code", "panel", "controls", "%nbpipe", or the word given to `Knob.set`.
        why: the reason; may be empty.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(3)).map(abs).start() as run:
        ...     run["abs"].concurrency = 4
        ...     change = run.events[-1]
        >>> change.knob, change.old, change.new, change.by
        ('abs.concurrency', 1, 4, 'code')
    """

    when_s: float
    knob: str
    old: int
    new: int
    by: str
    why: str


class Knob:
    """A bounded integer that any thread may change at any moment.

    It remembers its author and reason, and calls its watchers after each change. You rarely need
    the object: `pipe["decode"].concurrency = 8` sets its value.

    Args:
        name: full name, for example "decode.concurrency".
        value: the first value; it is also `default`.
        minimum: smallest value.
        maximum: greatest value.
        unit: what is counted: "calls", "items", "batches".

    Raises:
        KnobError: `value` is not an integer in the range.

    Examples:
        >>> import nbpipe
        >>> pipe = nbpipe.source(range(3)).map(abs)
        >>> pipe["abs"].knob("concurrency")
        Knob(abs.concurrency=1, 1..1024 calls)
    """

    __slots__ = (
        "__weakref__",
        "_last",
        "_lock",
        "_value",
        "_watchers",
        "default",
        "maximum",
        "minimum",
        "name",
        "unit",
    )

    def __init__(self, name: str, value: int, *, minimum: int, maximum: int, unit: str) -> None:
        self.name = name
        self.minimum = minimum
        self.maximum = maximum
        self.unit = unit
        self._lock = threading.RLock()  # garbage may end its watch below us
        self._watchers: tuple[tuple[Watcher], ...] = ()
        self._last: KnobChange | None = None
        self._value = self.checked(value)
        self.default = self._value

    def __setattr__(self, name: str, value: object) -> None:
        if name[0] != "_" and hasattr(self, "default"):  # which is the last to be there
            if not hasattr(self, name):
                raise UnknownKnobError(
                    f"a knob has no attribute {name!r}{near_match(name, dir(self))}"
                )
            way = f"; call knob.set({value!r})" if name == "value" else ""
            raise UnknownKnobError(f"{self.name}: knob.{name} cannot be set{way}")
        object.__setattr__(self, name, value)

    @property
    def value(self) -> int:
        """The present value."""
        return self._value

    @property
    def last_change(self) -> KnobChange | None:
        """The latest change, or None if there was none."""
        return self._last

    def set(self, value: SupportsIndex, *, by: str = "code", why: str = "") -> int:
        """Set the value and call the watchers; works from any thread.

        Args:
            value: an integer (`__index__`, not a bool) from `minimum` to `maximum`.
            by: the author, for the log of changes.
            why: the reason, for the log of changes.

        Returns:
            The value as an int.

        Raises:
            KnobError: not an integer, or out of range; nothing changes.

        Examples:
            >>> import nbpipe
            >>> knob = nbpipe.source(range(3)).map(abs)["abs"].knob("concurrency")
            >>> knob.set(8, by="script", why="decode limits")
            8
            >>> knob.last_change.old, knob.last_change.new, knob.last_change.by
            (1, 8, 'script')
        """
        new = self.checked(value)
        with self._lock:
            old = self._value
            if new == old:
                return new
            self._value = new
            self._last = change = KnobChange(time.time(), self.name, old, new, by, why)
            watchers = self._watchers
        for (watcher,) in watchers:
            watcher(change)
        return new

    def _hand_over(self, by: str, why: str) -> None:
        """Name another author of the present value; no watcher is called."""
        with self._lock:
            self._last = KnobChange(time.time(), self.name, self._value, self._value, by, why)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` after every change, in the thread that makes it.

        Two simultaneous changes may arrive in either order, so read `value` if you need the present
        one. A watcher must not block.

        Args:
            watcher: a function of a `KnobChange`.

        Returns:
            A function that ends the watch; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> knob = nbpipe.source(range(3)).map(abs)["abs"].knob("concurrency")
            >>> unwatch = knob.watch(lambda change: print(change.old, "->", change.new))
            >>> knob.set(4)
            1 -> 4
            4
            >>> unwatch()
        """
        entry = (watcher,)  # an object of its own: the same function may watch twice
        with self._lock:
            self._watchers = (*self._watchers, entry)

        def unwatch() -> None:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not entry)

        return unwatch

    def checked(self, value: SupportsIndex) -> int:
        """Return a value as the knob would take it, without setting it.

        Args:
            value: an integer (`__index__`, not a bool).

        Returns:
            The value as an int.

        Raises:
            KnobError: not an integer, or out of range.

        Examples:
            >>> import nbpipe
            >>> knob = nbpipe.source(range(3)).map(abs)["abs"].knob("concurrency")
            >>> knob.checked(0)
            Traceback (most recent call last):
            nbpipe.errors.KnobError: abs.concurrency must be an int in [1, 1024] calls, got 0
        """
        number = as_int(value)
        if number is None or not self.minimum <= number <= self.maximum:
            raise KnobError(
                f"{self.name} must be an int in [{self.minimum}, {self.maximum}] {self.unit}, "
                f"got {value!r}"
            )
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process: with the value it was made with, and without watchers."""
        knob = partial(Knob, minimum=self.minimum, maximum=self.maximum, unit=self.unit)
        return knob, (self.name, self.default)

    def __repr__(self) -> str:
        return f"Knob({self.name}={self._value}, {self.minimum}..{self.maximum} {self.unit})"
