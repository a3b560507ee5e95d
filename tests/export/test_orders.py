"""Chains that claim, as modules."""

import pytest

import nbpipe
from nbpipe import ExportError


def test_claims(tmp_path):
    """A claim without a store is exported without a process group, and takes nothing from one."""
    pipe = nbpipe.source(range(4)).shuffle().claim(chunk=2, name="rows")
    pipe.export(tmp_path / "claims_loader.py")
    made = nbpipe.load(tmp_path / "claims_loader.py")
    shuffle, claim = made.stages[1:]
    assert (shuffle.spec.seed, claim.name, claim.spec.chunk) == (0, "rows", 2)


def test_claims_from_a_store_of_this_process(tmp_path):
    """A live store cannot be written."""

    class Store(dict):
        def add(self, key, amount, /):
            return amount

    pipe = nbpipe.source(range(4)).claim(store=Store())
    with pytest.raises(ExportError, match=r"'claim'.*Store"):
        pipe.export(tmp_path / "claims_loader.py")
