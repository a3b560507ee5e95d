"""Verify: a module is imported in a fresh process, and must be what the notebook has."""

import asyncio
import itertools
import json
import signal
import threading
from pathlib import Path

import pytest

import nbpipe
from nbpipe.errors import ExportError
from nbpipe.export.fingerprint import fingerprint_of
from nbpipe.export.fresh import FreshProcess
from nbpipe.export.proof import Report, verified

MODULE = """import nbpipe

SCALE = 3


def src():
    return range(6)


def decode(x):
    return x, x * SCALE


def build_pipeline(*, decode_concurrency=2):
    return nbpipe.source(src).map(decode, concurrency=decode_concurrency)
"""
PROCESS = MODULE.replace("concurrency=decode_", 'executor="process", concurrency=decode_')


def src():
    """Give the items of MODULE."""
    return range(6)


def decode(x):
    """Do what MODULE does."""
    return x, x * 3


def notebook():
    """Build the pipeline that MODULE holds."""
    return nbpipe.source(src).map(decode, concurrency=2)


def items():
    """Run the notebook's pipeline."""
    return iter(notebook())


def verify(text, **options):
    """Verify a text as `my_loader.py`."""
    with FreshProcess.here() as fresh:
        return verified(text, "my_loader.py", fresh, **options)


def refusal(text, **options):
    """Give the words in which a text is refused."""
    with pytest.raises(ExportError) as caught:
        verify(text, **options)
    assert caught.value.__cause__ is None
    return str(caught.value)


def expected(**values):
    """Give fingerprints by name."""
    return {name: json.loads(json.dumps(fingerprint_of(value))) for name, value in values.items()}


def test_a_module_that_is_right(folder):
    """Constants, stages and first items are equal; nothing is left."""
    report = verify(
        MODULE, expected=expected(SCALE=3), expected_graph=notebook().graph(), items=items
    )
    assert (report, list(folder.iterdir())) == (Report(4), [])


def test_a_module_with_a_process_stage():
    """Its functions are sent by name to another process, and it runs there."""
    report = verify(PROCESS, process_stages=["decode"], items=items)
    assert report == Report(4)


def test_items_are_not_compared_when_none_are_asked_for():
    """Zero turns the comparison off, and none of them is made."""
    reports = [verify(MODULE, items=items, check_items=0), verify(MODULE)]
    assert reports == [Report(0)] * 2


def test_it_is_imported_from_another_folder():
    """What lies beside the notebook is not found while it is imported, and is afterwards."""
    text = MODULE.replace("SCALE = 3", "import os\n\nSCALE = os.listdir()")
    built = text.replace("def build_pipeline(", "def build_pipeline(folder=os.getcwd, ")
    built = built.replace("    return nbpipe", "    assert folder() == WANTED\n    return nbpipe")
    built = built.replace("SCALE = os", f"WANTED = {str(Path.cwd())!r}\nSCALE = os")
    assert verify(built, expected=expected(SCALE=[])) == Report(0)


def test_a_module_that_cannot_be_imported():
    """The line, its text and the error are told."""
    words = refusal(MODULE.replace("SCALE = 3", "SCALE = int('three')"))
    assert words == (
        "the module would fail in a fresh process: my_loader.py, line 3: `SCALE = int('three')`: "
        "ValueError: invalid literal for int() with base 10: 'three'"
    )


def test_a_module_with_a_syntax_error():
    """It is told in the same way."""
    words = refusal(MODULE.replace("SCALE = 3", "SCALE = = 3"))
    assert words == (
        "the module would fail in a fresh process: my_loader.py, line 3: `SCALE = = 3`: "
        "SyntaxError: invalid syntax"
    )


def test_a_pipeline_that_cannot_be_built():
    """So is what `build_pipeline` raises: the line of the module, not that of nbpipe."""
    words = refusal(MODULE.replace("decode_concurrency=2", "decode_concurrency=0"))
    assert "my_loader.py, line 15: `return nbpipe.source(src).map(" in words
    assert "KnobError: " in words


