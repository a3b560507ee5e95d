"""Pipelines in which a place was once lost; a random search found them."""

import gc
import weakref

import pytest

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


def drawn(item, rng):
    """Keep about half of the items."""
    return rng.random() < 0.5


class Told:
    """A source of other items in each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(self.epoch, self.epoch + 9))


VARIED = {
    "shuffle": lambda numbers: numbers.shuffle().cache(),
    "buffer": lambda numbers: numbers.shuffle(buffer_size=4).map(abs).cache(),
    "sample": lambda numbers: numbers.sample([1.0] * 9).cache().batch(2, collate=list),
    "rng": lambda numbers: numbers.filter(drawn).cache(),
    "mix": lambda numbers: nbpipe.mix([numbers, nbpipe.source(range(3))]).cache().map(abs),
    "joined": lambda numbers: nbpipe.concat(numbers.shuffle().cache(), nbpipe.source([7])),
    "passes": lambda numbers: numbers.shuffle().cache().repeat(2),
    "told": lambda numbers: nbpipe.source(Told()).cache(),
}


@pytest.mark.parametrize(("word", "isolate"), [*((word, False) for word in VARIED), ("mix", True)])
def test_the_rest_of_an_order_is_not_read_from_a_cache_of_another(word, isolate):
    """Once another epoch has filled the cache, the rest of the one before would be a mixture."""
    with VARIED[word](nbpipe.source(range(9))).start(isolate=isolate) as run:
        next(iter(run))
        state = carried(run.state_dict())
        list(run)
        with pytest.raises(nbpipe.StateError, match="holds what epoch 1 made"):
            run.load_state_dict(state)
        run.set_epoch(0)
        assert list(run) == list(run)


def test_the_rest_of_one_order_is_read_from_a_cache_of_any_epoch():
    """Where every epoch has the same items in the same order, it does not matter which was kept."""
    with nbpipe.source(range(9)).map(abs).cache().start() as run:
        first = next(iter(run))
        state = carried(run.state_dict())
        list(run)
        run.load_state_dict(state)
        assert [first, *run] == list(run)


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
