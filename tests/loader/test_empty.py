"""A loader that makes no batch says so."""

import pytest

import nbpipe


@pytest.mark.parametrize(("count", "options"), [(0, {}), (7, {"drop_last": True})])
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_without_batches(torch, count, options, workers):
    """Its run names what to look at: the dataset, the sampler, drop_last."""
    loader = nbpipe.DataLoader(
        range(count), batch_size=8, num_workers=workers, workers="thread", **options
    )
    assert list(loader) == []
    found = loader.run.diagnose()
    assert (found.kind, found.text) == ("empty", "Finished. The loader gave 0 batches.")
    assert "drop_last" in found.advice
