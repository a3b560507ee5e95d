"""A rest of the workers: no call begins for a moment, and nothing else changes."""

import itertools

import pytest

import nbpipe
from tests.gates import Calls, Gate, finished, quiet, stage, until
from tests.inner import engine_of

LONG_NS = 3600 * 10**9
KINDS = ["thread", "process", "coroutine", "isolated"]


def started(kind, fn, count=200, **options):
    """Start a run of one stage of a kind, with six results held ready, or some more."""
    pipe = nbpipe.source(range(count), prefetch=2)
    executor = {"executor": "process"} if kind == "process" else {}
    pipe = pipe.map(fn, name="work", concurrency=2, prefetch=4, **executor, **options)
    return pipe.start(isolate=kind == "isolated")


@pytest.fixture(params=KINDS)
def kind(request):
    """Name an executor of the stage, or that the whole run is in a process."""
    return request.param


def rested(run, calls):
    """Let the workers rest, wait until their calls have ended, and count the calls so far."""
    until(lambda: engine_of(run).rest.hold(LONG_NS))
    until(engine_of(run).rest.rested_ns)
    return calls.begun


def test_no_call_begins_in_a_rest(kind):
    """Calls in progress end, others wait; the loop has what is ready, and nothing is paused."""
    calls = Calls()
    with started(kind, stage(kind, calls=calls)) as run:
        items = iter(run)
        got = [next(items)]
        begun = rested(run, calls)
        got += [next(items), next(items)]
        assert (calls.begun, run.status().state, run.paused) == (begun, "running", False)
        assert engine_of(run).rest.rested_ns()
        engine_of(run).rest.release()
        while calls.begun == begun:  # more may be ready than there is room for
            got.append(next(items))
        assert engine_of(run).rest.rested_ns() is None
        assert got + finished(list, items) == list(range(200))


def test_rest_begins_when_the_last_call_has_ended():
    """Until then the workers are not at rest."""
    gate, calls = Gate(), Calls()
    fn = stage("thread", calls=calls, gate=lambda number: gate if number == 5 else None)
    with started("thread", fn) as run:
        items = iter(run)
        next(items)
        until(lambda: engine_of(run).rest.hold(LONG_NS))
        until(lambda: calls.running == 1)
        assert engine_of(run).rest.rested_ns() == 0
        gate.open()
        assert until(engine_of(run).rest.rested_ns) > 0
        engine_of(run).rest.release()


def test_rest_ends_where_little_is_ready(kind):
    """A loop does not wait for workers that rest."""
    with started(kind, stage(kind)) as run:
        items = iter(run)
        got = [next(items)]
        until(lambda: engine_of(run).rest.hold(LONG_NS))
        assert got + finished(list, items) == list(range(200))
        assert engine_of(run).rest.rested_ns() is None


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_generator_rests(isolate):
    """A generator that a thread reads gives nothing in a rest, and continues after it."""

    def numbers():
        yield from range(200)

    pipe = nbpipe.source(numbers, prefetch=2).map(abs, name="work", prefetch=4)
    with pipe.start(isolate=isolate) as run:
        items = iter(run)
        got = [next(items)]
        until(lambda: engine_of(run).rest.hold(LONG_NS))
        assert until(engine_of(run).rest.rested_ns)
        engine_of(run).rest.release()
        assert got + finished(list, items) == list(range(200))


def test_rest_ends_after_its_time(kind):
    """Whatever the loop does, workers go on."""
    calls = Calls()
    with started(kind, stage(kind, calls=calls)) as run:
        items = iter(run)
        next(items)
        until(lambda: engine_of(run).rest.hold(1))
        until(lambda: engine_of(run).rest.rested_ns() is None)
        list(itertools.islice(items, 3))
        calls.wait_begun(8)


def test_no_rest_where_little_is_ready():
    """It is refused while fewer than three items are ready, and in a pause."""
    with nbpipe.source(range(3)).map(abs).start() as run:
        assert not engine_of(run).rest.hold(LONG_NS)
        items = iter(run)
        next(items)
        quiet(run)
        assert not engine_of(run).rest.hold(LONG_NS)
    with started("thread", abs) as run:
        items = iter(run)
        next(items)
        until(lambda: engine_of(run).rest.hold(LONG_NS))
        run.pause()
        rest = engine_of(run).rest
        assert (rest.rested_ns(), rest.hold(LONG_NS)) == (None, False)
        run.resume()


def test_rest_ends_with_its_epoch():
    """The next epoch begins as any other."""
    with started("thread", abs) as run:
        items = iter(run)
        next(items)
        until(lambda: engine_of(run).rest.hold(LONG_NS))
        items.close()
        assert finished(list, run) == list(range(200))


def test_epoch_that_is_read_ahead_rests_too():
    """Nothing of the next epoch begins either."""
    calls = Calls()
    pipe = nbpipe.source(range(8)).map(stage("thread", calls=calls), name="work", prefetch=9)
    with pipe.start(read_ahead=True) as run:
        items = iter(run)
        got = [next(items)]
        begun = rested(run, calls)
        got += [next(items), next(items)]
        assert calls.begun == begun
        engine_of(run).rest.release()
        assert got + finished(list, items) + finished(list, run) == 2 * list(range(8))


@pytest.mark.torch
def test_copies_to_a_device_go_on_in_a_rest():
    """What is on its way to a device counts as ready, and comes."""
    calls = Calls()
    pipe = nbpipe.source(range(200)).map(stage("thread", calls=calls), name="work", prefetch=4)
    pipe = pipe.batch(1, prefetch=4).to_device("cpu")
    with pipe.start() as run:
        items = iter(run)
        next(items)
        quiet(run)
        assert engine_of(run).rest.hold(LONG_NS)
        begun = calls.begun
        next(items), next(items), next(items)
        assert (calls.begun, engine_of(run).rest.rested_ns() is not None) == (begun, True)
        assert len(finished(list, items)) == 196
