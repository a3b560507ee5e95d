"""Workers of scripts: without a guard, from standard input, interrupted, killed, forked."""

import signal
import sys
import threading

import pytest

from tests.scripts import METHODS, Script, ran

UNGUARDED = """
    import os, threading
    import nbpipe

    OFFSET = 10
    print("begun", flush=True)

    class Point:
        def __init__(self, n):
            self.n = n

    def helper(n):
        return Point(n + OFFSET)

    def work(n):
        print("item", n)
        return helper(n)

    with nbpipe.source(range(4)).map(work, executor="process").start() as run:
        print([type(point) is Point and point.n for point in run])
        OFFSET = 20
        print([point.n for point in run])
    print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["file", "stdin", "command"])
def test_a_script_needs_no_guard(tmp_path, way, method):
    """A script is run once, not again in each worker, wherever it stands."""
    code, out, err = ran(UNGUARDED, tmp_path, way=way, method=method)
    printed = [f"item {n}" for n in range(4)]
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "begun",
        *printed,
        "[10, 11, 12, 13]",
        *printed,
        "[20, 21, 22, 23]",
        "end",
    ]


@pytest.mark.slow
def test_a_fork_of_the_user_in_between(tmp_path):
    """A process that user code forks takes no workers with it, and can have its own."""
    text = """
        import os, sys
        import nbpipe

        chain = nbpipe.source(range(6)).map(lambda n: 2 * n, name="fn", executor="process")
        run = chain.start()
        print(list(run), flush=True)
        pid = os.fork()
        if pid == 0:
            try:
                list(run)
            except nbpipe.RunClosedError:
                print("refused", flush=True)
            with chain.start() as own:
                print(list(own), set(own["fn"].pids) & set(run["fn"].pids), flush=True)
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)
        print(list(run), flush=True)
        pids = run["fn"].pids
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # what is done at its exit ends nothing of its parent's
        print(os.waitpid(pid, 0)[1], list(run), run["fn"].pids == pids)
        run.close()
        print(len(pids), run["fn"].pids)
    """
    code, out, err = ran(text, tmp_path)
    got = "[0, 2, 4, 6, 8, 10]"
    assert (code, err) == (0, "")
    lines = [got, "refused", f"{got} set()", "0", got, f"0 {got} True", "1 ()"]
    assert out.splitlines() == lines


WAYS_TO_END = {
    "in mid-epoch": "items = iter(run); next(items)",
    "between epochs": "list(run)",
    "never begun": "pass",
    "exit": "next(iter(run)); sys.exit(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ending", WAYS_TO_END)
def test_the_end_of_the_interpreter(tmp_path, ending, method):
    """An interpreter that ends without `close` ends at once, quietly, with its workers."""
    text = f"""
        import os, sys
        import nbpipe

        numbers = range(10**6 if {ending == "in mid-epoch"} else 9)
        run = nbpipe.source(numbers).map(lambda n: n, executor="process", concurrency=2).start()
        print("begun", flush=True)
        {WAYS_TO_END[ending]}
    """
    with Script(text, tmp_path, method=method) as script:
        script.line()
        script.look()
        code, out, err = script.end()
        left = script.left()
    assert (code, out, err, left) == (0, "", "", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("os._exit(4)", 4), ("loops.release(); return", 0)]
)
def test_the_exit_code_of_a_script_in_mid_epoch(tmp_path, end, code):
    """It is the script's own, also where a thread still loops, and no worker is left."""
    text = f"""
        import os, sys, threading
        import nbpipe

        def loop(on):
            for item in nbpipe.source(range(10**6)).map(abs, executor="process", concurrency=2):
                if item == 5:
                    print("looping", flush=True); sys.stdin.readline()
                    loops.release()
                if item >= 5 and not on:
                    {end}

        loops = threading.Semaphore(0)
        if {code == 0}:
            threading.Thread(target=loop, args=(True,), daemon=True).start()
            loops.acquire()
        else:
            loop(False)
    """
    with Script(text, tmp_path) as script:
        script.line()
        script.look()
        found = script.end()
        left = script.left()
    assert (found, left) == ((code, "", ""), [])


