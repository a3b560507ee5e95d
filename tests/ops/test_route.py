"""route: items part by a key and come together again in input order."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbpipe
from nbpipe import (
    ArgumentError,
    DuplicateNameError,
    FailureBudgetError,
    LengthUnknownError,
    StageError,
)
from tests import models
from tests.chains import build
from tests.gates import HANG_S, delivered
from tests.resume.checking import at, rest_of
from tests.strategies import BRANCHES, HANDS, examples


def parity(item):
    """Choose a branch by the last bit."""
    return item % 2


def identity(item):
    """Do nothing."""
    return item


def broken(item):
    """Fail."""
    raise ValueError(f"bad {item}")


# -- order -----------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=examples(0.5))
@given(st.lists(st.integers(0, 30), max_size=40), BRANCHES, HANDS, st.integers(0, 3))
def test_order_over_all_branches(items, branches, hands, shown):
    """A result stands where the item did at which it came; what ends a branch comes last."""
    pipe = build([["items", items], branches], hands)
    expected = models.passed(items, branches)
    assert (list(pipe.map(identity)), list(pipe.peek(shown).items if shown else [])) == (
        expected,
        expected[:shown],
    )


def test_a_slow_branch_holds_the_order_not_the_work():
    """While the first item of one branch is at work, the other branch goes on."""
    first_may_go = threading.Event()

    def slow(item):
        assert first_may_go.wait(HANG_S)
        return item

    def quick(item):
        if item == 7:
            first_may_go.set()
        return item

    pipe = nbpipe.source(range(8)).route(
        parity, {0: lambda chain: chain.map(slow), 1: lambda chain: chain.map(quick)}
    )
    assert list(pipe) == list(range(8))


def test_a_branch_that_ends_never_is_drawn_as_there_is_room():
    """A branch of many children leaves the others their turn, in order."""
    pipe = nbpipe.source(range(4)).route(
        parity,
        {0: lambda chain: chain.flat_map(lambda item: [item] * 1000), 1: lambda chain: chain},
    )
    assert list(pipe) == [0] * 1000 + [1] + [2] * 1000 + [3]


@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_a_failing_branch(executor):
    """The failure surfaces after everything before it, and names the branch's stage."""
    pipe = nbpipe.source([0, 2, 4, 1, 6]).route(
        parity, {0: lambda chain: chain, 1: lambda chain: chain.map(broken, executor=executor)}
    )
    got, error = delivered(pipe)
    assert (got, error.stage, error.path) == ([0, 2, 4], "broken@1", 3)


def test_an_unknown_value_ends_the_epoch():
    """The error lists the known values."""
    pipe = nbpipe.source([0, 1, 2]).route(identity, {0: identity, 1: identity})
    got, error = delivered(pipe)
    assert (got, type(error)) == ([0, 1], StageError)
    assert str(error.__cause__) == ("route key must be one of 0, 1, got 2; add a branch for it")


def test_a_failing_key():
    """The key function's own error is the cause."""
    pipe = nbpipe.source([0]).route(broken, {0: identity}, name="sort")
    with pytest.raises(StageError) as caught:
        list(pipe)
    assert (caught.value.stage, str(caught.value.__cause__)) == ("sort", "bad 0")


@pytest.mark.parametrize(
    ("even", "expected"),
    [(identity, [0, 1, 2, 3, 4]), (lambda chain: chain.batch(2, collate=list), [1, [0, 2], 3])],
    ids=["each", "gathered"],
)
def test_a_failing_source_before_a_route(even, expected):
    """Its error comes after what it gave; as without a route, no batch is made that is not full."""

    def source():
        yield from range(5)
        raise OSError("no disk")

    pipe = nbpipe.source(source).route(parity, {0: even, 1: identity})
    got, error = delivered(pipe)
    assert (got, error.stage, str(error.__cause__)) == (expected, "source", "no disk")


# -- stages of branches ----------------------------------------------------------------------------


def test_stages_of_branches_have_names_of_their_own():
    """A branch stage is addressed by its name and its value; its knobs are its own."""
    pipe = nbpipe.source(range(4)).route(
        parity,
        {0: lambda chain: chain.map(identity, concurrency=2), 1: lambda chain: chain.map(identity)},
    )
    pipe["identity@1"].concurrency = 3
    knobs = {row["name"]: row["knobs"].get("concurrency") for row in pipe.graph()}
    assert knobs == {"source": None, "identity@0": 2, "identity@1": 3, "route": None}


def branches():
    """Make the branches of a route."""
    return {value: lambda chain: chain.map(identity) for value in (0, 1)}


