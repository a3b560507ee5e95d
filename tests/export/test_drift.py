"""Variables that changed after a pipeline was built: its export has what the pipeline has."""

import pytest

import nbpipe
from nbpipe import ExportError
from tests.export.scripts import executed

HEAD = """
import functools
import nbpipe
def add(x):
    return x + 1
def times(x, k):
    return x * k
N = 10
START = nbpipe.source(range(100), name="n")
"""
# The pipeline, and below the dashes what changed since.
BUILT = {
    "loop": """
pipe = START
for _ in range(2):
    pipe = pipe.map(add)
pipe = pipe.take(N)
---
N = 50
""",
    "source": """
pipe = nbpipe.source(range(N), name="n")
for _ in range(2):
    pipe = pipe.map(add)
---
N = 50
""",
    "seed": """
pipe = START
for _ in range(1):
    pipe = pipe.shuffle(seed=N)
---
N = 50
""",
    "argument": """
def build(limit):
    return START.map(add).take(limit)
pipe = build(N)
---
N = 50
""",
    "read by the function": """
def build():
    return START.map(add).take(N)
pipe = build()
---
N = 50
""",
    "the function": """
def build():
    return START.map(add).take(10)
pipe = build()
---
def build():
    return START.map(add).take(50)
""",
    "called twice": """
def build(limit):
    return START.map(functools.partial(times, k=limit)).take(limit)
pipe = build(N)
---
N = 50
other = build(N)
""",
    "cell run again": """
N = 10
def build():
    return START.map(add).take(N)
pipe = build()
---
N = 50
def build():
    return START.map(add).take(N)
other = build()
""",
    "mutable": """
options = {"n": 10}
def build(given):
    return START.map(add).take(given["n"])
pipe = build(options)
---
options["n"] = 50
""",
    "instance": """
class Task:
    n = 10
    def pipeline(self):
        return START.map(add).take(self.n)
task = Task()
pipe = task.pipeline()
---
task.n = 50
""",
    "comprehension": """
parts = [START.map(functools.partial(times, k=N + n)).take(N) for n in range(2)]
pipe = nbpipe.interleave(parts)
---
N = 50
""",
    "reduce": """
pipe = functools.reduce(lambda p, f: p.map(f), [add] * 2, START).take(N)
---
N = 50
""",
    "while": """
pipe, n = START, 0
while n < 2:
    pipe, n = pipe.map(functools.partial(times, k=N)), n + 1
---
N, n = 50, 9
""",
    "stage's function": """
step = add
pipe = START
for _ in range(2):
    pipe = pipe.map(step)
---
def step(x):
    return x if x < 50 else 0
""",
}
# Functions that a call ran, and that read what changed since, give another pipeline by now.
READS_AGAIN = ("read by the function", "cell run again")
OTHER_LOOPS = ("source", "seed", "called twice", "reduce", "while", "stage's function")
each = pytest.mark.parametrize("kind", BUILT)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a text as a file of its own; give its variables."""
    return lambda text: executed(HEAD + text, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in BUILT if kind not in OTHER_LOOPS])
def test_a_module_has_what_the_pipeline_has(kind, run, tmp_path):
    """The module gives the items of the pipeline as it was built, to the last one."""
    pipe = run(BUILT[kind].replace("---\n", ""))["pipe"]
    if kind in READS_AGAIN:
        with pytest.raises(ExportError, match=r"'take'.*10.*50.*rebuild the pipeline"):
            pipe.export(tmp_path / "loader.py")
        return
    made = nbpipe.load(pipe.export(tmp_path / "loader.py").path)
    assert list(made) == list(pipe)


@each
def test_code_for_a_cell_has_what_the_pipeline_has(kind, run):
    """The code for a cell builds the same pipeline."""
    variables = run(BUILT[kind].partition("---\n")[0])
    pipe = variables["pipe"]
    with pipe.start() as started:
        exec(started._core.chain_code(), variables)
    assert list(variables["pipe"]) == list(pipe)


@each
def test_code_for_a_cell_is_refused_after_a_change(kind, run):
    """Its names have other values by now; the refusal names one, and what to do."""
    pipe = run(BUILT[kind].replace("---\n", ""))["pipe"]
    with pipe.start() as started, pytest.raises(ExportError, match=r"^variable '\w+' was changed"):
        started._core.chain_code()