STUCK = """
    import os, sys, threading
    import nbpipe

    def work(n):
        if n == {stuck}:
            print("stuck", flush=True)
            threading.Event().wait()
        return n

    run = nbpipe.source(range({count})).map(
        work, name="fn", executor="process", concurrency=3
    ).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_exception_in_the_loop(tmp_path, method):
    """A script that fails in its loop shows its own error alone, and leaves nobody."""
    text = STUCK.format(stuck=-1, count=10**6) + (
        "    for item in run:\n"
        "        if item == 50:\n"
        "            print('failing', flush=True); sys.stdin.readline()\n"
        "            raise ZeroDivisionError('in the loop')\n"
    )
    with Script(text, tmp_path, method=method) as script:
        script.line()
        code, out, err = script.end()
        left = script.left()
    assert (code, out, left) == (1, "", [])
    assert err.splitlines()[-1] == "ZeroDivisionError: in the loop"
    assert err.count("Traceback") == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_of_the_whole_group(tmp_path, method):
    """The stop signal reaches every process of a terminal; workers live on, and say nothing."""
    text = (
        STUCK.format(stuck=-1, count=10**6)
        + """
    got, pids = [], ()
    try:
        for item in run:
            got.append(item)
            pids = run["fn"].pids
            if item == 200:
                print("go", flush=True)
    except KeyboardInterrupt:
        print(got == list(range(len(got))), flush=True)
    items = iter(run)
    print([next(items) for _ in range(100)] == list(range(100)))
    print(set(pids) <= set(run["fn"].pids), len(pids) > 0)
    items.close()
    run.close()
