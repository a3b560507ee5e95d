"""Noting: what the stages of an epoch say of where they stand, put together."""

from __future__ import annotations

from typing import Any

from ..rest import Rest

Stages = dict[str, dict[str, Any]]  # where stages stand, by address; JSON-ready


def note(stages: Stages, address: str, stands: dict[str, Any]) -> None:
    """Note where a stage stands; what is left out behind it counts what it leaves itself."""
    if not stands:
        return
    known = stages.setdefault(address, {})
    if "drop" in known and "drop" in stands:
        stands["drop"] = Rest.read(stands["drop"]).of_wanted(Rest.read(known["drop"])).data
    known.update(stands)
