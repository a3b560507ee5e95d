"""The snapshot: every field as promised, small, bounded, and the file that the front end reads."""

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbpipe.tune import case
from nbpipe.knobs import KnobChange
from nbpipe.metrics import StageStats
from nbpipe.view.history import history
from nbpipe.view.snapshot import VERSION, Snapshot, snapshot
from tests.view.fakes import BEGUN_S, FAILURE, HOSTILE, NOW_S, FakeWatched, photographs

DATA = Path(__file__).resolve().parent.parent / "data" / "snapshot.json"


@pytest.fixture
def at_now(monkeypatch):
    """Stop the clock, on a machine of 8 cores with an interpreter lock."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    monkeypatch.setattr(case, "cores", lambda: 8)
    monkeypatch.setattr(case, "is_locked", lambda: True)


def test_file_for_the_front_end(at_now):
    """tests/data/snapshot.json is what Python makes; NBPIPE_WRITE_DATA=1 writes it anew."""
    text = json.dumps(snapshot(photographs()), indent=2, allow_nan=False) + "\n"
    if os.environ.get("NBPIPE_WRITE_DATA"):
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(text, encoding="utf-8")
    stored = DATA.read_text(encoding="utf-8") if DATA.exists() else ""
    hint = "the snapshot changed: NBPIPE_WRITE_DATA=1 pytest tests/view/test_snapshot.py"
    assert stored == text, hint
