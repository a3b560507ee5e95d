"""The static picture and the words: all that is said, safe, small, readable without styles."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nbpipe.base.knobs import KnobChange
from nbpipe.show.picture import (
    NONE,
    bundle,
    export_line,
    headline,
    loop_shares,
    loop_words,
    picture_html,
    picture_markdown,
    picture_text,
    shares_of,
)
from nbpipe.show.snapshot import history, snapshot
from tests.show.fakes import FAILURE, HOSTILE, NOW_S, photographs

TAGS = {
    *("div", "link", "p", "b", "br", "small", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "rect", "path", "details", "summary", "pre"),
}


class Reader(HTMLParser):
    """Collects tags, attributes and text; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.names, self.words, self.open = set(), set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)
        if tag not in ("br", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.replace("\xa0", " "))


def test_what_it_says():
    """State, progress, diagnosis, stages, changes and failures are there, as text."""
    words = " ".join(Reader(picture_html(snapshot(photographs()))).words)
    expected = (
        *("running", "412/1,563 batches (26%)", "13.1 batches/s", "1 min 28 s left"),
        *(
            "decode is the bottleneck",
            "Set concurrency to",
            "840 items/s",
            "busy 97%",
            "blocked 69%",
        ),
        *("31/32", "5/5", "4 ms / 7.5 ms", "1, 2 retried", "concurrency 16, prefetch 16"),
        *("export to loader <b>.py: decode.concurrency 4 → 5, batch.concurrency 1 → 2",),
        *("training loop", "2 → 4", "item (1204, 3)", "imread", HOSTILE, "limits"),
        *("batch, process, 2 workers, 1 starting", "map, process, with batch"),
    )
    assert [phrase for phrase in expected if phrase not in words] == []


@pytest.mark.parametrize(
    ("done", "total", "said"),
    [(1, 1, "1/1 batch (100%)"), (1, None, "1 batch"), (1, 2, "1/2 batches (50%)")],
)
def test_one_batch(done, total, said):
    """One of what is counted is told as one."""
    one = snapshot(photographs()) | {"delivered": done, "total": total}
    assert headline(one)[2] == said


def test_lines_do_not_end_between_a_number_and_its_unit():
    """Rates, sizes, times and shares stay in one line each."""
    text = picture_html(snapshot(photographs()))
    broken = re.findall(r"\d (?:%|[kMGT]?B/s|k items|[nµm]?s\b|min\b)", text)
    kept = [one in text for one in ("26%", "1\xa0min 28\xa0s", "7.5\xa0ms")]
    assert (broken, kept) == ([], [True] * 3)


def test_small_and_safe():
    """Six stages take 10 kB at most, without scripts, handlers, or anything from elsewhere."""
    run = photographs()
    text = picture_html(snapshot(run), history(run))
    read = Reader(text)
    assert (len(text) < 10_000, read.tags - TAGS, read.open) == (True, set(), [])
    assert {name for name in read.names if name.startswith("on") or name in ("src", "href")} == {
        "href"
    }
    assert re.findall("href=.{21}", text) == ['href="data:text/css;base64']


def test_lines_only_with_a_history():
    """A history gives each stage a line."""
    run = photographs()
    seen = snapshot(run)
    counts = [
        text.count("<path") for text in (picture_html(seen), picture_html(seen, history(run)))
    ]
    assert counts == [0, 7]


def test_styles_stay_inside():
    """Every rule is for the picture alone."""
    data = re.search(r"base64,([^\"]*)\">", picture_html(snapshot(photographs())))[1]
    style = base64.b64decode(data).decode()
    outermost = re.match(r"\.nbpipe-saved\{(.*)\}$", style)[1]
    depths = list(accumulate({"{": 1, "}": -1}.get(sign, 0) for sign in outermost))
    assert (min(depths), depths[-1]) == (0, 0)


def test_what_it_is():
    """A picture says that it is one, and of when; a terminal, where it was asked for, does not."""
    run = photographs()
    seen = snapshot(run) | {"time_s": 1_800_000_000.0}
    words = " ".join(Reader(picture_html(seen)).words), picture_markdown(seen)
    line = "as of 2027-01-15 08:00 UTC; not live here"
    assert [line in text for text in (*words, picture_text(seen))] == [True, True, False]


@pytest.mark.parametrize(
    ("kind", "stage", "row"),
    [
        ("limits", "decode", '<tr class="limits"><td><b>decode</b> <b>◀ limits'),
        ("failed", "decode", '<tr class="broken"><td><b>decode</b> <b>◀ failed'),
        ("hangs", "decode", '<tr class="broken"><td><b>decode</b> <b>◀ hangs'),
        ("keeps_up", "consumer", "<tr><td><b>training loop</b></td>"),
    ],
)
def test_mark(kind, stage, row):
    """A stage that limits is marked, one that failed in another way; the training loop is not."""
    seen = snapshot(photographs())
    seen["diagnosis"] |= {"kind": kind, "stage": stage}
    text = picture_html(seen)
    assert (row in text, text.count("◀"), text.count("<tr class=")) == (
        True,
        *(2 * [int(kind != "keeps_up")]),
    )


