"""What the recipes read: photographs, written once, and a folder of their own for each test."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> list[Path]:
    """Write photographs as `train/cat/00.jpg`, four of each of eight kinds."""
    photographs = pytest.importorskip("notebooks.photographs")
    train, _ = photographs.write(tmp_path_factory.mktemp("photos"), train=4, test=0)
    return train


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Work in an empty folder: recipes read from relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
