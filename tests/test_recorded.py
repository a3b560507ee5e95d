"""What was recorded in tests/data/recorded: later versions give it, load it, or say why not."""

import functools
import itertools
import json
import operator
import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

import nbpipe
from nbpipe import CacheError, ModuleEditedError
from nbpipe.export.store import FOLDER_VARIABLE, stored
from tests.inner import snapshot

DATA = Path(__file__).resolve().parent / "data" / "recorded"
WRITES = bool(os.environ.get("NBPIPE_WRITE_DATA"))
EPOCHS, SEEDS = 3, (0, 11)
STOPPED, HAD = 1, 3  # a state is taken in this epoch, after so many items
WEIGHTS = [1, 0, 4, 2, 8, 1, 3, 0, 2, 5, 1, 1]


def doubled(x):
    """Double a number."""
    return 2 * x


def moved(x, rng):
    """Move a number by a random one."""
    return int(x) + int(rng.integers(1000))


def kept(x, rng):
    """Keep about two of three."""
    return x % 5 == 0 or bool(rng.integers(3))


def several(x):
    """Give a number up to twice."""
    return [x, -x][: x % 3]


def thirds(x):
    """Part numbers into three kinds."""
    return x % 3


def same(pipe):
    """Leave a branch as it is."""
    return pipe


def refused(x, rng):
    """Fail for every fourth number, and for some others."""
    if x % 4 == 3 or rng.integers(6) == 0:
        raise ValueError(x)
    return x * x


def stream():
    """Give numbers one by one."""
    yield from range(20)


def numbers(first, count=12):
    """Make a source that is read by index."""
    return nbpipe.source(range(first, first + count), name=f"from_{first}")


def joined(seed):
    """Join pipelines in all four ways."""
    mixed = nbpipe.mix([numbers(0, 6), numbers(50, 9)], weights=[1, 3], seed=seed)
    turns = nbpipe.interleave([numbers(100, 3), numbers(200, 5), numbers(300, 4)], cycle=2)
    pairs = nbpipe.zip(numbers(400, 5).shuffle(seed=seed), numbers(500, 5))
    return nbpipe.concat(mixed, turns, pairs)


CHAINS = {
    "weighted": lambda seed: numbers(0).sample(WEIGHTS, n=15, seed=seed).map(doubled),
    "weighted, each once": lambda seed: (
        numbers(0).sample(WEIGHTS, n=9, replacement=False, seed=seed).map(doubled)
    ),
    "balanced": lambda seed: numbers(0).balance([0] * 8 + [1] * 3 + [2], n=14, seed=seed),
    "shuffled": lambda seed: numbers(0, 20).shuffle(seed=seed).map(moved).filter(kept),
    "shuffled in a buffer": lambda seed: (
        nbpipe.source(stream).shuffle(seed=seed, buffer_size=6).flat_map(several)
    ),
    "sharded": lambda seed: numbers(0, 20).shuffle(seed=seed).shard(1, 3).map(moved),
    "joined": joined,
    "batched": lambda seed: (
        numbers(0, 23).shuffle(seed=seed).batch(5).unbatch().window(4, stride=3).batch(2)
    ),
    "failures skipped": lambda seed: (
        numbers(0, 24).shuffle(seed=seed).map(refused, on_error="skip").batch(3, drop_last=True)
    ),
    "repeated and routed": lambda seed: (
        numbers(0, 6)
        .shuffle(seed=seed)
        .repeat(2)
        .route(
            thirds, {0: lambda pipe: pipe.map(doubled), 1: lambda pipe: pipe.map(moved), 2: same}
        )
        .enumerate()
    ),
}


