"""Arguments of the methods of a pipeline: names, executors, knobs, policies, and refusals.

A refusal says what, the rule, the value, and the way out.
"""

import functools
import threading

import numpy as np
import pytest

import nbpipe
from nbpipe import (
    ArgumentError,
    ArgumentTypeError,
    DuplicateNameError,
    KnobError,
    NbpipeError,
    Retry,
    StageError,
)


def decode(item):
    """Do nothing."""
    return item


async def fetch(item):
    """Await nothing."""
    return item


async def draw(item):
    """Yield nothing."""
    yield item


def source():
    """Make a source."""
    return nbpipe.source(range(4))


def refusal(kind, made):
    """Give the message of the error that `made()` raises."""
    with pytest.raises(kind) as caught:
        made()
    assert isinstance(caught.value, NbpipeError)
    return str(caught.value)


# -- knobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1025, True, 1.5, "4", np.inf])
@pytest.mark.parametrize("method", ["map", "filter", "flat_map"])
def test_concurrency(method, value):
    """An int from 1 to 1,024."""
    message = refusal(KnobError, lambda: getattr(source(), method)(decode, concurrency=value))
    assert message == f"decode.concurrency must be an int in [1, 1024] calls, got {value!r}"


@pytest.mark.parametrize("value", [0, -1, 65_537, True, 1.5, "4"])
def test_prefetch(value):
    """An int from 1 to 65,536, wherever there is one."""
    makers = {
        "decode": lambda: source().map(decode, prefetch=value),
        "source": lambda: nbpipe.source([], prefetch=value),
        "shuffle": lambda: source().shuffle(buffer_size=2, prefetch=value),
        "interleave": lambda: nbpipe.interleave([source()], prefetch=value),
    }
    rule = f"prefetch must be an int in [1, 65536] items, got {value!r}"
    messages = {name: refusal(KnobError, made) for name, made in makers.items()}
    assert messages == {name: f"{name}.{rule}" for name in makers}


def test_prefetch_of_batches():
    """Where batches are held the rule says so: in the batch stage, and behind it."""
    batches = source().batch(2)
    makers = {
        "batch": lambda: source().batch(2, prefetch=0),
        "decode": lambda: batches.map(decode, prefetch=0),
        "process": lambda: batches.map(decode, name="process", executor="process", prefetch=0),
        "source": lambda: nbpipe.source(batches, prefetch=0),
        "interleave": lambda: nbpipe.interleave([batches, batches], prefetch=0),
    }
    rule = "prefetch must be an int in [1, 65536] batches, got 0"
    messages = {name: refusal(KnobError, made) for name, made in makers.items()}
    assert messages == {name: f"{name}.{rule}" for name in makers}
    pipe = batches.unbatch().map(decode)
    assert pipe["decode"].knob("prefetch").unit == "items"


# -- map, filter, flat_map -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (ArgumentTypeError, lambda: source().map(5), "map fn must be a function, got 5"),
        (
            ArgumentTypeError,
            lambda: source().filter(None),
            "filter fn must be a function, got None",
        ),
        (
            ArgumentError,
            lambda: source().map(fetch, executor="thread"),
            (
                "fetch executor must be left out for a coroutine function, got 'thread': an async "
                "function runs on the run's event loop; leave executor out, or make the function a "
                "plain one"
            ),
        ),
        (
            ArgumentError,
            lambda: source().map(fetch, executor="inline"),
            "fetch executor must be left out for a coroutine function, got 'inline'",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, executor="proces"),
            (
                "decode executor must be 'thread', 'inline', 'process', 'dask', a "
                "concurrent.futures.Executor or a Dask client (an async function runs on the event "
                "loop by itself), got 'proces'"
            ),
        ),
        (
            ArgumentError,
            lambda: source().map(decode, executor=threading),
            "decode executor must be 'thread', 'inline', 'process'",
        ),
        (
            ArgumentTypeError,
            lambda: source().map(draw),
            "draw must be a function of one result for map, got an async generator; use flat_map",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, executor="inline", concurrency=2),
            (
                "decode runs inline, fused with its neighbour, and has no concurrency or prefetch "
                "of its own; leave them out, or use executor='thread'"
            ),
        ),
        (
            ArgumentError,
            lambda: source().map(decode, timeout_s=1),
            (
                "decode timeout_s needs a call that can be ended: a thread cannot be killed; make "
                'the function an async def, or run it in executor="process"'
            ),
        ),
        (
            ArgumentError,
            lambda: source().flat_map(draw, timeout_s=1),
            "draw timeout_s is for one call with one result; put asyncio.timeout into the",
        ),
        (
            ArgumentError,
            lambda: source().map(fetch, timeout_s=0),
            "fetch timeout_s must be a number above 0 [s], got 0",
        ),
        (
            ArgumentError,
            lambda: source().map(fetch, timeout_s="1 s"),
            "fetch timeout_s must be a number above 0 [s], got '1 s'",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, ordered="no"),
            "decode ordered must be True or False, got 'no'",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, on_error="ignore"),
            "decode on_error must be 'raise', 'skip' or nbpipe.Retry(times), got 'ignore'",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, on_error=Retry),
            "decode on_error must be 'raise', 'skip' or nbpipe.Retry(times), got <class",
        ),
        (
            ArgumentError,
            lambda: source().map(decode, max_failures=3),
            (
                "decode max_failures=3 has no effect with on_error='raise': the first failure ends "
                "the epoch; use on_error='skip' or nbpipe.Retry(times, then='skip')"
            ),
        ),
    ],
)
def test_functions_and_their_options(kind, made, message):
    """Every option is checked when the stage is made, not when it runs."""
    assert message in refusal(kind, made)


