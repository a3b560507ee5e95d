"""A peek runs a few items in the calling thread, as a run would, and leaves nothing behind."""

import asyncio
import dataclasses
import itertools
import threading

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

import nbpipe
import nbpipe.peek  # so that its clock can be set
from tests.chains import build, outcome, words_in
from tests.engine.inner import gil
from tests.gates import set_clock
from tests.strategies import RECIPES


def pair(x):
    """Make an item longer."""
    return (x, 1)


def odd_thirds(x):
    """Keep two items of three."""
    return (sum(x) if isinstance(x, tuple) else x) % 3 != 1


def picky(x):
    """Fail on one item of seven."""
    if x % 7 == 5:
        raise ValueError(x)
    return x


async def slow(x):
    """Give the loop a turn."""
    await asyncio.sleep(0)
    return (x, 2)


async def slow_children(x):
    """Give none to three children, a turn of the loop apart."""
    for n in range(sum(x) % 4):
        yield (x, n)
        await asyncio.sleep(0)


def numbers():
    """Give numbers afresh."""
    yield from range(9)


async def slow_numbers():
    """Give numbers, a turn of the loop apart."""
    for number in range(7):
        yield number
        await asyncio.sleep(0)


def fails_in_a_join(recipe):
    """Return whether an input of a join may fail: how far a run reads ahead of it is chance."""
    return "fatal" in words_in(recipe[0])


@pytest.mark.slow
@given(recipe=RECIPES, n=st.integers(1, 30))
def test_peek_gives_what_a_run_gives(recipe, n):
    """The items of a peek, or its error, are those of epoch 0 of a run."""
    try:
        pipes = build(recipe), build(recipe)
    except nbpipe.ArgumentError:
        reject()
    assume(not fails_in_a_join(recipe))
    items, error = outcome(itertools.islice(pipes[0], n))
    try:
        peeked = outcome(pipes[1].peek(n).items)
    except nbpipe.StageError as raised:
        peeked = [], outcome(raising(raised))[1]
    assert peeked == (([], error) if error else (items, None))


def raising(error):
    """Raise an error where items are asked for."""
    yield from ()
    raise error


def test_errors_of_a_whole_epoch():
    """What a run says of all its items, of their number or of failures, a peek says, too."""
    uneven = nbpipe.zip(nbpipe.source(range(3)), nbpipe.source(range(2)))
    with pytest.raises(nbpipe.ArgumentError, match="pipeline 1 ended after 2 items"):
        uneven.peek(9)
    with pytest.raises(nbpipe.FailureBudgetError, match="picky"):
        nbpipe.source(range(9)).map(picky, on_error="skip", max_failures=0).peek(9)


# -- what is shown ---------------------------------------------------------------------------------


def test_every_stage_shows_what_it_gave():
    """A row holds address, operation, count, type, shape, dtype and range of the first item."""
    pipe = nbpipe.source(range(4, 100), name="files").map(
        lambda i: np.full((2, 3), i, np.int16), name="decode"
    )
    peek = pipe.batch(2).peek()
    decode = peek.stages[1]
    shown = (decode.address, decode.op, decode.items, decode.calls, decode.output.shape)
    found = shown, decode.output.dtype, decode.output.low, decode.output.high
    assert found == (("decode", "map", 2, 2, (2, 3)), "int16", 4, 4)


def test_no_more_is_run_than_the_items_need():
    """A stage is called as often as the items that come out need, whatever the prefetch."""
    peek = nbpipe.source(range(100), prefetch=50).map(pair).filter(odd_thirds).batch(2).peek(2)
    assert [stage.items for stage in peek.stages] == [6, 6, 4, 2]


def test_joins_take_from_their_inputs_in_turn():
    """Of two pipelines that are zipped, neither runs ahead of the other by more than an item."""
    peek = nbpipe.zip(nbpipe.source(range(9)).map(pair), nbpipe.source(range(9)).map(slow)).peek(3)
    assert [stage.items for stage in peek.stages] == [3, 3, 3, 3, 3]


