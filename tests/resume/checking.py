"""Cut an epoch, go on in another run, compare with the uninterrupted one."""

import json
from contextlib import closing

import nbpipe
from tests.chains import build, outcome, plain, words_in

LONGEST = 60  # items of an epoch; longer ones are left out, so that a test stays quick
LEAVE = ("keep", "close", "end", "twice")


def carried(state):
    """Give the state as another process would read it."""
    return json.loads(json.dumps(state))


def drawn(items, count):
    """Give at most `count` items; and the error text and whether it ended, as `outcome` does."""
    got = []
    try:
        for _ in range(count):
            got.append(plain(next(items)))  # noqa: PERF401 - what came before an error counts
    except StopIteration:
        return got, None, True
    except nbpipe.StageError as error:
        return got, outcome(_raising(error))[1], True
    return got, None, False


def _raising(error):
    yield from ()
    raise error


def state_at(recipe, hands, cut, by, **options):
    """Give the first items of an epoch, and the state behind them, taken in some way."""
    with build(recipe, hands).start(**options) as run:
        items = iter(run)
        got, _, _ = drawn(items, cut)
        if by == "close":
            items.close()
        elif by == "end":
            run.close()
        state = run.state_dict()
        if by == "twice":
            items.close()
            state = run.state_dict()
        return got, carried(state)


def uninterrupted(recipe, hands, **options):
    """Give what comes in each of two epochs, and the error that ends each."""
    with build(recipe, hands).start(**options) as run:
        return outcome(run), outcome(run)


def _is_cached(recipe):
    return "cache" in set(words_in(recipe))


def check_every_cut(recipe, first, later, *, seed=0, by="keep", again=3, most=LONGEST, **options):
    """Cut at every item, or at `most`, go on, cut once more, go on; compare the whole.

    Returns:
        Whether the recipe was one to check.
    """
    try:
        build(recipe, first), build(recipe, later)
    except nbpipe.ArgumentError:
        return False
    options["seed"] = seed
    (items, error), following = uninterrupted(recipe, first, **options)
    if len(items) > LONGEST:
        return False
    step = max(1, len(items) // most)
    for cut in range(step // 2, len(items) + 1, step):
        got, state = state_at(recipe, first, cut, by, **options)
        with closing(build(recipe, later).start(**options)) as run:
            rest, ends = _gone_on(run, state, (cut * 7 + again) % 5)
            assert (got + rest, ends) == (items, error), (cut, state)
            if cut % 4 == 0 and error is None and not _is_cached(recipe):
                assert outcome(run) == following, (cut, state)
    if error is not None:
        _check_failed(recipe, first, error, **options)
    return True


def _check_failed(recipe, hands, error, **options):
    """Go on behind an error: nothing is mended, so the item that failed fails again, first."""
    with build(recipe, hands).start(**options) as run:
        outcome(run)
        run.load_state_dict(carried(run.state_dict()))
        assert outcome(run) == ([], error)


def _gone_on(run, state, again):
    """Give the rest of an epoch in two parts, with one more state between them."""
    run.load_state_dict(state)
    assert carried(run.state_dict()) == state
    items = iter(run)
    got, error, ended = drawn(items, again)
    if ended:
        return got, error
    run.load_state_dict(carried(run.state_dict()))
    rest, error = outcome(run)
    return got + rest, error


def at(pipe, count, **options):
    """Give the first items of an epoch and the state behind them."""
    with pipe.start(**options) as run:
        items = iter(run)
        got = [next(items) for _ in range(count)]
        return got, run.state_dict()


def rest_of(pipe, state, **options):
    """Give what is left of the epoch."""
    with pipe.start(**options) as run:
        run.load_state_dict(state)
        return list(run)
