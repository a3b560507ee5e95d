"""States of pipelines that claim, and of draws by weight."""

import itertools

import pytest

import nbpipe
from nbpipe import StateError
from nbpipe.ranks import LocalStore


class OwnCounts:
    """A store as another process would hold it: what was opened is counted by itself."""

    def __init__(self, inner):
        self.add = inner.add


def claiming(store, chunk=4):
    """Make the pipeline of a rank."""
    order = nbpipe.source(range(60), prefetch=1).shuffle(seed=2)
    return order.claim(chunk=chunk, store=OwnCounts(store)).map(abs, prefetch=1)


def interrupted(counts):
    """Begin an epoch on ranks that share a store; give their items and states."""
    store = LocalStore()
    runs = [claiming(store).start() for _ in counts]
    iterators = [iter(run) for run in runs]
    got = [[next(it) for _ in range(n)] for it, n in zip(iterators, counts, strict=True)]
    states = [run.state_dict() for run in runs]
    for run in runs:
        run.close()
    return got, states


def resumed(states, count):
    """Go on with another number of ranks; give what each of them gets, and of the next epoch."""
    store = LocalStore()
    found = []
    for _ in range(count):
        with claiming(store, chunk=5).start() as run:
            run.load_state_dict(states)
            found.append((list(run), list(run)))
    return found


@pytest.mark.parametrize("counts", [(7,), (7, 11), (0, 5), (1, 10, 2)])
@pytest.mark.parametrize("count", [1, 2])
def test_the_rest_comes_once(counts, count):
    """Every item that no rank has had is claimed by one, and the next epoch is whole."""
    got, states = interrupted(counts)
    rests, following = zip(*resumed(states, count), strict=True)
    assert sorted(itertools.chain(*got, *rests)) == list(range(60))
    assert sorted(itertools.chain(*following)) == list(range(60))


def test_a_rest_is_interrupted_again():
    """States of what was left are states of the whole epoch."""
    got, states = interrupted((9, 4))
    with claiming(LocalStore()).start() as run:
        run.load_state_dict(states)
        more = list(itertools.islice(iter(run), 10))
        state = run.state_dict()
    ((rest, _),) = resumed(state, 1)
    assert sorted(itertools.chain(*got, more, rest)) == list(range(60))


def test_states_of_some_ranks_only():
    """What the other ranks had would come again, so it is refused."""
    _, states = interrupted((5, 5))
    for number, state in enumerate(states):
        state["ranks"] = {"claim": [number, 3]}
    with claiming(LocalStore()).start() as run:
        with pytest.raises(StateError, match=r"must be of all ranks .* got .*\[0, 3\], \[1, 3\]"):
            run.load_state_dict(states)
        assert len(list(run)) == 60


@pytest.mark.parametrize("word", ["sample", "balance"])
def test_draws_go_on(word):
    """The rest of an epoch that draws is the same; other weights are refused."""

    def drawing(values):
        return getattr(nbpipe.source(range(6)), word)(values, n=50)

    with drawing([1, 2, 1, 2, 3, 3]).start() as run:
        whole = list(run)
    with drawing((1, 2, 1, 2, 3, 3)).start() as run:
        begun = list(itertools.islice(iter(run), 20))
        state = run.state_dict()
    with drawing([1, 2, 1, 2, 3, 3]).start() as run:
        run.load_state_dict(state)
        assert begun + list(run) == whole
    with drawing([1, 2, 1, 2, 3, 4]).start() as run, pytest.raises(StateError, match=word):
        run.load_state_dict(state)


def expanding(store):
    """Make the pipeline of a rank whose items have three children each."""
    order = nbpipe.source(range(1, 60)).claim(chunk=7, store=OwnCounts(store))
    return order.flat_map(lambda number: [10 * number + child for child in range(3)])


def test_children_of_a_row_that_another_rank_began_come_once():
    """Whoever claims a row anew knows which of its children were had, and by whom."""
    store, had, states = LocalStore(), [], []
    runs = [expanding(store).start() for _ in range(2)]
    for run, count in zip(runs, (4, 5), strict=True):
        items = iter(run)
        had += [next(items) for _ in range(count)]
        states.append(run.state_dict())
        run.close()
    store = LocalStore()
    for _ in range(2):
        with expanding(store).start() as run:
            run.load_state_dict(states)
            had += run
    assert sorted(had) == [10 * number + child for number in range(1, 60) for child in range(3)]


def test_a_rank_that_is_through_is_named():
    """What a rank had of an epoch that is over for it stands in no state: nobody can go on."""
    store = LocalStore()
    first, second = claiming(store).start(), claiming(store).start()
    items = iter(second)
    had = [next(items) for _ in range(6)] + list(first)
    states = [first.state_dict(), second.state_dict()]
    first.close()
    second.close()
    with pytest.raises(StateError, match=r"rank is through.*earlier step"):
        resumed(states, 2)
    assert len(set(had)) == len(had)
