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


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One change of a knob.

    Attributes:
        when_s: time of the change [seconds since the Unix epoch].
        knob: full name, as "decode.concurrency".
        old: value before.
        new: value after.
        by: who set it: "code", "panel", "controls", "%nbpipe", or the word that `set` was given.
        why: reason given, may be empty.
    """

    when_s: float
    knob: str
    old: int
    new: int
    by: str
    why: str


class Knob:
    """A bounded integer: thread-safe, watchable, remembering who set it and why.

    Args:
        name: full name, as "decode.concurrency".
        value: value to begin with; it is also `default`.
        minimum: smallest value accepted.
        maximum: largest value accepted.
        unit: what is counted: "calls", "items", "batches".

    Raises:
        KnobError: `value` is not an integer in the range.
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
        """The value in force."""
        return self._value

    @property
    def last_change(self) -> KnobChange | None:
        """The latest change, or None where the value is still the first one."""
        return self._last

    def set(self, value: SupportsIndex, *, by: str = "code", why: str = "") -> int:
        """Set the value and tell the watchers; may be called from any thread.

        Args:
            value: any integer (`__index__`, not a bool) in [minimum, maximum].
            by: who sets it.
            why: the reason, for the log of changes.

        Returns:
            The value that was taken.

        Raises:
            KnobError: not an integer, or out of range; nothing changed.
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

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` after every change, in the thread that makes it.

        Two changes at the same moment may arrive in either order: a watcher that needs the
        value in force reads `value`. It must not block.

        Returns:
            A function that ends the watch; calling it again does nothing.
        """
        entry = (watcher,)  # an object of its own: the same function may watch twice
        with self._lock:
            self._watchers = (*self._watchers, entry)

        def unwatch() -> None:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not entry)

        return unwatch

    def checked(self, value: SupportsIndex) -> int:
        """Return a value as the knob would take it.

        Raises:
            KnobError: not an integer, or out of range.
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
