"""A call that hangs is reported with the line of user code that it is in."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nbpipe
from tests.gates import Gate, drained, until
from tests.show.inner import hang_file

OPEN = threading.Event()  # ends the calls that hang in this process
GATE = Gate()


def never_ends(number):
    """Keep the interpreter lock, in C."""
    return re.match(r"(a+)+$", "a" * 99 + "b")


def library(number):
    """Wait in the code of a library."""
    OPEN.wait(60 * number)


def makes():
    """Give an item, then wait."""
    yield 0
    OPEN.wait()  # a comment


async def waits_async(number):
    """Wait in the event loop."""
    await inner(number)


async def inner(number):
    """Wait one level further down."""
    await asyncio.sleep(3600 * number)


async def makes_async():
    """Give an item, then wait."""
    yield 0
    await inner(1)


class Dataset:
    """Items that cannot be loaded."""

    def __len__(self):
        return 2

    def __getitem__(self, number):
        GATE.wait()
        return number


def seen(run, *, has_line=True):
    """Return the verdict about a call that hangs, once there is one, and the thread of the loop."""
    reader = threading.Thread(target=drained, args=(run,), daemon=True)
    reader.start()
    until(lambda: run.diagnose().kind == "hangs" and (run.diagnose().evidence or not has_line))
    found = run.diagnose()
    run.stop()
    return found, reader


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Have each call in progress count as hanging soon."""
    OPEN.clear()
    monkeypatch.setattr(hang_file, "LEAST_S", 0.2)
    monkeypatch.setattr(hang_file, "TIMES", 0.0)


def evidence(pipe, close_s=5, **options):
    """Return the evidence about a run of a pipeline, which then has so long to close [s]."""
    run = pipe.start(**options)
    try:
        found, reader = seen(run)
    finally:
        OPEN.set()
        run.close(close_s)
    reader.join()
    return found.evidence


HERE = "test_hang_line.py line "


@pytest.mark.parametrize("case", ["thread", "coroutine", "source", "async source", "executor"])
def test_line_of_this_process(case):
    """The innermost line of user code is named, not those of libraries and of nbpipe."""
    items = nbpipe.source(range(2))
    pool = ThreadPoolExecutor(1)
    pipe, said = {
        "executor": (items.map(library, executor=pool), r"in library, .*: OPEN.wait\(60 \* number"),
        "thread": (items.map(library), r"in library, .*: OPEN.wait\(60 \* number"),
        "coroutine": (items.map(waits_async), r"in inner, .*: await asyncio.sleep\(3600 \* number"),
        "source": (nbpipe.source(makes), r"in makes, .*: OPEN.wait\(\) # a c"),
        "async source": (nbpipe.source(makes_async), r"in inner, .*: await asyncio.sleep\(3600"),
    }[case]
    text = evidence(pipe)
    pool.shutdown()
    assert re.match(said, text)
    assert HERE in text


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("fn", [never_ends, library])
def test_line_of_a_worker(fn, isolate):
    """A worker process says it, also while C code keeps its interpreter lock."""
    text = evidence(nbpipe.source([1]).map(fn, executor="process"), 0, isolate=isolate)
    assert text.startswith(f"in {fn.__name__}, {HERE}")


@pytest.mark.slow
def test_line_of_the_process_of_a_run():
    """With `isolate`, the process of the stages is asked."""
    assert evidence(nbpipe.source([1]).map(library), 0, isolate=True).startswith("in library, ")


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_line_of_a_dataset(workers):
    """A loader has it too, with and without workers."""
    GATE.__init__()
    options = {"num_workers": 1, "workers": "thread"} if workers else {}
    loader = nbpipe.DataLoader(Dataset(), **options)
    reader = threading.Thread(target=drained, args=(loader,), daemon=True)
    reader.start()
    until(lambda: loader.run.diagnose().kind == "hangs")
    found = loader.run.diagnose()
    GATE.open()
    reader.join()
    loader.run.close()
    assert "timeout=30" in found.advice
    assert found.evidence.startswith("in wait, gates.py line ")


def test_line_without_user_code():
    """A function of C has no line, and no library of Python either."""
    gate = threading.Lock()
    gate.acquire()
    run = nbpipe.source([True]).map(gate.acquire).start()
    try:
        found, reader = seen(run, has_line=False)
    finally:
        gate.release()
        run.close()
    reader.join()
    assert (found.kind, found.evidence) == ("hangs", "")
