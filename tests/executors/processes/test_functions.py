"""What is sent with a function, what it starts itself, and what it draws."""

import dataclasses
import multiprocessing
import os
import random
import re
import signal
import socket
import sqlite3
import threading
from subprocess import CalledProcessError
from typing import NamedTuple
from urllib.error import HTTPError

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.work import LARGE_BYTES, Counted, draw
from tests.gates import delivered, drained, finished, said_in_a_fork


@pytest.mark.slow
def test_captured_data_is_sent_once(bell):
    """20 MB go to each worker once; here they are pickled once an epoch, and once to be named."""
    pickled = []
    data = Counted(bell, pickled)

    def work(n):
        return n, data.nbytes, os.getpid()

    with placed(60, work).start() as run:
        got = [drained(run) for _ in range(2)]
        loaded = [pid for _, pid in bell.rings()]
        pids = {pid for epoch in got for _, _, pid in epoch}
    assert [[(n, size) for n, size, _ in epoch] for epoch in got] == [
        [(n, LARGE_BYTES) for n in range(60)]
    ] * 2
    assert pickled == [os.getpid()] * 3
    assert sorted(loaded) == sorted(pids)


def test_a_run_goes_on_after_a_refusal():
    """What was refused is tried again with the next epoch: the cause may be gone by then."""
    held = [threading.Lock()]

    def work(n):
        return n + len(held)

    with placed(5, work).start() as run:
        with pytest.raises(nbpipe.UnpicklableError, match="held"):
            iter(run)
        held.clear()
        assert drained(run) == list(range(5))


class Deadly:
    """A function whose loading ends the process."""

    def __call__(self, item):
        return item

    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.parametrize("how", [{}, {"on_error": "skip"}])
def test_a_function_that_ends_each_worker_that_loads_it(how):
    """No item is to blame: worker after worker ends before it has one, and so does the epoch."""
    got, error = delivered(placed(5, Deadly(), **how))
    assert (got, type(error.__cause__)) == ([], nbpipe.WorkerStartError)
    assert re.search(
        r"^workers of 'fn' die before their first item: the worker of stage 'fn' \(process \d+\) "
        r"died with exit code 3 before it was ready for any$",
        str(error.__cause__),
    )


def test_an_item_that_cannot_be_sent():
    """An item that cannot go to a worker is an error of that item, and named by its type."""
    got, error = delivered(placed([0, 1, threading.Lock(), 3], lambda n: n))
    assert got == [0, 1]
    assert (error.stage, error.path) == ("fn", 2)
    assert "lock" in str(error)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (threading.Lock, "lock"),
        (lambda: (n for n in range(3)), "generator"),
        (lambda: socket.socketpair()[0], "socket"),
    ],
)
def test_a_result_that_cannot_be_sent(make, kind):
    """A result that cannot come back is an error of its item; the worker lives on."""

    def work(n):
        return make() if n == 3 else (n, os.getpid())

    with placed(8, work, concurrency=1, on_error="skip").start() as run:
        got = drained(run)
        (failure,) = run.failures()
    assert [n for n, _ in got] == [0, 1, 2, 4, 5, 6, 7]
    assert (len({pid for _, pid in got}), failure.path) == (1, 3)
    assert kind in failure.error


class TwoNeededError(Exception):
    """Takes two arguments, and has one."""

    def __init__(self, file, line):
        super().__init__(f"{file}:{line}")


class NamedError(Exception):
    """Takes its arguments by name alone."""

    def __init__(self, *, device):
        super().__init__(f"{device} is gone")


ERRORS = {
    lambda: TwoNeededError("a.csv", 3): "TwoNeededError: a.csv:3",
    lambda: NamedError(device="disk"): "NamedError: disk is gone",
    lambda: HTTPError("http://x", 404, "no such page", {}, None): "404: no such page",
    lambda: CalledProcessError(3, "ffmpeg"): "'ffmpeg' returned non-zero exit status 3",
}


def test_errors_that_their_arguments_alone_do_not_make():
    """Whatever arguments an error's class takes, its failure has its message."""
    makers = list(ERRORS)

    def work(n):
        error = makers[n]()
        raise error

    with placed(4, work, on_error="skip").start() as run:
        assert drained(run) == []
        said = [failure.error for failure in run.failures()]
    for error, text in zip(said, ERRORS.values(), strict=True):
        assert text in error