@pytest.mark.parametrize("value", [-1, 1.0, 0.0, 1.5, -0.1, True, "3", float("nan"), [1]])
def test_max_failures(value):
    """A count, or a share between 0 and 1."""
    made = functools.partial(source().map, decode, on_error="skip", max_failures=value)
    assert refusal(ArgumentError, made) == (
        "decode max_failures must be an int of at least 0 [items] or a float between 0 and 1 "
        f"[share of items], got {value!r}"
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Retry(0), "Retry times must be an int in [1, 1000] calls, got 0"),
        (lambda: Retry(1.5), "Retry times must be an int in [1, 1000] calls, got 1.5"),
        (lambda: Retry(1, backoff_s=-1), "Retry backoff_s must be a number of at least 0 [s], got"),
        (lambda: Retry(1, backoff_s=np.inf), "Retry backoff_s must be a number of at least 0 [s]"),
        (lambda: Retry(1, then="stop"), "Retry then must be 'raise' or 'skip', got 'stop'"),
    ],
)
def test_retry(made, message):
    """Values out of range."""
    assert refusal(ArgumentError, made).startswith(message)


# -- batch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "4", None, 2**31 + 1])
def test_batch_size(size):
    """At least one item."""
    assert refusal(ArgumentError, lambda: source().batch(size)) == (
        f"batch size must be an int in [1, {2**31}] items, got {size!r}"
    )


@pytest.mark.parametrize("size", [0, -1, True, float("inf"), float("nan"), "4", None])
def test_batch_budget(size):
    """With a cost the size is any number above 0."""
    assert refusal(ArgumentError, lambda: source().batch(size, cost=len)) == (
        f"batch size must be a finite number above 0 with cost, got {size!r}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": 5}, "batch cost must be a function, got 5"),
        ({"collate": 5}, "batch collate must be a function, got 5"),
        ({"names": 5}, "names must be a tuple of field names, got 5"),
        ({"dtype": "float33"}, "dtype must be a floating dtype such as 'float32', got 'float33'"),
        ({"pad": "x"}, "pad must be a number, got 'x'"),
        ({"drop_last": 1}, "batch drop_last must be True or False, got 1"),
        ({"executor": "coroutine"}, "batch executor must be 'thread', 'process', 'dask', an Ex"),
        ({"executor": "process", "cost": len}, "batch executor='process' does not go with cost"),
        ({"concurrency": 2}, "batch concurrency needs workers"),
        (
            {"collate": list, "pad": 0, "dtype": "float32"},
            "batch collate replaces the stacking, so dtype, pad would do nothing; leave one out",
        ),
    ],
)
def test_batch_options(options, message):
    """Every option is checked before there are samples."""
    assert refusal(NbpipeError, lambda: source().batch(2, **options)).startswith(message)


