"""Chains that draw by weight and claim, as modules."""

import pytest

import nbpipe
from nbpipe import ExportError
from nbpipe.export.chain import claim_arguments
from nbpipe.export.collect import Use
from nbpipe.ranks import LocalStore
from tests.export.notebooks import Notebook


def exported_chain(notebook: Notebook, chain: str, before: str = "") -> str:
    """Export a chain; return the text of what is returned."""
    cell = f"{before}\npipe = ({chain})\nreport = pipe.export('loader.py')"
    return notebook.exported(f"import nbpipe\n# ---- next cell\n{cell}").chain


def test_draws(notebook: Notebook):
    """Draws by weight keep their arguments, and the module draws the same."""
    chain = (
        "nbpipe.source(range(4)).sample([1, 0, 2.5, 3], n=6, seed=3)"
        ".sample([1, 2, 3, 4, 5, 0], n=5, replacement=False, seed=0)"
        ".balance(['a', 'b', 'a', 'a', 'c'], n=50, seed=7).shard(0, 2)"
    )
    assert exported_chain(notebook, chain) == chain


def test_weights_in_a_variable(notebook: Notebook):
    """Weights that the notebook computed come along by their name."""
    found = exported_chain(
        notebook,
        "nbpipe.source(range(4)).sample(weights, seed=0)",
        "weights = [n / 2 for n in range(4)]",
    )
    assert found == "nbpipe.source(range(4)).sample(weights, seed=0)"


def test_claims(tmp_path):
    """A claim without a store is written without a process group, and takes nothing from one."""
    pipe = nbpipe.source(range(4)).shuffle().claim(chunk=2, name="rows")
    pipe.export(tmp_path / "claims_loader.py")
    text = (tmp_path / "claims_loader.py").read_text(encoding="utf-8")
    assert '.shuffle(seed=0).claim(chunk=2,name="rows")' in "".join(text.split())


def test_claims_from_a_local_store(notebook: Notebook):
    """That of a single process is made again in the module."""
    found = exported_chain(
        notebook, "nbpipe.source(range(4)).claim(store=nbpipe.ranks.LocalStore())"
    )
    assert found == "nbpipe.source(range(4)).claim(chunk=64, store=nbpipe.ranks.LocalStore())"


def test_claims_from_a_store_of_this_process():
    """A live store cannot be written."""

    class Store(dict):
        def add(self, key, amount, /):
            return amount

    stage = nbpipe.source(range(4)).claim(store=Store()).chain[-1]
    with pytest.raises(ExportError, match="the store of 'claim' is a live Store; leave store out"):
        claim_arguments(stage, stage.spec, Use("stage 'claim'"))
    local = nbpipe.source(range(4)).claim(store=LocalStore()).chain[-1]
    assert claim_arguments(local, local.spec, Use("stage 'claim'"))[0] == "chunk=64"