def test_stages_that_order_a_source_show_its_items():
    """Stages that only act on the order of a source have rows; `enumerate` shows its pairs."""
    peek = nbpipe.source([5, 6, 7]).skip(1).enumerate().take(2).peek(2)
    assert [(s.address, s.items, s.output.text) for s in peek.stages] == [
        ("source", 2, "int 6"),
        ("skip", 2, "int 6"),
        ("enumerate", 2, "tuple of 2: int 0, int 6"),
        ("take", 2, "tuple of 2: int 0, int 6"),
    ]


def test_fused_stages_show_what_each_gave():
    """Inline stages have rows of their own: their items, not those of the stage at the end."""
    pipe = nbpipe.source(range(9)).map(pair, executor="inline")
    peek = pipe.filter(odd_thirds, executor="inline").map(str, executor="inline").peek(3)
    assert [(s.items, s.calls, s.output.text) for s in peek.stages] == [
        (5, 5, "int 0"),
        (5, 5, "tuple of 2: int 0, int 1"),
        (3, 5, "tuple of 2: int 1, int 1"),
        (3, 3, "str '(1, 1)'"),
    ]


def test_first_item_is_described_before_the_next_stage_changes_it():
    """A stage that works in place does not change what the table says of the stage before."""

    def fill(array):
        array += 9
        return array

    pipe = nbpipe.source(range(3)).map(lambda _: np.zeros(2), name="make")
    pipe = pipe.map(fill, executor="inline").map(fill, name="again")
    assert [stage.output.high for stage in pipe.peek().stages] == [0, 0, 9, 18]


def test_route_shows_branches_and_items():
    """A route's row shows the items that come out of it, its branches' rows what they gave."""
    pipe = nbpipe.source([2, 3]).route(lambda x: x % 2, {0: lambda c: c.map(str), 1: lambda c: c})
    peek = pipe.peek(2)
    assert [(s.address, s.items, s.output.text) for s in peek.stages] == [
        ("source", 2, "int 2"),
        ("str@0", 1, "str '2'"),
        ("route", 2, "str '2'"),
    ]


def test_skipped_and_repeated_items_are_noted():
    """The note of a stage counts what it skipped and tried again, with the last error."""
    retry = nbpipe.Retry(2, then="skip")
    peek = nbpipe.source(range(4, 9)).map(picky, on_error=retry).peek(2)
    note = "2 tried again; 1 skipped, last: ValueError: 5"
    assert (peek.items, peek.stages[1].note, note in repr(peek)) == ((4, 6), note, True)


def test_empty_pipeline_gives_a_table_without_items():
    """A source without items gives no items, and a table that says so."""
    peek = nbpipe.source([]).map(pair).peek(3)
    assert (peek.items, repr(peek).splitlines()) == (
        (),
        [
            "0 items through 2 stages: source gave none",
            "stage   operation  items  output  range  per call",
            "──────  ─────────  ─────  ──────  ─────  ────────",
            "source  source     0",
            "pair    map        0",
        ],
    )


def test_heads_of_columns_say_what_is_in_them():
    """Under the mouse a column's head says what the column holds."""
    shown = nbpipe.source([1]).map(abs).peek(1)._repr_html_()
    assert '<th title="mean time of a call, without the first one">per call</th>' in shown


def test_images_have_thumbnails():
    """The HTML shows a picture of an image, also where it is a field of an item."""
    image_HWC = np.zeros((90, 60, 3), np.uint8)
    peek = (
        nbpipe.source([0]).map(lambda _: image_HWC).map(lambda x: {"image": x, "label": 1}).peek()
    )
    shows = [stage.thumbnail is not None for stage in peek.stages]
    assert (shows, peek._repr_html_().count("data:image/png;base64,")) == ([False, True, True], 2)


