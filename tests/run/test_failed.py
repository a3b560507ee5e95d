"""Failed items as a table, with what of the source they were made of; and once more."""

import functools
import gc
import itertools
import linecache
import re
import traceback
import weakref

import numpy as np
import pytest

import nbpipe
from tests.gates import until

PATHS = [f"/data/photos/img_{number:03d}.jpg" for number in range(40)]


def decode(path):
    """Fail on every seventh file."""
    if number_of(path) % 7 == 3:
        raise ValueError(f"bad header in {path}")
    return path


def number_of(path):
    """Return the number in the name of a file."""
    return int(path[-7:-4])


def is_bad(number):
    """Return whether an item of this number fails."""
    return number % 7 == 3


def checked(number):
    """Fail on every seventh number."""
    if is_bad(number):
        raise ValueError(str(number))
    return number


HEADS = {
    "plain": lambda files: files,
    "shuffled": lambda files: files.shuffle(seed=3),
    "a rank": lambda files: files.shuffle(seed=3).shard(1, 3),
    "a padded rank": lambda files: files.shard(10, 11).shuffle(seed=1),
    "cut": lambda files: files.skip(5).take(20),
    "passes": lambda files: files.shuffle().repeat(2),
    "drawn": lambda files: files.sample([1 + (n % 3) for n in range(40)], n=60),
    "passes behind": lambda files: files.shuffle().map(str).repeat(2),
    "cached": lambda files: files.shuffle().map(str).cache(),
    "cached behind a join": lambda files: nbpipe.mix([files.shuffle()]).cache(),
    "cached of what is cached": lambda files: files.shuffle().map(str).cache().take(25).cache(),
    "buffered": lambda files: files.map(str).shuffle(buffer_size=5),
    "paths of several lengths": lambda files: (
        of_several_lengths(files).shard(0, 2).shuffle().repeat(2)
    ),
}


def of_several_lengths(files):
    """Join what is read once, in another order each time, and what is read twice."""
    return nbpipe.concat(files.shuffle(seed=2), nbpipe.source(PATHS[:9], name="twice").repeat(2))


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("head", ["shuffled", "passes", "a rank", "paths of several lengths"])
def test_source_items_of_a_source_that_has_grown(head, isolate):
    """What failed in an earlier epoch is named as of the length that the source had then."""
    files = PATHS[:25]
    pipe = HEADS[head](nbpipe.source(files)).map(decode, on_error="skip")
    with pipe.start(isolate=isolate) as run:
        for _ in range(3):
            list(run)
            files.extend(PATHS[len(files) :][:5])
        failures = run.failures()
        again = list(run.retry_failed().start())
    assert [one.error for one in failures] == [
        f"ValueError: bad header in {one.source}" for one in failures
    ]
    assert {1, 2} <= {one.epoch for one in failures}
    assert again == []


def test_source_items_of_a_cache_whose_source_has_grown():
    """What a cache holds is named as of the length of the epoch that made it."""
    files = PATHS[:25]
    cached = nbpipe.source(files).shuffle().map(str).cache().map(decode, on_error="skip")
    with cached.start() as run:
        list(run)
        files.extend(PATHS[25:])
        list(run)
        failures = run.failures()
    assert [one.error for one in failures] == [
        f"ValueError: bad header in {one.source}" for one in failures
    ]
    assert {one.epoch for one in failures} == {0, 1}


@pytest.mark.parametrize("head", HEADS)
def test_source_items(head):
    """Each failed item names the file that it was made of, in every order and epoch."""
    pipe = HEADS[head](nbpipe.source(PATHS)).map(decode, on_error="skip").map(str)
    with pipe.start() as run:
        for _ in range(2):
            list(run)
        failures = run.failures()
    assert [one.error for one in failures] == [
        f"ValueError: bad header in {one.source}" for one in failures
    ]
    assert [PATHS[one.index] for one in failures] == [one.source for one in failures] != []