def test_two_routes_in_one_pipeline():
    """Stages of equal names in two routes are told apart; each has its own counts."""
    pipe = nbpipe.source(range(4)).route(parity, branches()).route(parity, branches())
    assert list(pipe) == [0, 1, 2, 3]
    assert [row["name"] for row in pipe.graph()] == [
        "source",
        "identity@0",
        "identity@1",
        "route",
        "identity@0_2",
        "identity@1_2",
        "route_2",
    ]


def test_values_that_read_alike_have_stages_of_their_own():
    """1 and "1" are two branches."""
    grow = {1: lambda chain: chain.map(identity), "1": lambda chain: chain.map(identity)}
    pipe = nbpipe.source([1, "1"]).route(identity, grow)
    with pipe.start() as run:
        assert list(run) == [1, "1"]
        counts = [run.stats()[name].items_out for name in ("identity@1", "identity@1_2")]
    assert counts == [1, 1]


def test_names_given_by_hand_in_two_routes_clash():
    """As anywhere, a clash of names that were given by hand raises."""
    grow = {0: lambda chain: chain.map(identity, name="decode")}
    pipe = nbpipe.source([0]).route(parity, grow)
    with pytest.raises(DuplicateNameError, match="got 'decode@0', which is taken"):
        pipe.route(parity, grow)
    with pytest.raises(DuplicateNameError, match="got 'decode@0', which is taken"):
        pipe.map(identity, name="decode@0")


@pytest.mark.parametrize("value", ["a/b", "<b>", "x" * 500, "line\nbreak", "", None, ("a", 1)])
def test_odd_values(value):
    """Any value that can be looked up may choose a branch."""
    grow = {value: lambda chain: chain.map(identity)}
    pipe = nbpipe.source([1]).route(lambda item: value, grow)
    name = pipe.stages[1].name
    assert (list(pipe), name.isprintable(), "/" in name) == ([1], True, False)


def test_length_through_a_route():
    """Known where every branch gives one item for each, unknown otherwise."""
    source = nbpipe.source(range(4))
    maps = source.route(parity, branches())
    filters = source.route(
        parity, {0: lambda chain: chain, 1: lambda chain: chain.filter(identity)}
    )
    with pytest.raises(TypeError, match="'identity@1' \\(filter\\)"):
        len(filters)
    assert len(maps.batch(2)) == 2


def test_route_behind_joins_keeps_the_order():
    """Items whose paths begin alike, as those of joined inputs may, are not mixed up."""
    one = nbpipe.source([0, 1])
    two = nbpipe.source([2]).flat_map(lambda item: [item, item + 1])
    joined = nbpipe.concat(one, two, one)
    pipe = joined.route(parity, {0: lambda chain: chain, 1: lambda chain: chain.map(identity)})
    assert list(pipe) == [0, 1, 2, 3, 0, 1]


def test_a_branch_of_another_kind_is_refused():
    """What ends early, orders, keeps or leaves the host stands before or behind the route."""
    source = nbpipe.source([1])
    messages = []
    for grow in (
        lambda chain: chain.take(2),
        lambda chain: chain.map(identity, ordered=False),
        lambda chain: chain.map(identity, device="cpu"),
        lambda chain: source.map(identity),
        lambda chain: nbpipe.zip(source),
    ):
        with pytest.raises(ArgumentError) as caught:
            source.route(identity, {1: grow})
        messages.append(str(caught.value).partition(", got ")[2])
    own = 'a pipeline of its own; for example {"jpg": lambda chain: chain.map(decode)}'
    assert messages == [
        "take; put take before or after the route",
        "ordered=False in 'identity'; leave it out",
        (
            "'identity@1', which runs on a device: that is where a pipeline ends; move "
            "identity@1 after route"
        ),
        own,
        own,
    ]
    with pytest.raises(ArgumentError, match="hold map, filter, flat_map, batch, unbatch, window"):
        source.route(identity, {1: lambda chain: chain.cache()})


# -- branches that gather and route again ----------------------------------------------------------


def gathering(executor="thread"):
    """Make a route of odd items in pairs, and of even ones by a route of its own."""

    def fours(chain):
        return chain.map(identity, concurrency=2, executor=executor).batch(3, collate=list)

    def even(chain):
        by_four = {0: fours, 2: lambda chain: chain.map(identity)}
        return chain.route(lambda item: item % 4, by_four)

    def odd(chain):
        return chain.batch(2, collate=list).unbatch().map(identity, name="pairs")

    return nbpipe.source(range(21)).route(parity, {0: even, 1: odd})


