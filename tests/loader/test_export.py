"""Export of a loader: the module holds the call that makes it, and makes the same batches."""

import ast
import json
import shutil
from pathlib import Path

import pytest

import nbpipe
from tests.scripts import executed, printed

pytestmark = [pytest.mark.torch, pytest.mark.slow]

READ = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
pipe = importlib.import_module("loader").build_pipeline()
print(json.dumps([one.tolist() if hasattr(one, "tolist") else one for one in pipe]))
"""
HEAD = """
import nbpipe
import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler
from torch.utils.data import WeightedRandomSampler
from tests.loader.datasets import AtOnce, Numbers, Parted, Stream
numbers = Numbers(11)
"""
TOTAL = """
def total(samples):
    return int(sum(samples))
"""
LOADERS = {
    "single": "loader = nbpipe.DataLoader(numbers, None)",
    "thread": f"""{TOTAL}
loader = nbpipe.DataLoader(numbers, 4, num_workers=2, workers="thread", collate_fn=total)
""",
    "at_once": "loader = nbpipe.DataLoader(AtOnce(11), 4, collate_fn=lambda some: len(some) + 1)",
    "batches": """
chosen = BatchSampler(SequentialSampler(numbers), 3, drop_last=True)
loader = nbpipe.DataLoader(numbers, batch_sampler=chosen)
""",
    "weighted": """
weighted = WeightedRandomSampler([0.0] * 10 + [1.0], 4)
loader = nbpipe.DataLoader(numbers, 2, sampler=weighted)
""",
    "stream": 'loader = nbpipe.DataLoader(Stream(7), 3, num_workers=1, workers="thread")',
    "rank": """
sampler = DistributedSampler(numbers, num_replicas=2, rank=1)
loader = nbpipe.DataLoader(numbers, 4, sampler=sampler)
""",
}
TUNED = 'loader = nbpipe.DataLoader(numbers, 4, num_workers=1, workers="thread")'
SHUFFLED = """
generator = torch.Generator().manual_seed(5)
loader = nbpipe.DataLoader(numbers, 4, shuffle=True, generator=generator)
"""


@pytest.fixture
def made(tmp_path):
    """Give a function that runs a script in a folder of its own, and returns its loader."""
    (tmp_path / "home").mkdir()
    return lambda text: executed(HEAD + text, tmp_path / "home" / "train.py")["loader"]


def listed(batches):
    """Return batches as lists."""
    return [one.tolist() if hasattr(one, "tolist") else one for one in batches]


@pytest.mark.parametrize("kind", LOADERS)
def test_module_makes_the_same_batches(kind, made, tmp_path):
    """The module has the call as typed; loaded by its path, it gives the loader's batches."""
    loader = made(LOADERS[kind])
    done = loader.export(tmp_path / "loader.py")
    assert listed(nbpipe.load(done.path)) == listed(loader)
    call = ast.unparse(ast.parse(LOADERS[kind]).body[-1])
    assert call in ast.unparse(ast.parse(done.path.read_text(encoding="utf-8")))


def test_fresh_process_gets_the_same_batches(made, tmp_path):
    """A process that imports the module from another folder has the batches of the loader."""
    loader = made("loader = nbpipe.DataLoader(numbers, 4, drop_last=True, num_workers=2)")
    done = loader.export(tmp_path / "loader.py")
    assert [note for note in done.notes if "is a local file" not in note] == []
    batches = json.loads(printed("-c", READ, tmp_path, cwd=tmp_path.parent))
    assert batches == listed(loader)


def test_module_draws_the_order_that_the_generator_gives(made, tmp_path):
    """The module begins with the seed that was typed; an export draws nothing from the loader's."""
    loader = made(SHUFFLED)
    loader.export(tmp_path / "loader.py")
    module, epoch = listed(nbpipe.load(tmp_path / "loader.py")), listed(loader)
    assert (module, sorted(n for batch in epoch for n in batch)) == (epoch, list(range(11)))


