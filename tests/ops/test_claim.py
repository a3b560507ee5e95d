"""Claims in one process: ranks are runs that share a store."""

import gc
import itertools
import threading
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import (
    ArgumentError,
    ArgumentTypeError,
    DuplicateNameError,
    LengthUnknownError,
    StateError,
)
from nbpipe.ranks import LocalStore
from tests.gates import at_once
from tests.ops.inner import IndexPlan, IndexRanges, Lengths, PlanEpoch


class CountingStore:
    """A store that notes what is asked of it."""

    def __init__(self):
        self.inner = LocalStore()
        self.asked = []

    def add(self, key, amount, /):
        self.asked.append((key, amount))
        return self.inner.add(key, amount)


def source(length=10):
    """Make a source read by index."""
    return nbpipe.source(range(length))


def in_turns(plans, epoch=0):
    """Let plans that share a store take rows in turns; give the rows of each."""
    got = [[] for _ in plans]
    rows = [plan.resolve(epoch).rows() for plan in plans]
    for _ in range(100):
        for one, taken in zip(rows, got, strict=True):
            taken.extend(itertools.islice(one, 1))
    return got


def claiming(store, chunk=3, length=10):
    """Make the plan of a rank."""
    return IndexPlan.of(range(length)).shuffle(0).claim(chunk, store, "train")


class OwnCounts:
    """A store as another process would hold it: what was opened is counted by itself."""

    def __init__(self, inner):
        self.add = inner.add


def ranks(count, chunk=3, length=10):
    """Make plans as the ranks of a job have them."""
    store = LocalStore()
    return [claiming(OwnCounts(store), chunk, length) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 10, 1000])
def test_each_row_goes_to_one_rank(count, chunk):
    """All rows are handed out, each once, with the paths they have in the global order."""
    got = in_turns(ranks(count, chunk))
    wanted = list(IndexPlan.of(range(10)).shuffle(0).resolve(0).rows())
    assert sorted(itertools.chain(*got)) == sorted(wanted)


def test_epochs_and_passes_have_cursors_of_their_own():
    """A rank that is an epoch ahead, or a pass, takes nothing from the one behind."""
    first, second = ranks(2)
    places = [(first, 1), (second, 0), (first, 2, (0,)), (second, 2, (1,))]
    assert [len(list(plan.resolve(*place).rows())) for plan, *place in places] == [10] * 4


def test_an_epoch_that_is_read_again():
    """It gets a new cursor: `for batch in pipe` is epoch 0 each time."""
    pipe = source().claim(chunk=4, store=LocalStore())
    assert [list(pipe), list(pipe)] == [list(range(10))] * 2


class GoneStore:
    """A store that is not reached any more."""

    def add(self, key, amount):
        raise ConnectionError(f"no route for {amount} of {key}")


def test_store_that_is_not_reached():
    """A note says that it is the store's failure: the error names the next item."""
    with pytest.raises(nbpipe.StageError) as caught:
        list(source().claim(store=GoneStore()))
    cause = caught.value.__cause__
    assert type(cause) is ConnectionError
    assert cause.__notes__ == ["a claim asked its store which items are next: no item failed"]


def test_chunks_are_taken_one_at_a_time():
    """The next chunk is claimed when the rows of the last one have been read."""
    store = CountingStore()
    rows = claiming(store).resolve(0).rows()
    asked = [len(store.asked), *(len(store.asked) for _ in itertools.islice(rows, 7))]
    assert asked == [0, 1, 1, 1, 2, 2, 2, 3]


def test_the_cursor_is_named():
    """After pipeline, epoch, passes, rows and how often it was read."""
    store = CountingStore()
    list(claiming(store).resolve(3, (1, 2)).rows())
    assert {key for key, _ in store.asked} == {"nbpipe/train/3/1/2/10/1"}


def test_pipelines_with_names_of_their_own():
    """Sources and stages with names have cursors of their own in one store."""
    store = CountingStore()
    pipes = [
        nbpipe.source(range(3), name="train").claim(store=store),
        nbpipe.source(range(3)).claim(store=store, name="valid"),
    ]
    assert [list(pipe) for pipe in pipes] == [[0, 1, 2]] * 2
    assert {key.rpartition("/0/")[0] for key, _ in store.asked} == {
        "nbpipe/train/claim",
        "nbpipe/source/valid",
    }


