"""What the tests of executors share."""

import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.gates import Bell, Gate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine() -> Iterator[ThreadPoolExecutor]:
    """Threads that call."""
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def gate():
    """Give a gate; it is open after the test."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def bell():
    """Give a bell."""
    return Bell()


@contextmanager
def loose_module(path: Path, text: str) -> Iterator[ModuleType]:
    """Give a module that is loaded by its path, from a folder that is not searched."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


def output_of(code: str, data: bytes, **environment: str) -> bytes:
    """Run code in a fresh process, elsewhere, with `data` as its input; give its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=data,
        capture_output=True,
        check=False,
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )
    assert done.stderr.decode() == ""
    return done.stdout


def mapped() -> int:
    """Count the mappings of slabs in this process, but those of garbage."""
    gc.collect()
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:nbpipe")


def open_files() -> int:
    """Count the file descriptors of this process, but those of garbage."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
