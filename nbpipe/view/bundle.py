"""Bundle: a run as an output of a notebook holds it, where no panel is alive."""

from __future__ import annotations

from ..watch import Watched
from .history import history
from .picture import picture_html
from .snapshot import Snapshot, snapshot
from .words import picture_text


def bundle(watched: Watched, shown: Snapshot | None = None) -> dict[str, str]:
    """Draw a run as HTML and as text, by MIME type.

    Args:
        watched: the run.
        shown: the snapshot to draw, where there is one already.
    """
    drawn = snapshot(watched) if shown is None else shown
    return {
        "text/html": picture_html(drawn, history=history(watched)),
        "text/plain": picture_text(drawn),
    }
