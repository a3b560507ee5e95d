"""Arguments of Pipeline's methods: names, defaults, executors, policies."""

import functools

import numpy as np
import pytest

import nbpipe
from nbpipe import ArgumentError, DuplicateNameError, Retry
from nbpipe.ops.chain import check_name


def decode(item):
    """Do nothing."""
    return item


async def fetch(item):
    """Await nothing."""
    return item


async def draw(item):
    """Yield the item."""
    yield item


def source():
    """Make a source."""
    return nbpipe.source(range(4))


# -- names --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "naïve", "a b", "<b>", "x" * 100, "1", "@", "日本"])
def test_names_that_are_taken_as_they_are(name):
    """Anything printable of up to 100 characters."""
    assert check_name("map", name) == name


@pytest.mark.parametrize("name", ["", "x" * 101, "a/b", "/", "a\nb", "\x00", "\u200b", 5, b"a"])
def test_names_that_are_refused(name):
    """The rule and the value stand in the message."""
    with pytest.raises(ArgumentError) as caught:
        source().map(decode, name=name)
    assert str(caught.value) == (
        "map name must be a printable str of 1 to 100 characters without '/', got " + repr(name)
    )


@pytest.mark.parametrize("what", ["source", "map", "batch", "route"])
def test_the_name_of_the_training_loop_is_reserved(what):
    """`consumer` is the row of the loop in the stats."""
    with pytest.raises(ArgumentError) as caught:
        {
            "source": lambda: nbpipe.source([1], name="consumer"),
            "map": lambda: source().map(decode, name="consumer"),
            "batch": lambda: source().batch(2, name="consumer"),
            "route": lambda: source().route(abs, {0: decode}, name="consumer"),
        }[what]()
    assert str(caught.value) == (
        f"{what} name must not be 'consumer': that is the row of the training loop itself"
    )


def test_a_clash_of_names_given_by_hand():
    """The message lists the names that are taken."""
    with pytest.raises(DuplicateNameError) as caught:
        source().map(decode, name="a").batch(2, name="a")
    assert str(caught.value) == (
        "batch name must be new in its pipeline, got 'a', which is taken; leave it out, or choose "
        "another (taken: a, source)"
    )


def test_a_name_given_by_hand_must_not_be_an_automatic_one():
    """Which of the two was meant could not be said later."""
    with pytest.raises(DuplicateNameError):
        source().map(decode).map(fetch, name="decode")
    assert source().map(fetch, name="decode").map(decode)["decode_2"].fn is decode


def test_automatic_names_can_be_addressed():
    """Whatever a function is called, its stage has a name that the brackets take."""

    def function(item):
        return item

    names = []
    for name in ("a/b", "line\nbreak", "x" * 300, "", "<lambda>"):
        function.__name__ = name
        pipe = source().map(function)
        names.append(pipe.stages[-1].name)
        assert pipe[names[-1]].fn is function
    assert names == ["a_b", "line_break", "x" * 100, "map_1", "map_1"]


def test_names_may_come_again_in_joined_pipelines():
    """Only one chain must not hold a name twice."""
    pipe = nbpipe.source([1], name="a").map(decode, name="b")
    joined = nbpipe.concat(pipe, pipe).map(decode, name="b")
    assert [row["name"] for row in joined.graph()][-2:] == ["concat", "b"]


# -- executors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "given", "executor"),
    [
        (decode, None, "thread"),
        (decode, "thread", "thread"),
        (decode, "inline", "inline"),
        (fetch, None, "coroutine"),
        (functools.partial(fetch), None, "coroutine"),
    ],
)
def test_who_calls_the_function(function, given, executor):
    """Plain functions run in threads unless told otherwise, async ones on the event loop."""
    made = source().map(function, executor=given, name="stage")
    assert (made["stage"].executor, list(made)) == (executor, [0, 1, 2, 3])


def test_an_inline_stage_has_no_knobs():
    """It runs with its neighbour, first or last in the chain."""
    pipe = source().map(decode, executor="inline").batch(2, collate=list)
    last = pipe.unbatch().filter(decode, executor="inline").flat_map(lambda item: [item] * 2)
    assert (dict(pipe["decode"].knobs), list(last)) == ({}, [1, 1, 2, 2, 3, 3])