class Torn(list):
    """Files of which every seventh cannot be read any more, once so many were read."""

    def __init__(self, paths, after=0):
        super().__init__(paths)
        self.left = after

    def __getitem__(self, index):
        """Read a file."""
        self.left -= 1
        path = super().__getitem__(index)
        return path if self.left >= 0 else decode(path)


def failed(run, epochs=1):
    """Iterate until an epoch fails; return its error and the record of what failed."""
    with pytest.raises(nbpipe.StageError) as raised:
        list(itertools.chain.from_iterable(itertools.repeat(run, epochs)))
    return raised.value, run.failures()[-1]


@pytest.mark.parametrize("after", [0, 26, 47])
@pytest.mark.parametrize("head", HEADS)
def test_source_that_cannot_read_an_item(head, after):
    """An item that the source itself fails on is named in every order, epoch and pass."""
    after = min(after, 10) if "cached" in head else after
    with HEADS[head](nbpipe.source(Torn(PATHS, after))).start() as run:
        error, failure = failed(run, epochs=15)
        assert str(error.__cause__) == f"bad header in {PATHS[failure.index]}"


@pytest.mark.parametrize("head", sorted(HEADS.keys() - {"buffered", "cached behind a join"}))
def test_source_and_stages_call_an_item_alike(head):
    """An item has one path, whoever fails on it: the source, a stage, a run that went on."""
    with HEADS[head](nbpipe.source(PATHS)).map(decode).start() as run:
        expected = failed(run)[0].path
    with HEADS[head](nbpipe.source(Torn(PATHS))).start() as run:
        assert failed(run)[0].path == expected
    with HEADS[head](nbpipe.source(PATHS)).start() as run:
        items, state = iter(run), run.state_dict()
        for _ in itertools.takewhile(lambda path: not is_bad(number_of(path)), items):
            state = run.state_dict()
    with HEADS[head](nbpipe.source(Torn(PATHS))).start() as run:
        run.load_state_dict(state)
        error, failure = failed(run)
        assert (error.path, PATHS[failure.index]) == (expected, str(error.__cause__)[14:])


def test_items_are_counted_where_an_inline_filter_drops_some():
    """A stream that fails behind items which were dropped at once tells the right place."""

    def numbers():
        yield from range(40)
        raise ValueError("torn")

    pipe = nbpipe.source(numbers, prefetch=2).filter(lambda n: n % 2, executor="inline")
    with pipe.start() as run:
        assert failed(run)[0].path == 40


def test_source_items_through_joins():
    """A stage inside a joined pipeline, and one behind the join, name the file of their source."""
    one = nbpipe.source(PATHS[:20], name="a").map(decode, on_error="skip", name="inside")
    both = nbpipe.mix([one, nbpipe.source(PATHS[20:], name="b")]).map(
        decode, on_error="skip", name="behind"
    )
    with both.start() as run:
        list(run)
        assert {(one.stage, one.source) for one in run.failures()} == {
            ("inside" if number < 20 else "behind", PATHS[number])
            for number in filter(is_bad, range(40))
        }


def test_source_items_of_an_order_from_outside_and_of_its_own():
    """Epochs of one number in an order from outside and in the pipeline's own are told apart."""
    with nbpipe.source(PATHS).map(decode, on_error="skip").start() as run:
        for order in ([1, 9, 24, 17], None, [3]):
            run.set_epoch(0)
            list(run if order is None else run.iterate(order))
        failures = run.failures()
    assert [one.external for one in failures] == [True, True, *[False] * 6, True]
    assert [one.index for one in failures if one.external] == [24, 17, 3]
    assert [f"ValueError: bad header in {one.source}" for one in failures] == [
        one.error for one in failures
    ]


