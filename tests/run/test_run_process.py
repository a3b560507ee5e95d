"""A run in a process of its own: the stop button, and the interpreter's exit."""

import pytest

from tests.scripts import Script, ran

INTERRUPTED = """
    import pathlib, sys, threading
    import nbpipe
    opened, where = pathlib.Path("opened").absolute(), {where!r}
    def work(item):
        if where == "waiting" and item == 40 and not opened.exists():
            print("go", flush=True)
            while not opened.exists():
                threading.Event().wait(0.01)
        return item
    chain = nbpipe.source(range(100)).map(work, concurrency=2, executor={executor!r})
    run = chain.start(isolate={isolate})
    got = []
    try:
        for item in run:
            got.append(item)
            if where == "consuming" and item == 40:
                print("go", flush=True)
                threading.Event().wait()
    except KeyboardInterrupt:
        pid = getattr(run._core.engine, "pid", None)
        opened.touch()
        print("interrupted", got == list(range(len(got))))
    print(sys.getswitchinterval())
    print(list(run) == list(range(100)), run.epoch, pid == getattr(run._core.engine, "pid", None))
    run.close()
    print([t.name for t in threading.enumerate()], sys.getswitchinterval())
"""


@pytest.mark.parametrize(
    ("where", "executor", "isolate"),
    [
        ("waiting", "thread", False),
        ("consuming", "thread", False),
        pytest.param("waiting", "thread", True, marks=pytest.mark.slow),
        pytest.param("waiting", "process", True, marks=pytest.mark.slow),
    ],
)
def test_interrupt_leaves_a_run_that_can_iterate_again(tmp_path, where, executor, isolate):
    """The stop button ends the loop at once, not the process; nothing is left behind."""
    text = INTERRUPTED.format(where=where, executor=executor, isolate=isolate)
    with Script(text, tmp_path) as script:
        script.line()
        script.interrupt()
        code, out, err = script.end()
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "interrupted True",
        "0.005",
        "True 1 True",
        "['MainThread'] 0.005",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("isolate", "count"), [(False, 300), (True, 100)])
def test_interrupts_at_any_moment(tmp_path, isolate, count):
    """Interrupted at hundreds of random moments, a run iterates, closes, and keeps its process."""
    code, out, err = ran(
        f"""
        import _thread, random, sys, threading, time
        import nbpipe

        rng, armed = random.Random(3), threading.Semaphore(0)

        def disturb():
            for _ in range({count}):
                armed.acquire()
                time.sleep(rng.random() * {0.006 if isolate else 0.003})
                _thread.interrupt_main()

        chain = nbpipe.source(range(300)).map(lambda n: n, concurrency=2)
        run = chain.batch(3, collate=list).start(isolate={isolate})
        list(run)
        pid = getattr(run._core.engine, "pid", None)
        threading.Thread(target=disturb, daemon=True).start()
        interrupts = 0
        while interrupts < {count}:
            try:
                armed.release()
                while True:
                    for batch in run:
                        run["batch"].prefetch = 1 + batch[0] % 7
                        run.stats()
            except KeyboardInterrupt:
                interrupts += 1
        got = [n for batch in run for n in batch]
        print(got == list(range(300)), getattr(run._core.engine, "pid", None) == pid)
        run.close()
        left = [t.name for t in threading.enumerate() if t.name.startswith("nbpipe")]
        print(left, sys.getswitchinterval())
        """,
        tmp_path,
    )
    assert (code, err) == (0, "")
    assert out.splitlines() == ["True True", "[] 0.005"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["between", "waiting", "stuck"])
def test_interpreter_exit_closes_runs(tmp_path, where):
    """An interpreter that ends with a live run ends quickly and quietly."""
    code, out, err = ran(
        f"""
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
    """,
        tmp_path,
    )
    assert (code, out) == (0, "end\n")
    assert err == "" if where != "stuck" else "work" in err