def plain(value):
    """Write an item as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


def recorded(name, made):
    """Read a file of what was recorded; write it first where that is wanted."""
    path = DATA / name
    if WRITES:
        value = made()
        lines = [f" {json.dumps(name)}: {json.dumps(value[name])}" for name in value]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def epochs(make, seed):
    """Give the items of all epochs."""
    with make(seed).start(seed=seed) as run:
        return [[plain(item) for item in run] for _ in range(EPOCHS)]


def stopped(make, seed):
    """Give the state of a run that was stopped in mid-epoch."""
    with make(seed).start(seed=seed) as run:
        for _ in range(STOPPED):
            list(run)
        list(itertools.islice(run, HAD))
        return run.state_dict()


@functools.cache
def orders():
    """Give the items of every chain, by seed."""
    return recorded(
        "orders.json",
        lambda: {
            name: {str(seed): epochs(make, seed) for seed in SEEDS} for name, make in CHAINS.items()
        },
    )


@functools.cache
def states():
    """Give a state of every chain."""
    made = {name: functools.partial(stopped, make, SEEDS[1]) for name, make in CHAINS.items()}
    return recorded("states.json", lambda: {name: make() for name, make in made.items()})


@pytest.mark.parametrize("name", CHAINS)
def test_items(name):
    """A chain gives the same items for a seed, epoch after epoch."""
    found = {str(seed): epochs(CHAINS[name], seed) for seed in SEEDS}
    assert found == orders()[name]


def test_items_depend_on_the_seed_and_the_epoch():
    """What was recorded tells seeds and epochs apart."""
    for name, by_seed in orders().items():
        assert by_seed[str(SEEDS[0])] != by_seed[str(SEEDS[1])], name
        assert by_seed[str(SEEDS[0])][0] != by_seed[str(SEEDS[0])][1], name


@pytest.mark.parametrize("name", CHAINS)
def test_state(name):
    """A state that was written goes on with what was left of its epoch, and with the next ones."""
    seed = SEEDS[1]
    expected = orders()[name][str(seed)][STOPPED:]
    expected[0] = expected[0][HAD:]
    with CHAINS[name](seed).start(seed=seed) as run:
        run.load_state_dict(states()[name])
        found = [[plain(item) for item in run] for _ in expected]
    assert found == expected


# -- the cache folder ------------------------------------------------------------------------------
class Numbers:
    """Numbers that are there when they are recorded, and not afterwards."""

    def __len__(self):
        return 8

    def __getitem__(self, at):
        if not WRITES:
            raise AssertionError("read again")
        return at


def cached(folder):
    """Make a chain with a cache, of functions that no version of Python compiles otherwise."""
    return nbpipe.source(Numbers()).map(operator.neg).batch(3, collate=list).cache(folder)


def test_cache_folder(tmp_path):
    """A folder that was written is read, and nothing is made again."""
    expected = [[0, -1, -2], [-3, -4, -5], [-6, -7]]
    place = DATA / "cache" / "items.pickle"
    if WRITES:
        place.unlink(missing_ok=True)
        list(cached(place.parent))
    copy = tmp_path / place.name
    copy.write_bytes(place.read_bytes())
    with cached(tmp_path).start() as run:
        assert [list(run) for _ in range(2)] == [expected] * 2
    assert copy.read_bytes() == place.read_bytes()


def test_cache_folder_of_another_chain(tmp_path):
    """Read by another chain, it is refused by what differs."""
    (tmp_path / "items.pickle").write_bytes((DATA / "cache" / "items.pickle").read_bytes())
    other = nbpipe.source(Numbers()).map(operator.neg).batch(2, collate=list).cache(tmp_path)
    with pytest.raises(CacheError, match="batch"):
        list(other)


# -- the exported module ---------------------------------------------------------------------------
SCRIPT = """
import sys
from functools import partial

import nbpipe

STEP = 3  # between two numbers
WEIGHTS = [1, 2, 4]


def scaled(x, *, by):
    # one number
    return x * by + STEP


def weight(x):
    return WEIGHTS[x % 3]


pipe = (
    nbpipe.source(range(12))
    .shuffle(seed=5)
    .map(partial(scaled, by=2), concurrency=3, prefetch=4)
    .filter(lambda x: weight(x) > 1)
    .batch(4, collate=list)
)
if __name__ == "__main__":
    pipe.export(sys.argv[1], overwrite=True)