def test_markdown():
    """A document of Markdown has a table of it: no styles as text, and no HTML that breaks off."""
    run = photographs()
    run.lost = (replace(FAILURE, traceback="Traceback:\n\n    x\n\n</div>"),)
    drawn = bundle(run)
    assert ("<style" in drawn["text/html"], "\n" in drawn["text/html"]) == (False, False)
    *lines, table = drawn["text/markdown"].split("\n\n")
    head, rule, *rows = table.splitlines()
    assert (len(rows), {row.replace("\\|", "").count("|") for row in (head, rule, *rows)}) == (
        *(7, {9}),
    )
    assert (lines[1].startswith("**running**, epoch 1"), "<img" in table) == (True, False)


@pytest.mark.parametrize("state", ["ready", "paused", "finished", "failed", "closed"])
def test_states(state):
    """Each state is drawn, an error in words."""
    run = photographs(state=state, error="StageError: no", total=None, epochs=None)
    run.rows = {name: replace(row, busy=0, latency_p50_s=0) for name, row in run.rows.items()}
    words = " ".join(Reader(picture_html(snapshot(run, changes=False, failures=False))).words)
    assert (state in words, "Error:" in words, "412 batches" in words) == (True, True, True)


@example(HOSTILE, HOSTILE)
@given(st.text(max_size=300), st.text(max_size=300))
def test_text_from_outside(name, error):
    """Whatever a stage is called or an exception says, the tags are ours."""
    run = photographs(error=error)
    run.lost = (replace(FAILURE, stage=name, error=error, traceback=error + name, input=name),)
    run.events = (KnobChange(NOW_S, name, 1, 2, name, error),)
    seen = snapshot(run)
    seen["title"] = name
    seen["stages"][0]["address"] = name
    assert Reader(picture_html(seen)).tags <= TAGS


def test_words():
    """In a terminal: title, state, diagnosis, what was turned, and a table of the stages."""
    lines = picture_text(snapshot(photographs())).splitlines()
    assert lines[1].startswith("running, epoch 1 (2 of 3), 412/1,563 batches (26%)")
    assert lines[2].startswith("decode is the bottleneck: training waits 62% of the time (busy 99%")
    assert lines[3] == (
        "changed since export to loader <b>.py: decode.concurrency 4 → 5, batch.concurrency 1 → 2"
    )
    assert [line.split()[0] for line in lines[4:]] == [
        *("stage", "────────────────────────────", "files", "read", "decode", "<img"),
        *("batch", "normalise", "training"),
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], ""),
        ([1], "changed since export to loader.py: s0.concurrency 9 → 1"),
        (
            [1, 2, 3, 4, 5],
            (
                "changed since export to loader.py: s0.concurrency 9 → 1, s1.concurrency 9 → 2, "
                "s2.concurrency 9 → 3 and 2 more"
            ),
        ),
    ],
)
def test_export_line(values, said):
    """Three knobs are named, the others counted; nothing is said where none was turned."""
    turned = [
        {"stage": f"s{place}", "knob": "concurrency", "old": 9, "new": value}
        for place, value in enumerate(values)
    ]
    assert export_line({"file": "loader.py", "turned": turned}) == said


def test_rate_of_an_epoch_that_is_over():
    """After the epoch its mean rate is told: that of the last seconds fades away."""
    run = photographs(state="finished", delivered=1563, elapsed_s=156.3)
    said = picture_text(snapshot(run)).splitlines()[1]
    assert "1,563/1,563 batches (100%), 10 batches/s over 2 min 36 s" in said


def test_bars_are_as_wide_as_their_shares():
    """Each bar is drawn with the shares of its row, to a hundredth of its width."""
    seen = snapshot(photographs())
    bars = re.findall(r'<svg width="140".*?</svg>', picture_html(seen))
    drawn = [
        [int(width) for width in re.findall(r'<rect x="\d+%" width="(\d+)%"', one)] for one in bars
    ]
    shares = [*map(shares_of, seen["stages"]), loop_shares(seen)]
    meant = [[100 * share for share in one.values() if share >= 0.005] for one in shares]
    assert drawn == [pytest.approx(one, abs=1) for one in meant]


def test_loop_that_had_nothing():
    """Where an epoch failed before its first batch, the loop is not said to have trained."""
    had, failed = (
        snapshot(photographs(state="failed", elapsed_s=0.15, waited_s=0.0, delivered=delivered))
        for delivered in (1, 0)
    )
    assert [loop_words(had), loop_words(failed)] == [
        "training 100%, waits for data 0%",
        NONE,
    ]


@pytest.mark.parametrize("state", ["ready", "closed"])
def test_loop_before_the_first_epoch(state):
    """Before any epoch the training loop is not said to be busy."""
    run = photographs(state=state, elapsed_s=0.0)
    run.rows["consumer"] = replace(run.rows["consumer"], busy=0, starved=0)
    seen = snapshot(run)
    row = picture_html(seen).split("training loop")[1].split("</tr>")[0]
    last = picture_text(seen).splitlines()[-1]
    assert ("busy" in last, "busy" in row, "<rect" in row, "\N{EN DASH}" in last) == (
        *(False, False, False),
        True,
    )


def test_loop_of_a_paused_run():
    """The loop of a paused run is neither training nor waiting for data."""
    run = photographs()
    run.pause()
    text = picture_text(snapshot(run))
    (row,) = [line for line in text.splitlines() if line.startswith("training loop")]
    assert (row.split()[-1], "training 38" in row) == ("paused", False)