def test_html_escapes_what_comes_from_outside():
    """Names, items and errors are shown as text in the HTML."""
    script = "<img src=x onerror=alert(1)>"

    def fail(x):
        if x == script:
            raise ValueError(script)
        return f"{x} & more"

    peek = nbpipe.source([script, "<b>"]).map(fail, name="<i>fail", on_error="skip").peek()
    html = peek._repr_html_()
    assert [text in html for text in ("<img src", "<b>", "<i>", "&lt;img src=x")] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (np.array([1, 254]), "1 to 254"),
        ({"image": np.array([0.5, 1.0]), "label": 7}, "image 0.5 to 1"),
        ({"image": np.array([0, 9]), "mask": np.array([True])}, "image 0 to 9, mask 1 to 1"),
        ((np.array([2, 3]), "cat.jpg"), "2 to 3"),
        ({"jpeg": b"abc", "none": np.array([])}, ""),
    ],
)
def test_range(item, told):
    """The range of an array is told, and those of the arrays in an item by their names."""
    assert nbpipe.source([0]).map(lambda _: item).peek().stages[1].row()[4] == told


def test_peek_is_frozen():
    """What a peek saw does not change."""
    peek = nbpipe.source([1]).peek()
    with pytest.raises(dataclasses.FrozenInstanceError) as raised:
        peek.items = ()
    assert raised.type is dataclasses.FrozenInstanceError


# -- how it runs -----------------------------------------------------------------------------------


def test_functions_run_in_the_calling_thread():
    """Plain functions are called in the thread that peeks, and no thread is started."""
    before = threading.active_count()
    pipe = nbpipe.source(range(3)).map(
        lambda _: (threading.current_thread(), threading.active_count())
    )
    assert pipe.peek().items == ((threading.current_thread(), before),)


def test_coroutines_run_while_a_loop_is_running():
    """A kernel's main thread has a running loop: coroutine stages run all the same."""

    async def cell():
        pipe = nbpipe.source(slow_numbers).map(slow).flat_map(slow_children)
        return pipe.peek(3).items

    assert asyncio.run(cell()) == (((0, 2), 0), ((0, 2), 1), ((1, 2), 0))


@pytest.mark.parametrize("kind", ["source", "flat_map", "async"])
def test_open_generators_are_closed(kind):
    """A generator that a peek leaves in the middle is closed before the peek returns."""
    closed = []

    def endless(start=0):
        try:
            while True:
                yield (start := start + 1)
        finally:
            closed.append(kind)

    async def endless_async():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(kind)

    {
        "source": nbpipe.source(endless),
        "flat_map": nbpipe.source([5]).flat_map(endless),
        "async": nbpipe.source(endless_async),
    }[kind].peek(2)
    assert closed == [kind]


def test_failure_closes_what_is_open():
    """A stage that fails ends the peek with its error, and the source is closed."""
    closed = []

    def files():
        try:
            yield from range(4, 100)
        finally:
            closed.append("files")

    with pytest.raises(nbpipe.StageError, match="stage 'picky' failed on item 1: ValueError: 5"):
        nbpipe.source(files).map(picky).peek(3)
    assert closed == ["files"]


def test_interrupt_inside_a_function_is_an_interrupt():
    """Ctrl-C in a user's function is no failure of the stage: it was meant for the cell."""

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        nbpipe.source(range(3)).map(interrupted, on_error="skip").peek()
    assert raised.type is KeyboardInterrupt


def test_unordered_stage_gives_its_items():
    """A stage in completion order gives its items in the order of its calls."""
    peek = nbpipe.source(range(5)).map(pair, ordered=False, concurrency=4).peek(3)
    assert peek.items == ((0, 1), (1, 1), (2, 1))


def test_knobs_are_not_touched():
    """A peek neither changes knobs nor waits for what they say."""
    pipe = nbpipe.source(range(5)).map(pair, concurrency=3, prefetch=4)
    pipe.peek(2)
    knobs = {name: knob.value for name, knob in pipe["pair"].knobs.items()}
    assert knobs == {"concurrency": 3, "prefetch": 4}


# -- caches ----------------------------------------------------------------------------------------


def test_peek_writes_no_cache(tmp_path):
    """A cache that was not written before a peek is not written after it."""
    folder = tmp_path / "cache"
    pipe = nbpipe.source(range(3)).cache(folder).map(pair).cache()
    pipe.peek(10)
    found = folder.exists(), pipe["cache"].spec.store.complete, pipe["cache_2"].spec.store.complete
    assert found == (False, False, False)