def test_a_module_that_ends_its_process():
    """A crash while it is imported is words too."""
    words = refusal(MODULE + "import os\nos.abort()\n")
    assert words == (
        "the module was checked in a fresh process, and ended its process: Aborted (SIGABRT)"
    )


def test_a_module_that_takes_for_ever():
    """So is an import without end."""
    words = refusal(MODULE + "while True: pass\n", start_limit_s=1.0)
    assert words == "the module was checked in a fresh process, and took longer than 1 s"


def test_another_constant():
    """A constant of another value is named."""
    words = refusal(MODULE, expected=expected(SCALE=4))
    assert (
        words == "the module differs from the notebook: SCALE: 4 in the notebook, 3 in the module"
    )


STAGES = {
    "name": ('name="other", ', "[1]['name']: 'decode' in the notebook, 'other' in the module"),
    "executor": (
        'executor="process", ',
        "[1]['executor']: 'thread' in the notebook, 'process' in the module",
    ),
    "knob": ("prefetch=9, ", "[1]['knobs']['prefetch']: 8 in the notebook, 9 in the module"),
}


@pytest.mark.parametrize(("argument", "words"), STAGES.values(), ids=STAGES)
def test_another_pipeline(argument, words):
    """Names, executors and knobs must be the notebook's."""
    text = MODULE.replace("decode, concurrency", f"decode, {argument}concurrency")
    refused = refusal(text, expected_graph=notebook().graph())
    assert refused == f"the module builds another pipeline than the notebook's: {words}"


def test_another_operation():
    """So must operations."""
    text = MODULE.replace(".map(", ".filter(")
    words = refusal(text, expected_graph=notebook().graph())
    assert words.endswith("[1]['op']: 'map' in the notebook, 'filter' in the module")


def test_a_function_that_cannot_be_sent():
    """A stage of other processes needs functions that plain pickle sends by name."""
    text = PROCESS.replace(".map(decode", ".map((lambda x: x), name='decode'")
    words = refusal(text, process_stages=["decode"])
    assert words.startswith(
        "stage 'decode' runs in other processes, and they could not be sent its function: "
    )


def once(mark):
    """Write a module that can be imported only once."""
    lines = [
        "from pathlib import Path",
        f"MARK = Path({str(mark)!r})",
        "MARK.touch(exist_ok=False)",
    ]
    return "\n".join([PROCESS, *lines, ""])


def test_a_function_that_cannot_be_loaded(tmp_path):
    """What is pickled must be there in yet another process."""
    words = refusal(once(tmp_path / "mark"), process_stages=["decode"])
    assert "could not be sent its function: FileExistsError: " in words


def test_a_process_that_ends_where_functions_are_loaded(tmp_path):
    """A crash there is words too."""
    text = (
        once(tmp_path / "mark")
        .replace("MARK.touch(", "import os\nMARK.exists() and os.abort()\n(MARK.touch(")
        .replace("exist_ok=False)", "))")
    )
    words = refusal(text, process_stages=["decode"])
    assert (
        words
        == "the module was checked in a fresh process, and ended its process: Aborted (SIGABRT)"
    )


def test_another_item():
    """The first item that differs is told, with the hint."""
    words = refusal(MODULE.replace("x * SCALE", "x * SCALE * (x < 2)"), items=items, hint="a hint")
    assert words == (
        "item 2 of the module differs from the notebook's: "
        "[1]: 6 in the notebook, 0 in the module; a hint"
    )


def test_fewer_items():
    """Their number counts as well."""
    words = refusal(MODULE.replace("range(6)", "range(3)"), items=items)
    assert words == "the module gives 3 items where the notebook's pipeline gives 4"


def test_an_item_that_cannot_be_made():
    """What the module's stage raises is told."""
    words = refusal(MODULE.replace("x * SCALE", "x * SCALE // (x < 1)"), items=items)
    assert words.startswith("item 1 of the module cannot be made: ")