"""
MODULE = "recorded_loader.py"


@functools.cache
def module():
    """Give the module that was exported; its name says that it is none of the tests."""
    place = DATA / "recorded_loader.txt"
    if WRITES:
        script, target = DATA / "script.py", DATA / MODULE
        script.write_text(SCRIPT, encoding="utf-8")
        try:
            subprocess.run([sys.executable, str(script), str(target)], check=True, timeout=120)
            place.write_bytes(target.read_bytes())
        finally:
            script.unlink()
            target.unlink(missing_ok=True)
    return place.read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give a folder, with a cache folder of its own for records."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def test_module(home):
    """A module that was exported is loaded, gives its items, and takes its parameters."""
    path = home / MODULE
    path.write_text(module(), encoding="utf-8")
    found = {
        "as it is": epochs(lambda _: nbpipe.load(path), 0),
        "in pairs": list(nbpipe.load(path, batch_size=2)),
    }
    assert found == recorded("module.json", lambda: found)
    assert nbpipe.load(path)["scaled"].concurrency == 3


# -- the record of an export -----------------------------------------------------------------------
def digest(data):
    """Digest bytes as records do."""
    return blake2b(data, digest_size=16).hexdigest()


def kept_record(path):
    """Lay what was recorded of an export to where it is looked for."""
    folder, place = path.parent / "cache" / "exports", DATA / "record.json"
    if WRITES and not folder.exists():
        stored(path, module(), {}, overwrite=True)
        [found] = folder.iterdir()
        place.write_bytes(found.read_bytes())
        path.unlink()
        found.unlink()
    data = place.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{digest(os.fsencode(path))}-{json.loads(data)['content']}.json"
    (folder / name).write_bytes(data)


def test_record_of_a_file_that_was_edited(home):
    """By a record that was written an edit is noticed, shown and kept; else the file is ours."""
    path = (home / MODULE).resolve()
    kept_record(path)
    newer = module().replace("STEP = 3", "STEP = 4")
    path.write_text(module(), encoding="utf-8")
    assert stored(path, newer, {}, overwrite=False).changed
    kept_record(path)
    edited = module().replace("# one number", "# one number, by hand")
    path.write_text(edited, encoding="utf-8")
    with pytest.raises(ModuleEditedError, match="was edited since it was exported") as caught:
        stored(path, newer, {}, overwrite=False)
    assert "+    # one number, by hand" in str(caught.value)
    assert path.read_text(encoding="utf-8") == edited


def test_record_of_a_file_whose_knobs_moved(home):
    """With it the defaults are rewritten in an edited file, and the edits stay."""
    path = (home / MODULE).resolve()
    kept_record(path)
    path.write_text(module().replace("# one number", "# by hand"), encoding="utf-8")
    moved = module().replace("scaled_concurrency: int = 3", "scaled_concurrency: int = 9")
    written = stored(path, moved, {}, overwrite=False)
    assert [(one.name, one.old, one.new) for one in written.patched] == [
        ("scaled_concurrency", "3", "9")
    ]
    assert path.read_text(encoding="utf-8") == moved.replace("# one number", "# by hand")


# -- the saved panel -------------------------------------------------------------------------------
def panel():
    """Give what a notebook keeps of a run, with times that are always the same."""
    with CHAINS["failures skipped"](0).start(seed=0) as run:
        list(run)
        run["refused"].concurrency = 5
        shown = snapshot(run)
    folder = json.dumps(str(Path(__file__).parents[1]))[1:-1]  # of whoever writes it again
    return json.loads(json.dumps(shown).replace(folder, "nbpipe"))


def test_saved_panel():
    """What a notebook keeps of a run has no field that a run does not show any more.

    The front end reads the same file: js/protocol/test/recorded.test.ts.
    """
    saved, shown = recorded("panel.json", panel), panel()
    assert saved["version"] <= shown["version"]
    assert saved.keys() <= shown.keys()
    for part in ("stages", "failures", "changes"):
        assert saved[part][0].keys() <= shown[part][0].keys()
    for name in ("title", "state", "delivered", "total", "unit"):
        assert saved[name] == shown[name]
