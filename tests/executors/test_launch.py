"""Worker processes: real ones, really killed, by either way to start them."""

# ruff: noqa: NPY002  numpy's global generator is what users draw from

import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from nbpipe import ArgumentError, WorkerStartError
from tests.executors.conftest import output_of
from tests.executors.inner import (
    METHOD_VARIABLE,
    UNKNOWN_EXIT,
    _own,
    apply_environment,
    capture_environment,
    launch,
    seed_item,
)
from tests.gates import HANG_S, finished
from tests.leaks import held_files, processes_of
from tests.scripts import METHODS, ROOT, ran

EVALUATE = "tests.executors.launched:evaluate"
LEAVE = "tests.executors.launched:leave"


def stop_server():
    """End the fork server and every worker that is still alive; both start again when needed."""
    with _own.lock:
        _own.close_lifeline()
        for server in _own.servers:
            server.retire()
            server.wait()
        _own.servers.clear()


@pytest.fixture
def fresh():
    """Begin without a fork server, and end the one that the test has changed."""
    stop_server()
    yield
    stop_server()


@pytest.fixture(params=METHODS)
def method(request, monkeypatch):
    """Start processes in each way that there is."""
    monkeypatch.setenv(METHOD_VARIABLE, request.param)
    return request.param


@pytest.fixture
def forked(monkeypatch):
    """Start processes with the fork server."""
    if sys.platform != "linux":
        pytest.skip("fork servers run on Linux")
    monkeypatch.setenv(METHOD_VARIABLE, "forkserver")


class Evaluator:
    """A worker that evaluates expressions; ended with its block."""

    def __init__(self):
        self.worker = finished(launch, EVALUATE, b"hello")
        self.greeting = finished(self.worker.connection.recv)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.worker.kill()
        self.worker.close()
        finished(self.worker.wait, None)

    def ask(self, expression):
        self.worker.connection.send(expression)
        return finished(self.worker.connection.recv)


def left(worker):
    """Give the exit code of a worker whose connection is closed here."""
    worker.close()
    return finished(worker.wait, None)


def gone(pids):
    """Say whether all processes end; kill those that do not."""
    _, alive = psutil.wait_procs(processes_of(pids), timeout=HANG_S)
    for process in alive:
        process.kill()
    return alive == []


def script(text, folder, method):
    """Run a script; give the lines it wrote. Nothing may stand in the standard error."""
    code, out, err = ran(text, folder, method=method)
    assert (code, err) == (0, "")
    return out.splitlines()


def test_killed_worker_gives_its_signal(method):
    """A kill ends a worker at once; its exit code names the signal, however often it is asked."""
    evaluator = Evaluator()
    worker = evaluator.worker
    alive = worker.wait(0)
    worker.kill()
    codes = (finished(worker.wait, None), worker.wait(0), left(worker))
    worker.kill()
    assert (alive, codes) == (None, (-signal.SIGKILL,) * 3)


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("os._exit(7)", 7),
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("1", 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGINT)", 0),
    ],
)
def test_exit_code(method, way, code):
    """However a worker ends, its exit code arrives; an interrupt does not end it."""
    worker = finished(launch, LEAVE, way.encode())
    assert left(worker) == code


@pytest.mark.slow
def test_exception_ends_a_worker_with_its_traceback(fresh, method, capfd):
    """A worker that fails outside of any job writes why."""
    worker = finished(launch, LEAVE, b"1 / 0")
    code = left(worker)
    assert (code, "ZeroDivisionError: division by zero" in capfd.readouterr().err) == (1, True)


@pytest.mark.slow
def test_many_threads_start_workers_at_once(method):
    """Starts from several threads do not disturb each other."""
    count = 50 if method == "forkserver" else 10
    with ThreadPoolExecutor(8) as threads:
        workers = list(threads.map(lambda n: launch(EVALUATE, b"%d" % n), range(count)))
        answers = list(threads.map(lambda worker: worker.connection.recv(), workers))
        codes = list(threads.map(left, workers))
    assert (answers, codes) == ([b"%d" % number for number in range(count)], [0] * count)


