"""Public docstrings: a verb first, every argument explained, an example that runs."""

import doctest
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nbpipe
from nbpipe.dataloader.epochs import LoaderEpoch
from nbpipe.dataloader.run import LoaderRun
from nbpipe.engine.measures.stats import RunStats
from nbpipe.ops.index import Store
from nbpipe.profiling.result import Profile
from nbpipe.progress import Progress
from nbpipe.run.iterator import EpochIterator
from nbpipe.run.open_epoch import OpenEpoch
from nbpipe.run.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
MODULES = (nbpipe, nbpipe.metrics, nbpipe.ranks, nbpipe.debug)
# What public methods return: users call their methods, too.
RETURNED = (EpochIterator, LoaderEpoch, LoaderRun, OpenEpoch, Profile, Progress, RunStats, Trace)
SCRIPTS = ("DataLoader.export", "LoaderRun.export", "Pipeline.export", "Run.export")
SLOW = {"DaskExecutor", "worker_info"}  # their examples start a cluster, or processes
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def offered(cls):
    """Return the names of a class that completion offers on its objects."""
    return dir(cls if cls in {nbpipe.Stage, Store} else object.__new__(cls))


def public():
    """Return the public classes, functions and methods by name; errors are told by their names."""
    named = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    found = {name: one for name, one in named.items() if callable(one)}
    found |= {cls.__name__: cls for cls in RETURNED}
    classes = {name: one for name, one in found.items() if inspect.isclass(one)}
    for name in [name for name, cls in classes.items() if issubclass(cls, BaseException)]:
        del found[name], classes[name]
    for name, cls in classes.items():
        for word in offered(cls):
            method = inspect.getattr_static(cls, word)
            ours = inspect.isfunction(method) and method.__module__.startswith("nbpipe")
            if ours and word[0] != "_":
                found[f"{name}.{word}"] = method
    return found


PUBLIC = public()
FUNCTIONS = {name: one for name, one in PUBLIC.items() if not inspect.isclass(one)}
EXAMPLES = [
    pytest.param(
        name,
        marks=[pytest.mark.slow] * (name in SLOW)
        + [pytest.mark.torch] * one.__module__.startswith(("nbpipe.dataloader", "nbpipe.ranks")),
    )
    for name, one in PUBLIC.items()
    if name not in SCRIPTS
]


def test_there_are_enough():
    """The list has what users call most."""
    called = {"source", "Pipeline.map", "Pipeline.start", "Run.stats", "Run.plot", "Knob.set"}
    assert called - PUBLIC.keys() == set()
    assert {"Run.begin_epoch", "LoaderRun.adopt", "EpochIterator.take"} & PUBLIC.keys() == set()


def test_functions_begin_with_a_verb():
    """The first line is an order: Return, not Returns."""
    firsts = {name: one.__doc__.split()[0] for name, one in FUNCTIONS.items()}
    assert {name: word for name, word in firsts.items() if word[-1] == "s"} == {}


def test_functions_explain_every_argument():
    """Each parameter has its line under `Args:`."""
    missing = []
    for name, one in FUNCTIONS.items():
        text = inspect.getdoc(one).partition("Args:")[2]
        listed = set(re.findall(r"^    \**(\w+): ", text, re.MULTILINE))
        missing += [f"{name}: {word}" for word in {*inspect.signature(one).parameters} - listed]
    assert [one for one in missing if not one.endswith(": self")] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name):
    """Each shows a call and what comes of it."""
    parser = doctest.DocTestParser()
    example = parser.get_doctest(PUBLIC[name].__doc__, {"__name__": "example"}, name, None, 0)
    report = []
    doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(example, out=report.append)
    assert "".join(report) == ""
    assert example.examples != []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs_as_a_script(name, tmp_path):
    """An export needs the statements of a script: they are its example."""
    code = textwrap.dedent(inspect.getdoc(PUBLIC[name]).partition("script::\n\n")[2])
    (tmp_path / "script.py").write_text(code.partition("\n\n\n")[0])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NBPIPE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "script.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert "def build_pipeline(" in (tmp_path / "loader.py").read_text()


def test_help_of_a_run_shows_the_public_contract():
    """`help(nbpipe.Run)` has every public method, and no name of an inner part but the core."""
    import pydoc

    text = pydoc.render_doc(nbpipe.Run, renderer=pydoc.plaintext)
    shown = set(re.findall(r"^ \|  (\w+)(?:\(|$)", text, re.MULTILINE))
    expected = {name for name in offered(nbpipe.Run) if name[0] != "_"}
    assert expected - shown == set()
    assert {name for name in shown - expected if not name.startswith("__")} == {"Run"}
    assert re.findall(r"\b(?:LocalEngine|chain: 'Chain'|memory_bytes)\b", text) == ["memory_bytes"]
