"""The benchmarks of devices: they say where there is none, and write what they found."""

import pytest

from benchmarks import gpu


def test_without_a_device_nothing_is_measured(monkeypatch, capsys):
    """It is said, and the exit code is that of a wrong use."""
    monkeypatch.setattr(gpu, "cuda_device", lambda: None)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    assert (gpu.main(), capsys.readouterr().out) == (
        2,
        "no CUDA device here: these benchmarks copy to one; nothing was measured\n",
    )


def test_the_report_has_the_median_of_the_rounds():
    """For each kind of source and each peer."""
    rounds = [
        {
            "bare": {"bytes_per_s": 100.0},
            "nbpipe": {"bytes_per_s": 90.0 + n, "of_bare": 0.9, "overlap": 0.99, "wait": 0.01},
        }
        for n in range(3)
    ]
    data = {"device": "a GPU", "machine": {"versions": {}}, "rounds": {"pinned": rounds}}
    text = gpu.report(data)
    assert "## pinned source, 3 rounds" in text
    assert "| nbpipe |          91 |     0.9 |    0.99 | 0.01 |" in text.splitlines()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # by torch's loader
def test_a_small_round_measures_every_peer():
    """Each has a rate, an overlap and a wait."""
    found = gpu.measure(gpu.Scene(8, pinned=True))
    assert {"bare", "nbpipe"} <= found.keys()
    assert found["nbpipe"]["bytes_per_s"] > 0