def test_a_cache_behind_an_index_counts_its_items():
    """The row of a cache that is not complete tells of the items that went through."""
    found = nbpipe.source(range(5)).skip(1).cache().peek(3).stages[-1]
    assert (found.address, found.items, found.output.text) == ("cache", 3, "int 1")


def test_passes_of_a_cache_are_those_of_a_run():
    """Later passes of a `repeat` give the order of the first one, as a run does."""
    pipe = nbpipe.source(range(5)).shuffle(seed=0).cache().repeat(3)
    items = pipe.peek(13).items
    assert (pipe["cache"].spec.store.complete, list(items)) == (False, list(pipe)[:13])


def test_peek_reads_a_complete_cache(tmp_path):
    """A complete cache is read, and the stages before it are said not to run."""
    calls = []
    pipe = nbpipe.source(range(3)).map(lambda x: calls.append(x) or x, name="decode")
    pipe = pipe.cache(tmp_path)
    list(pipe)
    calls.clear()
    peek = pipe.peek(2)
    found = peek.items, calls, peek.stages[1].note
    assert found == ((0, 1), [], "not run")


def test_cache_of_another_chain_is_refused(tmp_path):
    """A folder that another chain wrote is refused as a run refuses it."""
    list(nbpipe.source(range(3)).map(pair).cache(tmp_path))
    with pytest.raises(nbpipe.CacheError) as raised:
        nbpipe.source(range(3)).cache(tmp_path).peek()
    assert raised.type is nbpipe.CacheError


# -- warm calls ------------------------------------------------------------------------------------
def test_a_warm_call_is_timed(monkeypatch):
    """Where one item calls a stage once, another is run for the time; neither counts nor shows."""
    set_clock(monkeypatch, itertools.count().__next__)  # the first call took less than a second
    seen = []
    peek = nbpipe.source(range(5)).map(lambda n: seen.append(n) or n, name="see").peek()
    (stage,) = (one for one in peek.stages if one.address == "see")
    assert (seen, peek.items) == ([0, 1], (0,))
    assert (stage.items, stage.calls, stage.note) == (1, 1, "")


def test_a_first_call_is_no_part_of_the_mean(monkeypatch):
    """Where there were others, the time is theirs: the first one opens, imports and compiles."""
    clock = [1]
    set_clock(monkeypatch, lambda: clock[0])

    def work(number):
        clock[0] += 10 if number else 10**9
        return number

    peek = nbpipe.source(range(5)).map(work).peek(3)
    assert [round(one.time_s * 1e9) for one in peek.stages if one.address == "work"] == [10]


def test_items_that_are_enough_are_all():
    """Where each stage was called again and again, no further item is run."""
    seen = []
    nbpipe.source(range(5)).map(lambda n: seen.append(n) or n).peek(3)
    assert seen == [0, 1, 2]


def test_what_may_be_waited_for_is_not_run():
    """A stream may keep one waiting for its next item: the time of a first call is told as such."""

    def stream():
        yield 0
        raise AssertionError("nobody asked")

    peek = nbpipe.source(stream).map(str).peek()
    assert [stage.note for stage in peek.stages] == ["first call", "first call"]


def test_a_failure_of_the_further_item_does_not_matter():
    """What becomes of the item that is run for its time alone is not told."""

    def fail(number):
        if number:
            raise ValueError(number)
        return number

    for options in ({}, {"on_error": "skip"}):
        peek = nbpipe.source(range(2)).map(fail, **options).peek()
        assert (peek.items, peek.stages[1].note) == ((0,), "")


# -- how long calls hold the interpreter lock ------------------------------------------------------
def timed(call_ns, held_ns):
    """Return stand-ins for both ways to time a call; they make it."""

    def beside(self, call, limit_ns):
        call()
        return gil.TimedCall(2 * call_ns, 0.0, held_ns)

    def alone(call):
        call()
        return gil.TimedCall(call_ns, 0.0)

    return alone, beside


@pytest.fixture
def a_third(monkeypatch):
    """Have a call of a stage hold the lock for a third of 1.5 ms, in an interpreter with one."""
    alone, beside = timed(1_500_000, 500_000)
    monkeypatch.setattr(gil, "timed_alone", alone)
    monkeypatch.setattr(gil.Spinner, "timed_beside", beside)
    monkeypatch.setattr(gil.LockProbe, "can_tell", lambda _: True)
    monkeypatch.setattr(gil, "_BUDGET_NS", 0)
    monkeypatch.setattr(nbpipe.peek, "is_locked", lambda: True)


