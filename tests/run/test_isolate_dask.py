"""A pipeline in a process of its own works with the Dask cluster of its caller."""

import os

import pytest

import nbpipe
from nbpipe.errors import ArgumentError
from tests.executors.clusters import cluster, offload_thread  # noqa: F401  a fixture
from tests.gates import drained

# Each process of a cluster imports Dask as it starts: seconds, on a machine with other work many.
pytestmark = pytest.mark.timeout(120)


def where(item):
    """Give an item and the process that it was worked on in."""
    return item, os.getpid()


@pytest.mark.slow
def test_the_process_connects_to_the_cluster_of_a_client():
    """A client's cluster is reached from the other process, by a client of its own."""
    with cluster(processes=True, workers=1) as client:
        (worker,) = client.run(os.getpid).values()
        chain = nbpipe.source(range(9)).map(where, executor=client, concurrency=2)
        chain = chain.map(lambda pair: (*pair, os.getpid()), name="own")
        chain = chain.map(lambda found: found, name="default", executor="dask")
        with chain.start(isolate=True) as run:
            found = drained(run)
    (own,) = {pid for *_, pid in found}
    assert found == [(n, worker, own) for n in range(9)]
    assert own not in (worker, os.getpid())


def test_a_cluster_inside_this_process_is_refused():
    """A cluster that no other process can reach is refused by name."""
    with cluster() as client:
        chain = nbpipe.source(range(9)).map(where, executor=client)
        with pytest.raises(ArgumentError, match="stage 'where' uses a Dask cluster inside"):
            chain.start(isolate=True)
