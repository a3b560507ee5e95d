"""A loop over a loader that is left by `break` prints nothing."""

import pytest

from tests.scripts import ran

LEFT = """
    import torch
    import nbpipe

    ways = [
        {"num_workers": 0},
        {"num_workers": 2, "workers": "thread"},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ]
    for way in ways:
        loader = nbpipe.DataLoader(range(1000), 2, **way)
        for _ in range(2):
            for batch in loader:
                print(batch.tolist())
                break
"""


@pytest.mark.slow
def test_a_script_that_leaves_its_loops(tmp_path):
    """Nothing stands on its standard error, though every warning is an error there."""
    assert ran(LEFT, tmp_path) == (0, "[0, 1]\n" * 8, "")
