"""Stages that look back at items, or take batches apart, after `ordered=False`."""

import collections
import itertools
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

import nbpipe
from nbpipe.base.digest import seal
from tests.gates import Calls, Gate, finished
from tests.resume.checking import at, carried, rest_of

COUNT = 24
ITEMS = list(range(COUNT))


class Uneven:
    """A stage whose calls take 0 to 4 ms, so that they end out of order."""

    def __init__(self, turn):
        self.turn = turn

    def __call__(self, item):
        """Work on an item."""
        time.sleep(zlib.crc32(f"{self.turn} {item}".encode()) % 5 / 1000)
        return item


def both(item):
    """Give two children."""
    yield from (item, item + 100)


def cost(item):
    """Return what an item costs."""
    return 1 + item % 3


def failing(work):
    """Return a stage that fails on some items."""

    def call(item):
        if item % 6 == 2:
            raise ValueError(item)
        return work(item)

    return call


def free(pipe, work, **options):
    """Add a stage in completion order."""
    return pipe.map(
        work, ordered=False, name=f"free{len(pipe.chain)}", **{"concurrency": 4} | options
    )


def once(wanted):
    """Return a check: each item came once."""

    def check(got):
        assert collections.Counter(got) == collections.Counter(wanted)

    return check


def once_in_lists(wanted):
    """Return a check: each item came once, in some list."""
    return lambda got: once(wanted)(itertools.chain.from_iterable(got))


def neighbours(got):
    """Check windows of three, one apart: each begins within the one before it."""
    assert len(got) == COUNT - 2
    assert all(one[1:] == following[:2] for one, following in itertools.pairwise(got))
    assert len({one[0] for one in got}) == len(got)


def within_cost(got):
    """Check batches by cost."""
    once_in_lists(ITEMS)(got)
    assert all(sum(map(cost, batch)) <= 7 for batch in got)


def begin():
    """Return a source with an index."""
    return nbpipe.source(range(COUNT))


def stream():
    """Return a source without one."""
    return nbpipe.source(lambda: iter(range(COUNT)))


def five(pipe):
    """Gather five items."""
    return pipe.batch(5, collate=list)


CHAINS = {
    "dedupe": (
        lambda work: free(free(begin(), work).dedupe(key=lambda item: item % 10), work),
        lambda got: once(range(10))([item % 10 for item in got]),
    ),
    "window": (lambda work: free(begin(), work).window(3), neighbours),
    "apart": (lambda work: free(free(begin(), work).window(4, 4), work), once_in_lists(ITEMS)),
    "unbatch": (lambda work: free(five(free(begin(), work)), work).unbatch(), once(ITEMS)),
    "flat_map": (
        lambda work: five(free(begin(), work)).flat_map(list, ordered=False, concurrency=3),
        once(ITEMS),
    ),
    "children": (
        lambda work: five(begin().map(work).flat_map(both, ordered=False, concurrency=4)).unbatch(),
        once([*ITEMS, *(item + 100 for item in ITEMS)]),
    ),
    "cost": (
        lambda work: free(free(begin(), work).batch(7, cost=cost, collate=list), work),
        within_cost,
    ),
    "buffer": (
        lambda work: five(free(begin(), work).shuffle(buffer_size=6)).unbatch(),
        once(ITEMS),
    ),
    "filter": (
        lambda work: five(
            free(begin(), work).filter(lambda item: item % 4 != 1, ordered=False, concurrency=3)
        ).unbatch(),
        once([item for item in ITEMS if item % 4 != 1]),
    ),
    "skipped": (
        lambda work: five(free(begin(), failing(work), on_error="skip")).unbatch(),
        once([item for item in ITEMS if item % 6 != 2]),
    ),
    "route": (
        lambda work: free(begin(), work).route(
            lambda item: item % 2, {0: lambda even: even.window(3, 3), 1: five}
        ),
        once_in_lists(ITEMS),
    ),
    "zip": (
        lambda work: five(nbpipe.zip(free(begin(), work), free(begin(), work))).unbatch(),
        lambda got: [once(ITEMS)(column) for column in zip(*got, strict=True)],
    ),
    "passes": (lambda work: free(free(stream(), work).repeat(3), work), once(ITEMS * 3)),
    "passes_drawn": (
        lambda work: free(stream().repeat(2).shuffle(buffer_size=2), work),
        once(ITEMS * 2),
    ),
    "passes_apart": (
        lambda work: five(free(stream(), work).repeat(3)).unbatch(),
        once(ITEMS * 3),
    ),
    "passes_within": (
        lambda work: free(free(free(stream(), work).repeat(2), work).repeat(2), work),
        once(ITEMS * 4),
    ),
    "processes": (
        lambda work: five(
            free(free(begin(), work, executor="process"), work, executor="process")
        ).unbatch(),
        once(ITEMS),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1, 8), (6, 11), (13, 0), (17, 3, 2), (24, 0, 1)])
