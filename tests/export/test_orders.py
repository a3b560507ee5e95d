"""Chains that claim, as modules."""

import pytest

import nbpipe
from tests.export.scripts import executed

pytestmark = pytest.mark.slow


def test_claims(tmp_path, monkeypatch):
    """A claim without a store is exported without a process group, and takes nothing from one."""
    text = """
import nbpipe

pipe = nbpipe.source(range(4)).shuffle().claim(chunk=2, name="rows")
"""
    pipe = executed(text, tmp_path, monkeypatch)["pipe"]
    pipe.export(tmp_path / "claims_loader.py")
    made = nbpipe.load(tmp_path / "claims_loader.py")
    shuffle, claim = made.stages[1:]
    assert (shuffle.spec.seed, claim.name, claim.spec.chunk) == (0, "rows", 2)


def test_claims_from_a_store(tmp_path, monkeypatch):
    """The module makes the store as the notebook does; what was claimed is not in it."""
    text = """
import nbpipe


class Store(dict):
    def add(self, key, amount, /):
        self[key] = self.get(key, 0) + amount
        return self[key]


pipe = nbpipe.source(range(4)).claim(store=Store())
"""
    pipe = executed(text, tmp_path, monkeypatch)["pipe"]
    pipe.export(tmp_path / "claims_loader.py")
    made = nbpipe.load(tmp_path / "claims_loader.py")
    assert made["claim"].spec.store == {}
    assert list(made) == [0, 1, 2, 3]