def test_loader_that_was_iterated(made, tmp_path):
    """A generator that epochs have drawn from since is compared by its seed."""
    loader = made(SHUFFLED)
    first = listed(loader)
    loader.export(tmp_path / "loader.py")
    assert listed(nbpipe.load(tmp_path / "loader.py")) == first


COUNTING = """
class Counting(Numbers):
    count = 0

    def __getitem__(self, index):
        self.count += 1
        return super().__getitem__(index)

loader = nbpipe.DataLoader(Counting(11), 4, shuffle=True)
"""


def test_order_without_a_seed(made, tmp_path):
    """A random order is not compared, whatever else a dataset changes."""
    done = made(COUNTING).export(tmp_path / "loader.py")
    assert done.compared == 0
    assert any("not compared" in note for note in done.notes)


def test_module_holds_what_was_tuned(made, tmp_path):
    """Values that were set while it ran are the module's defaults."""
    loader = made(TUNED)
    for _ in loader:
        loader.num_workers, loader.prefetch_factor = 3, 5
    loader.run.export(tmp_path / "loader.py")
    pipe = nbpipe.load(tmp_path / "loader.py")
    assert (pipe["fetch"].concurrency, pipe["fetch"].prefetch) == (3, 15)


def test_exported_again_only_the_knobs_move(made, tmp_path):
    """A second export rewrites the default of the knob that was turned."""
    loader = made(TUNED)
    loader.export(tmp_path / "loader.py", check_items=0)
    loader.num_workers = 2
    done = loader.export(tmp_path / "loader.py", check_items=0)
    assert [(one.name, one.new) for one in done.patched] == [
        ("fetch_concurrency", "2"),
        ("fetch_prefetch", "4"),
    ]


def test_what_the_pipeline_leaves_out_is_noted(made, tmp_path):
    """The time limit of a loader is not that of its pipeline; its worker_init_fn is."""
    loader = made("""
def seed(number):
    torch.manual_seed(number + 1)

loader = nbpipe.DataLoader(numbers, 4, num_workers=1, timeout=5, worker_init_fn=seed)
""")
    done = loader.export(tmp_path / "loader.py")
    assert (done.notes[0].split()[3], done.compared) == ("timeout:", 3)


PIPELINE = """
import nbpipe
squares = [n * n for n in range(6)]
loader = nbpipe.DataLoader(squares, batch_size=4, num_workers=2, workers="thread")
if __name__ == "__main__":
    for _ in loader:
        loader.num_workers = 3
    loader.pipeline.export("loader.py")
"""


def test_pipeline_of_a_loader_is_exported(tmp_path):
    """The pipeline of a loader is exported as the loader is, with what was tuned."""
    (tmp_path / "train.py").write_text(PIPELINE, encoding="utf-8")
    printed("train.py", cwd=tmp_path, NBPIPE_CACHE_DIR=str(tmp_path))
    pipe = nbpipe.load(tmp_path / "loader.py")
    assert (listed(pipe), pipe["fetch"].concurrency) == ([[0, 1, 4, 9], [16, 25]], 3)


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


def test_pipeline_of_a_loader(made, tmp_path):
    """It is exported as it is typed."""
    path = tmp_path / "loader.py"
    export = f"loader.pipeline.export({str(path)!r}, check_items=0)"
    loader = made(f"loader = nbpipe.DataLoader(numbers, 4)\n{export}")
    assert listed(nbpipe.load(path)) == listed(loader)


def test_parts_are_refused(made, tmp_path):
    """A dataset of which each worker reads a part is seen to ask, and is refused from then on."""
    loader = made("loader = nbpipe.DataLoader(Parted(12), 4, num_workers=2)")
    list(loader)
    with pytest.raises(nbpipe.ExportError, match="interleave"):
        loader.export(tmp_path / "loader.py")
    assert not (tmp_path / "loader.py").exists()
