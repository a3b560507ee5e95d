"""A training of a few steps, and what the pages on resuming give for it."""

import re
import warnings
from pathlib import Path

import pytest

import nbpipe

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ITEMS = 16
BATCH = 4
EPOCHS = 3


def imported(name):
    """Import a package that warns of what it imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def from_page(name):
    """Give a function or class that the pages on resuming and on trainers define."""
    names = {"__name__": "page"}
    for page in (DOCS / "resume.md", DOCS / "trainers.md"):
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            exec(compile(match[1], str(page), "exec"), names)
    return names[name]


def as_row(item, rng):
    """Make a row of an item and a random number of its own, of shape (2,)."""
    import torch

    return torch.tensor([float(item), rng.random()])


def batches(**how):
    """Make the pipeline that is trained on, with any knobs."""
    rows = nbpipe.source(range(ITEMS)).shuffle(seed=0).map(as_row, name="row", **how)
    return rows.batch(BATCH)


def loader(**how):
    """Make a loader of such rows, in the order that torch draws."""
    import torch

    rows = torch.arange(2.0 * ITEMS).reshape(ITEMS, 2) / ITEMS
    return nbpipe.DataLoader(rows, BATCH, shuffle=True, **how)


def some_batches(shard=None, **how):
    """Make one that nobody knows the length of, perhaps of a shard."""
    order = nbpipe.source(range(ITEMS)).shuffle(seed=0)
    if shard is not None:
        order = order.shard(*shard)
    rows = order.map(as_row, name="row", **how)
    return rows.filter(lambda row: row[0] % 5 != 1, name="keep").batch(BATCH)


def model_of():
    """Make a model and its optimizer, the same ones each time."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of(model, batch_BF):
    """Give the loss of a batch of rows."""
    return model(batch_BF).square().mean()
