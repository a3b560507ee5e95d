"""What holds for every test: no leaks, no deadline, two tiers, markers for torch and GPUs."""

import gc
import importlib.util
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests import post, tiers
from tests.leaks import Held, find_leaks

collect_ignore = ["jobs"]  # run by hand: they need what the other tests do without

# The same examples in every run; `NBPIPE_EXAMPLES=explore` looks for new ones.
for name, examples in {"everyday": 25, "thorough": 50, "explore": 1000}.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name != "explore",
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a machine with other work
    )
hypothesis.settings.load_profile(os.environ.get("NBPIPE_EXAMPLES", "everyday"))


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a process, an open file or shared memory behind."""
    before = Held.now()
    yield
    post.close()
    leaks = find_leaks(before)
    if leaks:
        pytest.fail("left behind: " + ", ".join(leaks), pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Let interrupts through; write down what tests take where that is asked for."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "NBPIPE_DURATIONS" in os.environ:
        config.pluginmanager.register(tiers.Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell the tiers apart; deselect tests that need torch where there is none, skip GPU tests."""
    tiers.prepare(items, grouped=config.getoption("loadgroup", default=False))
    if importlib.util.find_spec("torch") is None:
        without = [item for item in items if _needs_torch(item)]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if not _needs_torch(item)]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _needs_torch(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("torch", "gpu"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over the tests themselves: a million objects."""
    gc.collect()
    gc.freeze()