# -- knobs --------------------------------------------------------------------------------


def test_defaults_of_knobs():
    """Prefetch is 16 for a source, 8 for stages of samples, 2 from the first batch on."""
    pipe = source().map(decode).shuffle(buffer_size=2).batch(2).map(decode)
    joined = nbpipe.interleave([pipe, pipe])
    knobs = {row["name"]: row["knobs"] for row in pipe.graph()}
    assert knobs == {
        "source": {"prefetch": 16},
        "decode": {"concurrency": 1, "prefetch": 8},
        "shuffle": {"prefetch": 8},
        "batch": {"prefetch": 2},
        "decode_2": {"concurrency": 1, "prefetch": 2},
    }
    assert dict(joined["interleave"].knobs) == {"prefetch": joined["interleave"].knob("prefetch")}


def test_knobs_may_be_any_integer():
    """Numpy's integers are integers."""
    made = source().map(decode, concurrency=np.int64(3), prefetch=np.uint8(5))["decode"]
    assert (made.concurrency, made.prefetch) == (3, 5)


# -- policies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({}, ""),
        ({"ordered": False}, "completion order"),
        ({"on_error": "skip"}, "skip errors"),
        ({"on_error": Retry(3)}, "retry 3"),
        ({"on_error": Retry(3, then="skip"), "max_failures": 0.5}, "retry 3, skip errors"),
        ({"on_error": "skip", "max_failures": np.int64(3)}, "skip errors"),
        ({"timeout_s": 2}, "timeout 2 s"),
        ({"timeout_s": np.float32(0.5)}, "timeout 0.5 s"),
    ],
)
def test_what_differs_from_the_defaults_shows(options, detail):
    """The table names policies in words."""
    pipe = source().map(fetch if "timeout_s" in options else decode, **options, name="stage")
    assert pipe.graph()[-1]["detail"] == detail


@pytest.mark.parametrize(
    ("pipe", "detail"),
    [
        (source().batch(4), "4"),
        (source().batch(2.5, cost=abs), "2.5 by cost"),
        (source().window(3, 2), "3 by 2"),
        (source().shuffle(seed=7), "seed 7"),
        (source().shuffle(buffer_size=3), "seed 0, buffer 3"),
        (source().shard(1, 4, tail="drop"), "1 of 4, drop"),
        (source().take(5), "5"),
        (source().skip(6), "6"),
        (source().repeat(), "for ever"),
        (source().repeat(3), "3"),
        (source().cache(), "memory"),
        (source().route(abs, {"a": decode, 1: decode}), "a, 1"),
        (nbpipe.source(source(), name="outer"), "pipeline"),
    ],
)
def test_arguments_show_in_the_table(pipe, detail):
    """Each operation shows what it was given."""
    assert pipe.graph()[-1]["detail"] == detail


def test_retry_is_a_value():
    """Equal arguments make equal policies, which do not change."""
    with pytest.raises(AttributeError):
        Retry(3).times = 4
    assert Retry(3, backoff_s=1) == Retry(3, backoff_s=1.0, then="raise")


def test_a_retry_waits_twice_as_long_each_time():
    """Waits grow by powers of two from `backoff_s`; the item keeps its place in the order."""
    fails = {1: 2}

    def flaky(item):
        if fails.get(item, 0):
            fails[item] -= 1
            raise OSError
        return item

    policy = Retry(2, backoff_s=0.001)
    assert list(source().map(flaky, on_error=policy, concurrency=2)) == [0, 1, 2, 3]


@pytest.mark.torch
def test_a_shard_takes_its_rank_from_torch(tmp_path):
    """Where torch.distributed is initialised, it says rank and world size."""
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{tmp_path / 'f'}", rank=0, world_size=1)
    try:
        detail = source().shard().graph()[-1]["detail"]
    finally:
        distributed.destroy_process_group()
    assert detail == "0 of 1, pad"