def test_a_stage_that_ends_the_process():
    """A crash among the items is told as an item that cannot be made."""
    text = MODULE.replace(
        "    return x, x", "    import os\n    if x == 2: os._exit(5)\n    return x, x"
    )
    words = refusal(text, items=items)
    assert words.endswith("of the module cannot be made: ended its process with exit code 5")


def test_runs_that_differ_are_not_compared():
    """Where the notebook's own pipeline is random, nothing is wrong with the module."""
    numbers = itertools.count()
    report = verify(MODULE, items=lambda: iter([next(numbers)]))
    assert report == Report(
        0, reason="not comparable: two runs of the notebook's own pipeline differ"
    )


def test_what_only_the_module_raises_is_told_of_runs_that_differ():
    """An error of the module's is no matter of comparing items."""
    numbers = itertools.count()
    words = refusal(
        MODULE.replace("x * SCALE", "decode.calls"), items=lambda: iter([next(numbers)])
    )
    assert words.startswith("item 0 of the module cannot be made: stage 'decode' raised Attribute")


def test_a_notebook_that_raises_is_not_compared():
    """Its own error is the reason; the items before it are compared."""

    def failing():
        yield 0, 0
        raise ValueError("no file")

    report = verify(MODULE, items=failing)
    assert report == Report(
        1, reason="not compared: the notebook's own pipeline raises ValueError: no file"
    )


def test_a_notebook_that_takes_for_ever_is_not_compared():
    """Its pipeline is closed at the time limit."""
    closed = threading.Event()

    class Endless:
        def __iter__(self):
            return self

        def __next__(self):
            closed.wait()
            raise StopIteration

        def close(self):
            closed.set()

    report = verify(MODULE, items=Endless, limit_s=1.0)
    assert report == Report(0, reason="not compared: took longer than 1 s")


def test_a_pipeline_that_waits_is_closed():
    """A stage that never returns is cancelled at the time limit, and no thread is left."""

    async def hang(x):
        await asyncio.Event().wait()

    pipe = nbpipe.source(src).map(hang)
    report = verify(MODULE, items=lambda: iter(pipe), limit_s=0.5)
    assert report.reason == "not compared: took longer than 0.5 s"


def test_a_module_that_takes_for_ever_is_not_compared():
    """A slow stage is no failure."""
    text = MODULE.replace(
        "    return x, x", "    import time\n    time.sleep(1000)\n    return x, x"
    )
    report = verify(text, items=items, limit_s=1.0)
    assert report == Report(0, reason="not compared: took longer than 1 s")


def test_streams_without_end():
    """Only the first items are taken, and both sides are closed."""
    closed = []

    def stream():
        try:
            yield from ((x, 3 * x) for x in itertools.count())
        finally:
            closed.append(True)

    text = MODULE.replace("range(6)", "__import__('itertools').count()")
    assert (verify(text, items=stream), closed) == (Report(4), [True, True])


def test_secrets_are_not_shown(monkeypatch):
    """Neither in errors of the module nor in items that differ."""
    monkeypatch.setenv("MY_API_KEY", "abcd1234efgh5678")
    text = "import os\nraise ValueError(os.environ['MY_API_KEY'])\n"
    item = MODULE.replace("return x, x * SCALE", "return __import__('os').environ['MY_API_KEY']")
    words = refusal(text) + refusal(item, items=items)
    assert ("abcd1234efgh5678" in words, "***" in words) == (False, True)


def test_an_interrupt_closes_the_notebooks_pipeline():
    """Where the wait is interrupted the iterator is closed, and its thread ends."""
    closed = threading.Event()

    class Waiting:
        def __iter__(self):
            return self

        def __next__(self):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            closed.wait()
            raise StopIteration

        def close(self):
            closed.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            verify(MODULE, items=Waiting)
    finally:
        signal.signal(signal.SIGINT, before)
    assert closed.is_set()
