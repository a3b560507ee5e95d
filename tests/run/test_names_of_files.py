"""A file's name that is not UTF-8 can be printed, shown and sent wherever it stands."""

import json
import traceback
from pathlib import Path

import pytest

import nbpipe
from nbpipe import StageError
from tests.inner import snapshot

NAME = "photo\udcff.jpg"  # as os.fsdecode gives it
SHOWN = r"photo\udcff.jpg"


def read(path):
    """Refuse to read a file, and name it."""
    raise ValueError(f"cannot read {path}")


def written(value):
    """Return the forms in which a value is shown, as bytes."""
    forms = {"repr": repr(value), "str": str(value)}
    for form in ("html", "markdown"):
        show = getattr(value, f"_repr_{form}_", None)
        if show is not None:
            forms[form] = show()
    return {form: text.encode("utf-8") for form, text in forms.items()}


@pytest.fixture
def run():
    """A run over one such file, which was skipped."""
    with nbpipe.source([NAME]).map(read, on_error="skip").start() as started:
        assert list(started) == []
        yield started


def test_failures_are_shown(run):
    """The table of failures names the file, and its fields hold what can be written."""
    for text in written(run.failures()).values():
        assert SHOWN.encode() in text.replace(b"\\\\", b"\\")
    (failure,) = run.failures()
    for text in (failure.error, failure.input, failure.traceback):
        text.encode("utf-8")
        assert SHOWN in text
    assert failure.source == NAME  # it opens the file


def test_a_run_is_shown(run):
    """The run, its stats and its diagnosis can be written."""
    for value in (run, run.stats(), run.diagnose()):
        written(value)


def test_what_the_panel_gets_can_be_sent(run):
    """A snapshot is JSON in UTF-8."""
    json.dumps(snapshot(run), ensure_ascii=False).encode("utf-8")


def test_peek_shows_such_names():
    """In an item, in a key, deep inside, and as the item itself."""
    for item in (NAME, {NAME: 1}, [{"a": [NAME]}], {"path": NAME}, b"\xff", Path(NAME)):
        for text in written(nbpipe.source([item]).map(lambda one: one).peek()).values():
            assert text


def test_an_error_names_the_file():
    """The message of an error that ends the epoch can be written."""
    with pytest.raises(StageError) as raised:
        list(nbpipe.source([NAME]).map(read))
    assert SHOWN in str(raised.value)
    str(raised.value).encode("utf-8")
    assert SHOWN in "".join(traceback.format_exception_only(raised.value))


def test_a_pipeline_with_such_a_path_is_shown(tmp_path):
    """The table of a pipeline that keeps its items there can be written."""
    chain = nbpipe.source([1]).cache(str(tmp_path / NAME))
    assert b"cache" in written(chain)["repr"]


def test_a_name_that_cannot_be_written_is_refused_or_shown():
    """So is the name of a stage."""
    try:
        chain = nbpipe.source([1], name=NAME)
    except nbpipe.ArgumentError as error:
        str(error).encode("utf-8")
    else:
        written(chain)
