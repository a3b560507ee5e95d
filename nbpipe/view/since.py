"""What was turned since a pipeline was exported, as JSON-ready values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from ..exported import HasKnobs, changed
from ..text import shortened
from .bounded import NAME, label, plain

_MOST = 50  # knobs


class TurnedPart(TypedDict):
    """A knob that was turned since the last export: its value in the file, and now."""

    stage: str
    knob: str
    old: int
    new: int


class ExportPart(TypedDict):
    """The last export: the name of the file, and what was turned since."""

    file: str
    turned: list[TurnedPart]


def since_export(stages: Mapping[str, HasKnobs]) -> ExportPart | None:
    """Look at the last export of some stages; None where there was none."""
    since = changed(stages)
    if since is None:
        return None
    return {
        "file": shortened(plain(since.path.name), NAME),
        "turned": [
            {
                "stage": label(one.stage),
                "knob": label(one.knob),
                "old": one.exported,
                "new": one.now,
            }
            for one in since.changes[:_MOST]
        ],
    }