@pytest.mark.parametrize("name", CHAINS)
def test_each_comes_once(name, cuts):
    """An epoch that is resumed several times gives each item once."""
    build, check = CHAINS[name]
    got, state = [], None
    for turn, count in enumerate(cuts):
        with build(Uneven(turn)).start() as run:
            if state is not None:
                run.load_state_dict(state)
            got += itertools.islice(iter(run), count)
            state = carried(run.state_dict())
            if len(got) < sum(cuts[: turn + 1]):
                break
    else:
        got += rest_of(build(Uneven(9)), state)
    check(got)


def test_stages_inside_a_source_keep_the_order():
    """Stages that run inline, in the thread of the source."""
    pipe = begin().map(abs, executor="inline", ordered=False)
    pipe = pipe.filter(lambda item: item % 4 != 1, executor="inline", ordered=False)
    got, state = at(five(pipe).unbatch(), 7)
    assert [*got, *rest_of(five(pipe).unbatch(), carried(state))] == [
        item for item in ITEMS if item % 4 != 1
    ]


KNOBS = [{"concurrency": 1, "prefetch": 1}, {"executor": "process"}, {"executor": "inline"}]


@pytest.mark.parametrize("options", KNOBS, ids=str)
@pytest.mark.parametrize("cut", [3, 12])
def test_other_knobs_and_executors(options, cut):
    """Knobs and executors may be others after the resume."""

    def build(turn, **options):
        work = Uneven(turn)
        if options.get("executor") == "inline":
            return five(begin().map(work, ordered=False, name="free1", **options)).unbatch()
        return five(free(begin(), work, **options)).unbatch()

    got, state = at(build(1, concurrency=8, prefetch=16), cut)
    once(ITEMS)([*got, *finished(lambda: rest_of(build(2, **options), carried(state)))])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_two_stages_together_in_workers_or_apart(executor):
    """Stages may share their workers before the resume, or after it, or not."""
    other = {"thread": "process", "process": "thread"}[executor]

    def build(turn, executor):
        pipe = free(begin(), Uneven(turn), executor=executor)
        pipe = pipe.filter(lambda item: item % 4 != 1, executor=executor, concurrency=4)
        return five(free(pipe, Uneven(turn + 1), executor=executor)).unbatch()

    got, state = at(build(1, executor), 7)
    rest = rest_of(build(2, other), carried(state))
    once([item for item in ITEMS if item % 4 != 1])([*got, *rest])


@pytest.mark.slow
def test_isolated():
    """A run in a process of its own resumes likewise."""
    build, check = CHAINS["unbatch"]
    got, state = at(build(Uneven(1)), 8, isolate=True)
    check([*got, *rest_of(build(Uneven(2)), carried(state), isolate=True)])


