"""Ranks tell one another how long they wait, through a store that can only add."""

import threading

import pytest

import nbpipe
from nbpipe.ranks import LocalStore
from tests.gates import until
from tests.run.inner import pace


class GoneStore:
    """A store whose process has ended."""

    def add(self, _key, _amount, /):
        raise ConnectionError("gone")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Have each rank report many times a second."""
    monkeypatch.setattr(pace, "EVERY_S", 0.01)


def threads():
    """Return the threads that report."""
    return [one for one in threading.enumerate() if one.name == "nbpipe-ranks"]


def exchange(store, rank, *paces, world_size=2):
    """Return what reports these paces of a rank one after the other, the last one again."""
    left = list(paces)
    return pace.PaceExchange(
        store, rank, world_size, "files > batch", lambda: left.pop(0) if left[1:] else left[0]
    )


def test_each_rank_reads_what_the_others_wrote():
    """The last numbers count, whatever a job before wrote with the same names."""
    store = LocalStore()
    earlier = exchange(store, 1, (1.0, 9.0))
    until(lambda: len(earlier.paces()) == 1)
    earlier.close()
    first = exchange(store, 0, (0.0, 20.0), (0.314, 12.34))
    second = exchange(store, 1, (0.01, 1e9))
    wanted = [(0, 0.314, 12.34), (1, 0.01, 20971.51)]
    until(lambda: [tuple(one) for one in first.paces()] == wanted)
    assert (first.rank, first.world_size) == (0, 2)
    first.close()
    second.close()
    assert threads() == []


def test_old_reports_do_not_count(monkeypatch):
    """A rank that has left is forgotten."""
    store = LocalStore()
    first, second = exchange(store, 0, (0.0, 20.0)), exchange(store, 1, (0.0, 20.0))
    until(lambda: len(first.paces()) == 2)
    second.close()
    until(lambda: [one.rank for one in first.paces()] == [0])
    first.close()


def test_a_store_that_is_gone():
    """The thread ends; nothing else happens."""
    alone = exchange(GoneStore(), 0, (0.0, 20.0))
    until(lambda: threads() == [])
    assert alone.paces() == ()
    alone.close()


@pytest.mark.parametrize(
    ("environment", "store", "ranks"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, True, 4),
        ({"RANK": "1", "WORLD_SIZE": "4"}, False, 1),  # they share no store
        ({"RANK": "0", "WORLD_SIZE": "1"}, True, 1),
        ({"RANK": "", "WORLD_SIZE": "many"}, True, 1),
        ({}, True, 1),
    ],
)
def test_a_run_of_a_job(monkeypatch, environment, store, ranks):
    """A run takes part in a job of several ranks that share a store, from its first epoch on."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pipe = nbpipe.source(range(100))
    pipe = pipe.claim(store=LocalStore()) if store else pipe
    with pipe.start() as run:
        assert (run.status().world_size, threads()) == (1, [])
        list(run)
        assert (run.status().world_size, len(threads())) == (ranks, int(ranks > 1))
    assert threads() == []
