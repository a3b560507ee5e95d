"""Notebooks whose chains join, split, order, batch, retry and run in processes."""

import pytest

from tests.export.notebooks import Exported, Notebook

pytestmark = pytest.mark.slow

FUNCTIONS = """
import nbpipe
# ---- next cell
STEP = 2

def plus(x):
    return x + STEP  # always two

def times(x):
    return x * 10

def is_even(x):
    return x % 2 == 0

def pair(x):
    return [x, -x]

def name_of(x):
    return "even" if x % 2 == 0 else "odd"
# ---- next cell
"""


def exported_chain(notebook: Notebook, chain: str, tune: str = "") -> Exported:
    """Export a chain of the functions above."""
    cell = f"pipe = ({chain})\n{tune}\nreport = pipe.export('loader.py')"
    return notebook.exported(FUNCTIONS + cell, state=["_numbers"])  # of a `LocalStore`


JOINED = """nbpipe.concat(
    nbpipe.zip(
        nbpipe.source(range(4)).map(plus, concurrency=2),
        nbpipe.source(list('abcde')).map(str.upper), strict=False,
    ),
    nbpipe.mix(
        [
            nbpipe.concat(nbpipe.source(range(3)), nbpipe.source(range(5, 8)).map(plus)),
            nbpipe.source(range(100, 104)).map(times),
        ],
        weights=(0.75, 0.25), seed=5,
    ),
    nbpipe.interleave(
        [
            nbpipe.source(range(3)).map(plus, concurrency=2),
            nbpipe.source(range(9)).map(plus, concurrency=3),
        ],
        cycle=2,
    ),
)"""
SPLIT = """nbpipe.concat(
    nbpipe.source(range(8)).route(
        name_of,
        {
            'even': lambda chain: chain.map(plus).map(times),
            'odd': lambda chain: chain.map(times, concurrency=3),
        },
    ),
    nbpipe.source(range(8)).route(
        name_of,
        {
            'even': lambda chain_: chain_.map(plus).route(
                name_of,
                {
                    'even': lambda chain: chain.map(times, concurrency=2).batch(3, drop_last=True),
                    'odd': lambda chain: chain.window(2),
                },
            ),
            'odd': lambda chain_: chain_.batch(2).unbatch().map(times),
        },
    ),
)"""
ORDERED = """nbpipe.concat(
    nbpipe.source(range(30)).shuffle(seed=3).shard(1, 2, tail='drop').skip(1).take(9)
    .repeat(2).enumerate().dedupe(key=repr, last=50).window(3, stride=2).cache().unbatch(),
    nbpipe.source(range(8))
    .map(plus, on_error=nbpipe.Retry(2, backoff_s=0.01, then='skip'), max_failures=4)
    .map(plus, on_error='skip', max_failures=0.9),
    nbpipe.source(range(4)).sample([1, 0, 2.5, 3], n=6, seed=3)
    .sample([1, 2, 3, 4, 5, 0], n=5, replacement=False, seed=0)
    .balance(['a', 'b', 'a', 'a', 'c'], n=50, seed=7).shard(0, 2),
)"""
CHAINS: dict[str, list[tuple[str, int]]] = {  # how knobs are called, and what turns them
    JOINED: [("plus.concurrency", 2), ("plus.concurrency", 2), ("plus.concurrency", 3)],
    SPLIT: [("times@even@even.concurrency", 2), ("times@odd.concurrency", 3)],
    ORDERED: [],
    "nbpipe.source(range(5)).map(plus, ordered=False)": [],
    "nbpipe.source(range(99)).map(plus, executor='process').batch(3).batch(2, executor='thread')": [
        ("batch.size", 3)
    ],
    "nbpipe.source(range(4)).claim(chunk=64, store=nbpipe.ranks.LocalStore())": [],
}


@pytest.mark.parametrize(
    "chain", CHAINS, ids=["join", "split", "order", "free", "workers", "claim"]
)
def test_arguments_of_stages(notebook: Notebook, chain: str):
    """What joins, splits, orders, draws, cuts and retries keeps its arguments."""
    turns = exported_chain(notebook, chain).turns
    for knob, value in CHAINS[chain]:
        assert value in [turned for name, turned in turns.items() if name.endswith(knob)], turns


def test_shared_beginning(notebook: Notebook):
    """A beginning that two branches share is tuned by one parameter."""
    exported = notebook.exported(
        FUNCTIONS
        + """
base = nbpipe.source(range(6)).map(plus, concurrency=2)
bases = [nbpipe.source(range(6)).map(times, concurrency=3)]  # it has no variable of its own
pipe = nbpipe.zip(base.map(is_even), base.map(str), bases[0].map(pair), bases[0].map(str))
base["plus"].concurrency = 5
report = pipe.export("loader.py")
"""
    )
    assert exported.tuned == {"plus_concurrency": 5, "times_concurrency": 3}
    assert exported.text.count(".map(plus,") == 1


