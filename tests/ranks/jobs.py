"""What the ranks of a test do: each function runs on every rank and returns plain values."""

import nbpipe
from nbpipe.run import pace
from tests.gates import epochs


def with_number(item, rng):
    """Pair an item with a random number of its own."""
    return item, int(rng.integers(2**32))


def order(items):
    """Make the global order of a test."""
    return nbpipe.source(range(items)).shuffle(seed=1)


def sharded(rank, items, tail):
    """Read this rank's shard, as the process group says."""
    return epochs(order(items).shard(tail=tail).map(with_number))


def sampled(rank, weights, n):
    """Read this rank's shard of what was drawn by weight."""
    pipe = nbpipe.source(range(len(weights))).sample(weights, n=n, seed=3)
    return epochs(pipe.shard(tail="uneven").map(with_number))


def claimed(rank, items, chunk, passes=1):
    """Claim from the default store, twice, and once more in a run of its own."""
    pipe = order(items).claim(chunk=chunk)
    if passes > 1:
        pipe = pipe.repeat(passes)
    pipe = pipe.map(with_number)
    return [*epochs(pipe), list(pipe)]


def claimed_from(rank, items):
    """Claim from a store that was given."""
    return epochs(order(items).claim(chunk=3, store=rank.store))


def claimed_slowly(rank, items):
    """Claim; the last rank stops at its first item until the others have had all the rest."""
    pipe = nbpipe.source(range(items), prefetch=1).claim(chunk=2).map(abs, prefetch=1)
    slow = rank.number == rank.size - 1
    got = []
    if not slow:
        rank.store.wait(["has an item"])  # else the others may have had all before it begins
    with pipe.start() as run:
        for item in run:
            got.append(item)
            if slow:
                rank.store.set("has an item", "")
                rank.listen()
                slow = False
    return got


def left_early(rank, items, chunk):
    """Claim; the last rank leaves the first epoch at its first item."""
    pipe = nbpipe.source(range(items), prefetch=1).claim(chunk=chunk).map(abs, prefetch=1)
    got = [[], []]
    with pipe.start() as run:
        for item in run:
            got[0].append(item)
            if rank.number == rank.size - 1:
                break
        got[1] = list(run)
    return got


def trained(rank, items):
    """Train a model on uneven shards; give the steps that this rank took, and the weights."""
    import torch
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.number)  # the ranks begin with those of rank 0
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pipe = order(items).shard(tail="uneven").map(as_row)
    steps = 0
    with pipe.start() as run:
        for _ in range(2):
            with Join([model]):
                for row in run:
                    optimizer.zero_grad()
                    model(row).sum().backward()
                    optimizer.step()
                    steps += 1
    return steps, [parameter.tolist() for parameter in model.parameters()]


def as_row(item):
    """Make a row of shape (1, 1)."""
    import torch

    return torch.tensor([[item / 10]])


def sampled_by_torch(rank, items):
    """Read the indices of a `DistributedSampler`, alone and in batches."""
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler = DistributedSampler(range(items), seed=5)
    batches = BatchSampler(DistributedSampler(range(items), seed=5), 2, drop_last=False)
    return epochs(nbpipe.source(sampler)), epochs(nbpipe.source(batches))


def paced(rank, slow, kind):
    """Take steps together, with one rank whose items take long; give its verdict at the end.

    Args:
        rank: this rank.
        slow: number of the slow rank.
        kind: "group" for a run of a pipeline, "store" for one that claims from a store of its own,
            "loader" for a loader without workers.
    """
    import time

    import torch
    from torch import distributed

    pace.EVERY_S = 0.5
    seconds = 0.05 if rank.number == slow else 0.001

    def load(number):
        time.sleep(seconds)
        return number

    pipe = nbpipe.source(range(10_000)).map(load)
    if kind == "store":
        pipe = nbpipe.source(range(10_000)).claim(chunk=4, store=rank.store).map(load)
    loader = nbpipe.DataLoader(Loads(load), batch_size=None)
    over = torch.zeros(1)
    with loader.run if kind == "loader" else pipe.start() as run:
        for _ in run:
            found = run.diagnose()
            over[0] = "sets the pace" in str(found)
            distributed.all_reduce(over)
            if over[0] == rank.size:
                break
        ranks = [one.rank for one in run.status().ranks]
    return found.cause, str(found), ranks


class Loads:
    """A dataset.

    Args:
        load: makes an item.
    """

    def __init__(self, load):
        self._load = load

    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        return self._load(number)


def resumable(how, items):
    """Make the pipeline of a job that is interrupted."""
    whole = nbpipe.source(range(items), prefetch=2).shuffle(seed=1)
    split = whole.claim(chunk=3) if how == "claim" else whole.shard(tail=how)
    return split.map(with_number, prefetch=2)


def interrupted(rank, ways, items):
    """Begin an epoch in each way, tell its state in the middle, and go no further."""
    told, kept = {}, []
    for how in ways:
        run = resumable(how, items).start()
        iterator = iter(run)
        got = [next(iterator) for _ in range(4 + rank.number)]
        told[how] = got, nbpipe.ranks.gather_states(run)
        kept.append((run, iterator))
    rank.tell(told)
    rank.listen()


def resumed(rank, states, items):
    """Go on from the states of all ranks of another job; give the rest, and the next epoch."""
    found = {}
    for how, gathered in states.items():
        with resumable(how, items).start() as run:
            run.load_state_dict(gathered)
            found[how] = [list(run), list(run)]
    return found
