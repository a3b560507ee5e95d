"""`import nbpipe` in a fresh process loads only what it must."""

import subprocess
import sys

import pytest

FORBIDDEN = (
    "IPython",
    "nbpipe.export.module",
    "anywidget",
    "distributed",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "opentelemetry",
    "plotly",
    "prometheus_client",
    "rich",
    "torch",
)


def run_fresh(code, *path):
    """Run `code` in a fresh interpreter that finds `path` first; return what it printed."""
    command = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", command], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_import_loads_nothing_optional():
    """Importing nbpipe loads no optional package, and no exporter."""
    loaded = run_fresh("import nbpipe; print(*sys.modules)")
    assert sorted(set(FORBIDDEN) & set(loaded)) == []


def test_import_starts_nothing():
    """Importing nbpipe starts no thread."""
    threads = run_fresh("import nbpipe, threading; print(threading.active_count())")
    assert threads == ["1"]


@pytest.mark.parametrize("package", [name for name in FORBIDDEN if "." not in name])
def test_broken_optional_package_does_no_harm(package, tmp_path):
    """A pipeline runs where an optional package is installed but cannot be imported."""
    (tmp_path / f"{package}.py").write_text("raise ImportError('broken')")
    items = run_fresh(
        "import nbpipe; print(*nbpipe.source(range(3)).map(lambda x: x + 1))", tmp_path
    )
    assert items == ["1", "2", "3"]


def test_version_is_that_of_the_version_file():
    """The package's version is the one that the build reads."""
    version, there = run_fresh(
        "import nbpipe, nbpipe.version as v; print(nbpipe.__version__, v.__version__)"
    )
    assert version == there
