"""What workers print: whole lines in the parent's streams, however much it is."""

import contextlib
import io
import logging
import os
import sys
import threading

import numpy as np
import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import HANG_S, drained

LONG_BYTES = 10_000_000


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_lines_come_whole(capsys, name):
    """Lines of several workers are not mixed; each comes once."""

    def work(n):
        stream = getattr(sys, name)
        for part in ("item", " ", str(n), "\n"):
            stream.write(part)
        print("and", n, file=stream)
        return n

    got = drained(placed(100, work, concurrency=3))
    lines = getattr(capsys.readouterr(), name[3:])
    assert got == list(range(100))
    assert sorted(lines.splitlines()) == sorted(
        f"{word} {n}" for n in got for word in ("item", "and")
    )


@pytest.mark.slow
@pytest.mark.timeout(120)  # two threads print without a pause
def test_long_lines_of_a_thread_do_not_mix_with_results(capsys):
    """What a thread of one's own prints goes the same way as results, while these are written."""

    def talks():
        def talk():
            while True:
                sys.stdout.write("x" * 100_000 + "\n")

        sys.setswitchinterval(1e-6)
        for _ in range(2):
            threading.Thread(target=talk, daemon=True).start()

    def work(n):
        return [np.full(3000, n) for _ in range(8)]

    got = drained(placed(40, work, worker_init=talks))
    assert [np.unique(arrays).tolist() for arrays in got] == [[n] for n in range(40)]
    assert set(capsys.readouterr().out.splitlines()) == {"x" * 100_000}


def test_the_end_of_a_line_may_be_missing(capsys):
    """What is printed without a newline comes with the end of the job, and is not kept back."""

    def work(n):
        print(n, end=";")
        return n

    got = drained(placed(30, work, concurrency=1))
    assert capsys.readouterr().out == "".join(f"{n};" for n in got)


def test_prints_come_while_a_call_runs(monkeypatch, gate):
    """A line is shown before the call that printed it has ended."""

    class Sink(io.StringIO):
        """Say when a whole line has come; `capsys`, read while others write, loses text."""

        def write(self, text):
            count = super().write(text)
            if self.getvalue().endswith("\n"):
                shown.set()
            return count

    def work(n):
        print("begun")
        gate.wait()
        return n

    shown, sink = threading.Event(), Sink()
    monkeypatch.setattr(sys, "stdout", sink)
    with placed(1, work).start() as run:
        items = iter(run)
        assert shown.wait(HANG_S)
        text = sink.getvalue()
        gate.open()
        got = drained(items)
    assert (text, got) == ("begun\n", [0])


@pytest.mark.parametrize("lines", [100, 1])
def test_ten_megabytes(capsys, lines):
    """A worker that prints 10 MB, be it in one line, hangs nowhere, and nothing of it is lost."""

    def work(n):
        for _ in range(lines):
            print("x" * (LONG_BYTES // lines - 1))
        return n

    got = drained(placed(2, work))
    out = capsys.readouterr().out
    assert (got, len(out), out.count("\n")) == ([0, 1], 2 * LONG_BYTES, 2 * lines)


@pytest.mark.slow
def test_prints_of_threads(capsys):
    """Threads of a stage's function may print, too."""

    def work(n):
        import threading

        threads = [threading.Thread(target=print, args=(f"{n} {k}",)) for k in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return n

    got = drained(placed(10, work))
    lines = capsys.readouterr().out.split()
    assert (len(lines), got) == (10 * 20 * 2, list(range(10)))


def test_streams_have_what_libraries_ask_for(capsys):
    """Progress bars and loggers find what they expect of a stream."""

    def work(n):
        import logging

        stream = sys.stdout
        logging.basicConfig(stream=stream, force=True)
        logging.getLogger("stage").warning("logged %d", n)
        stream.writelines(["a\n", "b\n"])
        stream.flush()
        print("c", flush=True)
        return stream.isatty(), stream.writable(), stream.closed, stream.encoding, stream.fileno()

    ((*found, encoding, fileno),) = drained(placed(1, work))
    assert capsys.readouterr().out == "WARNING:stage:logged 0\na\nb\nc\n"
    assert (found, encoding.lower(), fileno) == ([False, True, False], "utf-8", 1)


def test_replaced_streams_of_the_parent():
    """Prints follow `sys.stdout` of the parent, as it is when they arrive."""

    def work(n):
        print("line", n)
        return n

    with placed(3, work, concurrency=1).start() as run:
        texts = []
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as sink:
                drained(run)
            texts.append(sink.getvalue())
    assert texts == ["line 0\nline 1\nline 2\n"] * 2


@pytest.mark.filterwarnings("default")  # those of the tests make it an error, in workers too
def test_a_warning_in_a_worker_is_shown(capfd):
    """What a library warns of in a worker is on the parent's standard error."""

    def work(n):
        import warnings

        warnings.warn(f"careful with {n}", stacklevel=1)
        return n

    got = drained(placed(1, work))
    assert got == [0]
    assert "careful with 0" in capfd.readouterr().err


# -- log records -----------------------------------------------------------------------------------
@pytest.mark.parametrize("isolate", [False, True])
def test_log_records(caplog, isolate):
    """What is logged is a record of this process, at the levels that its loggers have."""
    caplog.set_level(logging.INFO, logger="mine")

    def work(n):
        log = logging.getLogger("mine")
        log.debug("too much")
        log.info("item %d", n, extra={"step": n, "pid": os.getpid()})
        try:
            [][n]
        except IndexError:
            log.exception("no item")
        return n

    executor = None if isolate else "process"
    with nbpipe.source([7]).map(work, executor=executor).start(isolate=isolate) as run:
        assert drained(run) == [7]
    told, failed = caplog.records
    assert (told.name, told.levelno, told.getMessage(), told.step, told.funcName) == (
        ("mine", logging.INFO, "item 7", 7, "work")
    )
    assert told.process == told.pid != os.getpid()
    assert caplog.text.count("IndexError: list index out of range") == 1
    assert (failed.getMessage(), failed.filename) == ("no item", "test_printing.py")


def test_handlers_of_a_worker(caplog, capsys):
    """Where `worker_init` sets handlers, records are theirs alone."""

    def prepare():
        logging.basicConfig(format="worker: %(message)s", level=logging.INFO)

    def work(n):
        logging.getLogger("mine").info("item %d", n)
        return n

    assert drained(placed(2, work, concurrency=1, worker_init=prepare)) == [0, 1]
    assert capsys.readouterr().err.splitlines() == ["worker: item 0", "worker: item 1"]
    assert caplog.records == []


@pytest.mark.parametrize("isolate", [False, True])
def test_a_child_of_a_worker_logs_by_itself(caplog, isolate):
    """What a process logs that a stage forked does not come between the worker's answers."""

    def work(n):
        child = os.fork()
        if child == 0:
            logging.getLogger("mine").warning("child of %d", n)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    executor = None if isolate else "process"
    with nbpipe.source(range(2)).map(work, executor=executor).start(isolate=isolate) as run:
        assert drained(run) == [0, 0]
    assert caplog.records == []