def test_claims_of_rows_that_never_end():
    """An endless order is handed out for as long as somebody asks."""
    plan = IndexPlan.of(range(4)).repeat().claim(3, LocalStore(), "train")
    items = [item for _, item in itertools.islice(plan.resolve(0).rows(), 9)]
    assert items == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def claims(length, store):
    """Open an order that claims four rows at a time."""
    return IndexPlan.of(range(length)).claim(4, store, "train").open(PlanEpoch(0, (), Lengths()))


def test_claimed_rows_are_noted():
    """An order knows which rows it took; the last chunk is cut at the end."""
    store = LocalStore()
    order, other = (claims(10, OwnCounts(store)) for _ in "12")
    rows, others = order.run(0), other.run(0)
    taken = [next(rows)[1], next(others)[1], *(item for _, item in rows)]
    assert (taken, order.claimed) == ([0, 4, 1, 2, 3, 8, 9], [(0, 4), (8, 10)])


@given(
    st.lists(st.booleans(), max_size=12),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=4),
)
def test_rows_that_are_wanted(turns, start, gaps):
    """Rows of the global order are wanted, but for those claimed here that are not."""
    store = LocalStore()
    order = claims(100, OwnCounts(store))
    rows = order.run(0)
    for ours in turns:
        if ours:
            list(itertools.islice(rows, 3))
        else:
            store.add("nbpipe/train/0//100/1", 4)  # another rank takes a chunk
    rest = IndexRanges.of(start, sorted((at, at + count) for at, count in gaps))
    claimed = [row for first, stop in order.claimed for row in range(first, stop)]
    done = {row for number, row in enumerate(claimed) if number not in rest}
    wanted = order.wanted(rest)
    assert {row for row in range(100) if row not in wanted} == done


@pytest.mark.parametrize("calls", ["run", "pick"])
def test_claimed_rows_have_no_random_access(calls):
    """They come one after the other."""
    order = claims(10, LocalStore())
    with pytest.raises(ArgumentError, match="claimed rows must be read"):
        order.run(1) if calls == "run" else order.pick(np.arange(2))


@dataclass
class EqualStore:
    """A store that cannot be hashed, equal to any that holds the same."""

    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, key, amount):
        """Add to a number; give the sum."""
        self.numbers[key] = self.numbers.get(key, 0) + amount
        return self.numbers[key]


@dataclass(slots=True)
class SlottedStore:
    """A store that cannot be referred to weakly, either."""

    numbers: dict[str, int] = field(default_factory=dict)

    add = EqualStore.add


@pytest.mark.parametrize("kind", [EqualStore, SlottedStore])
def test_a_store_is_anything_that_adds(kind):
    """A store needs no hash and no weak references; two that are equal are two."""
    one, other = kind(), kind()
    for store in (one, other):
        pipe = nbpipe.source(range(6)).claim(chunk=2, store=store)
        assert [*pipe, *pipe] == [*range(6)] * 2
    assert {key.rpartition("/")[2] for key in one.numbers} == {"1", "2"}
    assert one.numbers.keys() == other.numbers.keys()


def test_a_store_is_not_kept():
    """A store that nobody holds is gone, and with it what was counted of it."""
    store = EqualStore()
    list(nbpipe.source(range(6)).claim(chunk=2, store=store))
    left = weakref.ref(store)
    del store
    gc.collect()
    assert left() is None


def test_threads_share_a_local_store():
    """Runs in threads of one process divide an epoch."""
    store, got = LocalStore(), []
    gate = threading.Barrier(3)

    def work():
        pipe = source(1000).claim(chunk=7, store=OwnCounts(store)).map(abs)
        gate.wait()
        got.extend(pipe)

    at_once(work, 3)
    assert sorted(got) == list(range(1000))


def test_peek_takes_nothing_from_others():
    """It shows the first items, and leaves the cursor alone."""
    store = CountingStore()
    pipe = source().claim(store=store)
    assert (pipe.peek(2).items, store.asked) == ((0, 1), [])


def test_claims_stay_in_the_process_of_their_rank():
    """A process of the pipeline's own would be no member of the job."""
    pipe = source().claim(store=LocalStore())
    with pytest.raises(nbpipe.UnpicklableError, match="start it without isolate=True"):
        pipe.start(isolate=True)


def test_stages_behind_a_claim():
    """What follows works on this rank's items."""
    pipe = source().claim(chunk=4, store=LocalStore())
    found = [list(pipe.take(3)), list(pipe.skip(8)), list(pipe.enumerate().take(1))]
    assert found == [[0, 1, 2], [8, 9], [(0, 0)]]