# -- the other operations --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: source().take(-1), "take n must be an int of at least 0 items, got -1"),
        (lambda: source().take(1.5), "take n must be an int of at least 0 items, got 1.5"),
        (
            lambda: source().skip(np.True_),
            "skip n must be an int of at least 0 items, got np.True_",
        ),
        (lambda: source().repeat(0), "repeat n must be an int of at least 1 passes, got 0"),
        (lambda: source().window(0), "window size must be an int of at least 1 items, got 0"),
        (lambda: source().window(2, 0), "window stride must be an int of at least 1 items, got 0"),
        (lambda: source().shuffle(seed=1.5), "shuffle seed must be an int in ["),
        (
            lambda: source().shuffle(buffer_size=0),
            "shuffle buffer_size must be an int of at least 1 items, got 0",
        ),
        (
            lambda: source().shuffle(prefetch=3),
            (
                "shuffle prefetch needs buffer_size: a permutation of indices holds no items; set "
                "the source's prefetch"
            ),
        ),
        (lambda: source().shard(4, 4), "shard rank must be an int in [0, 3], got 4"),
        (lambda: source().shard(-1, 4), "shard rank must be an int in [0, 3], got -1"),
        (
            lambda: source().shard(0, 0),
            "shard world_size must be an int of at least 1 ranks, got 0",
        ),
        (lambda: source().shard(0), "shard needs both rank and world_size or none, got 0 and None"),
        (
            lambda: source().shard(),
            (
                "shard needs rank and world_size, for example shard(0, 2): torch.distributed is "
                "not initialised, so they are not known"
            ),
        ),
        (
            lambda: source().shard(0, 2, tail="cut"),
            "shard tail must be 'pad', 'drop' or 'uneven', got 'cut'",
        ),
        (
            lambda: source().cache(5),
            "cache path must be a folder, as a str or a Path, got 5; leave it out to cache in",
        ),
        (lambda: source().cache(""), "cache path must be a folder, as a str or a Path, got ''"),
        (
            lambda: source().route(decode, {}),
            (
                "route branches must be a dict of at least one value, got {}; as "
                '{"jpg": lambda chain: chain.map(decode)}'
            ),
        ),
        (
            lambda: source().route(decode, [1]),
            "route branches must be a dict of at least one value",
        ),
        (lambda: source().route(5, {1: decode}), "route key must be a function, got 5"),
        (
            lambda: source().route(decode, {1: lambda chain: None}),
            "a branch of route must return the chain it was given, with stages added, got NoneType",
        ),
        (lambda: source().peek(0), "peek n must be an int of at least 1 items, got 0"),
        (lambda: source().start(seed="x"), "seed must be an int in ["),
        (
            lambda: source().start(memory="much"),
            "memory must be a size in bytes, got 'much'; give an int of bytes or a text",
        ),
    ],
)
def test_operations(made, message):
    """Arguments out of range or of another type."""
    assert refusal(NbpipeError, made).startswith(message)


# -- while it runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: source().flat_map(lambda item: {"x": item}),
            (
                "the function of 'flat_map_1' must give an iterable of items, got dict; return a "
                "list of items, or yield them"
            ),
        ),
        (
            lambda: source().flat_map(lambda item: "text"),
            "the function of 'flat_map_1' must give an iterable of items, got str",
        ),
        (
            lambda: source().flat_map(lambda item: None),
            "the function of 'flat_map_1' must give an iterable of items, got NoneType",
        ),
        (
            lambda: source().unbatch(),
            (
                "unbatch needs a batch with a first dimension, got int; use flat_map with a "
                "function that takes it apart"
            ),
        ),
    ],
)
def test_what_a_function_gives(made, message):
    """What shows only when it runs fails the epoch, at its item."""
    with pytest.raises(StageError) as caught:
        list(made())
    assert isinstance(caught.value.__cause__, NbpipeError)
    assert message in str(caught.value.__cause__)


def test_nothing_is_left_of_a_refused_pipeline():
    """A refusal changes no pipeline, and starts no thread."""
    base = source()
    before = (base.graph(), threading.active_count())
    for made in (lambda: base.batch(0), lambda: base.map(5), lambda: base.take(-1)):
        refusal(NbpipeError, made)
    assert (base.graph(), threading.active_count()) == before


# -- names -----------------------------------------------------------------------------------------


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


# -- executors -------------------------------------------------------------------------------------


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


# -- knobs -----------------------------------------------------------------------------------------


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


# -- policies --------------------------------------------------------------------------------------


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
        (source().dedupe(), "last 10,000"),
        (source().sample([1] * 4, n=9, seed=3), "9, seed 3"),
        (source().sample([1] * 4, replacement=False), "seed 0, without replacement"),
        (source().balance([1] * 4, n=9, seed=3), "9, seed 3"),
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