class Bad:
    """Can be pickled, and not loaded."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    ("items", "fn"),
    [([0, Bad(), 2], lambda n: n), (3, lambda n: Bad() if n == 1 else n)],
    ids=["item", "result"],
)
def test_what_cannot_be_loaded(items, fn):
    """What fails to load, in the worker or on its way back, is an error of that item alone."""
    with placed(items, fn, on_error="skip").start() as run:
        got = drained(run)
        failures = run.failures()
    assert (got, [failure.path for failure in failures]) == ([0, 2], [1])
    assert "no number" in failures[0].error


def slotted():
    """Return classes with slots, of a notebook's kind: their module cannot be imported."""

    @dataclasses.dataclass(slots=True)
    class Sample:
        number: int

    class Base:
        __slots__ = ()

    class One(Base):
        __slots__ = ("number",)

        def __init__(self, number):
            self.number = number

    class Hidden(Base):
        __slots__ = ("__number", "__weakref__")

        def __init__(self, number):
            self.__number = number

        @property
        def number(self):
            return self.__number

    class Named(NamedTuple):
        number: int

    return [Sample, One, Hidden, Named]


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("kind", slotted(), ids=lambda kind: kind.__name__)
def test_classes_with_slots(kind, isolate):
    """An object of a class of a cell with slots is there what it is here, and comes home."""

    def number(made):
        return made, made.number, hasattr(made, "__dict__")

    executor = None if isolate else "process"
    pipe = nbpipe.source([kind(0)]).map(number, executor=executor)
    with pipe.start(isolate=isolate) as run:
        ((made, *seen),) = drained(run)
    assert (type(made), made.number, seen) == (kind, 0, [0, False])


class TornError(Exception):
    """An exception of a module that workers import, with a slot."""

    __slots__ = ("place",)


def test_exceptions_with_slots():
    """What an exception keeps in slots arrives with it."""

    def read(n):
        error = TornError("torn")
        error.place = 9 + n
        raise error

    _, error = delivered(placed(1, read))
    assert (type(error.__cause__), error.__cause__.place) == (TornError, 9)


class Rows:
    """A dataset that opens its database where it is made."""

    def __init__(self):
        self.db = sqlite3.connect(":memory:")

    def read(self, n):
        """Give a number."""
        return n


def test_a_database_that_is_open():
    """A method of an object that holds a connection is refused: its attribute, the way out."""
    rows = Rows()
    with pytest.raises(nbpipe.UnpicklableError, match=r"'db' \(sqlite3.*worker_init"):
        drained(placed(2, rows.read))
    rows.db.close()


def test_a_function_that_cannot_be_loaded():
    """A function that the worker cannot load ends the epoch, whatever `on_error`."""
    bad = Bad()

    def work(n):
        return bad

    with placed(4, work, on_error="skip").start() as run:
        got, error = finished(lambda: delivered(run))
    assert got == []
    assert "could not be loaded" in str(error)


# -- Processes that a stage starts itself, in its worker -------------------------------------------
METHODS = multiprocessing.get_all_start_methods()


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_forked_pool(capfd):
    """A stage may have a pool of its own; what that prints harms nobody."""

    def work(n):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map(abs, range(-n, 0))
            pool.apply(print, ("from the pool",))
        return sum(found)

    assert drained(placed(4, work)) == [sum(range(n + 1)) for n in range(4)]


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_fork_that_holds_all_files(tmp_path, bell, gate):
    """A forked process that goes on without an exec hides no death of its worker either."""

    def work(n):
        mark = tmp_path / str(n)
        if n == 2 and not mark.exists():
            mark.touch()
            if os.fork() == 0:
                gate.wait()
                os._exit(0)
            os._exit(3)
        return n

    with placed(6, work).start() as run:
        got = drained(run)
        gate.open()
    assert got == list(range(6))