def test_no_more_is_claimed_than_there_is_room_for():
    """However cheap its rows are, a rank takes none ahead of those that it can hold."""
    store = CountingStore()
    chain = nbpipe.source(range(2000), prefetch=2).claim(chunk=1, store=store, name="train")
    with chain.start() as run:
        items = iter(run)
        for taken in range(1, 501):
            next(items)
            assert len(store.asked) <= taken + 2 + 1  # prefetch, and one in progress


def test_claims_that_are_joined():
    """Claims may be mixed with other inputs."""
    claimed = source(3).claim(store=LocalStore())
    assert list(nbpipe.concat(claimed, source(2))) == [0, 1, 2, 0, 1]


def test_the_length_is_unknown():
    """len() says where to look instead."""
    pipe = source().claim(store=LocalStore()).batch(2)
    with pytest.raises(LengthUnknownError, match=r"len\(\) of the pipeline before claim"):
        len(pipe)


def test_without_a_store():
    """Where there is no process group the epoch fails with the ways out."""
    with pytest.raises(nbpipe.StageError) as caught:
        list(source().claim())
    message = str(caught.value.__cause__)
    assert message.startswith("claim needs a store that all ranks share, and torch.distributed is")
    assert all(word in message for word in ("init_process_group", "TCPStore", "LocalStore()"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: source().claim(chunk=0), ArgumentError, "claim chunk must be an int in"),
        (lambda: source().claim(store=5), ArgumentTypeError, r"anything with add\(key, amount\)"),
        (lambda: source().claim(name="source"), DuplicateNameError, "which is taken"),
        (lambda: source().shard(0, 2).claim(), ArgumentError, "claim must come before shard"),
        (lambda: source().map(abs).claim(), ArgumentError, r"the items of 'abs' \(map\)"),
        (lambda: source().claim().claim(), ArgumentError, r"the items of 'claim' \(claim\)"),
        (lambda: source().claim().sample([1]), ArgumentError, r"the items of 'claim' \(claim\)"),
        (lambda: source().claim().shard(0, 2), ArgumentError, "shard cannot follow claim"),
        (lambda: source().claim().shuffle(), ArgumentError, "cannot be read by index"),
        (
            lambda: nbpipe.source(lambda: iter([])).claim(),
            ArgumentError,
            "source 'source' has no length and index",
        ),
    ],
)
def test_what_cannot_be_claimed(call, error, message):
    """The error names what is wrong, where the stage is written."""
    with pytest.raises(error, match=message):
        call()


# -- states ----------------------------------------------------------------------------------------


def rank_of(store, chunk=4):
    """Make the pipeline of a rank."""
    order = nbpipe.source(range(60), prefetch=1).shuffle(seed=2)
    return order.claim(chunk=chunk, store=OwnCounts(store)).map(abs, prefetch=1)


def interrupted(counts):
    """Begin an epoch on ranks that share a store; give their items and states."""
    store = LocalStore()
    runs = [rank_of(store).start() for _ in counts]
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
        with rank_of(store, chunk=5).start() as run:
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
    with rank_of(LocalStore()).start() as run:
        run.load_state_dict(states)
        more = list(itertools.islice(iter(run), 10))
        state = run.state_dict()
    ((rest, _),) = resumed(state, 1)
    assert sorted(itertools.chain(*got, more, rest)) == list(range(60))


def test_states_of_some_ranks_only():
    """What the other ranks had would come again, so it is refused."""
    _, states = interrupted((5, 5))
    for number, state in enumerate(states):
        state |= {"ranks": {"claim": [number, 3]}, "seal": None}
    with rank_of(LocalStore()).start() as run:
        with pytest.raises(StateError, match=r"must be of all ranks .* got .*\[0, 3\], \[1, 3\]"):
            run.load_state_dict(states)
        assert len(list(run)) == 60


@pytest.mark.parametrize("word", ["sample", "balance"])
def test_draws_go_on(word):
    """The rest of an epoch that draws is the same; other weights are refused."""

    def drawing(values):
        return getattr(nbpipe.source(range(6)), word)(values, n=50)

    whole = list(drawing([1, 2, 1, 2, 3, 3]))
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
    first, second = rank_of(store).start(), rank_of(store).start()
    items = iter(second)
    had = [next(items) for _ in range(6)] + list(first)
    states = [first.state_dict(), second.state_dict()]
    first.close()
    second.close()
    with pytest.raises(StateError, match=r"rank is through.*earlier step"):
        resumed(states, 2)
    assert len(set(had)) == len(had)