def test_source_items_of_a_batch():
    """A batch names its first item and how many there are more, and all are tried again."""

    def spoilt(batch):
        if 5 in batch:
            raise ValueError("no batch")
        return batch

    pipe = nbpipe.source(range(100, 112)).map(lambda n: n - 100).batch(4)
    with pipe.map(spoilt, on_error="skip").start() as run:
        list(run)
        (failure,) = run.failures()
        assert (failure.source, failure.index) == ("int 104 and 3 more", 4)
        assert list(run.retry_failed().take(1)) == []
        assert run.retry_failed()["source"].spec.rows == 4


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("shuffled", [False, True])
def test_source_items_of_a_batch_over_two_passes(which, shuffled):
    """A batch that has items of two passes of a `repeat`, or of three, names those of all."""
    batches = []

    def spoilt(batch):
        batches.append(batch)
        if len(batches) == which + 1:
            raise ValueError("no batch")

    files = nbpipe.source(PATHS[:3])
    repeated = (files.shuffle() if shuffled else files).map(str).repeat(5)
    with repeated.batch(4, collate=list).map(spoilt, on_error="skip").start() as run:
        list(run)
        (failure,) = run.failures()
        assert failure.source == f"{batches[which][0]} and {len(batches[which]) - 1} more"
        assert sorted(run.retry_failed()["source"].spec.items) == sorted({*batches[which]})


@pytest.mark.parametrize(
    "behind",
    [
        lambda batches: batches.unbatch(),
        lambda batches: batches.flat_map(list),
        lambda batches: batches.filter(bool).unbatch(),
        lambda batches: batches.shuffle(buffer_size=4).unbatch(),
    ],
)
def test_source_items_of_what_was_in_a_batch(behind):
    """An item that came out of a batch names all of it, and is among what is tried again."""

    def refuse(number):
        if number in (105, 110):
            raise ValueError(number)
        return number

    batches = nbpipe.source(list(range(100, 112))).batch(4, collate=list)
    with behind(batches).map(refuse, on_error="skip").start() as run:
        list(run)
        named = {failure.source for failure in run.failures()}
        with run.retry_failed().start() as again:
            list(again)
            errors = {failure.error for failure in again.failures()}
    assert named == {"int 104 and 3 more", "int 108 and 3 more"}
    assert errors == {"ValueError: 105", "ValueError: 110"}


@pytest.mark.parametrize(
    "ahead",
    [
        lambda numbers: numbers.shuffle(buffer_size=5),
        lambda numbers: numbers.map(int).shard(1, 2),
        lambda numbers: numbers.map(int).shard(0, 3, tail="drop"),
    ],
)
def test_source_items_of_a_batch_of_no_neighbours(ahead):
    """Of a batch of items that did not follow one another, none is named that it does not hold."""

    def refuse(batch):
        raise ValueError(batch[0])

    pipe = ahead(nbpipe.source(range(12))).batch(3, collate=list)
    batches = list(pipe)
    with pipe.map(refuse, on_error="skip").start() as run:
        list(run)
        named = [failure.source for failure in run.failures()]
        again = run.retry_failed()["source"].spec.rows
    assert (named, again) == ([f"int {batch[0]}" for batch in batches], len(batches))


def test_source_items_of_a_stream():
    """What can only be read from its beginning names the place, and is read again up to there."""
    counted = nbpipe.source(lambda: itertools.islice(itertools.count(), 20), name="counted")
    with counted.map(checked, on_error="skip").start() as run:
        list(run)
        assert [one.index for one in run.failures()] == [3, 10, 17]
        with run.retry_failed().start() as again:
            list(again)
            assert [one.input for one in again.failures()] == ["int 3", "int 10", "int 17"]
            assert [one.index for one in again.failures()] == [3, 10, 17]


def test_source_items_of_a_cache_elsewhere():
    """Where a process of its own filled a shuffled cache, its order is not guessed."""
    files = nbpipe.source(PATHS).shuffle().map(str).cache()
    with files.map(decode, on_error="skip").start(isolate=True) as run:
        list(run)
        assert {one.source for one in run.failures()} == {""}
        assert list(run.retry_failed()) == []


def test_slow_items_are_not_read():
    """An item of a dataset is not read for its name."""
    read = []

    class Dataset:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            read.append(index)
            return index

    with nbpipe.source(Dataset()).map(checked, on_error="skip").start() as run:
        list(run)
        before = len(read)
        assert [one.source for one in run.failures()] == ["item 3 of Dataset"]
    assert len(read) == before


