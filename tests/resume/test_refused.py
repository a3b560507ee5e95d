"""States of other pipelines, data, seeds and versions: refused in words that help."""

import pytest

import nbpipe
from nbpipe import StateError
from tests.resume.checking import at, rest_of


def pipes_that_differ():
    """Give pairs of pipelines of which neither takes the state of the other, and a word."""
    base = nbpipe.source(range(20))
    return {
        "length": (base, nbpipe.source(range(21)), "20 items"),
        "size": (base.batch(2), base.batch(3), "size 2"),
        "drop_last": (base.batch(2), base.batch(2, drop_last=True), "drop_last False"),
        "cost": (base.batch(2), base.batch(2, cost=abs), "by_cost False"),
        "name": (base.map(abs, name="a"), base.map(abs, name="b"), "'a'"),
        "kind": (base.map(abs, name="a"), base.filter(abs, name="a"), "map"),
        "more": (base.map(abs), base.map(abs).map(abs), "2 stages"),
        "less": (base.map(abs).map(abs), base.map(abs), "3 stages"),
        "order": (base.take(3).skip(1), base.skip(1).take(3), "take"),
        "seed": (base.shuffle(seed=1), base.shuffle(seed=2), "seed 1"),
        "buffer": (base.shuffle(buffer_size=3), base.shuffle(buffer_size=4), "buffer_size 3"),
        "full": (base.shuffle(), base.shuffle(buffer_size=4), "buffer_size None"),
        "window": (base.window(3, 2), base.window(3, 1), "stride 2"),
        "take": (base.take(3), base.take(4), "count 3"),
        "repeat": (base.map(abs).repeat(2), base.map(abs).repeat(), "times 2"),
        "tail": (base.shard(0, 2), base.shard(0, 2, tail="drop"), "tail 'pad'"),
        "weights": (nbpipe.mix([base], [1]), nbpipe.mix([base, base], [1, 2]), "mix"),
        "stop": (nbpipe.mix([base]), nbpipe.mix([base], stop="shortest"), "stop 'longest'"),
        "cycle": (nbpipe.interleave([base], 1), nbpipe.interleave([base], 2), "cycle 1"),
        "strict": (nbpipe.zip(base), nbpipe.zip(base, strict=False), "strict True"),
        "inputs": (nbpipe.concat(base), nbpipe.concat(base, base), "concat"),
        "inner": (nbpipe.concat(base.take(3)), nbpipe.concat(base.take(4)), "count 3"),
        "branch": (
            base.route(bool, {True: lambda c: c.map(abs), False: lambda c: c}),
            base.route(bool, {True: lambda c: c.map(abs).map(abs), False: lambda c: c}),
            "1 stage",
        ),
        "keys": (base.route(abs, {1: lambda c: c}), base.route(abs, {2: lambda c: c}), "1"),
    }


@pytest.mark.parametrize("word", pipes_that_differ())
def test_another_pipeline_is_refused(word):
    """A state of another chain or length is refused: what differs is named, and a way out."""
    one, other, said = pipes_that_differ()[word]
    with one.start() as run:
        state = run.state_dict()
    with other.start() as run, pytest.raises(StateError) as caught:
        run.load_state_dict(state)
    rule, _, way_out = str(caught.value).partition("; ")
    before, _, ours = rule.partition("this one has ")
    assert said in rule
    assert way_out
    assert not ours or ours != before.partition("with ")[2].rstrip(", ")


def test_functions_executors_and_knobs_may_differ():
    """What a stage calls, where and how many at once, is not part of its outline."""
    one = nbpipe.source(range(20)).map(abs, name="work").batch(2, collate=list)
    other = nbpipe.source(range(20), prefetch=3).map(
        lambda item: item, name="work", concurrency=4, prefetch=2, ordered=True
    )
    got, state = at(one, 3)
    assert got + rest_of(other.batch(2, collate=tuple, prefetch=1), state) == [
        *[[n, n + 1] for n in range(0, 6, 2)],
        *[(n, n + 1) for n in range(6, 20, 2)],
    ]


@pytest.mark.parametrize(
    ("seed", "changes", "said"), [(7, {}, "start(seed=7)"), (0, {"nbpipe": 99}, "99")]
)
def test_a_state_of_another_seed_or_a_later_format_is_refused(seed, changes, said):
    """It says with which seed to start; what a later version wrote is not guessed at."""
    _, state = at(nbpipe.source(range(20)), 3, seed=seed)
    with nbpipe.source(range(20)).start() as run, pytest.raises(StateError) as caught:
        run.load_state_dict(state | changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: [], "needs at least one state"),
        (lambda state: 3, "must be a dict from run.state_dict(), got 3; for several ranks"),
        (lambda state: [state, {}], "must be a dict from run.state_dict(), got {}"),
        (lambda state: state | {"epoch": 4}, "is not as it was written; give what run.state_dict"),
    ],
)
def test_what_is_no_state_or_was_edited_is_refused(change, said):
    """The message says which of these it is, and what to give."""
    _, state = at(nbpipe.source(range(20)), 3)
    with nbpipe.source(range(20)).start() as run, pytest.raises(StateError) as caught:
        run.load_state_dict(change(state))
    assert said in str(caught.value)


def streams(count):
    """Give sources of `count` numbers whose length nobody knows, each in a chain."""

    async def numbers():
        for n in range(count):
            yield n

    stream = nbpipe.source(lambda: iter(range(count)), name="rows")
    return {
        "function": stream,
        "iterable": nbpipe.source(dict.fromkeys(range(count)).keys(), name="rows"),
        "async": nbpipe.source(numbers, name="rows"),
        "batch": stream.batch(4, collate=tuple),
        "window": stream.window(4, 4),
        "buffer": stream.shuffle(seed=0, buffer_size=2),
        "completion": stream.map(abs, executor="inline"),
    }


@pytest.mark.parametrize("name", streams(0))
def test_a_stream_that_ends_before_the_place_is_refused(name):
    """Data that became shorter than what was delivered is no empty epoch: it is said so."""
    _, state = at(streams(20)[name], 2 if name in ("batch", "window") else 9)
    with pytest.raises(nbpipe.StageError, match=r"source 'rows' must have at least") as caught:
        rest_of(streams(5)[name], state)
    assert isinstance(caught.value.__cause__, StateError)
    assert "got 5" in str(caught.value)


@pytest.mark.parametrize("name", streams(0))
def test_a_stream_that_ends_at_the_place_has_an_empty_rest(name):
    """After the last item, a batch that is not full included, there is nothing to complain of."""
    _, state = at(streams(10)[name], {"batch": 3, "window": 2}.get(name, 10))
    assert rest_of(streams(10)[name], state) == []
