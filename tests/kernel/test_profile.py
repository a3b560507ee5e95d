"""`nbpipe.profile` and `run.trace` in a notebook's kernel."""

import pytest

from tests.trace.reader import read

PROFILE = """
import nbpipe
profiled = nbpipe.source(range(60), name="profiled").map(abs, concurrency=3).batch(4)
print(nbpipe.profile(profiled, len, seconds=0.03, concurrency=[1, 2]).complete)
"""


@pytest.mark.slow
@pytest.mark.kernel
def test_a_cell_says_nothing_of_the_runs_of_a_profile(notebook):
    """They are not the user's: no line says that their knobs were turned, and no list has them."""
    assert notebook.run(PROFILE) == "True\n"
    assert notebook.run(PROFILE) == "True\n"
    assert "profiled" not in notebook.run("%nbpipe runs")


@pytest.mark.slow
@pytest.mark.kernel
def test_a_trace_of_a_cell_that_trains(notebook, tmp_path):
    """Another cell records it."""
    path = tmp_path / "trace.json"
    notebook.run("import nbpipe; traced = nbpipe.source(range(10**9)).map(abs).batch(4).start()")
    notebook.run("traced.train(lambda batch: None); None")
    notebook.run(f"trace = traced.trace({str(path)!r})")
    notebook.run("while not trace._events.calls: pass")
    notebook.run("trace.close(); traced.close()")
    assert read(path).slices("abs")
