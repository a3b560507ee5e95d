"""Export as a browser asks for it: in a thread of its own, one at a time, told in full."""

import gc
import runpy
import threading
from pathlib import Path
from queue import Queue

import pytest

from nbpipe import ExportError, ModuleEditedError
from tests.gates import HANG_S, still_alive
from tests.show.browser import Browser
from tests.show.fakes import Report, photographs


@pytest.fixture
def run():
    """Give a run that stands for one; `exporting` is what its export does."""
    return photographs()


@pytest.fixture
def browser(run):
    """Give a browser that shows the run."""
    return Browser(run)


@pytest.fixture
def told():
    """Give what is told later, as a queue; no thread of an export outlives the test."""
    yield Queue()
    assert not still_alive([one for one in threading.enumerate() if one.name == "nbpipe-export"])


def asking(path="loader.py", number=7, **more):
    """Give a message that asks for an export."""
    return {"op": "export", "id": number, "path": path, **more}


def refusing(error):
    """Give an export that raises."""

    def export(path, *, overwrite):
        raise error

    return export


def test_export_is_acknowledged_at_once_and_told_later(run, browser, told):
    """The answer does not wait for the file; then its path and the notes are told."""
    gate = threading.Event()

    def export(path, *, overwrite):
        gate.wait(HANG_S)
        return Report(Path("/home/ada") / path, (f"overwrite={overwrite}", "two\nlines"))

    run.exporting = export
    ack, early = browser.ask(asking(), told.put), told.qsize()
    gate.set()
    assert (ack, early, told.get(timeout=HANG_S)) == (
        {"type": "ack", "id": 7, "ok": True, "value": None},
        0,
        {
            "type": "exported",
            "id": 7,
            "ok": True,
            "path": "/home/ada/loader.py",
            "notes": ["overwrite=False", "two lines"],
            "error": "",
            "edited": False,
        },
    )


TEXT = """variable 'fh' is a live TextIOWrapper on 'log.txt'; open it inside the stage instead
  used by: helper() [In[4]] <- decode() [In[4]] <- stage 'decode'"""


@pytest.mark.parametrize(
    ("error", "edited"),
    [(ExportError(TEXT), False), (ModuleEditedError(TEXT), True), (OSError(TEXT), False)],
)
def test_refusal_is_told_in_full(run, browser, told, error, edited):
    """All lines of a refusal come through, and whether the file was edited; one may ask again."""
    run.exporting = refusing(error)
    for _ in range(2):
        assert browser.ask(asking(), told.put)["ok"]
        found = told.get(timeout=HANG_S)
        told_of = [found[key] for key in ("ok", "error", "edited", "path")]
        assert told_of == [False, TEXT, edited, ""]


def test_refusal_is_bounded(run, browser, told):
    """Of an endless text the beginning is told, and how much is left; stray bytes are mended."""
    run.exporting = refusing(ExportError("\udcff" + "x" * 10_000))
    browser.ask(asking(), told.put)
    error = told.get(timeout=HANG_S)["error"]
    assert (error[:7], error[7990:]) == (r"\udcffx", "x" * 10 + "\n... (2,006 more characters)")


def test_mistake_shows_no_value(run, browser, told):
    """Of an error that is no refusal only the kind and the place are told: it may hold a secret."""
    run.exporting = refusing(KeyError("hunter2"))
    browser.ask(asking(), told.put)
    error = told.get(timeout=HANG_S)["error"]
    expected = "export failed by a mistake of nbpipe, a KeyError in test_messages_export.py, line "
    assert error.rstrip("0123456789") == expected


def test_one_export_of_a_run_at_a_time(run, browser, told):
    """While a run is exported, no other export of it begins, wherever it is asked for."""
    gate = threading.Event()

    def export(path, *, overwrite):
        gate.wait(HANG_S)
        return Report(Path(path))

    run.exporting = export
    other = Browser(run)
    acks = [one.ask(asking(), told.put) for one in (browser, other)]
    gate.set()
    told.get(timeout=HANG_S)
    acks.append(other.ask(asking(), told.put))
    told.get(timeout=HANG_S)
    assert [(ack["ok"], "already" in ack.get("error", "")) for ack in acks] == [
        *((True, False), (False, True), (True, False)),
    ]