@pytest.mark.parametrize("op", ["map", "flat_map"])
def test_an_item_that_does_not_come_again(op):
    """A filter may leave out an item that it let pass before."""
    gone = set()

    def build(turn):
        pipe = begin().filter(lambda item: item not in gone)
        if op == "map":
            return free(pipe, Uneven(turn)).window(2)
        return pipe.map(Uneven(turn)).flat_map(both, ordered=False, concurrency=4).window(2)

    got, state = at(build(1), 9)
    gone |= {*ITEMS} - {item % 100 for window in got for item in window}
    rest = finished(lambda: rest_of(build(2), carried(state)))
    assert len(got) + len(rest) < (COUNT if op == "map" else 2 * COUNT) - 1


def test_an_error_after_a_resume():
    """What an error kept back comes after the next resume, and once."""
    fails = set()

    def work(item):
        time.sleep(item * 7 % 5 / 1000)
        if item in fails:
            raise ValueError(item)
        return item

    def build():
        return five(free(begin(), work)).unbatch()

    got, state = at(build(), 3)
    fails |= {max(ITEMS)} | {item for item in ITEMS if item not in got and item % 2}
    with build().start() as run:
        run.load_state_dict(carried(state))
        items = iter(run)

        def rest():
            with pytest.raises(nbpipe.StageError, match="ValueError"):
                got.extend(items)

        finished(rest)
        state = carried(run.state_dict())
    fails.clear()
    once(ITEMS)([*got, *rest_of(build(), state)])


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 2])
def test_failures_of_later_passes_count_once(more):
    """Each failure counts once, also in a state that is in two passes at once."""

    def work(item):
        time.sleep(item % 3 / 1000)
        if item in {0, COUNT - 1}:
            raise ValueError(item)
        return item

    def build(turn, limit):
        pipe = free(stream(), work, on_error="skip", max_failures=limit)
        return free(pipe.repeat(3), Uneven(turn))

    for cut in (20, 21, 22, 23, 24, 30, 40):
        got, state = at(build(1, 6), cut)
        with build(3, 6).start() as run:
            run.load_state_dict(carried(state))
            got += itertools.islice(iter(run), more)
            state = carried(run.state_dict())
        rest = rest_of(build(2, 6), state)
        once(ITEMS[1:-1] * 3)([*got, *rest])
        with pytest.raises(nbpipe.FailureBudgetError, match="6 of"):
            rest_of(build(2, 5), state)


def test_results_keep_the_order_of_the_input():
    """The stages before one that looks back keep input order, whatever `ordered` says."""
    first, later = Gate(), Calls()

    def work(item):
        if item == 0:
            first.wait()
        else:
            later.enter(item)
        return item

    with free(begin(), work).dedupe().start() as run, ThreadPoolExecutor(1) as pool:
        got = pool.submit(list, run)
        later.wait_begun(3)
        first.open()
        assert finished(got.result) == ITEMS


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("looks_back", [False, True])
def test_another_order_than_before(ordered, looks_back):
    """A state loads whether its stages were in completion order or not."""

    def build(ordered):
        pipe = begin().map(abs, ordered=ordered, name="work")
        return pipe.window(3, 3) if looks_back else pipe

    got, state = at(build(ordered), 5)
    both = [*got, *rest_of(build(not ordered), carried(state))]
    once(ITEMS)(itertools.chain.from_iterable(both) if looks_back else both)


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_of_an_earlier_version_loads(number):
    """It says in which order results had come; that is ignored."""
    _, state = at(begin().map(abs, ordered=False, name="work").window(2), 5)
    fields = {key: state[key] for key in state if key != "seal"}
    stages = state["stages"] | {"work": {"order": [[0, 5], [6, 7], [5, 6]]}}
    fields |= {"nbpipe": number, "unordered": ["work"], "stages": stages}
    rest = rest_of(
        begin().map(abs, ordered=False, name="work").window(2), fields | {"seal": seal(fields)}
    )
    assert rest == [[item, item + 1] for item in range(5, COUNT - 1)]


def test_states_tell_no_order():
    """However many items were done out of order, a state stays short."""
    with free(nbpipe.source(range(10_000)), abs).dedupe().start() as run:
        items = iter(run)
        for _ in range(5_000):
            next(items)
        assert len(str(run.state_dict())) < 1_000
