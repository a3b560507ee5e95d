"""What goes wrong in a dataset arrives as it was raised; nothing hangs."""

import os
import signal
import threading
import traceback
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import IterableDataset

import nbpipe
from nbpipe.show import watch
from tests.gates import Gate, delivered, set_clock
from tests.inner import call_between_waits
from tests.loader.datasets import Failing, Made, Numbers


class CellError(Exception):
    """An exception with arguments of its own."""

    def __init__(self, code, *, hint):
        super().__init__(code, hint)
        self.code = code
        self.hint = hint

    def __reduce__(self):
        return _made, (self.code, self.hint)


def _made(code, hint):
    return CellError(code, hint=hint)


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception whose attributes cannot be set."""

    code: int


def frozen(index):
    """Fail on every index."""
    raise FrozenError(index)


ERRORS = [
    KeyError("no such key"),
    ValueError("bad header"),
    CellError(7, hint="x"),
    OSError(5, "e"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["inline", "thread"], indirect=True)
def test_type_of_the_dataset(error, way):
    """The exception is the dataset's own: its type and its arguments."""
    loader = nbpipe.DataLoader(Failing(error), 4, **way)
    got, raised = delivered(loader)
    assert (len(got), type(raised), raised.args) == (2, type(error), error.args)


def test_error_in_a_process():
    """From a process it brings its attributes and the lines that it passed there."""
    loader = nbpipe.DataLoader(Failing(CellError(7, hint="x")), 4, num_workers=2)
    got, raised = delivered(loader)
    lines = "".join(traceback.format_exception(raised))
    assert (len(got), raised.code, raised.hint) == (2, 7, "x")
    assert "raise self.error" in lines
    assert any("stage 'fetch', item 2" in note for note in raised.__notes__)


def test_error_that_is_frozen(way):
    """It arrives as what it is, with its note and its lines, though it takes no attribute."""
    _, raised = delivered(nbpipe.DataLoader(Made(frozen, 4), 4, **way))
    lines = "".join(traceback.format_exception(raised))
    assert (raised, "raise FrozenError(index)" in lines) == (FrozenError(0), True)
    assert way["num_workers"] == 0 or "stage 'fetch'" in raised.__notes__[0]


def test_error_has_no_circle(placed):
    """Neither cause nor context of the error leads back to it."""
    _, raised = delivered(nbpipe.DataLoader(Failing(KeyError(1)), 4, **placed))
    assert (raised.__cause__, raised.__context__) == (None, None)


def test_stop_iteration_does_not_look_like_the_end(way):
    """A dataset that raises StopIteration fails; the epoch does not end in silence."""
    loader = nbpipe.DataLoader(Failing(StopIteration()), 4, **way)
    got, raised = delivered(loader)
    assert (len(got), isinstance(raised, RuntimeError)) == (2, True)


class Torn:
    """Gives some numbers, then raises an error that tells how many."""

    def __init__(self, kind, count):
        self.kind = kind
        self.count = count

    def __iter__(self):
        yield from range(self.count)
        raise self.kind(self.count)


class TornStream(Torn, IterableDataset):
    """An iterable dataset that does so."""


def unfit(samples):
    """Fail to make a batch, with the number of its samples."""
    raise ArithmeticError(len(samples))


RAISED = {  # what is given, how many batches come before the error, and the error
    "sampler": ({"sampler": Torn(LookupError, 2)}, 2, LookupError(2)),
    "sampler at once": ({"sampler": Torn(LookupError, 0)}, 0, LookupError(0)),
    "collate_fn": ({"collate_fn": unfit, "batch_size": 3}, 0, ArithmeticError(3)),
    "stream": ({"dataset": TornStream(OSError, 4), "batch_size": 2}, 2, OSError(4)),
}


@pytest.mark.parametrize("what", RAISED)
def test_error_of_what_was_given(what, way):
    """An exception of a sampler, `collate_fn` or a stream arrives, behind what came before it."""
    given, count, error = RAISED[what]
    got, raised = delivered(nbpipe.DataLoader(**{"dataset": Numbers(), **given, **way}))
    assert (len(got), type(raised), raised.args) == (count, type(error), error.args)


def test_error_of_worker_init_fn():
    """An exception of `worker_init_fn` arrives."""

    def init(worker):
        raise LookupError("no licence")

    _, raised = delivered(nbpipe.DataLoader(Numbers(), worker_init_fn=init, num_workers=2))
    assert type(raised) is LookupError


def test_samples_that_do_not_fit(way):
    """Samples of unequal shapes fail as torch's own collation does."""
    dataset = Made(lambda n: torch.zeros(n + 1), 4)
    _, raised = delivered(nbpipe.DataLoader(dataset, 2, **way))
    assert isinstance(raised, RuntimeError)
    assert "equal size" in str(raised)