@pytest.mark.parametrize(
    "path",
    [
        *(None, 7, True, ["loader.py"], {}, "", "loader", "loader.PY", "loader.py\n"),
        *(
            "lo\0ader.py",
            "lo\nader.py",
            "\x1b[31m.py",
            "\u202eader.py",
            "\udcff.py",
            "x" * 998 + ".py",
        ),
    ],
)
def test_path_that_is_none_is_refused(browser, told, path):
    """What is no short printable path of a module is refused at once; no thread begins."""
    ack = browser.ask(asking(path), told.put)
    threads = [thread.name for thread in threading.enumerate()]
    assert (ack["ok"], ack["error"][:9], len(ack["error"]) < 300, "nbpipe-export" in threads) == (
        *(False, "path must", True, False),
    )


@pytest.mark.parametrize("overwrite", [1, "true", None, []])
def test_overwrite_must_be_plain(browser, told, overwrite):
    """A file is not overwritten because of something that only looks true."""
    ack = browser.ask(asking(overwrite=overwrite), told.put)
    assert (ack["ok"], "overwrite must be true or false" in ack["error"]) == (False, True)


SCRIPT = """
import nbpipe
pipe = nbpipe.source(range(100)).map(abs, name="decode", concurrency=4).batch(2)
"""


def in_a_script(folder):
    """Give the pipeline of a script: an export finds it by its variable."""
    file = folder / "work.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return runpy.run_path(str(file))["pipe"]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_real_run_in_mid_epoch(tmp_path, told, isolate):
    """A run is exported while its epoch goes on, wherever it runs; then what is turned is told."""
    with in_a_script(tmp_path).start(isolate=isolate) as run:
        browser = Browser(run)
        epoch = iter(run)
        first = next(epoch)
        browser.ask(asking(str(tmp_path / "loader.py")), told.put)
        rest = list(epoch)
        found = told.get(timeout=HANG_S)
        run["decode"].concurrency = 8
        export = browser.snapshot()["export"]
    assert (found["error"], found["path"]) == ("", str(tmp_path / "loader.py"))
    text = Path(found["path"]).read_text(encoding="utf-8")
    assert (len([first, *rest]), "decode_concurrency: int = 4" in text, export) == (
        50,
        True,
        {
            "file": "loader.py",
            "turned": [{"stage": "decode", "knob": "concurrency", "old": 4, "new": 8}],
        },
    )


@pytest.mark.slow
def test_real_run_that_is_closed(tmp_path, told):
    """What was tuned is exported after the run was closed, and over a file only when told to."""
    path = tmp_path / "loader.py"
    path.write_text("mine = 1\n", encoding="utf-8")
    run = in_a_script(tmp_path).start()
    run.close()
    browser = Browser(run)
    found = []
    for overwrite in (False, True):
        browser.ask(asking(str(path), overwrite=overwrite), told.put)
        found.append(told.get(timeout=HANG_S))
    refused, done = found
    assert (refused["edited"], "-mine = 1" in refused["error"], done["ok"]) == (True, True, True)
    assert "; press Overwrite to replace it" in refused["error"]


@pytest.mark.slow
def test_run_that_is_gone_says_what_to_type(told):
    """Without the run there is nothing to export; its pipeline may still be there."""
    run = photographs()
    browser = Browser(run)
    shown = [browser.snapshot()["actions"]]
    del run
    gc.collect()
    shown.append(browser.snapshot()["actions"])
    ack = browser.ask(asking(), told.put)
    assert (shown[1], ack["ok"], "pipe.export('loader.py')" in ack["error"]) == ([], False, True)
