"""A run in a process of its own: the stop button, and the interpreter's exit."""

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.gates import HANG_S, finished

# A background job of a shell ignores the stop signal, and its children inherit that.
LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def script(text, *, interrupt=False):
    """Run a script; with `interrupt`, send it SIGINT when it has written a line."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", LISTEN + textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if interrupt:
            finished(child.stdout.readline)
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=HANG_S)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()
    return child.returncode, out, err


INTERRUPTED = """
    import sys, threading
    import nbpipe

    gate, where = threading.Event(), {where!r}

    def work(item):
        if where == "waiting" and item == 40 and not gate.is_set():
            print("go", flush=True)
            gate.wait()
        return item

    run = nbpipe.source(range(100)).map(work, concurrency=2).start()
    got = []
    try:
        for item in run:
            got.append(item)
            if where == "consuming" and item == 40:
                print("go", flush=True)
                threading.Event().wait()
    except KeyboardInterrupt:
        gate.set()
        print("interrupted", got == list(range(len(got))))
    print(sys.getswitchinterval())
    print(list(run) == list(range(100)), run.epoch)
    run.close()
    print([t.name for t in threading.enumerate()], sys.getswitchinterval())
"""


@pytest.mark.parametrize("where", ["waiting", "consuming"])
def test_interrupt_leaves_a_run_that_can_iterate_again(where):
    """The stop button ends the loop at once, wherever it stands; nothing is left behind."""
    code, out, err = script(INTERRUPTED.format(where=where), interrupt=True)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "interrupted True",
        "0.005",
        "True 1",
        "['MainThread'] 0.005",
    ]


def test_interrupts_at_any_moment():
    """Interrupted at hundreds of random moments, a run still iterates, closes and cleans up."""
    code, out, err = script("""
        import _thread, random, sys, threading, time
        import nbpipe

        rng, armed = random.Random(3), threading.Semaphore(0)

        def disturb():
            for _ in range(300):
                armed.acquire()
                time.sleep(rng.random() * 0.003)
                _thread.interrupt_main()

        threading.Thread(target=disturb, daemon=True).start()
        chain = nbpipe.source(range(300)).map(lambda n: n, concurrency=2)
        run = chain.batch(3, collate=list).start()
        interrupts = 0
        while interrupts < 300:
            try:
                armed.release()
                while True:
                    for batch in run:
                        pass
            except KeyboardInterrupt:
                interrupts += 1
        got = [n for batch in run for n in batch]
        print(got == list(range(300)), sys.getswitchinterval())
        run.close()
        left = [t.name for t in threading.enumerate() if t.name.startswith("nbpipe")]
        print(left, sys.getswitchinterval())
    """)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["True 0.005", "[] 0.005"]


@pytest.mark.parametrize("where", ["between", "waiting", "stuck"])
def test_interpreter_exit_closes_runs(where):
    """An interpreter that ends with a live run ends quickly and quietly."""
    code, out, err = script(f"""
        import threading, time
        import nbpipe

        inside = threading.Event()

        def work(item):
            if {where!r} == "stuck" and item == 3:
                inside.set()
                threading.Event().wait()
            return item

        async def also(item):
            return item

        run = nbpipe.source(lambda: iter(int, 1)).map(work).map(also).start()
        run = nbpipe.source(range(10**6)).map(work).map(also, concurrency=3).start()
        items = iter(run)
        if {where!r} != "between":
            next(items)
        if {where!r} == "stuck":
            inside.wait()
        print("end", flush=True)
    """)
    assert (code, out) == (0, "end\n")
    assert err == "" if where != "stuck" else "work" in err
