"""`import nbpipe` in a fresh process loads only what it must."""

import subprocess
import sys

import pytest

FORBIDDEN = (
    "IPython",
    "PIL",
    "anywidget",
    "av",
    "datasets",
    "distributed",
    "fsspec",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "nbpipe.dataloader.loader",
    "nbpipe.export.layout",
    "opentelemetry",
    "pandas",
    "plotly",
    "prometheus_client",
    "pyarrow",
    "rich",
    "soundfile",
    "torch",
)
RUN = "import nbpipe; print(*nbpipe.source(range(3)).map(lambda x: x + 1))"


def run_fresh(code, *path):
    """Run `code` in a fresh interpreter that finds `path` first; return what it printed."""
    command = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", command], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


BUILD = """
pipe = nbpipe.source(range(4)).to_device("cuda").map(abs, device="cuda")
assert len(pipe) == 4 and str(pipe)
from nbpipe.executors.dask import dask_executor_of
dask_executor_of("process")
print(*sys.modules)
nbpipe.DataLoader
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_import_loads_nothing_optional():
    """Importing nbpipe, an epoch, a pipeline on a device: none loads an optional package."""
    loaded = run_fresh(f"{RUN}\n{BUILD}")
    assert sorted(set(FORBIDDEN) & set(loaded)) == []


@pytest.mark.slow
def test_import_starts_nothing():
    """Importing nbpipe starts no thread."""
    threads = run_fresh("import nbpipe, threading; print(threading.active_count())")
    assert threads == ["1"]


def test_broken_optional_packages_do_no_harm(tmp_path):
    """A pipeline runs where optional packages are installed but cannot be imported."""
    for package in (name for name in FORBIDDEN if "." not in name):
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is broken')")
    assert run_fresh(RUN, tmp_path) == ["1", "2", "3"]


def test_version_is_that_of_the_version_file():
    """The package's version is the one that the build reads."""
    version, there = run_fresh(
        "import nbpipe, nbpipe.version as v; print(nbpipe.__version__, v.__version__)"
    )
    assert version == there
