"""Pipelines in which a place was once lost; a random search found them."""

import gc
import weakref

import nbpipe
from tests.gates import quiet
from tests.resume.checking import at, carried, rest_of


def test_an_input_of_which_everything_was_had():
    """An input that is through is not read again, though one before it is."""

    def pipe():
        parts = [nbpipe.source(lambda n=n: iter(range(n)), name=f"of_{n}") for n in (2, 1)]
        return nbpipe.concat(*parts, nbpipe.source([], name="none")).shuffle(buffer_size=3)

    expected = list(pipe())
    got, state = at(pipe(), 1)
    assert got + rest_of(pipe(), carried(state)) == expected


def test_a_cache_is_made_as_it_was_between_two_epochs_too():
    """The most usual checkpoint: behind a whole epoch, before the next one."""

    def pipe():
        return nbpipe.source(range(12)).shuffle(seed=1).map(abs).cache()

    with pipe().start() as run:
        expected = [list(run), list(run), list(run)]
        state = carried(run.state_dict())
    with pipe().start() as run:
        run.load_state_dict(state)
        assert [list(run), list(run)] == expected[:1] * 2
    assert expected == expected[:1] * 3


def test_an_epoch_that_is_over_holds_no_items():
    """Whoever keeps the iterator of an epoch that was stopped does not keep its buffers."""

    class Item:
        """Something that can be watched."""

    made = weakref.WeakSet()

    def make(_):
        item = Item()
        made.add(item)
        return item

    with nbpipe.source(range(60)).map(make).shuffle(buffer_size=8).start() as run:
        items = iter(run)
        next(items)
        run.stop()
        quiet(run)
        gc.collect()
        assert (len(made), next(items, None)) == (0, None)