def test_source_that_shrank():
    """A source that has changed since costs the name, not the table."""
    paths = PATHS[:10]
    with nbpipe.source(paths).map(decode, on_error="skip").start() as run:
        list(run)
        del paths[:]
        assert [(one.source, one.index) for one in run.failures()] == [("", None)]


# -- once more -------------------------------------------------------------------------------------
def test_retry_failed():
    """The pipeline of failed items has each source item once, and all stages but what cuts."""
    broken = {3, 10, 17}

    def fetch(path):
        if number_of(path) in broken:
            raise OSError("connection reset")
        return path

    pipe = nbpipe.source(PATHS, name="files").shuffle().shard(0, 1).take(38)
    pipe = pipe.map(fetch, on_error="skip", concurrency=4).repeat(2).batch(8, drop_last=True)
    with pipe.start() as run:
        list(run)
        wanted = {one.source for one in run.failures()}
        broken.clear()
        again = run.retry_failed()
        assert [stage.name for stage in again.stages] == ["files", "fetch", "batch"]
        assert again["fetch"].knobs["concurrency"] is pipe["fetch"].knobs["concurrency"]
        assert sorted(itertools.chain(*again)) == sorted(wanted) != []


def test_retry_failed_keeps_what_enumerate_adds():
    """An item comes again as it came, with the number that `enumerate` gave it."""
    failing = nbpipe.source(PATHS).enumerate().shuffle().map(refuse_bad, on_error="skip")
    with failing.start() as run:
        list(run)
        items = run.retry_failed()["source"].spec.items
        assert sorted(items) == [(n, PATHS[n]) for n in filter(is_bad, range(40))]


def refuse_bad(pair):
    """Fail on every seventh file of pairs."""
    decode(pair[1])
    return pair


def test_retry_of_a_retry():
    """What fails again has the name that it had in the first source."""
    with nbpipe.source(PATHS).shuffle().map(decode, on_error="skip").start() as run:
        list(run)
        with run.retry_failed().start() as again:
            list(again)
            named = [one.source for one in again.failures()]
            assert named == [one.source for one in run.failures()] != []
            assert len(again.retry_failed()) == len(named)


def test_retry_where_nothing_failed():
    """Without failures there is an empty pipeline, and a table that says so."""
    with nbpipe.source(range(3)).map(str).start() as run:
        list(run)
        assert (list(run.retry_failed()), repr(run.failures())) == ([], "No failed items")
        assert "No failed items" in run.failures()._repr_html_()


def test_retry_of_a_join_is_refused():
    """A join has several sources: it is refused with the way out."""
    run = nbpipe.zip(nbpipe.source(range(3))).start()
    with run, pytest.raises(nbpipe.ArgumentTypeError, match="one source, got 'zip', which joins"):
        run.retry_failed()


def test_retry_in_a_process_of_its_own():
    """The failures of an isolated run name their files, too."""
    with nbpipe.source(PATHS).map(decode, on_error="skip").start(isolate=True) as run:
        list(run)
        assert [one.index for one in run.failures()] == list(filter(is_bad, range(40)))
        assert len(run.retry_failed()) == 6


# -- the table -------------------------------------------------------------------------------------
def table_of(names):
    """Return the failures of a pipeline that fails on every file."""

    def fail(name):
        raise ValueError(f"<script>alert(1)</script> | {name}")

    with nbpipe.source(names).map(fail, on_error="skip").start() as run:
        list(run)
        return run.failures()


def test_table_in_html():
    """Text from outside is escaped, tracebacks are folded, and 20 rows are shown."""
    html = table_of([f"<b>{number}.jpg" for number in range(120)])._repr_html_()
    assert ("<script>" in html, "<b>" in html) == (False, False)
    assert (html.count("<details>"), html.count("Traceback (most recent")) == (20, 20)
    assert "Failed items: 100, the last 20 shown" in html
    assert len(html) < 150_000


