"""Random numbers in workers: they depend on the item, never on who works on it."""

import os
import random
import signal

import pytest

import nbpipe
from tests.executors.processes.work import draw
from tests.gates import drained


def drawn(epochs=1, *, seed=3, count=40, fn=draw, **options):
    """Give what is drawn for each item, epoch by epoch."""
    options = {"concurrency": 2, **options}
    chain = nbpipe.source(range(count)).map(fn, name="fn", executor="process", **options)
    with chain.start(seed=seed) as run:
        return [drained(run) for _ in range(epochs)]


def test_equal_seeds_draw_equal_numbers():
    """Two runs agree, number by number; other items, epochs and seeds draw others."""
    both = drawn(2)
    assert both == drawn(2)
    assert len({number for epoch in both for item in epoch for number in item}) == 4 * 80
    assert drawn(seed=3) != drawn(seed=4)


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 1}, {"concurrency": 5}, {"max_items_per_worker": 3}, {"timeout_s": 30}],
)
def test_numbers_do_not_depend_on_the_workers(options):
    """Neither their number, nor their age, nor the size of a job changes what is drawn."""
    assert drawn(**options) == drawn()


@pytest.mark.parametrize("dies", [True, False])
def test_numbers_do_not_depend_on_tries(tmp_path, dies):
    """An item that another worker takes over, or that is tried again, draws the same once more."""

    def work(n, rng):
        mark = tmp_path / str(n)
        found = draw(n, rng)
        if n % 5 == 2 and not mark.exists():
            mark.touch()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(n)
        return found

    assert drawn(fn=work, on_error=nbpipe.Retry(1)) == drawn()


def test_a_region_draws_what_its_stages_draw_apart():
    """With workers of its own, a stage draws the same numbers."""

    def second(first):
        return first, random.random()

    found = []
    for region in (True, False):
        chain = nbpipe.source(range(20)).map(
            lambda n: random.random(), name="a", executor="process"
        )
        found.append(drained(chain.map(second, name="b", executor="process", region=region)))
    assert found[0] == found[1]


def test_the_parent_is_left_alone():
    """Nothing seeds the generators of the process that the run lives in."""
    random.seed(7)
    first = random.random()
    random.seed(7)
    drawn()
    assert random.random() == first
