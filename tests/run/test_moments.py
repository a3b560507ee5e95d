"""What others see of a run, and do to it, while an epoch begins, ends, or is looked at.

Each test does it at every third moment at which another thread may come in between.
"""

import pytest

import nbpipe
from nbpipe import ConcurrentIterationError, RunClosedError
from tests.gates import finished, quiet
from tests.interrupts import Interrupter, joined_everywhere

ITEMS = [0, 1, 2, 3]


def started(**options):
    """Start a run of four items; the state of one is that of all."""
    return nbpipe.source(ITEMS).map(abs, name="same").start(**options)


def second(**options):
    """Give a run that has had one epoch."""
    run = started(**options)
    list(run)
    return run


def in_the_middle():
    """Give a run of whose epoch the loop has had two items; the others are ready."""
    run = started()
    items = loops[run] = iter(run)
    assert [next(items), next(items)] == ITEMS[:2]
    quiet(run)
    return run


loops = {}  # what iterates a run


@pytest.fixture(autouse=True)
def no_loops():
    """Let go of all iterators."""
    yield
    loops.clear()


def begin(run):
    """Begin the next epoch."""
    loops[run] = iter(run)


def turn(run):
    """Have the rest of an epoch, and the first item of the next."""
    rest = list(loops[run])
    loops[run] = iter(run)
    return [*rest, next(loops[run])]


def told(run):
    """Give what a status says of the epoch."""
    status = run.status()
    return status.state, status.epoch, status.delivered, status.ahead


def different(seen):
    """Return the different things that were seen, sorted.

    Threads of the run work beside the steps, so an order of the steps promises nothing.
    """
    return sorted({repr(one) for one in seen})


# -- what is told ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("read_ahead", [False, True])
def test_an_epoch_begins_at_one_moment(read_ahead):
    """A status is of the epoch behind it, or of the one that begins: never of both."""
    before, after = ("finished", 0, 4), ("running", 1, 0)
    seen = [
        said[:3]
        for _, _, said, _ in joined_everywhere(lambda: second(read_ahead=read_ahead), begin, told)
    ]
    assert different(seen) == different([before, after])


def test_an_epoch_ends_at_one_moment():
    """It runs as long as the loop may still get something, and then it is finished."""

    def last():
        run = in_the_middle()
        assert [next(loops[run]), next(loops[run])] == ITEMS[2:]
        return run

    running, finished = ("running", 0, 4), ("finished", 0, 4)
    moments = joined_everywhere(last, lambda run: next(loops[run], "end"), told, step=1)
    assert {(done, said[:3]) for _, done, said, _ in moments} <= {
        ("end", running),
        ("end", finished),
    }

    run = last()
    assert told(run)[:3] == running
    assert next(loops[run], "end") == "end"
    assert told(run)[:3] == finished


def test_a_status_is_of_one_epoch():
    """Also where another thread ends that epoch, and begins the next, while it is asked for."""
    seen = [done[:3] for _, done, _, _ in joined_everywhere(in_the_middle, told, turn)]
    assert different(seen) == different([("running", 1, 1), ("running", 0, 2)])


def test_a_status_counts_the_items_of_its_epoch():
    """Also where the next one, in another order, has begun meanwhile."""

    def given():
        run = started()
        loops[run] = run.iterate([3, 1])
        assert next(loops[run]) == 3
        return run

    def counted(run):
        status = run.status()
        return status.epoch, status.delivered, status.total

    seen = [done for _, done, _, _ in joined_everywhere(given, counted, turn)]
    assert different(seen) == different([(1, 1, 4), (0, 1, 2)])


@pytest.mark.slow
def test_a_state_is_of_one_epoch():
    """Whoever goes on from it misses nothing, also where an epoch ended while it was taken."""
    rests = []
    for _, state, _, _ in joined_everywhere(in_the_middle, nbpipe.Run.state_dict, turn):
        with started() as other:
            other.load_state_dict(state)
            rests.append((list(other), other.epoch))
    assert different(rests) == different([(ITEMS[1:], 1), (ITEMS[2:], 0)])