GATHERED = [2, 1, 3, 6, 5, 7, [0, 4, 8], 10, 9, 11, 14, 13, 15, 18, 17, 19, [12, 16, 20]]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_batch_stands_where_its_last_item_did(executor):
    """A batch comes at the item that fills it; the branches' stages are known by both values."""
    pipe = gathering(executor)
    assert [stage.name for stage in pipe.stages] == [
        "source",
        "identity@0@0",
        "batch@0@0",
        "identity@2@0",
        "route@0",
        "batch@1",
        "unbatch@1",
        "pairs@1",
        "route",
    ]
    with pipe.start() as run:
        assert list(run) == GATHERED
        stats = run.stats()
    assert [stats[name].items_out for name in ("batch@0@0", "route@0", "pairs@1")] == [2, 11, 10]


def test_a_branch_gathers_more_than_its_stages_hold():
    """The other branches go on while a batch gathers more items than any stage may hold."""
    pipe = nbpipe.source(range(400), prefetch=1).route(
        parity,
        {
            0: lambda chain: chain.map(identity, prefetch=1).batch(150, prefetch=1, collate=len),
            1: lambda chain: chain.map(identity, prefetch=1),
        },
    )
    odd = list(range(1, 400, 2))
    assert list(pipe) == [*odd[:149], 150, *odd[149:], 50]


def test_a_failure_behind_what_is_gathered():
    """It comes at its item, behind every earlier one, and no batch of fewer items before it."""
    pipe = nbpipe.source(range(9)).route(
        parity,
        {
            0: lambda chain: chain.map(lambda item: 6 // (6 - item)).batch(2, collate=list),
            1: lambda chain: chain,
        },
        name="sort",
    )
    for _ in range(20):
        got, error = delivered(pipe)
        assert (got, error.path) == ([1, [1, 1], 3, 5], 6)


def test_a_budget_of_failures_inside_a_route_of_a_route():
    """It counts the branch's own items, and is judged at the end of the epoch, too."""

    def grow(chain):
        return chain.route(
            lambda item: item % 4,
            {
                0: lambda chain: chain.map(broken, on_error="skip", max_failures=0.5).batch(2),
                2: lambda chain: chain,
            },
        )

    pipe = nbpipe.source(range(8)).route(parity, {1: lambda chain: chain.map(abs), 0: grow})
    got = []
    with pipe.start() as run:
        with pytest.raises(FailureBudgetError, match="broken@0@0"):
            got.extend(run)
        assert (got, [one.path for one in run.failures()]) == ([1, 2, 3, 5, 6, 7], [0, 4])


def test_knobs_inside_a_route_of_a_route_are_live():
    """A call begins once the knob of its stage, two routes deep, lets it."""
    both = threading.Barrier(2, timeout=HANG_S)

    def meet(item):
        both.wait()
        return item

    def grow(chain):
        return chain.route(
            lambda item: item % 4, {0: lambda chain: chain.map(meet).batch(2, collate=list)}
        )

    pipe = nbpipe.source([0, 1, 4, 3]).route(parity, {0: grow, 1: lambda chain: chain})
    with pipe.start() as run:
        items = iter(run)
        threading.Thread(target=lambda: setattr(run["meet@0@0"], "concurrency", 2)).start()
        assert ([*items], run["meet@0@0"].concurrency) == ([1, [0, 4], 3], 2)


@pytest.mark.slow
def test_every_place_of_a_route_of_a_route_can_be_gone_on_from():
    """The items behind each state are those that had not come, in the same order."""
    pipe = gathering()
    rests = [rest_of(pipe, at(pipe, count)[1]) for count in range(len(GATHERED) + 1)]
    assert rests == [GATHERED[count:] for count in range(len(GATHERED) + 1)]


def test_lengths_of_branches_that_gather():
    """How many items come to a branch is not known, so nor is how many batches."""
    with pytest.raises(
        LengthUnknownError, match=r"'batch@0@0' \(batch\) gathers what comes to its"
    ):
        len(gathering())


def test_batches_behind_a_route():
    """Where every branch hands on batches, the stages behind it hold as many as behind batches."""
    source = nbpipe.source(range(4))
    batches = source.route(parity, dict.fromkeys((0, 1), lambda chain: chain.batch(2)))
    mixed = source.route(parity, {0: lambda chain: chain.batch(2), 1: lambda chain: chain})
    assert [pipe.map(identity)["identity"].prefetch for pipe in (batches, mixed)] == [2, 8]