def test_table_in_markdown():
    """A cell of Markdown holds no bar, no tag and no line of its own."""
    text = table_of(["a|b.jpg"])._repr_markdown_()
    row = text.splitlines()[-1]
    assert ("<" in row, len(re.findall(r"(?<!\\)\|", row))) == (False, 6)


def test_table_in_a_terminal():
    """The end of a long path is shown: the beginnings are alike."""
    text = repr(table_of(["/very/long/folder" * 9 + "/img_1.jpg"]))
    assert "…" in text
    assert "folder/img_1.jpg" in text
    assert np.max([len(line) for line in text.splitlines()]) < 260


# -- the open runs ---------------------------------------------------------------------------------
def test_runs_and_close_all():
    """The open runs are listed as they were started, and all are closed at once."""
    pipe = nbpipe.source(range(3)).map(str)
    first, second, third = pipe.start(), pipe.start(), pipe.start()
    second.close()
    assert [one for one in nbpipe.runs() if one in (first, second, third)] == [first, third]
    nbpipe.close_all()
    assert (nbpipe.runs(), first.closed, third.closed) == ((), True, True)


def test_close_all_closes_the_newest_first():
    """Runs that were made of one another end in the opposite order."""
    ended = []

    def endless(number):
        try:
            yield from itertools.count()
        finally:
            ended.append(number)

    sources = [functools.partial(endless, number) for number in range(3)]
    epochs = [iter(nbpipe.source(one).start()) for one in sources]
    assert [next(epoch) for epoch in epochs] == [0, 0, 0]
    nbpipe.close_all()
    assert ended == [2, 1, 0]


def test_close_all_inside_a_stage():
    """A stage cannot close the run that it is in; the others are closed all the same."""
    other = nbpipe.source(range(3)).start()
    run = nbpipe.source([0]).map(lambda _: nbpipe.close_all()).start()
    with run, pytest.raises(nbpipe.StageError) as caught:
        list(run)
    assert (type(caught.value.__cause__), other.closed) == (nbpipe.ReentrantRunError, True)


# -- Tracebacks are put into words when they are read ----------------------------------------------
class Held:
    """A value that can be watched."""


def chained(n):
    """Fail for a reason."""
    try:
        [][n]
    except IndexError as error:
        raise ValueError("no item") from error


def nested(n):
    """Fail while another failure is handled."""
    try:
        [][n]
    except IndexError:
        undefined_name  # noqa: B018, F821


def noted(n):
    """Fail with a note."""
    error = KeyError(n)
    error.add_note("look here")
    raise error


def grouped(n):
    """Fail several times at once."""
    raise ExceptionGroup("both", [ValueError(n), TypeError(n)])


def misspelled(n):
    """Fail as code with an error in it does."""
    compile("1 +", "some file", "eval")


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("work", [chained, nested, noted, grouped, misspelled])
def test_a_traceback_is_the_one_that_python_writes(work, executor):
    """With causes, notes, marks below the lines; without the frames of nbpipe."""
    with nbpipe.source([3]).map(work, executor=executor, on_error="skip").start() as run:
        assert list(run) == []
        (failure,) = run.failures()
    try:
        work(3)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        expected = "".join(traceback.format_exception(error))
        line = "".join(traceback.format_exception_only(error)[:1]).strip()
    assert (failure.traceback, failure.error) == (expected, line)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_failure_that_nobody_reads_is_not_formatted(monkeypatch, executor):
    """No file is looked at while items fail, and none of their values is held."""
    looked = []
    monkeypatch.setattr(linecache, "checkcache", looked.append)
    monkeypatch.setattr(linecache, "getlines", lambda name, _=None: looked.append(name) or [])
    held = []

    def make(n):
        value = Held()
        held.append(weakref.ref(value))
        return value if executor == "thread" else n

    def work(value):
        raise ValueError("bad")

    pipe = nbpipe.source(range(20)).map(make).map(work, executor=executor, on_error="skip")
    with pipe.start() as run:
        assert list(run) == []
        assert looked == []
        until(lambda: gc.collect() >= 0 and not any(ref() for ref in held))
        assert "in work" in run.failures()[0].traceback
        assert looked != []
