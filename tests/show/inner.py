"""Parts behind the public names that the tests of this folder reach, each named here alone."""

from nbpipe.base import gil, knobs
from nbpipe.engine.measures.stats import Status, worker_count
from nbpipe.jupyter.publisher import Hello, RunChannel, Tick
from nbpipe.jupyter.runs import ChainAnswer, Here, RunsHello, RunsTick
from nbpipe.ops.stage import addresses
from nbpipe.show.controller import RunController
from nbpipe.show.diagnose import diagnose
from nbpipe.show.figure import figure
from nbpipe.show.history import last_stretch
from nbpipe.show.messages import LEASE_S, Ack, ExportedMessage, Views
from nbpipe.show.picture import headline, picture_html, picture_text, worker_words
from nbpipe.show.snapshot import (
    HistoryPart,
    Limits,
    PageLink,
    Snapshot,
    history,
    page_link,
    snapshot,
    snapshot_key,
)
from nbpipe.show.verdict import case
from nbpipe.show.verdict import hang as hang_file
from nbpipe.show.verdict.memory import MemoryReader, ResidentMemory
from nbpipe.show.watch import ChangesSinceExport, changes_since_export, record_export
from nbpipe.tune.session import Decision

__all__ = [
    "LEASE_S",
    "Ack",
    "ChainAnswer",
    "ChangesSinceExport",
    "Decision",
    "ExportedMessage",
    "Hello",
    "Here",
    "HistoryPart",
    "Limits",
    "MemoryReader",
    "PageLink",
    "ResidentMemory",
    "RunChannel",
    "RunController",
    "RunsHello",
    "RunsTick",
    "Snapshot",
    "Status",
    "Tick",
    "Views",
    "addresses",
    "case",
    "changes_since_export",
    "diagnose",
    "figure",
    "gil",
    "hang_file",
    "headline",
    "history",
    "knobs",
    "last_stretch",
    "page_link",
    "picture_html",
    "picture_text",
    "record_export",
    "snapshot",
    "snapshot_key",
    "worker_count",
    "worker_words",
]
