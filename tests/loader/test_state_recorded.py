"""States of loaders that were recorded: later versions go on from them."""

import functools
import json
import os
from pathlib import Path

import pytest

import nbpipe
from tests.loader.conftest import WAYS
from tests.loader.datasets import Numbers, Parted, Stream
from tests.loader.stateful import Tape, Walk, cut, numbers, resumed

FILE = Path(__file__).resolve().parent.parent / "data" / "recorded" / "loader_states.json"
THREADS = WAYS["thread"]
LOADERS = {
    "shuffled": numbers,
    "shuffled in threads": functools.partial(numbers, **THREADS),
    "workers that stay": functools.partial(numbers, persistent_workers=True, **THREADS),
    "a generator": functools.partial(numbers, seeded=True),
    "a sampler with a state": lambda: nbpipe.DataLoader(Numbers(), 4, sampler=Walk(23)),
    "a stream": lambda: nbpipe.DataLoader(Stream(), 4),
    "a stream with a state": lambda: nbpipe.DataLoader(Tape(), 4),
    "a stream in parts": lambda: nbpipe.DataLoader(Parted(), 4, **WAYS["process"]),
}


@functools.cache
def recorded():
    """Give a state of each loader, and the batches behind it, as they were recorded."""
    if os.environ.get("NBPIPE_WRITE_DATA"):
        rows = [
            f"{json.dumps(name)}: {json.dumps(cut(make, 2, epoch=1))}"
            for name, make in LOADERS.items()
        ]
        FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LOADERS)
def test_recorded_state(name):
    """A loader's state that was written goes on with the rest of its epoch, and the next ones."""
    state, wanted = recorded()[name]
    assert resumed(LOADERS[name], state) == wanted
