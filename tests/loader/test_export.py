"""Export of a loader: the module holds the chain that it stands for, and makes the same batches."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import nbpipe
from tests.loader.datasets import AtOnce, Numbers, Parted, Stream
from tests.scripts import printed

pytestmark = [pytest.mark.torch, pytest.mark.slow]

READ = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
pipe = importlib.import_module("loader").build_pipeline()
print(json.dumps([one.tolist() if hasattr(one, "tolist") else one for one in pipe]))
"""

NUMBERS, AT_ONCE, STREAM, PARTED = Numbers(11), AtOnce(11), Stream(7), Parted(12)
CHOSEN = BatchSampler(SequentialSampler(NUMBERS), 3, drop_last=True)
WEIGHTED = WeightedRandomSampler([0.0] * 10 + [1.0], 4)


def total(samples):
    """Add the samples of a batch."""
    return int(sum(samples))


def batches_of(folder):
    """Import the module in a fresh process, from another folder, and return its batches."""
    return json.loads(printed("-c", READ, folder, cwd=folder.parent))


def listed(batches):
    """Return batches as lists."""
    return [one.tolist() if hasattr(one, "tolist") else one for one in batches]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nbpipe.DataLoader(NUMBERS, None),
        lambda: nbpipe.DataLoader(NUMBERS, 4, num_workers=2, workers="thread", collate_fn=total),
        lambda: nbpipe.DataLoader(AT_ONCE, 4, collate_fn=lambda some: len(some) + 1),
        lambda: nbpipe.DataLoader(NUMBERS, batch_sampler=CHOSEN),
        lambda: nbpipe.DataLoader(NUMBERS, 2, sampler=WEIGHTED),
        lambda: nbpipe.DataLoader(STREAM, 3, num_workers=1, workers="thread"),
    ],
    ids=["single", "thread", "at_once", "batches", "weighted", "stream"],
)
def test_module_makes_the_same_batches(make, tmp_path):
    """The module, loaded by its path, gives the batches that the loader gives."""
    loader = make()
    done = loader.export(tmp_path / "loader.py")
    assert listed(nbpipe.load(done.path)) == listed(loader)


def test_fresh_process_gets_the_same_batches(tmp_path):
    """A process that imports the module from another folder has the batches of the loader."""
    loader = nbpipe.DataLoader(NUMBERS, 4, drop_last=True, num_workers=2)
    loader.export(tmp_path / "loader.py")
    assert batches_of(tmp_path) == listed(loader)


def test_shuffled_loader_has_a_seed_in_the_module(tmp_path):
    """The module shuffles by a seed, and gives each sample once."""
    generator = torch.Generator().manual_seed(5)
    loader = nbpipe.DataLoader(NUMBERS, 4, shuffle=True, generator=generator)
    done = loader.export(tmp_path / "loader.py")
    got = [number for batch in listed(nbpipe.load(done.path)) for number in batch]
    assert (sorted(got), got == sorted(got)) == (list(range(11)), False)


def test_module_holds_what_was_tuned(tmp_path):
    """Values that were set while it ran are the module's defaults."""
    loader = nbpipe.DataLoader(NUMBERS, 4, num_workers=1, workers="thread")
    for _ in loader:
        loader.num_workers, loader.prefetch_factor = 3, 5
    loader.run.export(tmp_path / "loader.py")
    pipe = nbpipe.load(tmp_path / "loader.py")
    assert (pipe["fetch"].concurrency, pipe["fetch"].prefetch) == (3, 15)


def test_exported_again_only_the_knobs_move(tmp_path):
    """A second export rewrites the default of the knob that was turned."""
    loader = nbpipe.DataLoader(NUMBERS, 4, num_workers=1, workers="thread")
    loader.export(tmp_path / "loader.py", check_items=0)
    loader.num_workers = 2
    done = loader.export(tmp_path / "loader.py", check_items=0)
    assert [(one.name, one.new) for one in done.patched] == [
        ("fetch_concurrency", "2"),
        ("fetch_prefetch", "4"),
    ]


def test_what_has_no_place_in_a_chain_is_said(tmp_path):
    """Arguments that only a loader has are left out, with a note for each."""
    loader = nbpipe.DataLoader(
        NUMBERS, 4, num_workers=1, timeout=5, worker_init_fn=lambda n: torch.manual_seed(n + 1)
    )
    notes = loader.export(tmp_path / "loader.py", check_items=0).notes
    words = ("worker_init_fn", "timeout")
    assert [word for word in words if not any(word in note for note in notes)] == []


INSTALLED = """
import nbpipe
assert "site-packages" in nbpipe.__file__
squares = [n * n for n in range(6)]
loader = nbpipe.DataLoader(squares, batch_size=4)
if __name__ == "__main__":
    loader.export("loader.py")
"""


def test_an_installed_loader_is_exported(tmp_path):
    """A nbpipe that is installed, as a library, exports its loader as a clone does."""
    site = tmp_path / "lib" / "site-packages"
    ignore = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(Path(nbpipe.__file__).parent, site / "nbpipe", ignore=ignore)
    (tmp_path / "train.py").write_text(INSTALLED, encoding="utf-8")
    printed("train.py", cwd=tmp_path, PYTHONPATH=str(site), NBPIPE_CACHE_DIR=str(tmp_path))
    assert listed(nbpipe.load(tmp_path / "loader.py")) == [[0, 1, 4, 9], [16, 25]]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: nbpipe.DataLoader(NUMBERS, 4, num_workers=1, worker_init_fn=print),
            "worker_init_fn",
        ),
        (
            lambda: nbpipe.DataLoader(
                NUMBERS, 4, sampler=DistributedSampler(NUMBERS, num_replicas=2, rank=0)
            ),
            r"\.shard\(\)",
        ),
        (lambda: nbpipe.DataLoader(Numbers(3), 4, sampler=iter([1])), "sampler|iterator|items"),
    ],
    ids=["worker_init_fn", "one_rank", "iterator"],
)
def test_refused(make, why, tmp_path):
    """What no chain does is refused with the way out, and nothing is written."""
    with pytest.raises(nbpipe.NbpipeError, match=why):
        make().export(tmp_path / "loader.py")
    assert list(tmp_path.iterdir()) == []


def test_parts_are_refused(tmp_path):
    """A dataset of which each worker reads a part is seen to ask, and is refused from then on."""
    loader = nbpipe.DataLoader(PARTED, 4, num_workers=2)
    list(loader)
    with pytest.raises(nbpipe.ExportError, match="interleave"):
        loader.export(tmp_path / "loader.py")
    assert list(tmp_path.iterdir()) == []
