"""The pump's own rules, with a kernel that is a fake."""

import logging
import os
import signal
import threading

import pytest

from tests.gates import HANG_S
from tests.kernel.fakes import FakeKernel, in_loop, message
from tests.kernel.inner import Pump, pump


class Clock:
    """A clock that stands still."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(pump, "monotonic", lambda: self.now_s)


def test_a_look_within_the_interval_takes_nothing(monkeypatch):
    """Between two looks there are at least 30 ms."""
    clock = Clock(monkeypatch)

    def test(kernel):
        looking = Pump(kernel)
        asked = []
        for passed_s in (0.0, 0.029, 0.002):
            clock.now_s += passed_s
            looking.poll()
            asked.append(kernel.shell_stream.socket.asked)
        return asked

    assert in_loop(test) == [1, 1, 2]


def test_a_handler_that_polls_takes_nothing(monkeypatch):
    """A handler may iterate a run: the pump is not entered twice."""
    monkeypatch.setattr(pump, "INTERVAL_S", 0)

    def test(kernel):
        looking = Pump(kernel)
        inner = []
        kernel.handler = lambda _: inner.append(looking.poll())
        kernel.shell_stream.socket.waiting = [message("comm_msg", n) for n in range(3)]
        return looking.poll(), inner, kernel.done

    assert in_loop(test) == (3, [0, 0, 0], [0, 1, 2])


def test_nothing_is_taken_elsewhere(monkeypatch):
    """Sockets belong to the kernel's own process, its main thread and its event loop."""
    kernels = []

    def test(kernel):
        kernels.append(kernel)
        found = []
        thread = threading.Thread(target=lambda: found.append(Pump(kernel).poll()))
        thread.start()
        thread.join()
        forked = Pump(kernel)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            found.append(forked.poll())
        return found, Pump(kernel)

    found, outside = in_loop(test)
    assert [*found, outside.poll(), kernels[0].shell_stream.socket.asked] == [0] * 4


def test_what_is_not_for_widgets_is_handed_back_in_order():
    """Cells, and what nobody can read, go to the kernel as they came."""

    def test(kernel):
        others = [message("execute_request", 1), [b"stop aborting"], message("execute_request", 2)]
        waiting = [message("comm_msg", 7), *others, message("comm_msg", 8)]
        kernel.shell_stream.socket.waiting = list(waiting)
        answered = Pump(kernel).poll()
        return answered, kernel.done, kernel.shell_stream.handed_back == others

    assert in_loop(test) == (2, [7, 8], True)


def test_what_one_look_leaves_is_left_to_the_event_loop(monkeypatch):
    """A flood does not keep the loop waiting; the event loop is told to look of itself."""
    monkeypatch.setattr(pump, "LIMIT", 2)

    def test(kernel):
        callbacks = []
        kernel.shell_stream.io_loop.add_callback = callbacks.append
        kernel.shell_stream.socket.waiting = [message("comm_msg", n) for n in range(3)]
        return Pump(kernel).poll(), callbacks == [kernel.shell_stream.flush]

    assert in_loop(test) == (2, True)


def test_a_query_that_a_kernel_answers_in_its_own_way_is_handed_back():
    """Only ipykernel's own answers are known to wait for nothing."""

    def test(kernel):
        kernel.shell_handlers["kernel_info_request"] = kernel.on_comm
        kernel.shell_stream.socket.waiting = [message("kernel_info_request")]
        return Pump(kernel).poll(), kernel.shell_stream.handed_back

    assert in_loop(test) == (0, [message("kernel_info_request")])


def test_a_handler_that_raises_anything_does_not_reach_the_loop(caplog):
    """Even an exit asked for by a handler is logged, and the next message is answered."""

    def fail(number):
        if number == 0:
            raise SystemExit

    def test(kernel):
        kernel.handler = fail
        kernel.shell_stream.socket.waiting = [message("comm_msg", n) for n in range(2)]
        return Pump(kernel).poll(), kernel.done

    with caplog.at_level(logging.CRITICAL, logger="tests.kernel.fakes"):
        assert in_loop(test) == (2, [1])


def test_a_kernel_that_fails_switches_the_pump_off_with_one_warning(caplog):
    """What the pump holds goes back to the kernel, and the loop goes on."""

    def test(kernel):
        looking = Pump(kernel)
        kernel.get_parent = None
        kernel.shell_stream.socket.waiting = [message("comm_msg", n) for n in range(3)]
        found = looking.poll()
        looking._due_s = 0.0
        return found, looking.poll(), kernel.shell_stream.handed_back

    back = [message("comm_msg", n) for n in (1, 2)]
    assert (in_loop(test), len(caplog.records)) == ((0, 0, back), 1)


def interrupted(kernel):
    """Interrupt the second of four answers; return the messages done, and those handed back."""
    kernel.handler = lambda number: number == 1 and signal.raise_signal(signal.SIGINT)
    kernel.shell_stream.socket.waiting = [message("comm_msg", n) for n in range(4)]
    with pytest.raises(KeyboardInterrupt):
        Pump(kernel).poll()
    return kernel.done, kernel.shell_stream.handed_back


def test_an_interrupt_waits_until_every_message_is_answered(monkeypatch):
    """An interrupt in the middle of an answer is raised after the last one."""
    monkeypatch.setattr(pump, "PATIENCE_S", HANG_S)
    assert in_loop(interrupted) == ([0, 1, 2, 3], [])


def test_an_interrupt_ends_a_handler_that_takes_too_long(monkeypatch, caplog):
    """A handler that hangs can be interrupted; the messages behind it go back to the kernel."""
    monkeypatch.setattr(pump, "PATIENCE_S", -1.0)
    with caplog.at_level(logging.CRITICAL, logger="tests.kernel.fakes"):
        assert in_loop(interrupted) == ([0], [message("comm_msg", n) for n in (2, 3)])


def test_an_interrupt_reaches_the_handler_that_was_there_before():
    """A cell's own way to take interrupts is kept."""
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("interrupt"))

    def test(kernel):
        kernel.handler = lambda _: signal.raise_signal(signal.SIGINT)
        kernel.shell_stream.socket.waiting = [message("comm_msg", 1)]
        return Pump(kernel).poll()

    try:
        answered = in_loop(test)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (answered, heard) == (1, ["interrupt"])


@pytest.mark.parametrize("shell", [None, object()])
def test_there_is_no_pump_outside_a_kernel(shell):
    """A shell in a terminal has no kernel, and needs no pump."""
    assert Pump.of(shell) is None


def test_a_kernel_without_a_stream_is_named_in_the_warning(caplog):
    """A kernel that is not ipykernel's gets no pump, and its user a warning to understand."""

    class Shell:
        kernel = in_loop(lambda kernel: kernel)

    Shell.kernel.shell_stream = None
    found = Pump.of(Shell()), Pump.of(Shell())
    said = [record.getMessage() for record in caplog.records]
    assert (found, len(said), FakeKernel.__name__ in said[0]) == ((None, None), 1, True)