def test_batches(notebook: Notebook):
    """Batches keep what they collate with, and name what they cost."""
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        def sample(n):
            return np.full(n + 1, n / 2), n

        def tokens(item):
            return len(item[0])  # the cost of one

        def stacked(items):
            return {"sum": sum(n for _, n in items), "count": len(items)}
        # ---- next cell
        pipe = nbpipe.zip(
            nbpipe.source(range(6)).map(sample).batch(
                2, drop_last=True, names=("values", "n"), dtype="float32", pad=0
            ),
            nbpipe.source(range(6))
            .map(sample)
            .batch(9, cost=tokens, collate=stacked, name="budget"),
            strict=False,
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.tuned == {"batch_size": 2, "budget_size": 9}
    assert exported.has("def tokens(item):\n    return len(item[0])  # the cost of one")


def test_processes_share_their_concurrency(notebook: Notebook):
    """Stages in the same worker processes have one parameter for their concurrency.

    What begins a worker, and what collates, may be partials.
    """
    exported = notebook.exported(
        """
        import nbpipe
        from functools import partial
        STATE = {}
        # ---- next cell
        def begin(scale):
            STATE["scale"] = scale  # once in each worker

        def padded(items, *, value):
            return [value, *items]

        def decode(x):
            return x * STATE["scale"]

        def post(x):
            return x + 1
        # ---- next cell
        pipe = (
            nbpipe.source(range(6))
            .map(
                decode,
                executor="process",
                concurrency=2,
                worker_init=partial(begin, 3),
                max_items_per_worker=50,
            )
            .map(post, executor="process")
            .batch(2, collate=partial(padded, value=7))
        )
        pipe["decode"].concurrency = 1
        report = pipe.export("loader.py")
        """
    )
    assert exported.tuned == {"decode_concurrency": 1, "batch_size": 2}
    assert exported.turns["post.concurrency"] == 1


def test_seeded_generator(notebook: Notebook):
    """A seeded generator of a stage is written as it was made, and the report says it restarts."""
    notebook.run(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        rng = np.random.default_rng(seed=11)  # augmentation
        # ---- next cell
        def jitter(x):
            return x + rng.random()
        # ---- next cell
        jitter(1)
        pipe = nbpipe.source(range(4)).map(jitter)
        report = pipe.export("loader.py")
        """
    )
    text = (notebook.folder / "loader.py").read_text()
    notes = "__import__('pathlib').Path('notes.txt').write_text(repr(list(report.notes)))"
    notebook.kernel.run(notes)
    assert "rng = np.random.default_rng(seed=11)  # augmentation\n" in text
    assert "rng" in (notebook.folder / "notes.txt").read_text()


def test_tuned_while_it_runs(notebook: Notebook):
    """The values that a run has been tuned to are the defaults, given in the cell or not."""
    exported = exported_chain(
        notebook,
        "nbpipe.source(range(9), prefetch=20).map(plus, concurrency=2).filter(is_even)"
        ".flat_map(pair).batch(2)",
        tune="""
with pipe.start() as run:
    for n, batch in enumerate(run):
        pipe["plus"].concurrency = 7
        run["is_even"].prefetch = 33
        pipe["batch"].prefetch = 3
""",
    )
    assert exported.tuned == {
        "source_prefetch": 20,
        "plus_concurrency": 7,
        "is_even_prefetch": 33,
        "batch_size": 2,
        "batch_prefetch": 3,
    }


def test_tuned_while_it_is_exported(notebook: Notebook):
    """A knob that turns meanwhile is written as it was, and counts as turned since."""
    exported = notebook.exported(
        """
        import builtins
        import nbpipe
        # ---- next cell
        def numbers():
            import builtins
            getattr(builtins, "turn", int)()
            return range(4)
        # ---- next cell
        pipe = nbpipe.source(numbers).map(str, concurrency=3)
        builtins.turn = lambda: setattr(pipe["str"], "concurrency", 5)
        report = pipe.export("loader.py")
        builtins.turn, pipe["str"].concurrency = int, 3
        """
    )
    assert exported.tuned == {"str_concurrency": 3}


def test_parameters_that_clash(notebook: Notebook):
    """Stages whose names give one identifier have parameters of two names."""
    exported = exported_chain(
        notebook,
        "nbpipe.source(range(3)).map(plus, name='a b', concurrency=2)"
        ".map(times, name='a_b', concurrency=3).map(str, name='class', prefetch=4)"
        ".map(len, name='1st', prefetch=5)",
    )
    assert exported.turns == {
        "a b.concurrency": 2,
        "a_b.concurrency": 3,
        "class.prefetch": 4,
        "1st.prefetch": 5,
    }
