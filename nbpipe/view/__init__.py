"""How a run looks: one snapshot as plain data, and the pictures drawn of it."""

from .history import history
from .snapshot import Snapshot, snapshot, snapshot_key

__all__ = ["Snapshot", "history", "snapshot", "snapshot_key"]