@pytest.mark.slow
def test_late_worker_sees_what_has_changed(method, monkeypatch, tmp_path):
    """Folder, import path, environment and command line are the parent's at each start."""
    (tmp_path / "fresh_module.py").write_text("VALUE = 'seen'")
    with Evaluator():
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("NBPIPE_TEST_LATE", "set")
        monkeypatch.setattr(sys, "argv", ["the", "parent's"])
        with Evaluator() as late:
            seen = [
                late.ask("os.getcwd()"),
                late.ask("__import__('fresh_module').VALUE"),
                late.ask("os.environ.get('NBPIPE_TEST_LATE')"),
                late.ask("sys.argv"),
                late.ask("os.environ['OMP_NUM_THREADS']"),
            ]
    assert seen == [str(tmp_path), "seen", "set", ["the", "parent's"], "1"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_worker_holds_its_own_files_only(method):
    """Beside input, output and errors, a worker has its connection, its exit and the lifeline.

    And a way to the tracker of shared memory, if its parent has one.
    """
    multiprocessing.resource_tracker.ensure_running()
    with Evaluator(), Evaluator(), Evaluator() as third:
        files = third.ask("files()")
    assert (len(files), [fd for fd in files if fd > 2 and files[fd]]) == (7, [])


def test_worker_may_use_what_a_manager_shares(method):
    """A proxy of a manager of `multiprocessing` works in a worker as in its children."""
    with multiprocessing.get_context("spawn").Manager() as manager, Evaluator() as evaluator:
        shared = manager.list([1])
        proxy = pickle.dumps(shared)
        evaluator.ask(f"pickle.loads({proxy!r}).append(2)")
        assert list(shared) == [1, 2]


@pytest.mark.slow
def test_workers_draw_different_random_numbers(method):
    """Two workers do not draw alike, though nobody has seeded them."""
    draw = "(random.random(), float(__import__('numpy').random.random()))"
    with Evaluator() as first, Evaluator() as second:
        a, b = first.ask(draw), second.ask(draw)
    assert (a[0] != b[0], a[1] != b[1]) == (True, True)


def test_cleaning_at_exit_is_done(method, tmp_path):
    """What a worker has registered for its exit is done when it leaves."""
    evaluator = Evaluator()
    made = evaluator.ask(f"keep(tempfile.TemporaryDirectory(dir={str(tmp_path)!r})).name")
    there = Path(made).exists()
    code = left(evaluator.worker)
    assert (there, code, Path(made).exists()) == (True, 0, False)


@pytest.mark.slow
def test_stop_server_ends_all_workers(method):
    """Stopping ends what is alive, twice is as good as once, and a new start is possible."""
    evaluator = Evaluator()
    stop_server()
    stop_server()
    files, code = held_files(_own), finished(evaluator.worker.wait, None)
    evaluator.worker.close()
    with Evaluator() as again:
        assert (files, code != 0, again.ask("1 + 1")) == ((), True, 2)


NESTED = f"keep(launch({EVALUATE!r}, b'in'))"


def test_windows_is_refused(monkeypatch):
    """Where worker processes were never tried they are refused, with what to use there."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(WorkerStartError, match=r"got Windows.* use executor='thread'"):
        launch(EVALUATE, b"")


ORPHANS = """
    import os, signal, sys
    from nbpipe.executors.workers import launch
    workers = [launch.launch({entry!r}, b"") for _ in range(4)]
    for worker in workers:
        worker.connection.recv()
    workers[0].connection.send("exec('while True: pass')")
    workers[1].connection.send("__import__('ctypes').PyDLL(None).sleep(1000)")  # with the GIL
    workers[2].connection.send("{nested}.pid")
    inner = workers[2].connection.recv()
    pids = [worker.pid for worker in workers] + [inner]
    servers = [server.pid for server in launch._own.servers]
    print(*pids, *servers, flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_nothing_survives_a_killed_parent(method):
    """Workers, busy or not, their own workers and the server are gone when the parent is killed."""
    text = textwrap.dedent(ORPHANS.format(entry=EVALUATE, nested=NESTED))
    if method == "spawn":  # a process that never lets its thread run is the fork server's to kill
        text = "\n".join(line for line in text.splitlines() if "ctypes" not in line)
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=ROOT)
    with parent:
        pids = [int(pid) for pid in finished(parent.stdout.readline).split()]
        alive = [psutil.pid_exists(pid) for pid in pids]
        parent.kill()
        assert (all(alive), len(pids), gone(pids)) == (True, 5 + (method == "forkserver"), True)


@pytest.mark.slow
def test_killed_server_is_replaced(forked):
    """Workers outlive a killed server; the next worker has a new one."""
    with Evaluator() as old, Evaluator() as other:
        server = psutil.Process(old.worker.pid).parent()
        server.kill()
        server.wait(HANG_S)
        with Evaluator() as new:
            answers = (old.ask("1 + 1"), new.ask("2 + 2"), old.worker.wait(0))
        other.worker.kill()
        codes = (left(old.worker), left(other.worker))
    assert (answers, codes) == ((2, 4, None), (UNKNOWN_EXIT, -signal.SIGKILL))


@pytest.mark.slow
def test_forked_process_starts_its_own(forked, tmp_path):
    """After a fork of the parent, the child leaves the parent's server and workers alone."""
    out = script(
        f"""
        import os, signal
        from nbpipe.executors.workers import launch

        def start():
            worker = launch.launch({EVALUATE!r}, b"")
            worker.connection.recv()
            worker.connection.send("os.getppid()")
            return worker, worker.connection.recv()

        worker, server = start()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            own, other = start()
            own.close()
            print(own.wait(None), other != server, flush=True)
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1)
        worker.close()
        print(worker.wait(None))  # though the child is alive
        later, same = start()
        later.close()
        print(later.wait(None), same == server)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        """,
        tmp_path,
        "forkserver",
    )
    assert out == ["0 True", "0", "0 True"]


@pytest.mark.slow
def test_a_fork_while_a_worker_is_being_closed(forked, tmp_path):
    """The child lets go of the others all the same, and says nothing."""
    out = script(
        f"""
        import os
        from nbpipe.executors.workers import launch

        workers = [launch.launch({EVALUATE!r}, b"") for _ in range(4)]
        for worker in workers:
            worker.connection.recv()
        for worker in workers[::2]:  # as another thread leaves them for a moment
            for end in (worker.connection, worker.status):
                os.dup(end.fileno())
                os.close(end.fileno())
        child = os.fork()
        if child == 0:
            ends = [end.closed for one in workers for end in (one.connection, one.status)]
            print(ends, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        os._exit(0)
        """,
        tmp_path,
        "forkserver",
    )
    assert out == [str([True] * 8)]


@pytest.mark.slow
def test_server_with_another_thread_forks_nothing(fresh, forked, monkeypatch, tmp_path):
    """Where a module of the user starts a thread in every interpreter, workers are fresh ones."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Evaluator() as evaluator:
        assert (evaluator.ask("1 + 1"), evaluator.ask("os.getppid()")) == (2, os.getpid())


@pytest.mark.slow
@pytest.mark.torch
def test_torch_loaded_later_is_found_by_later_workers(forked, tmp_path):
    """A server started before torch was loaded makes place for one that has loaded it."""
    out = script(
        f"""
        import sys
        from nbpipe.executors.workers import launch

        def start():
            worker = launch.launch({EVALUATE!r}, b"")
            worker.connection.recv()
            return worker

        def ask(worker):
            worker.connection.send("('torch' in sys.modules, os.getppid())")
            return worker.connection.recv()

        import warnings
        old = start()
        first = ask(old)
        with warnings.catch_warnings(action="ignore"):
            import torch
        new, newer = start(), start()
        second, third = ask(new), ask(newer)
        new.connection.send("__import__('torch').get_num_threads()")
        print(first[0], second[0], second[1] == third[1] != first[1], new.connection.recv())
        for worker in (old, new, newer):
            worker.close()
            print(worker.wait(None))
        """,
        tmp_path,
        "forkserver",
    )
    assert out == ["False True True 1", "0", "0", "0"]


def test_no_python_no_worker(fresh, method, monkeypatch):
    """Where no Python can be started, the error says what was tried."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerStartError, match="/nowhere/python"):
        finished(launch, EVALUATE, b"")
    assert held_files(_own)[2:] == ()


def test_server_that_cannot_start(fresh, forked, monkeypatch):
    """A fork server that ends at once is no reason to hang."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerStartError, match="the fork server ended with exit code 1 before"):
        finished(launch, EVALUATE, b"")


def test_unknown_method_is_refused(monkeypatch):
    """A way to start processes that does not exist is an error with the ways that do."""
    monkeypatch.setenv(METHOD_VARIABLE, "fork")
    with pytest.raises(ArgumentError) as caught:
        launch(EVALUATE, b"")
    ways = " or ".join(map(repr, METHODS))
    assert str(caught.value).startswith(f"NBPIPE_START_METHOD must be {ways} on this system")


# -- What a worker takes over from its parent, and what holds before each item ---------------------
SEEDS = (0, 1, 2**32, 2**64 - 1, 0x123456789ABCDEF0)


def child(code, data=b"", **environment):
    """Run code in a fresh process that gets `data` as `DATA`; give what it prints, as JSON."""
    text = "import sys\nDATA = sys.stdin.buffer.read()\n" + textwrap.dedent(code)
    return json.loads(output_of(text, data, **environment))


def test_finds_a_module_that_was_written_since(tmp_path):
    """A module in a folder that the worker has looked into before is found."""
    got = child(
        f"""
        import json
        from pathlib import Path
        from nbpipe.executors.workers.launch import apply_environment, capture_environment
        sys.path.append({str(tmp_path)!r})
        try:
            import late_module
        except ImportError:
            pass
        Path({str(tmp_path / "late_module.py")!r}).write_text("VALUE = 7")
        apply_environment(capture_environment())
        import late_module
        print(json.dumps(late_module.VALUE))
        """
    )
    assert got == 7


def test_folder_that_is_gone(tmp_path, monkeypatch):
    """A folder that was deleted is no error, neither for the parent nor for the worker."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = capture_environment()
    folder.rmdir()
    noted = json.loads(capture_environment())["folder"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    apply_environment(there)
    assert (noted, Path.cwd()) == (None, tmp_path)


@pytest.mark.slow
@pytest.mark.torch
def test_torch_gets_one_thread_and_no_gpu():
    """A torch that is loaded is held to one thread; its CUDA side stays asleep."""
    got = child(
        """
        import json, torch
        torch.set_num_threads(2)
        from nbpipe.base.seeding import seed_item
        from nbpipe.base.threads import hold_library_threads
        hold_library_threads()
        hold_library_threads()
        seed_item(5)
        threads = torch.get_num_threads(), torch.get_num_interop_threads()
        print(json.dumps([*threads, torch.cuda.is_initialized()]))
        """
    )
    assert got == [1, 1, False]


def test_loaded_libraries_are_told_once():
    """Each library is told when it is there; a strange one is no error; none is imported."""
    got = child(
        """
        import json
        from types import SimpleNamespace
        from nbpipe.base.threads import hold_library_threads
        calls = []
        hold_library_threads()
        none = [name for name in ("torch", "cv2", "numba") if name in sys.modules]
        sys.modules["cv2"] = SimpleNamespace(setNumThreads=calls.append)
        config = SimpleNamespace(NUMBA_NUM_THREADS=4)
        sys.modules["numba"] = SimpleNamespace(config=config, set_num_threads=calls.append)
        sys.modules["torch"] = SimpleNamespace()
        hold_library_threads()
        hold_library_threads()
        print(json.dumps([none, calls]))
        """
    )
    assert got == [[], [0, 1]]


def drawn():
    """Draw from the generators that are seeded, of every kind they offer."""
    numbers = [random.random(), random.gauss(0, 1), random.getrandbits(70)]
    legacy = [np.random.rand(), np.random.randn(), int(np.random.randint(1 << 40))]
    return [*numbers, *legacy]


def use_nothing():
    """Leave the generators alone."""


def use_half_a_pair():
    """Draw normal numbers, of which the generators keep the second one."""
    random.gauss(0, 1)
    np.random.randn()


def use_much():
    """Draw so much that a generator fills its state again."""
    random.getrandbits(100_000)
    np.random.rand(2000)


def seed_by_hand():
    """Seed as users do."""
    random.seed(3)
    np.random.seed(3)


@pytest.fixture
def states():
    """Leave the global generators as they were."""
    numpy_state, state = np.random.get_state(), random.getstate()
    yield
    np.random.set_state(numpy_state)
    random.setstate(state)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("use", [use_nothing, use_half_a_pair, use_much, seed_by_hand])
def test_numbers_depend_on_the_seed_alone(states, seed, use):
    """Whatever was drawn before, the same seed gives the same numbers."""
    seed_item(seed)
    first = drawn()
    use()
    seed_item(seed)
    assert drawn() == first


def test_seeds_differ(states):
    """Seeds that differ in one bit, low or high, give other numbers."""
    seen = []
    for seed in (0, 1, 2, 2**31, 2**32, 2**33, 2**63):
        seed_item(seed)
        seen.append(random.random())
    assert len(set(seen)) == len(seen)


def test_another_generator_of_numpy(states):
    """A user's choice of another bit generator is kept, and seeded."""
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        seed_item(2**63)
        first = np.random.randn(3).tolist()
        np.random.randn()
        seed_item(2**63)
        kept = type(np.random.get_bit_generator()).__name__
        assert (kept, np.random.randn(3).tolist()) == ("PCG64", first)
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.slow
@pytest.mark.torch
def test_torch_depends_on_the_seed_alone():
    """Numbers of torch are a function of the seed, and share nothing with numpy's."""
    got = child(
        """
        import json, torch, numpy as np
        from nbpipe.base.seeding import seed_item
        def drawn():
            seed_item(0x1234567800000005)
            return [torch.rand(1).item(), torch.randn(3).tolist(), torch.randperm(50).tolist()]
        first = drawn()
        torch.randn(3)
        torch.manual_seed(9)
        again = drawn()
        seed_item(5)
        numpy_like_torch = np.random.randint(1 << 24) == torch.randint(1 << 24, (1,)).item()
        print(json.dumps([first == again, numpy_like_torch]))
        """
    )
    assert got == [True, False]