@pytest.mark.usefixtures("a_third")
def test_share_of_the_lock_is_told_below_the_table():
    """A sentence for each function that runs in threads; a reason for those that do not."""
    pipe = nbpipe.source(range(50), name="files").map(pair, name="decode")
    pipe = pipe.filter(bool, executor="inline").map(slow).map(str, executor="process").batch(2)
    plain, peek = pipe.peek(), pipe.peek(lock=True)
    lines = [
        (
            "decode holds the lock 33% of 1.5 ms: about 3 threads help at most; use "
            'executor="process" for more'
        ),
        "bool: no figure, it is a part of the calls of the stage before it",
        "slow: no figure, its calls take turns on the event loop, in one thread",
        "str: no figure, it runs in processes, which have a lock each",
    ]
    assert repr(peek).splitlines()[-4:] == lines
    assert [stage.lock for stage in plain.stages] == [None] * 6
    assert [stage.lock is None for stage in peek.stages] == [True, *[False] * 4, True]
    assert round(peek.stages[1].lock.threads) == 3
    assert peek.items == plain.items
    assert "<div>bool: no figure" in peek._repr_html_()


@pytest.mark.usefixtures("a_third")
@pytest.mark.parametrize(("items", "most"), [(3, 50), (5000, 50)])
def test_items_are_run_again(items, most):
    """The first items go to the functions again, and again where there are few; then no more."""
    seen = []
    nbpipe.source(range(items)).map(lambda n: seen.append(n) or n, name="see").peek(lock=True)
    once = list(range(min(items, len(seen))))
    assert (seen[:2], seen[2 : 2 + len(once)][:3], len(seen) <= most) == ([0, 1], once[:3], True)
    assert len(seen) > 6


@pytest.mark.usefixtures("a_third")
def test_a_further_item_that_fails_does_not_matter():
    """The finding rests on the calls before it; an interrupt is raised."""

    def fail(number):
        if number == failing:
            raise error
        return number

    failing, error = 2, ValueError("so")
    peek = nbpipe.source(range(9)).map(fail).peek(lock=True)
    assert (peek.items, peek.stages[1].lock.why_none) == ((0,), "it makes too few calls to tell")
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as raised:
        nbpipe.source(range(9)).map(fail).peek(lock=True)
    assert raised.type is KeyboardInterrupt


@pytest.mark.usefixtures("a_third")
def test_nothing_is_left_of_it():
    """Sources are closed and no thread is left; knobs and caches are as before."""
    before, closed = threading.active_count(), []

    def files():
        try:
            yield from range(100)
        finally:
            closed.append(1)

    pipe = nbpipe.source(files).map(pair, concurrency=3).cache()
    pipe.peek(lock=True)
    assert (threading.active_count(), closed) == (before, [1, 1])
    assert (pipe["pair"].concurrency, pipe["cache"].spec.store.complete) == (3, False)


def test_on_a_busy_machine_nothing_is_run_again(monkeypatch):
    """Where the machine is too busy to tell, functions are given no further items."""
    monkeypatch.setattr(gil.LockProbe, "can_tell", lambda _: False)
    monkeypatch.setattr(nbpipe.peek, "is_locked", lambda: True)
    seen = []
    pipe = nbpipe.source(range(50)).map(lambda n: seen.append(n) or n, name="see")
    told = pipe.peek(2, lock=True).stages[1].lock.why_none
    assert (told, seen) == ("the machine is too busy to tell; measure again", [0, 1])


def test_without_an_interpreter_lock(monkeypatch):
    """Free-threaded Python has none, and nothing is run to see it."""
    monkeypatch.setattr(nbpipe.peek, "is_locked", lambda: False)
    use = nbpipe.source(range(50)).map(pair).peek(2, lock=True).stages[1].lock
    assert (use.share, "no interpreter lock" in use.why_none) == (None, True)
