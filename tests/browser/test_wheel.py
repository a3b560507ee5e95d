"""The distributions: built by the hook, installed where there is no Node, used in a browser."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest

from nbpipe.version import __version__
from tests.browser import lab
from tests.browser.panel import RUN, SETUP, PanelPage, start, train
from tests.browser.sidebar import SIDEBAR, open_row, show, wait_row
from tests.ipynb import write_notebook
from tests.kernel.versions import fetch

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
LARGEST_BYTES = 1_000_000
LEFT_OUT = ("node_modules", "static", "__pycache__", ".*", "dist", "build", "lib")
EXTENSION = ".data/data/share/jupyter/labextensions/jupyter-nbpipe/"


def say(*command, **options):
    """Run a command; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with sdist and wheel, built of a copy that was never built before."""
    copy = tmp_path_factory.mktemp("source") / "nbpipe"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    say(sys.executable, "-m", "build", "--no-isolation", copy, env=with_node())
    return copy / "dist"


def with_node():
    """Return the environment, in which the machine's npm is found, or that of this one.

    Bytecode is written, as it is for most people: it makes no built front end look old.
    """
    scripts = sysconfig.get_path("scripts")
    path = os.environ["PATH"] + os.pathsep + scripts
    return os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": ""}


@pytest.fixture(scope="module")
def wheel(built):
    """The wheel, as it was made of the sdist."""
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """An interpreter that has the wheel, and from here only what it depends on."""
    folder = tmp_path_factory.mktemp("empty")
    say(sys.executable, "-m", "venv", "--without-pip", folder)
    here, there = sysconfig.get_path("purelib"), {"base": str(folder), "platbase": str(folder)}
    Path(sysconfig.get_path("purelib", vars=there), "depends.pth").write_text(here)
    found = folder / "bin" / "python"
    say(*pip_for(found), "install", "--no-index", "--no-deps", wheel, env=without_node())
    return found


def pip_for(python):
    """Return the command of pip that acts in another environment."""
    return sys.executable, "-m", "pip", "--python", python


def without_node():
    """Return an environment in which no program is found, Node neither."""
    return os.environ | {"PATH": ""}


def test_wheel_holds_the_library_alone(wheel, built):
    """It has the panel and the extension, and none of tests and sources of the front end."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    widgets = ("panel", "pipeline")
    panel = {f"nbpipe/jupyter/static/{name}.{kind}" for name in widgets for kind in ("js", "css")}
    extension = {name.partition(EXTENSION)[2] for name in names if EXTENSION in name}
    loaded = {f"build/labextension/{name}" for name in extension}
    assert panel < set(names)
    assert {"package.json", "install.json", "schemas/jupyter-nbpipe/plugin.json"} < extension
    assert panel | loaded < sources
    assert {"js/labextension/package-lock.json", "RELEASE.md"} < sources
    assert not any(name.startswith("js/labextension/lib/") for name in sources)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "nbpipe",
        "jupyter_nbpipe",
    }
    assert wheel.stat().st_size < LARGEST_BYTES


def test_installed_without_node(python):
    """The library is the wheel's own, it says its version, and nothing that it needs is missing."""
    ask = partial(say, env=without_node(), cwd=python.parent)
    place = ask(python, "-c", "import nbpipe; print(nbpipe.__file__)").strip()
    assert Path(place).is_relative_to(python.parents[1])
    assert ask(python, "-m", "nbpipe", "--version").startswith("nbpipe ")
    assert ask(*pip_for(python), "check") == "No broken requirements found.\n"


def test_extension_is_enabled(python):
    """JupyterLab finds the extension, of the library's version, enabled and in order."""
    command = [python, "-m", "jupyterlab.labextensions", "list"]
    lab_alone = {"JUPYTERLAB_DIR": lab_of_here()["JUPYTERLAB_DIR"]}
    done = subprocess.run(
        command, env=without_node() | lab_alone, capture_output=True, text=True, check=True
    )
    said = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
    assert f"jupyter-nbpipe v{__version__} enabled OK (python, jupyter-nbpipe)" in said


def lab_of_here():
    """Return the variables with which another environment uses the JupyterLab of this one."""
    share = Path(sysconfig.get_path("data"), "share", "jupyter")
    return {"JUPYTER_PATH": str(share), "JUPYTERLAB_DIR": str(share / "lab")}


def test_build_without_npm_says_what_to_do(tmp_path):
    """Where the front end is missing, there is no npm and pip may fetch none, a line tells so."""
    copy = tmp_path / "nbpipe"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT, "tests", "docs"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(
        command, cwd=copy, env=without_node(), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "install Node.js" in done.stderr


def test_wheel_in_the_oldest_jupyterlab(python, chromium, tmp_path):
    """A knob acts while a cell trains, below the cell and in the sidebar."""
    folder = fetch("jupyterlab", "4.2.7")
    oldest = {"PYTHONPATH": str(folder), "JUPYTERLAB_DIR": str(folder / "share/jupyter/lab")}
    write_notebook(tmp_path / "wheel.ipynb", SETUP, RUN, train("stop"))
    with (
        lab.serve_lab(tmp_path, python=python, variables=lab_of_here() | oldest) as address,
        lab.open_page(chromium, address, kind=PanelPage) as page,
    ):
        page.folder = tmp_path
        page.open("wheel.ipynb")
        start(page)
        page.hold("slow")
        page.page.keyboard.press("ArrowUp")
        page.wait_value(page.number("slow"), 3)
        show(page)
        wait_row(page, "running")
        open_row(page)
        aside = page.page.locator(SIDEBAR)
        aside.locator("input[data-knob=concurrency]").first.focus()
        page.page.keyboard.press("ArrowUp")
        page.wait_value(page.number("slow"), 4)
        said = page.said(2)
        version = page.page.evaluate("window.jupyterapp.version")
        page.finish(2, "stop")
        page.shut_down()
    assert (said, version) == ("", "4.2.7")
