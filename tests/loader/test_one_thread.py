"""A sampler belongs to one thread and one context, from its `iter` to its end."""

import contextvars
import decimal
import sqlite3
import threading

import pytest
import torch

import nbpipe
from tests.gates import Gate, until
from tests.loader.conftest import WAYS
from tests.loader.datasets import Made, Numbers

NOTE = contextvars.ContextVar("NOTE", default="blank")
STAY = {
    f"{name}, persistent": WAYS[name] | {"persistent_workers": True}
    for name in ("thread", "process")
}
PLACES = WAYS | STAY


@pytest.fixture(params=PLACES)
def place(request):
    """Give the arguments of a loader for each way to work, with workers that stay too."""
    return PLACES[request.param]


class Seen:
    """A sampler that notes which threads run it, and which notes its context holds."""

    def __init__(self, count=12):
        self.count = count
        self.threads = []
        self.notes = []
        self.closed = 0

    def __iter__(self):
        threads, notes = set(), set()
        self.threads.append(threads)
        self.notes.append(notes)
        try:
            for number in range(self.count):
                threads.add(threading.get_ident())
                if number:
                    notes.add(NOTE.get())
                NOTE.set("mine")
                yield number
        finally:
            threads.add(threading.get_ident())
            self.closed += 1


class Rows:
    """A sampler that reads its indices from a connection, which one thread may use."""

    def __init__(self, size=None):
        self.size = size

    def __iter__(self):
        own = sqlite3.connect(":memory:")
        for number in range(6):
            found = own.execute("select ?", (number,)).fetchone()[0]
            yield found if self.size is None else [found] * self.size
        own.close()


class StatefulRows(Rows):
    """The same, with a state."""

    def state_dict(self):
        """Return how far it is: the epoch always begins at its beginning here."""
        return {}

    def load_state_dict(self, state):
        """Take over a state."""


SAMPLERS = {
    "sampler": (lambda: {"sampler": Rows(), "batch_size": 2}, [[0, 1], [2, 3], [4, 5]]),
    "stateful": (lambda: {"sampler": StatefulRows(), "batch_size": 3}, [[0, 1, 2], [3, 4, 5]]),
    "one by one": (lambda: {"sampler": Rows(), "batch_size": None}, list(range(6))),
    "lists": (lambda: {"batch_sampler": Rows(2)}, [[n, n] for n in range(6)]),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_connection_of_sqlite_in_a_sampler(kind, place):
    """It may be used in the iterator that opens it, in each epoch."""
    options, wanted = SAMPLERS[kind]
    collate = int if kind == "one by one" else list
    loader = nbpipe.DataLoader(Numbers(6), collate_fn=collate, **options(), **place)
    for _ in range(2):
        assert list(loader) == wanted
    loader.close()


def test_one_thread_and_one_context(place):
    """All of it runs in one thread, and no other code changes its context."""
    sampler = Seen()
    loader = nbpipe.DataLoader(Numbers(12), 2, sampler=sampler, **place)
    for _ in range(2):
        contextvars.copy_context().run(list, loader)
    assert [len(threads) for threads in sampler.threads] == [1, 1]
    assert sampler.notes == [{"mine"}, {"mine"}]
    assert NOTE.get() == "blank"
    loader.close()


def test_a_sampler_of_an_epoch_that_is_left_is_closed_in_its_thread(place):
    """Its `finally` has run there when the epoch is closed."""
    sampler = Seen(count=10_000)
    loader = nbpipe.DataLoader(Numbers(10_000), 2, sampler=sampler, **place)
    epoch = iter(loader)
    next(epoch)
    epoch.close()
    del epoch
    until(lambda: sampler.closed)
    assert [len(threads) for threads in sampler.threads] == [1]
    loader.close()


def test_a_decimal_context_in_a_sampler(placed):
    """What `decimal.localcontext` sets inside holds for all its items, and not in the loop."""
    lengths = []

    def indices():
        with decimal.localcontext() as context:
            context.prec = 3
            for number in range(6):
                lengths.append(len(str(decimal.Decimal(1) / 3)))
                yield number

    class Thirds:
        """A sampler with a decimal context."""

        def __iter__(self):
            return indices()

    with decimal.localcontext() as here:
        here.prec = 12
        for _ in nbpipe.DataLoader(Numbers(6), 2, sampler=Thirds(), **placed):
            assert decimal.getcontext().prec == 12
    assert lengths == [5] * 6


def test_the_settings_of_the_loop_hold_in_a_sampler(placed):
    """Context variables that the loop's thread has set are seen in all of it."""
    seen = set()

    class Looks:
        """A sampler that looks at a context variable."""

        def __iter__(self):
            for number in range(6):
                seen.add(NOTE.get())
                yield number

    token = NOTE.set("of the loop")
    try:
        assert len(list(nbpipe.DataLoader(Numbers(6), 2, sampler=Looks(), **placed))) == 3
    finally:
        NOTE.reset(token)
    assert seen == {"of the loop"}


class Loop:
    """A loop over a loader without workers, in a thread that waits for its gate in each round.

    It keeps its epoch when it ends.
    """

    def __init__(self, dataset=None, *, rounds=2):
        self.sampler = Seen(count=10_000)
        self.loader = nbpipe.DataLoader(dataset or Numbers(10_000), 2, sampler=self.sampler)
        self.had, self.gate = threading.Event(), Gate()
        self.epoch = None
        self._rounds = rounds
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        self.epoch = iter(self.loader)
        for number, _ in enumerate(self.epoch, 1):
            self.had.set()
            if number == self._rounds:
                return
            self.gate.wait()

    def end(self):
        """Wait for its end."""
        self._thread.join(40)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("pauses", [False, True])
def test_an_epoch_without_workers_that_another_thread_closes(pauses):
    """The sampler is closed in the thread of the loop, when that asks for its next batch."""
    loop = Loop()
    assert loop.had.wait(40)
    if pauses:
        loop.loader.run.pause()
        loop.gate.open()
    loop.loader.run.close()
    loop.gate.open()
    loop.end()
    assert (loop.sampler.closed, len(loop.sampler.threads[0])) == (1, 1)
    assert loop.loader.run.status().state == "cancelled"


def test_another_thread_closes_an_epoch_in_the_middle_of_a_batch():
    """The sampler is closed in the thread of the loop, when it has that batch."""
    bell, gate = threading.Event(), Gate()

    def make(number):
        bell.set()
        gate.wait()
        return torch.tensor(number)

    loop = Loop(Made(make, 10_000), rounds=1)
    assert bell.wait(40)
    loop.loader.run.close()
    gate.open()
    loop.end()
    assert (loop.sampler.closed, len(loop.sampler.threads[0])) == (1, 1)


def test_an_epoch_whose_thread_has_ended_is_closed_at_once():
    """Where the thread of the loop has ended, another one closes the sampler."""
    loop = Loop(rounds=1)
    loop.end()
    assert loop.sampler.closed == 0
    loop.loader.run.close()
    assert loop.sampler.closed == 1


def test_a_sampler_with_a_state_is_closed_with_its_epoch():
    """Leaving the loop closes it, though its states are kept."""

    class Stateful(Seen):
        def state_dict(self):
            """Return how far it is."""
            return {}

        def load_state_dict(self, state):
            """Take over a state."""

    sampler = Stateful(count=100)
    loader = nbpipe.DataLoader(Numbers(100), 2, sampler=sampler)
    for _ in loader:
        break
    assert sampler.closed == 1
    assert loader.state_dict()["delivered"] == 1