"""
    )
    with Script(text, tmp_path, method=method) as script:
        assert script.line() == "go"
        script.interrupt()
        code, out, err = script.end()
        left = script.left()
    assert (code, err, left) == (0, "", [])
    assert out.splitlines() == ["True", "True", "True True"]


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_interrupted_again_while_it_ends(tmp_path, pause_s):
    """Whoever interrupts twice is in a hurry: the end is quiet, and takes the workers along."""
    text = """
        import atexit, os, threading
        import nbpipe

        pipe = nbpipe.source(range(9)).map(lambda n: threading.Event().wait(60), executor="process")
        run = pipe.start()
        atexit.register(os.write, 1, b"ending\\n")  # `print` itself could be interrupted
        threading.Timer(0.5, lambda: print("go", flush=True)).start()
        for item in run:
            pass
    """
    with Script(text, tmp_path) as script:
        assert script.line() == "go"
        script.interrupt()
        assert script.line() == "ending"
        threading.Event().wait(pause_s)
        script.interrupt()
        code, _, err = script.end()
        left = script.left()
    assert (code, left) == (-signal.SIGINT, [])
    told = [line for line in err.splitlines() if not line.startswith((" ", "run closed"))]
    assert told == ["Traceback (most recent call last):", "KeyboardInterrupt"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the C library raises no such signal")
@pytest.mark.parametrize("end", ["runs", "servers"])
def test_interrupted_just_as_the_end_begins(tmp_path, end):
    """An interrupt that comes up as an exit call of ours begins is quiet, and all is closed."""
    text = f"""
        import atexit, ctypes, signal, sys, threading

        def told(args):
            print("told", args.exc_value, flush=True)

        def last():
            for thread in set(threading.enumerate()) - {{threading.main_thread()}}:
                thread.join(20)  # whoever is in a hurry does not wait for them
            print([thread.name for thread in threading.enumerate()])
            raise ValueError("of the script")

        # What the C library raises waits until Python is called again.
        interrupt = getattr(ctypes.CDLL(None), "raise"), signal.SIGINT
        sys.unraisablehook = told
        atexit.register(last)
        import nbpipe
        from nbpipe.executors.workers import launch
        if {end == "servers"}:
            atexit.register(*interrupt)
        run = nbpipe.source(range(9)).map(str, executor="process").start()
        next(iter(run))
        if {end == "runs"}:
            atexit.register(*interrupt)
    """
    code, out, err = ran(text, tmp_path)
    told = [line for line in err.splitlines() if not line.startswith("run closed")]
    assert (code, out.splitlines(), told) == (0, ["['MainThread']", "told of the script"], [])


@pytest.mark.slow
@pytest.mark.torch
def test_what_is_dropped_last_of_all(tmp_path):
    """Iterators that live until modules are empty are quiet when they go, and leave no file."""
    text = """
        import sys, types

        last = sys.modules["last"] = types.ModuleType("last")  # the first one is emptied last
        import numpy as np
        import nbpipe
        from nbpipe.executors.workers.memory import Packer

        numbers = nbpipe.source(range(9))
        run = numbers.map(str).start()
        batches = iter(nbpipe.DataLoader(range(9), num_workers=2, workers="thread"))
        progress = iter(nbpipe.progress(numbers.map(str)))
        last.kept = [iter(run), batches, progress, iter(numbers.cache("cache"))]
        for each in last.kept:
            next(each)
        last.packer = Packer()
        last.packer.pack(np.zeros(1 << 20))
        sys.held = list(sys.modules.values())  # emptied, where they would be collected
        print("end", file=sys.stderr, flush=True)
    """
    code, _, err = ran(text, tmp_path)
    left = list((tmp_path / "cache").glob("*.part"))
    assert (code, err.rpartition("end\n")[2], left) == (0, "", [])


@pytest.mark.slow
def test_open_runs_that_their_own_stages_refer_to(tmp_path):
    """They are not in the way of the next run, and are closed as the interpreter exits."""
    text = """
        import gc
        import nbpipe

        def leave(kind):
            def plain(item):
                return item, run.epoch

            async def coroutine(item):
                return plain(item)

            work = coroutine if kind == "coroutine" else plain
            where = {"executor": kind} if kind == "inline" else {"concurrency": 2}
            run = nbpipe.source(range(10_000)).map(work, **where).start()
            if kind != "unused":
                next(iter(run))

        for kind in ("unused", "thread", "inline", "coroutine"):
            leave(kind)
            gc.collect()
        print(list(nbpipe.source(range(3)).map(str)))
    """
    assert ran(text, tmp_path) == (0, "['0', '1', '2']\n", "")


@pytest.mark.slow
def test_interrupts_while_workers_start(tmp_path):
    """Interrupts at any moment, also while workers start, leave a run that works."""
    text = """
        import os, random, signal, threading
        import nbpipe

        rng, armed = random.Random(3), threading.Semaphore(0)

        def disturb():
            for _ in range(60):
                armed.acquire()
                threading.Event().wait(rng.random() * 0.05)
                os.killpg(os.getpid(), signal.SIGINT)

        threading.Thread(target=disturb, daemon=True).start()
        chain = nbpipe.source(range(300)).map(
            lambda n: n, executor="process", concurrency=2, max_items_per_worker=20
        )
        run = chain.start()
        interrupts = 0
        while interrupts < 60:
            try:
                armed.release()
                while True:
                    for item in run:
                        pass
            except KeyboardInterrupt:
                interrupts += 1
        print(list(run) == list(range(300)))
        run.close()
    """
    with Script(text, tmp_path) as script:
        code, out, err = script.end()
        left = script.left()
    assert (code, out, err, left) == (0, "True\n", "", [])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_to_the_descriptor(tmp_path, method):
    """What a C library or a command writes in a worker lands where the script's output does."""
    text = """
        import os, subprocess
        import nbpipe

        def work(n):
            os.write(1, b"by descriptor\\n")
            subprocess.run(["echo", "by a command"], check=True)
            return n

        with nbpipe.source(range(1)).map(work, executor="process").start() as run:
            list(run)
        print("end")
    """
    code, out, err = ran(text, tmp_path, method=method)
    assert (code, out, err) == (0, "by descriptor\nby a command\nend\n", "")


@pytest.mark.slow
def test_closed_standard_streams(tmp_path):
    """A script without standard streams, as a service has none, has workers all the same."""
    text = """
        import os, sys
        import nbpipe

        found = os.open("found", os.O_CREAT | os.O_WRONLY)
        os.dup2(found, 9)
        for fd in (0, 1, 2, found):
            if fd != 9:
                os.close(fd)
        sys.stdout = sys.stderr = sys.stdin = None

        def work(n):
            print("nobody hears this")
            return n

        with nbpipe.source(range(3)).map(work, executor="process").start() as run:
            os.write(9, repr(list(run)).encode())
    """
    code, _, _ = ran(text, tmp_path)
    assert (code, (tmp_path / "found").read_text()) == (0, "[0, 1, 2]")
