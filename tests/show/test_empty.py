"""An epoch that gives its loop nothing: the stage that is why is named wherever a run is shown."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import nbpipe
from nbpipe.engine.measures.stats import StageStats
from nbpipe.ops.stage import addresses
from nbpipe.show.diagnose import diagnose
from nbpipe.show.picture import bundle
from nbpipe.show.snapshot import snapshot
from tests.gates import finished
from tests.show.fakes import STATUS, FakeWatched


def keep(item):
    """Let nothing pass."""
    return False


def bad(item):
    """Fail."""
    raise ValueError(item)


def none_of(item):
    """Give nothing."""
    return ()


NONE = {
    "list": (nbpipe.source([]), "The source gave 0 items."),
    "behind stages": (nbpipe.source([]).map(abs).batch(2), "The source gave 0 items."),
    "function": (nbpipe.source(lambda: iter(())).map(abs), "The source gave 0 items."),
    "shuffled": (nbpipe.source([]).shuffle(seed=1).map(abs), "The source gave 0 items."),
    "filter": (
        nbpipe.source(range(1000)).map(abs).filter(keep).batch(4),
        "keep let none of 1,000 items pass.",
    ),
    "filter inline": (
        nbpipe.source(range(1000)).filter(keep, executor="inline").batch(4),
        "keep let none of 1,000 items pass.",
    ),
    "flat_map": (
        nbpipe.source(range(7)).flat_map(none_of).batch(4),
        "none_of gave nothing for 7 items.",
    ),
    "skipped": (
        nbpipe.source(range(7)).map(bad, on_error="skip").batch(4),
        "bad failed on 7 of 7 items, and nothing was left.",
    ),
    "take": (nbpipe.source(range(7)).take(0).map(abs), "take left none of 7 items."),
    "skip": (nbpipe.source(range(7)).skip(7).map(abs), "skip left none of 7 items."),
    "shard": (
        nbpipe.source(range(1)).shard(1, 2, tail="drop").map(abs),
        "shard left none of 1 item.",
    ),
    "drop_last": (
        nbpipe.source(range(7)).map(abs).batch(8, drop_last=True),
        "batch dropped the only 7 items, which fill no batch.",
    ),
    "batches": (
        nbpipe.source(range(6)).batch(3).filter(keep),
        "keep let none of 2 batches pass.",
    ),
    "zip": (
        nbpipe.zip(nbpipe.source([]), nbpipe.source(range(5)).map(abs), strict=False),
        "0/source gave 0 items.",
    ),
    "concat": (
        nbpipe.concat(nbpipe.source([]), nbpipe.source(range(5)).filter(keep)),
        "keep let none of 5 items pass.",
    ),
}


@pytest.mark.parametrize("name", NONE)
def test_stage_that_gives_nothing(name):
    """The stage is named with what came to it, in every epoch and once the run is closed."""
    pipe, words = NONE[name]
    with pipe.start() as run:
        said = []
        for _ in range(2):
            assert finished(list, run) == []
            said.append(run.diagnose())
    said.append(run.diagnose())
    assert [one.text for one in said] == [
        f"{state}. {words}" for state in ("Finished", "Finished", "Closed")
    ]
    assert [(one.kind, one.severity, bool(one.advice)) for one in said] == [
        ("empty", "warning", True)
    ] * 3


def test_pictures_of_an_empty_epoch():
    """The snapshot, the saved picture and the text say that the source gave nothing."""
    with nbpipe.source([]).map(abs).start() as run:
        finished(list, run)
        seen, drawn = snapshot(run), bundle(run)
    part = seen["diagnosis"]
    assert (part["kind"], part["severity"], part["stage"]) == ("empty", "warning", "source")
    shown = [text.replace("\xa0", " ") for text in drawn.values()]
    assert [("The source gave 0 items" in text, "keeps up" in text) for text in shown] == [
        (True, False)
    ] * 3


def test_second_epoch_of_a_used_iterator():
    """A function that returns the same iterator again is found by its earlier epochs."""
    once: Iterator[int] = iter(range(4))
    with nbpipe.source(lambda: (n for n in once)).start() as run:
        assert (finished(list, run), finished(list, run)) == ([0, 1, 2, 3], [])
        found = run.diagnose()
    assert found.text == "Finished. source gave 0 items, and 4 in earlier epochs."
    assert found.advice == "Return a new iterator at each call of its function."


def test_progress_of_an_empty_epoch(capsys):
    """The last line of `progress` says it."""
    assert list(nbpipe.progress(nbpipe.source([]))) == []
    assert ". The source gave 0 items. Check its path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pipe", "words"),
    [
        (nbpipe.source([]).map(abs), "0 items an epoch: source has no items"),
        (nbpipe.source(range(7)).take(0), "0 items an epoch: take leaves none of 7 items"),
        (
            nbpipe.source(range(6)).batch(2).take(0),
            "0 batches an epoch: take leaves none of 3 batches",
        ),
    ],
)
def test_table_of_an_empty_pipeline(pipe, words):
    """A pipeline known to be empty says so in its table."""
    assert repr(pipe).partition("\n")[0].endswith(words)
    assert words in pipe._repr_html_()


def test_peek_of_an_empty_pipeline():
    """A look at the first items names the stage that gave none."""
    heads = [
        repr(pipe.peek()).partition("\n")[0]
        for pipe in (nbpipe.source([]).map(abs), nbpipe.source(range(7)).filter(keep).batch(2))
    ]
    assert heads == [
        "0 items through 2 stages: source gave none",
        "0 items through 3 stages: keep gave none for the 7 of source",
    ]


def test_filter_that_lets_nothing_pass_so_far():
    """During an epoch, a filter that let none of many items pass is named."""
    stages = addresses(nbpipe.source(range(9)).filter(keep).batch(2).chain)
    status = replace(STATUS, delivered=0)
    said = [
        diagnose(FakeWatched(stages, {"keep": StageStats(epoch_in=count)}, status)).text
        for count in (99, 5000)
    ]
    assert ("pass" in said[0], said[1]) == (False, "keep let none of 5,000 items pass so far.")


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
def test_epoch_that_was_left_before_its_first_item(state):
    """Nothing is said of stages where the loop left before it could have anything."""
    stages = addresses(nbpipe.source(range(9)).map(abs).chain)
    status = replace(STATUS, state=state, delivered=0)
    found = diagnose(FakeWatched(stages, {"abs": StageStats()}, status))
    assert (found.kind, found.advice, found.suggestion) == ("limits", "", None)
