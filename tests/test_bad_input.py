"""Refusals: each says what, the rule, the value, and the way out."""

import functools
import threading

import numpy as np
import pytest

import nbpipe
from nbpipe import (
    ArgumentError,
    ArgumentTypeError,
    KnobError,
    NbpipeError,
    Retry,
    RunClosedError,
    StageError,
    source,
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


def pipe():
    """Make a source."""
    return source(range(4))


def refusal(kind, made):
    """Give the message of the error that `made()` raises."""
    with pytest.raises(kind) as caught:
        made()
    assert isinstance(caught.value, NbpipeError)
    return str(caught.value)


# -- knobs --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1025, True, 1.5, "4", np.inf])
@pytest.mark.parametrize("method", ["map", "filter", "flat_map"])
def test_concurrency(method, value):
    """An int from 1 to 1,024."""
    message = refusal(KnobError, lambda: getattr(pipe(), method)(decode, concurrency=value))
    assert message == f"decode.concurrency must be an int in [1, 1024] calls, got {value!r}"


@pytest.mark.parametrize("value", [0, -1, 65_537, True, 1.5, "4"])
def test_prefetch(value):
    """An int from 1 to 65,536, wherever there is one."""
    makers = {
        "decode": lambda: pipe().map(decode, prefetch=value),
        "source": lambda: source([], prefetch=value),
        "batch": lambda: pipe().batch(2, prefetch=value),
        "shuffle": lambda: pipe().shuffle(buffer_size=2, prefetch=value),
        "interleave": lambda: nbpipe.interleave([pipe()], prefetch=value),
    }
    rule = f"prefetch must be an int in [1, 65536] items, got {value!r}"
    messages = {name: refusal(KnobError, made) for name, made in makers.items()}
    assert messages == {name: f"{name}.{rule}" for name in makers}


# -- map, filter, flat_map ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (ArgumentTypeError, lambda: pipe().map(5), "map fn must be a function, got 5"),
        (ArgumentTypeError, lambda: pipe().filter(None), "filter fn must be a function, got None"),
        (
            ArgumentError,
            lambda: pipe().map(fetch, executor="thread"),
            (
                "fetch executor must be left out for a coroutine function, got 'thread': an async "
                "function runs on the run's event loop; leave executor out, or make the function a "
                "plain one"
            ),
        ),
        (
            ArgumentError,
            lambda: pipe().map(fetch, executor="inline"),
            "fetch executor must be left out for a coroutine function, got 'inline'",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, executor="proces"),
            (
                "decode executor must be 'thread', 'inline', 'process', 'dask', a "
                "concurrent.futures.Executor or a Dask client (an async function runs on the event "
                "loop by itself), got 'proces'"
            ),
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, executor=threading),
            "decode executor must be 'thread', 'inline', 'process'",
        ),
        (
            ArgumentTypeError,
            lambda: pipe().map(draw),
            "draw must be a function of one result for map, got an async generator; use flat_map",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, executor="inline", concurrency=2),
            (
                "decode runs inline, fused with its neighbour, and has no concurrency or prefetch "
                "of its own; leave them out, or use executor='thread'"
            ),
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, timeout_s=1),
            (
                "decode timeout_s needs a call that can be ended: a thread cannot be killed; make "
                'the function an async def, or run it in executor="process"'
            ),
        ),
        (
            ArgumentError,
            lambda: pipe().flat_map(draw, timeout_s=1),
            "draw timeout_s is for one call with one result; put asyncio.timeout into the",
        ),
        (
            ArgumentError,
            lambda: pipe().map(fetch, timeout_s=0),
            "fetch timeout_s must be a number above 0 [s], got 0",
        ),
        (
            ArgumentError,
            lambda: pipe().map(fetch, timeout_s="1 s"),
            "fetch timeout_s must be a number above 0 [s], got '1 s'",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, ordered="no"),
            "decode ordered must be True or False, got 'no'",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, on_error="ignore"),
            "decode on_error must be 'raise', 'skip' or nbpipe.Retry(times), got 'ignore'",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, on_error=Retry),
            "decode on_error must be 'raise', 'skip' or nbpipe.Retry(times), got <class",
        ),
        (
            ArgumentError,
            lambda: pipe().map(decode, max_failures=3),
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
    made = functools.partial(pipe().map, decode, on_error="skip", max_failures=value)
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


# -- batch --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "4", None, 2**31 + 1])
def test_batch_size(size):
    """At least one item."""
    assert refusal(ArgumentError, lambda: pipe().batch(size)) == (
        f"batch size must be an int in [1, {2**31}] items, got {size!r}"
    )


@pytest.mark.parametrize("size", [0, -1, True, float("inf"), float("nan"), "4", None])
def test_batch_budget(size):
    """With a cost the size is any number above 0."""
    assert refusal(ArgumentError, lambda: pipe().batch(size, cost=len)) == (
        f"batch size must be a finite number above 0 with cost, got {size!r}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": 5}, "batch cost must be a function, got 5"),
        ({"collate": 5}, "batch collate must be a function, got 5"),
        ({"names": "ab"}, "names must be a tuple of field names, got 'ab'"),
        ({"names": 5}, "names must be a tuple of field names, got 5"),
        ({"names": (1, 2)}, "names must be strings, got (1, 2)"),
        ({"names": ("a", "a")}, "names must differ from one another, got ('a', 'a')"),
        ({"dtype": "int32"}, "dtype must be a floating dtype such as 'float32', got 'int32'"),
        ({"dtype": "float33"}, "dtype must be a floating dtype such as 'float32', got 'float33'"),
        ({"pad": "x"}, "pad must be a number, got 'x'"),
        ({"drop_last": 1}, "batch drop_last must be True or False, got 1"),
        ({"executor": "coroutine"}, "batch executor must be 'thread', 'process', 'dask', an Exec"),
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
    assert refusal(NbpipeError, lambda: pipe().batch(2, **options)).startswith(message)


