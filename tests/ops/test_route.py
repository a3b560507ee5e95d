"""route: items part by a key and come together again in input order."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, DuplicateNameError, StageError
from tests.gates import HANG_S
from tests.strategies import HANDS, called


def parity(item):
    """Choose a branch by the last bit."""
    return item % 2


def identity(item):
    """Do nothing."""
    return item


def broken(item):
    """Fail."""
    raise ValueError(f"bad {item}")


@given(st.lists(st.integers(0, 30), max_size=40), HANDS, st.integers(1, 4))
def test_order_is_kept_over_all_branches(items, hands, prefetch):
    """Branches that drop, keep and multiply items give them back in input order."""
    dealt = hands.deal()

    def grow_zero(chain):
        return called(chain, "filter", lambda item: item % 3, dealt)

    def grow_one(chain):
        doubled = called(chain, "flat_map", lambda item: [item] * (item % 4), dealt)
        return called(doubled, "map", lambda item: -item, dealt)

    pipe = nbpipe.source(items, prefetch=prefetch).route(
        lambda item: item % 3 % 2, {0: grow_zero, 1: grow_one}
    )
    expected = []
    for item in items:
        if item % 3 % 2 == 0:
            expected += [item] if item % 3 else []
        else:
            expected += [-item] * (item % 4)
    assert list(pipe.map(identity)) == expected


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


def test_an_item_whose_branch_drops_it_holds_up_nothing():
    """The other branch's items come as soon as the drop is known."""
    pipe = nbpipe.source(range(100)).route(
        parity, {0: lambda chain: chain.filter(lambda item: False), 1: lambda chain: chain}
    )
    assert list(pipe) == list(range(1, 100, 2))


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
    got = []
    with pytest.raises(StageError) as caught:
        got.extend(pipe)
    assert (got, caught.value.stage, caught.value.path) == ([0, 2, 4], "broken@1", 3)


def test_a_branch_that_skips_its_failures():
    """`on_error` acts in a branch as elsewhere."""
    pipe = nbpipe.source(range(6)).route(
        parity,
        {0: lambda chain: chain, 1: lambda chain: chain.map(broken, on_error="skip")},
    )
    with pipe.start() as run:
        items = list(run)
        assert (items, [failure.path for failure in run.failures()]) == ([0, 2, 4], [1, 3, 5])


def test_an_unknown_value_ends_the_epoch():
    """The error lists the known values."""
    pipe = nbpipe.source([0, 1, 2]).route(identity, {0: identity, 1: identity})
    got = []
    with pytest.raises(StageError) as caught:
        got.extend(pipe)
    assert got == [0, 1]
    assert str(caught.value.__cause__) == (
        "route key must be one of 0, 1, got 2; add a branch for it"
    )


def test_a_failing_key():
    """The key function's own error is the cause."""
    pipe = nbpipe.source([0]).route(broken, {0: identity}, name="sort")
    with pytest.raises(StageError) as caught:
        list(pipe)
    assert (caught.value.stage, str(caught.value.__cause__)) == ("sort", "bad 0")


def test_a_failing_source_before_a_route():
    """Its error comes after the items that it gave, through all branches."""

    def source():
        yield from range(5)
        raise OSError("no disk")

    pipe = nbpipe.source(source).route(parity, {0: identity, 1: identity})
    got = []
    with pytest.raises(StageError) as caught:
        got.extend(pipe)
    assert (got, caught.value.stage) == ([0, 1, 2, 3, 4], "source")


# -- stages of branches -------------------------------------------------------------------


def test_stages_of_branches_have_names_of_their_own():
    """A branch stage is addressed by its name and its value; its knobs are its own."""
    pipe = nbpipe.source(range(4)).route(
        parity,
        {0: lambda chain: chain.map(identity, concurrency=2), 1: lambda chain: chain.map(identity)},
    )
    pipe["identity@1"].concurrency = 3
    knobs = {row["name"]: row["knobs"].get("concurrency") for row in pipe.graph()}
    assert knobs == {"source": None, "identity@0": 2, "identity@1": 3, "route": None}


def test_stats_of_branches():
    """Each branch stage counts its own items."""
    pipe = nbpipe.source(range(5)).route(
        parity, {0: lambda chain: chain.map(identity), 1: lambda chain: chain.map(identity)}
    )
    with pipe.start() as run:
        list(run)
        stats = run.stats()
    counts = {name: stats[name].items_out for name in ("identity@0", "identity@1", "route")}
    assert counts == {"identity@0": 3, "identity@1": 2, "route": 5}


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
    """Only map, filter and flat_map in order may stand in a branch."""
    source = nbpipe.source([1])
    messages = []
    for grow in (
        lambda chain: chain.batch(2),
        lambda chain: chain.map(identity, ordered=False),
        lambda chain: source.map(identity),
    ):
        with pytest.raises(ArgumentError) as caught:
            source.route(identity, {1: grow})
        messages.append(str(caught.value).split(";")[0])
    assert messages == [
        "a branch of route may hold map, filter and flat_map, got batch",
        "a branch of route must keep the input order, got ordered=False in 'identity'",
        "a branch of route must add stages to the chain it is given, got a pipeline of its own",
    ]
