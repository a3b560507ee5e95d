"""Run the adapter for Ray that docs/executors.md shows: `python tests/jobs/ray_adapter.py`.

Ray is large, and no part of the environment that the tests run in: install it first.
"""

import re
import sys
from pathlib import Path

import ray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import nbpipe  # noqa: E402  of this clone, installed or not


def adapter():
    """Give the class `RayExecutor` as the page defines it."""
    page = (ROOT / "docs" / "executors.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"^```py\n(import concurrent.futures\n.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    names = {"__name__": "adapter"}
    exec(compile(code, "docs/executors.md", "exec"), names)
    return names["RayExecutor"]


def fails_on_seven(n):
    """Fail on one item."""
    if n == 7:
        raise ValueError("seven")
    return n * n


def check_failure(chain):
    """Fail unless the chain's error is that of item 7."""
    try:
        list(chain)
    except nbpipe.StageError as error:
        cause = error.__cause__
        if (error.path, type(cause), str(cause)) != (7, ValueError, "seven"):
            raise
    else:
        raise AssertionError("no error came")


def main():
    """Run a pipeline over Ray: order, an error, a large capture, batches."""
    ray.init(
        num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}
    )
    executor = adapter()()
    chain = nbpipe.source(range(40)).map(fails_on_seven, executor=executor, concurrency=4, name="m")
    check_failure(chain)
    weights = bytes(5_000_000)
    large = nbpipe.source(range(40)).map(
        lambda n: n + len(weights), executor=executor, concurrency=4
    )
    assert list(large) == [n + 5_000_000 for n in range(40)]
    batches = list(large.batch(8, executor=executor))
    assert [len(batch) for batch in batches] == [8] * 5
    ray.shutdown()
    print("the adapter for Ray works, with ray", ray.__version__)


if __name__ == "__main__":
    main()