@pytest.mark.slow
def test_a_pipeline_with_processes_in_a_stage():
    """Even one with processes: they are gone with it."""

    def work(n):
        return sum(nbpipe.source(range(n)).map(lambda k: k + 1, executor="process"))

    assert drained(placed(3, work, concurrency=1)) == [0, 1, 3]


@pytest.mark.slow
def test_a_fork_in_the_middle_of_an_epoch():
    """A process that is forked meanwhile has pipelines of its own, and the epoch continues."""

    def forked():
        return str([list(nbpipe.source(range(3)).map(str)), list(placed(3, str))])

    with placed(500, lambda n: n).start() as run:
        items = iter(run)
        first = next(items)
        said = said_in_a_fork(forked)
        rest = drained(items)
    assert (said, [first, *rest]) == (str([["0", "1", "2"]] * 2), list(range(500)))


# -- Random numbers in workers: they depend on the item, never on who works on it ------------------
def drawn(epochs=1, *, seed=3, count=40, fn=draw, **options):
    """Give what is drawn for each item, epoch by epoch."""
    options = {"concurrency": 2, **options}
    chain = nbpipe.source(range(count)).map(fn, name="fn", executor="process", **options)
    with chain.start(seed=seed) as run:
        return [drained(run) for _ in range(epochs)]


def test_equal_seeds_draw_equal_numbers():
    """Two runs agree, number by number; other items, epochs and seeds draw others."""
    both = drawn(2)
    assert both == drawn(2)
    assert len({number for epoch in both for item in epoch for number in item}) == 4 * 80
    assert drawn(seed=3) != drawn(seed=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"concurrency": 1}, {"concurrency": 5}, {"max_items_per_worker": 3}, {"timeout_s": 30}],
)
def test_numbers_do_not_depend_on_the_workers(options):
    """Neither their number, nor their age, nor the size of a job changes what is drawn."""
    assert drawn(**options) == drawn()


@pytest.mark.slow
@pytest.mark.parametrize("dies", [True, False])
def test_numbers_do_not_depend_on_tries(tmp_path, dies):
    """An item that another worker takes over, or that is tried again, draws the same once more."""

    def work(n, rng):
        mark = tmp_path / str(n)
        found = draw(n, rng)
        if n % 5 == 2 and not mark.exists():
            mark.touch()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(n)
        return found

    assert drawn(fn=work, on_error=nbpipe.Retry(1)) == drawn()


@pytest.mark.slow
def test_a_region_draws_what_its_stages_draw_apart():
    """With workers of its own, a stage draws the same numbers."""

    def second(first):
        return first, random.random()

    found = []
    for region in (True, False):
        chain = nbpipe.source(range(20)).map(
            lambda n: random.random(), name="a", executor="process"
        )
        found.append(drained(chain.map(second, name="b", executor="process", region=region)))
    assert found[0] == found[1]


def test_the_parent_is_left_alone():
    """Nothing seeds the generators of the process that the run lives in."""
    random.seed(7)
    first = random.random()
    random.seed(7)
    drawn()
    assert random.random() == first


class Inner:
    """A dataset."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


class Wrapper:
    """Asks the dataset inside for what it lacks itself."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __getitem__(self, index):
        return self.inner[index] * 10


class Slotted(Wrapper):
    """The same with slots and attributes."""

    __slots__ = ("kept",)

    def __init__(self, inner):
        super().__init__(inner)
        self.kept = 1


@pytest.mark.parametrize("make", [Wrapper, Slotted, lambda inner: Slotted(Wrapper(inner))])
def test_a_wrapper_that_delegates(make):
    """Its attributes are there before anything is asked of the object inside."""
    data = make(Inner())
    times = data[1]
    assert drained(placed(4, lambda n: (data[n], data.__len__()))) == [
        (n * times, 4) for n in range(4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"isolate": True}])
def test_wrappers_that_delegate_are_items_and_results(options):
    """They cross in both directions, alone and in a container."""
    chain = placed([Wrapper(Inner()), Slotted(Inner())], lambda one: (one[1], [one]))
    with chain.start(**options) as run:
        got = [(number, one[2], type(one).__name__) for number, (one,) in drained(run)]
    assert got == [(10, 20, "Wrapper"), (10, 20, "Slotted")]
