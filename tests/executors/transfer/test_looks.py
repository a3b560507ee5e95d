"""Who looks at a run with a device: diagnosis, panel, controls."""

import nbpipe
from nbpipe.ops.stage import addresses
from nbpipe.show.picture import knob_words, worker_words
from nbpipe.show.rules import decide
from tests.executors.transfer.fake import host
from tests.show.test_diagnose import case

PIPE = nbpipe.source(range(9), name="files").to_device("cuda").map(abs, device="cuda")


def test_a_device_that_limits_is_named_with_what_helps():
    """There is no concurrency to raise: less work, in words."""
    rows = {"files": (0.01, 0, 0.9), "to_device": (0.1, 0, 0), "abs": (0.88, 0, 0)}
    found = decide(case(rows, 0.62, addresses(PIPE.chain)))
    assert (found.stage, found.suggestion) == ("abs", None)
    assert "one batch after the other: do less on the device" in found.advice


def test_the_panel_shows_depth_and_no_workers(world):
    """A device's thread is no worker; the knob is shown as any other."""
    pipe = nbpipe.source(range(3)).map(host).to_device("fake").map(lambda x: x, device="fake")
    with pipe.start() as run:
        list(run)
        from nbpipe.show.snapshot import snapshot

        copy, after = snapshot(run)["stages"][2:4]
    assert (copy["workers"], copy["unit"], knob_words(copy)) == (None, "items", "depth 2")
    assert (copy["knobs"][0]["maximum"], worker_words(after)) == (16, "with to_device")
