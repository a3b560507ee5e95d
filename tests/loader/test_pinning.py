"""Batches in pinned memory."""

import threading

import pytest
import torch

import nbpipe
from tests.loader.conftest import WAYS
from tests.loader.datasets import Made, Point


class Accelerator:
    """Stands for a device that memory can be pinned for; notes what it is told."""

    def __init__(self):
        self.current = {threading.get_ident(): 3}

    def is_available(self):
        return True

    def current_accelerator(self):
        return torch.device("cuda")

    def current_device_index(self):
        return self.current.get(threading.get_ident(), 0)

    def set_device_index(self, index):
        self.current[threading.get_ident()] = index


@pytest.fixture
def accelerator(monkeypatch):
    """Let torch have an accelerator; a pinned tensor bears the number of its device."""
    fake = Accelerator()

    def pin_memory(tensor, *_):
        pinned = tensor.clone()
        pinned.pinned_for = fake.current_device_index()
        return pinned

    monkeypatch.setattr(torch, "accelerator", fake)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return fake


def test_batches_are_pinned_for_the_current_device(accelerator, way):
    """All tensors of a batch are pinned for the device that was current where it was asked."""
    dataset = Made(lambda n: {"x": torch.tensor(n), "p": Point(torch.tensor(n), "a")}, 6)
    batches = list(nbpipe.DataLoader(dataset, 2, pin_memory=True, **way))
    found = [(batch["x"].pinned_for, batch["p"].x.pinned_for) for batch in batches]
    assert found == [(3, 3)] * 3
    assert [batch["p"].y for batch in batches] == [("a", "a")] * 3


def test_pinning_is_a_stage(accelerator):
    """With workers, batches are pinned in a thread of their own: a stage that shows in the run."""
    loader = nbpipe.DataLoader(Made(torch.tensor, 6), 2, pin_memory=True, **WAYS["thread"])
    list(loader)
    assert [stage.name for stage in loader.pipeline.stages] == ["indices", "fetch", "pin"]
    assert loader.run.stats()["pin"].items_out == 3


@pytest.mark.gpu
def test_batches_are_pinned_on_a_gpu(way):
    """Where there is a GPU, batches lie in pinned memory."""
    loader = nbpipe.DataLoader(Made(torch.tensor, 6), 2, pin_memory=True, **way)
    assert [batch.is_pinned() for batch in loader] == [True] * 3
