"""Chains that claim, as modules."""

import pytest

import nbpipe
from nbpipe import ExportError


def test_claims(tmp_path):
    """A claim without a store is written without a process group, and takes nothing from one."""
    pipe = nbpipe.source(range(4)).shuffle().claim(chunk=2, name="rows")
    pipe.export(tmp_path / "claims_loader.py")
    text = (tmp_path / "claims_loader.py").read_text(encoding="utf-8")
    assert '.shuffle(seed=0).claim(chunk=2,name="rows")' in "".join(text.split())


def test_claims_from_a_store_of_this_process(tmp_path):
    """A live store cannot be written."""

    class Store(dict):
        def add(self, key, amount, /):
            return amount

    pipe = nbpipe.source(range(4)).claim(store=Store())
    with pytest.raises(ExportError, match="the store of 'claim' is a live Store; leave store out"):
        pipe.export(tmp_path / "claims_loader.py")