def test_another_epoch_after_an_error(placed):
    """A loader whose epoch failed can be iterated again."""
    loader = nbpipe.DataLoader(Failing(KeyError(1), at=22), 4, persistent_workers=True, **placed)
    counts = [len(delivered(loader)[0]) for _ in range(2)]
    loader.close()
    assert counts == [5, 5]


@pytest.mark.slow
def test_batch_that_kills_every_worker():
    """A batch whose worker dies each time ends the epoch with an error that says so."""

    def make(n):
        if n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    got, raised = delivered(nbpipe.DataLoader(Made(make, 8), 1, num_workers=2))
    assert (len(got), type(raised)) == (3, nbpipe.WorkerDiedError)


class Rounds:
    """A clock that only the rounds of a loop's wait move, and what happens in each of them.

    Args:
        monkeypatch: gives nbpipe the clock.
        steps_s: seconds that pass in each round after the first batch; the last one repeats.
    """

    def __init__(self, monkeypatch, *steps_s):
        self.gate = Gate()
        self.got = []
        self.rounds = 0
        self.paused_rounds = 0
        self._steps_s = steps_s
        self._now_ns = 1
        set_clock(monkeypatch, lambda: self._now_ns)
        monkeypatch.setattr(watch, "run_started", [self._watch])

    def _watch(self, run):
        self._run = run
        call_between_waits(run, self._look)

    def _look(self):
        if not self.got:  # however long workers take to start
            return
        step_s = self._steps_s[min(self.rounds, len(self._steps_s) - 1)]
        self._now_ns += int(step_s * 1e9)
        self.rounds += 1
        if self.rounds == self.paused_rounds:
            self._run.resume()
        if self.rounds == 8:
            self.gate.open()

    def make(self, n):
        """Make a sample; the second one takes 8 rounds."""
        if n == 1:
            self.gate.wait()
        return n

    def take(self, *, paused_rounds=0):
        """Take the batches of an epoch, with a pause after the first; return what ended it."""
        self.paused_rounds = paused_rounds
        loader = nbpipe.DataLoader(
            Made(self.make, 4), 1, num_workers=2, workers="thread", timeout=1
        )

        def batches():
            for batch in loader:
                if not self.got and paused_rounds:
                    self._run.pause()
                self.got.append(batch)
                yield batch

        _, raised = delivered(batches())
        self.gate.open()
        return raised


@pytest.mark.slow
def test_timeout(monkeypatch):
    """A batch that takes too long is an error that names the time."""
    rounds = Rounds(monkeypatch, 0.2)
    raised = rounds.take()
    assert (len(rounds.got), rounds.rounds, type(raised)) == (1, 6, nbpipe.StageTimeoutError)
    assert "timeout=1 s" in str(raised)


@pytest.mark.slow
def test_timeout_does_not_count_a_pause(monkeypatch):
    """A loop that is paused for longer than the limit continues after the pause."""
    rounds = Rounds(monkeypatch, *[100] * 6, 0)
    raised = rounds.take(paused_rounds=6)
    assert (len(rounds.got), raised) == (4, None)


@pytest.mark.slow
def test_timeout_does_not_count_a_stop_of_the_process(monkeypatch):
    """A process that is stopped for longer than the limit, and continued, still waits."""
    rounds = Rounds(monkeypatch, 100, 0)
    raised = rounds.take()
    assert (len(rounds.got), raised) == (4, None)


def test_timeout_needs_workers():
    """Without workers there is nobody to wait for."""
    with pytest.raises(nbpipe.ArgumentError, match="timeout needs workers") as caught:
        iter(nbpipe.DataLoader(Numbers(), timeout=3))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("way", ["inline", "thread"], indirect=True)
def test_interrupt(way):
    """An interrupt ends the wait for a batch; the loader can be iterated again."""
    main, ready, gate = threading.main_thread(), Gate(), Gate()

    def make(n):
        if n == 1 and not gate.is_open:
            ready.wait()
            signal.pthread_kill(main.ident, signal.SIGINT)
            gate.wait()
        return n

    loader = nbpipe.DataLoader(Made(make, 3), 1, **way)
    epoch = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        drain(epoch, ready)
    gate.open()
    epoch.close()
    assert [int(batch) for batch in loader] == [0, 1, 2]


def drain(epoch, ready):
    """Iterate; whoever waits for somebody to do so may go on."""
    ready.open()
    for _ in epoch:
        continue


def test_dataset_that_cannot_be_sent():
    """A dataset that no process can be sent is refused by name; threads read it."""
    dataset = Numbers(4)
    dataset.lock = threading.Lock()
    with pytest.raises(nbpipe.UnpicklableError, match="lock"):
        list(nbpipe.DataLoader(dataset, num_workers=1))
    got = list(nbpipe.DataLoader(dataset, 4, num_workers=1, workers="thread"))
    assert [batch.tolist() for batch in got] == [[0, 1, 2, 3]]