@pytest.mark.slow
def test_a_state_while_an_epoch_begins():
    """It is that of the beginning, before and after."""
    for _, _, state, where in joined_everywhere(second, begin, nbpipe.Run.state_dict):
        with started() as other:
            other.load_state_dict(state)
            assert (list(other), other.epoch) == (ITEMS, 1), where


@pytest.mark.slow
def test_a_closed_run_knows_what_the_loop_has_had():
    """It may take another item while another thread closes the run: then the state tells of it."""

    def take(run):
        return [next(loops[run])] if loops[run].ready else []

    seen = []
    for run, _, more, where in joined_everywhere(in_the_middle, nbpipe.Run.close, take):
        had = 2 + len(more)
        state = run.state_dict()
        assert (run.status().delivered, state["delivered"]) == (had, had), where
        with started() as other:
            other.load_state_dict(state)
            assert list(other) == ITEMS[had:], where
        seen.append(had)
    assert different(seen) == different([3, 2])


# -- what is done ----------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_epoch_that_begins_can_be_stopped():
    """Up to its beginning there is nothing to be stopped; from then on it ends at once."""
    moments = joined_everywhere(second, begin, nbpipe.Run.stop)
    seen = [(list(loops[run]), run.status().state) for run, _, _, _ in moments]
    assert different(seen) == different([(ITEMS, "finished"), ([], "stopped")])


@pytest.mark.slow
@pytest.mark.parametrize("read_ahead", [False, True])
def test_the_number_of_an_epoch_is_set_while_one_begins(read_ahead):
    """It is the number of that one or of the next; none is lost, none comes without its items."""
    moments = joined_everywhere(
        lambda: second(read_ahead=read_ahead), begin, lambda run: run.set_epoch(7)
    )
    seen = []
    for run, _, _, _ in moments:
        number, items = run.epoch, list(loops[run])
        seen.append((number, items, list(run), run.epoch))
    assert different(seen) == different([(7, ITEMS, ITEMS, 8), (1, ITEMS, ITEMS, 7)])


@pytest.mark.slow
def test_a_state_is_loaded_while_an_epoch_begins():
    """That epoch, or the next, goes on from it."""
    with in_the_middle() as run:
        state = run.state_dict()
    moments = joined_everywhere(second, begin, lambda run: run.load_state_dict(state))
    seen = [(list(loops[run]), list(run), run.epoch) for run, _, _, _ in moments]
    assert different(seen) == different([(ITEMS[2:], ITEMS, 1), (ITEMS, ITEMS[2:], 0)])


@pytest.mark.slow
def test_a_run_is_closed_while_an_epoch_begins():
    """It does not begin, or it is over; nothing is left at work."""
    seen = []
    for run, done, _, _ in joined_everywhere(second, begin, nbpipe.Run.close):
        rest = list(loops.pop(run, ()))
        seen.append((type(done), rest, run.status().state))
    expected = [(RunClosedError, [], "closed"), (type(None), [], "closed")]
    assert different(seen) == different(expected)


@pytest.mark.slow
def test_a_run_is_paused_while_an_epoch_begins():
    """It begins paused, and has all of its items afterwards."""
    for run, _, _, where in joined_everywhere(second, begin, nbpipe.Run.pause):
        assert run.status().state == "paused", where
        run.resume()
        assert list(loops[run]) == ITEMS, where


@pytest.mark.slow
def test_between_two_epochs_of_a_training_nobody_else_begins_one():
    """The run is the loop's until it has ended."""

    def steal(run):
        with pytest.raises(ConcurrentIterationError, match="nbpipe-train"):
            finished(iter, run)

    number, where = 0, ""
    while where is not None:
        with started() as run:
            life, got = run._core.life, []
            refused = []
            interrupter = Interrupter(
                number,
                lambda run=run, refused=refused: refused.append(steal(run)),
                waits=lambda life=life: life._starting.locked() or life.position.epoch is not None,
            )

            def step(item, got=got, interrupter=interrupter):
                got.append(item)
                if len(got) == len(ITEMS):
                    interrupter.__enter__()
                elif len(got) > len(ITEMS):
                    interrupter.__exit__()

            assert run.train(step, 2).wait()
            where = interrupter.where
            assert (got, refused) == (ITEMS * 2, [None] * (where is not None)), where
        number += 3
    assert number > 3