# -- the other operations -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: pipe().take(-1), "take n must be an int of at least 0 items, got -1"),
        (lambda: pipe().take(1.5), "take n must be an int of at least 0 items, got 1.5"),
        (lambda: pipe().skip(np.True_), "skip n must be an int of at least 0 items, got np.True_"),
        (lambda: pipe().repeat(0), "repeat n must be an int of at least 1 passes, got 0"),
        (lambda: pipe().window(0), "window size must be an int of at least 1 items, got 0"),
        (lambda: pipe().window(2, 0), "window stride must be an int of at least 1 items, got 0"),
        (lambda: pipe().shuffle(seed=1.5), "shuffle seed must be an int in ["),
        (
            lambda: pipe().shuffle(buffer_size=0),
            "shuffle buffer_size must be an int of at least 1 items, got 0",
        ),
        (
            lambda: pipe().shuffle(prefetch=3),
            (
                "shuffle prefetch needs buffer_size: a permutation of indices holds no items; set "
                "the source's prefetch"
            ),
        ),
        (lambda: pipe().shard(4, 4), "shard rank must be an int in [0, 3], got 4"),
        (lambda: pipe().shard(-1, 4), "shard rank must be an int in [0, 3], got -1"),
        (lambda: pipe().shard(0, 0), "shard world_size must be an int of at least 1 ranks, got 0"),
        (
            lambda: pipe().shard(0),
            "shard needs both rank and world_size or none, got 0 and None",
        ),
        (
            lambda: pipe().shard(),
            (
                "shard needs rank and world_size, as shard(0, 2): torch.distributed is not "
                "initialised, so they are not known"
            ),
        ),
        (
            lambda: pipe().shard(0, 2, tail="cut"),
            "shard tail must be 'pad', 'drop' or 'uneven', got 'cut'",
        ),
        (
            lambda: pipe().cache(5),
            "cache path must be a folder, as a str or a Path, got 5; leave it out to cache in",
        ),
        (lambda: pipe().cache(""), "cache path must be a folder, as a str or a Path, got ''"),
        (
            lambda: pipe().route(decode, {}),
            (
                "route branches must be a dict of at least one value, got {}; as "
                '{"jpg": lambda chain: chain.map(decode)}'
            ),
        ),
        (lambda: pipe().route(decode, [1]), "route branches must be a dict of at least one value"),
        (lambda: pipe().route(5, {1: decode}), "route key must be a function, got 5"),
        (
            lambda: pipe().route(decode, {1: lambda chain: None}),
            "a branch of route must return the chain it was given, with stages added, got NoneType",
        ),
        (lambda: pipe().peek(0), "peek n must be an int of at least 1 items, got 0"),
        (lambda: pipe().start(seed="x"), "seed must be an int in ["),
        (
            lambda: pipe().start(memory="much"),
            "memory must be a size in bytes, got 'much'; give an int of bytes or a text",
        ),
    ],
)
def test_operations(made, message):
    """Arguments out of range or of another type."""
    assert refusal(NbpipeError, made).startswith(message)


# -- while it runs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: pipe().flat_map(lambda item: {"x": item}),
            (
                "the function of 'flat_map_1' must give an iterable of items, got dict; return a "
                "list of items, or yield them"
            ),
        ),
        (
            lambda: pipe().flat_map(lambda item: "text"),
            "the function of 'flat_map_1' must give an iterable of items, got str",
        ),
        (
            lambda: pipe().flat_map(lambda item: None),
            "the function of 'flat_map_1' must give an iterable of items, got NoneType",
        ),
        (
            lambda: pipe().unbatch(),
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


def test_a_closed_run_is_closed():
    """It says how to start another one."""
    run = pipe().start()
    run.close()
    assert refusal(RunClosedError, lambda: iter(run)) == (
        "this run is closed; start another with pipe.start()"
    )


def test_nothing_is_left_of_a_refused_pipeline():
    """A refusal changes no pipeline, and starts no thread."""
    base = pipe()
    before = (base.graph(), threading.active_count())
    for made in (lambda: base.batch(0), lambda: base.map(5), lambda: base.take(-1)):
        refusal(NbpipeError, made)
    assert (base.graph(), threading.active_count()) == before
