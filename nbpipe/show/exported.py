"""The note of an export: with which values knobs were written to which file.

It keeps no knob alive.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ..base.knobs import Knob


class TurnedKnob(NamedTuple):
    """A knob that was turned since: the stage's address, its name, the value written, and now."""

    stage: str
    knob: str
    exported: int
    now: int


@dataclass(frozen=True, slots=True)
class SinceExport:
    """What became of a pipeline since it was exported.

    Attributes:
        path: the file.
        changes: the knobs whose values are not those in the file, in the order of the stages;
            one that stages share is the first's.
    """

    path: Path
    changes: tuple[TurnedKnob, ...]


class HasKnobs(Protocol):
    """Something with knobs: a stage."""

    @property
    def knobs(self) -> Mapping[str, Knob]:
        """Its knobs by name."""


class _Note(NamedTuple):
    number: int  # a later export has a larger one
    path: Path
    value: int


_notes: weakref.WeakKeyDictionary[Knob, _Note] = weakref.WeakKeyDictionary()
_numbers = itertools.count()
_lock = threading.Lock()


def note_export(knobs: Mapping[Knob, int], path: Path) -> None:
    """Note that knobs were written to a file; what was noted of them before is forgotten.

    Args:
        knobs: the value that was written of each.
        path: the file.
    """
    with _lock:
        number = next(_numbers)
        for knob, value in knobs.items():
            _notes[knob] = _Note(number, path, value)


def since_export(stages: Mapping[str, HasKnobs]) -> SinceExport | None:
    """Tell what was turned since the last export of some stages.

    Args:
        stages: the stages by address.

    Returns:
        The file and the knobs that differ from it; None where no knob was ever exported.
    """
    knobs: dict[Knob, tuple[str, str]] = {}
    for address, stage in stages.items():
        for name, knob in stage.knobs.items():
            knobs.setdefault(knob, (address, name))
    with _lock:
        found = {knob: note for knob in knobs if (note := _notes.get(knob)) is not None}
    if not found:
        return None
    last = max(found.values(), key=lambda note: note.number)
    turned = (
        TurnedKnob(*knobs[knob], note.value, knob.value)
        for knob, note in found.items()
        if note.number == last.number
    )
    return SinceExport(last.path, tuple(one for one in turned if one.exported != one.now))
