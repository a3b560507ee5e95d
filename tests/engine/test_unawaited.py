"""A coroutine is never a result: what gave it is named, and Python has nothing to warn of."""

import asyncio
import contextlib
import gc
import warnings

import pytest

import nbpipe
from nbpipe import ArgumentTypeError, StageError
from tests.gates import Gate


async def fetch(number):
    """Fetch something, if it is awaited."""
    await asyncio.sleep(0)
    return number


async def stream(number):
    """Fetch several things, if they are awaited."""
    yield number


def logged(number):
    """Call an async function as a decorator that is not async does."""
    return fetch(number)


async def forgot(number):
    """Forget an `await`."""
    return fetch(number)


def streamed(number):
    """Call an async generator function."""
    return stream(number)


def now_and_then(number):
    """Give a coroutine for one item alone."""
    return fetch(number) if number == 700 else int(number)


@contextlib.contextmanager
def silence():
    """Fail where Python warns of a coroutine that nothing awaited."""
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in said if "never awaited" in str(one.message)] == []


NUMBERS = nbpipe.source(range(1_000))
GIVEN = {
    "map": NUMBERS.map(logged),
    "map of two": NUMBERS.map(logged).map(str),
    "map, side by side": NUMBERS.map(logged, concurrency=3, ordered=False),
    "map, inline": NUMBERS.map(int).map(logged, executor="inline"),
    "map, tried again": NUMBERS.map(logged, on_error=nbpipe.Retry(2)),
    "map, awaited": NUMBERS.map(forgot),
    "map, of a generator": NUMBERS.map(streamed),
    "map, in its midst": NUMBERS.map(now_and_then).map(str),
    "filter": NUMBERS.filter(logged),
    "filter, inline": NUMBERS.map(int).filter(logged, executor="inline"),
    "flat_map": NUMBERS.flat_map(logged),
    "source": nbpipe.source(lambda: fetch(1)),
    "collate": NUMBERS.batch(2, collate=logged),
    "collate by cost": NUMBERS.batch(2, collate=logged, cost=lambda number: 1),
    "cost": NUMBERS.batch(2, cost=logged),
    "dedupe": NUMBERS.dedupe(key=logged),
    "route": NUMBERS.route(logged, {0: lambda chain: chain.map(int)}),
    "samples": nbpipe.source(lambda: [{"a": fetch(n)} for n in range(2)]).batch(2),
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_coroutine_is_an_error(given):
    """A plain function that returns a coroutine is refused: pass the async function itself."""
    with silence(), pytest.raises(StageError, match="nothing awaits") as raised:
        list(GIVEN[given])
    cause = raised.value.__cause__
    assert isinstance(cause, ArgumentTypeError)
    name = "stream" if given.endswith("generator") else "fetch"
    assert f"of {name!r}" in str(cause)
    assert "`async def`" in str(cause)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["map", "filter", "flat_map"])
def test_a_coroutine_is_an_error_in_a_worker_too(call):
    """So it is in worker processes."""
    chain = getattr(nbpipe.source([1, 2]), call)(logged, executor="process")
    with silence(), pytest.raises(StageError, match="nothing awaits"):
        list(chain)


def test_only_the_coroutines_are_skipped():
    """Where failures are skipped, the other results of the same chunk come."""
    chain = NUMBERS.map(now_and_then, on_error="skip")
    with silence(), chain.start() as run:
        assert list(run) == [number for number in range(1_000) if number != 700]
        (failure,) = run.failures()
    assert (failure.path, "nothing awaits" in failure.error) == (700, True)


def test_what_a_long_chunk_has_made_is_looked_at_as_well():
    """Results that are handed on before their chunk has ended are no coroutines."""
    gate, seen = Gate(), []

    def mixed(number):
        if number == 900:
            gate.wait()
        return fetch(number) if number == 800 else int(number)

    def loop(run):
        for number in run:
            seen.append(number)
            gate.open()

    chain = NUMBERS.map(mixed, prefetch=1_000)
    with silence(), chain.start() as run, pytest.raises(StageError, match="item 800"):
        loop(run)
    assert seen == list(range(800))


ARGUMENTS = {
    "collate": lambda: NUMBERS.batch(2, collate=fetch),
    "cost": lambda: NUMBERS.batch(2, cost=fetch),
    "key": lambda: NUMBERS.dedupe(key=fetch),
    "route key": lambda: NUMBERS.route(fetch, {0: lambda chain: chain}),
    "worker_init": lambda: NUMBERS.map(str, executor="process", worker_init=fetch),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_async_function_is_refused_where_nothing_would_await_it(argument):
    """An `async def` in the place of a plain function is refused at once."""
    with pytest.raises(ArgumentTypeError, match="must be a plain function, got an async one"):
        ARGUMENTS[argument]()


def test_a_training_step_gives_no_coroutine():
    """A step that gives a coroutine ends the training with an error."""
    with silence(), nbpipe.source([1]).start() as run:
        run.train(logged)
        with pytest.raises(ArgumentTypeError, match="train step"):
            run.wait()


@pytest.mark.slow
def test_a_loader_takes_plain_functions():
    """`collate_fn` and `worker_init_fn` are plain functions, and give no coroutines."""
    pytest.importorskip("torch")
    for word in ("collate_fn", "worker_init_fn"):
        with pytest.raises(ArgumentTypeError, match=f"{word} must be a plain function"):
            nbpipe.DataLoader([1, 2], num_workers=1, **{word: fetch})
    with silence(), pytest.raises(Exception, match="nothing awaits"):
        list(nbpipe.DataLoader([1, 2], collate_fn=logged))
    with silence(), pytest.raises(Exception, match="nothing awaits"):
        list(nbpipe.DataLoader([1, 2], collate_fn=logged, num_workers=1, workers="thread"))


def test_what_is_awaited_passes():
    """The `async def` itself is awaited, also where it is a method or a partial."""
    assert list(nbpipe.source([1, 2]).map(fetch)) == [1, 2]
