"""What holds in the thread that starts an epoch holds in its stages, as in a plain loop."""

import asyncio
import contextvars
import decimal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nbpipe
from tests.gates import drained

NOTE = contextvars.ContextVar("NOTE", default="blank")


@pytest.fixture
def where(executor):
    """Give the executor, by its word or as one of the user's."""
    if executor != "pool":
        yield executor
        return
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def on_the_loop(function):
    """Give what a function says on the event loop."""
    await asyncio.sleep(0)
    return function()


def chain(function, executor, count=8):
    """Give a chain whose stage calls a function for each item."""
    source = nbpipe.source([function] * count)
    if executor == "coroutine":
        return source.map(on_the_loop, concurrency=2)
    if executor == "source":
        return nbpipe.source(lambda: (function() for _ in range(count)))
    if executor == "flat_map":
        return source.flat_map(lambda one: (one() for _ in range(1)), concurrency=2)
    if executor == "inline":
        return source.map(lambda one: one(), executor="inline")
    return source.map(lambda one: one(), executor=executor, concurrency=2)


EXECUTORS = ("thread", "inline", "coroutine", "source", "flat_map", "pool")
executors = pytest.mark.parametrize("executor", EXECUTORS)


@executors
def test_context_variables(where):
    """Each epoch sees the context variables of the loop that iterates it."""
    with chain(NOTE.get, where).start() as run:
        seen = [list(run)]
        for word in ("first", "second"):
            token = NOTE.set(word)
            seen.append(list(run))
            NOTE.reset(token)
    assert seen == [["blank"] * 8, ["first"] * 8, ["second"] * 8]


@executors
def test_a_decimal_context(where):
    """The precision of a `decimal.localcontext` around the loop holds in the stages."""

    def third():
        return str(decimal.Decimal(1) / 3)

    with decimal.localcontext() as context:
        context.prec = 3
        assert list(chain(third, where)) == ["0.333"] * 8


def test_a_stage_that_changes_its_decimal_context_changes_no_other():
    """The context of the loop, and those of other threads, stay as they are."""
    both = threading.Barrier(2, timeout=40)

    def digits(item):
        decimal.getcontext().prec = 3 + item
        both.wait()
        return str(decimal.Decimal(1) / 3)

    with decimal.localcontext() as context:
        context.prec = 7
        got = list(nbpipe.source(range(2)).map(digits, concurrency=2))
        assert got == ["0.333", "0.3333"]
        assert context.prec == 7


@executors
def test_the_errors_of_numpy(where):
    """`numpy.errstate` around the loop holds in the stages."""
    with np.errstate(divide="raise"):
        assert list(chain(lambda: np.geterr()["divide"], where)) == ["raise"] * 8
    assert list(chain(lambda: np.geterr()["divide"], where)) == ["warn"] * 8


@executors
def test_modes_of_torch(where, torch):
    """`no_grad`, `inference_mode` and `autocast` hold for the epochs that start in them."""

    def modes():
        inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return inference, grad, torch.is_autocast_enabled("cpu")

    with chain(modes, where).start() as run:
        seen = [set(run)]
        with torch.no_grad():
            seen.append(set(run))
        with torch.inference_mode():
            seen.append(set(run))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append(set(run))
        seen.append(set(run))
    plain = {(False, True, False)}
    assert seen == [
        plain,
        {(False, False, False)},
        {(True, False, False)},
        {(False, True, True)},
        plain,
    ]
    assert modes() == (False, True, False)


def test_modes_of_torch_in_a_stage_on_a_device(torch):
    """A stage on a device takes over the modes, too."""
    pipe = nbpipe.source(range(4)).batch(2).to_device("cpu")
    pipe = pipe.map(lambda _: torch.is_grad_enabled(), device="cpu")
    with pipe.start() as run:
        with torch.no_grad():
            assert list(run) == [False] * 2
        assert list(run) == [True] * 2


def test_a_thread_that_starts_no_epoch_does_not_count(torch):
    """What holds where the run was made is no matter: the thread that iterates counts."""
    with torch.no_grad():
        run = nbpipe.source(range(2)).map(lambda _: torch.is_grad_enabled()).start()
    with run:
        with torch.no_grad():
            assert drained(run) == [True] * 2  # in another thread
        assert list(run) == [True] * 2
