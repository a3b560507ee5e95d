"""What was turned since an export: compared with what was written, and nothing kept alive."""

import gc
import weakref
from pathlib import Path

import pytest

import nbpipe
from tests.show.inner import ChangesSinceExport, changes_since_export, record_export

FILE = Path("/home/ada/loader.py")


@pytest.fixture
def stages():
    """Give stages by address; the last two share their concurrency."""
    pipe = (
        nbpipe.source(range(100), name="files")
        .map(abs, name="decode", concurrency=4)
        .map(abs, name="crop", executor="process", concurrency=2)
        .map(float, name="widen", executor="process")
    )
    with pipe.start() as run:
        yield run.stages


def values(stages):
    """Give all knobs with the values in force."""
    return {knob: knob.value for stage in stages.values() for knob in stage.knobs.values()}


def test_knobs_that_differ(stages):
    """Each that differs is told once, in the order of the stages; one set back is not."""
    record_export(values(stages), FILE)
    stages["widen"].knobs["concurrency"].set(8)
    stages["decode"].knobs["concurrency"].set(9)
    before = stages["decode"].prefetch
    for value in (99, before):
        stages["decode"].prefetch = value
    assert changes_since_export(stages).changes == (
        ("decode", "concurrency", 4, 9),
        ("crop", "concurrency", 2, 8),
    )


def test_value_that_was_written_counts(stages):
    """A knob that was turned while the file was written differs at once."""
    knob = stages["decode"].knobs["concurrency"]
    record_export({knob: 3}, FILE)
    assert changes_since_export(stages).changes == (("decode", "concurrency", 3, 4),)


def test_last_export_counts(stages):
    """What was noted before is forgotten; of knobs in an older file nothing is said."""
    record_export(dict.fromkeys(values(stages), 99), FILE)
    knob = stages["decode"].knobs["concurrency"]
    record_export({knob: 4}, Path("other.py"))
    assert changes_since_export(stages) == ChangesSinceExport(Path("other.py"), ())


def test_no_knob_is_kept():
    """Knobs go with their stages, exported or not."""
    pipe = nbpipe.source(range(3)).map(abs)
    knobs = {knob: 3 for stage in pipe.stages for knob in stage.knobs.values()}
    record_export(knobs, FILE)
    knobs = [weakref.ref(knob) for knob in knobs]
    del pipe
    gc.collect()
    assert [knob() for knob in knobs] == [None] * len(knobs)
