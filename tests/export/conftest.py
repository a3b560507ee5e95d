"""A nursery that all tests share, a notebook for each, and a folder for what is temporary."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.export.notebooks")

from tests.export.notebooks import Notebook  # noqa: E402 - after it is to be rewritten
from tests.export.nursery import Nursery  # noqa: E402 - as above


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what talks to a kernel."""
    if "nursery" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    """Give the process that forks kernels."""
    pytest.importorskip("ipykernel")
    nursery = Nursery(tmp_path_factory.mktemp("ipython"))
    yield nursery
    nursery.close()


@pytest.fixture
def notebook(request, nursery: Nursery, tmp_path: Path) -> Iterator[Notebook]:
    """Give a notebook; the marker-like parameter names modules that are to be there early."""
    notebook = Notebook(nursery, tmp_path, getattr(request, "param", ()))
    yield notebook
    notebook.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have temporary folders made in one that can be looked at."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
