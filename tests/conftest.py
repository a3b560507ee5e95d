"""What holds for every test: no leaks, no deadline, limits of hangs, markers for torch and GPUs."""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import hypothesis
import pytest

from tests import post
from tests.gates import HANG_S
from tests.leaks import Held, find_leaks

collect_ignore = ["jobs"]  # run by hand: they need what the other tests do without
if sys.platform == "win32":  # where nbpipe refuses worker processes and exports
    collect_ignore += ["cli", "engine/test_regions.py", "executors/processes", "export"]
    collect_ignore += [f"executors/{name}.py" for name in ("test_channel", "test_slabs")]
if importlib.util.find_spec("torch") is None:
    collect_ignore += ["loader"]
REFUSED_ON_WINDOWS = ("got Windows, where they were never tried", "its check on Windows yet")

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
# Dask's profiler asks for the stacks of all threads every 10 ms. Up to CPython 3.11.8 that can stop
# the process for good where a collection of garbage falls into it (python/cpython#106883).
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
hypothesis.settings.load_profile(os.environ.get("NBPIPE_EXAMPLES", "everyday"))
# How long a test may take before it counts as hung [s], by its marks and fixtures; for others
# pyproject.toml says it.
HANGS_S = {"kernel": 120, "ranks": 120, "torch": 120, "gpu": 120, "browser": 400, "slow": 240}
# The promise: a knob acts while a cell trains. Other tests in a browser are slow.
EVERYDAY_IN_A_BROWSER = "test_concurrency_moves_while_a_cell_trains[keyboard]"
STDERR = pytest.StashKey[int]()  # what is written here is not captured


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, an open file or shared memory behind."""
    if request.node.get_closest_marker("gpu"):
        _wake_gpus()
    before = Held.now()
    yield
    post.close()
    leaks = find_leaks(before)
    if leaks:
        pytest.fail("left behind: " + ", ".join(leaks), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Wait for the numbers of a run in another process as long as it takes.

    A user is shown the last ones where that process says nothing for a second: it is busy. So is a
    machine that stands still, and then a test would judge by numbers of before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbpipe.run.isolated.link.Link.answer_s", HANG_S)
        yield


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """Return torch, imported as late as by a test that wants it, which needs no other mark."""
    import torch

    return torch


def pytest_configure(config: pytest.Config) -> None:
    """Let interrupts through; let run_all.py ask for the stacks of a part that hangs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[STDERR] = os.dup(2)
    if hasattr(signal, "SIGUSR1"):  # tests/run_all.py asks with it what hangs
        faulthandler.register(signal.SIGUSR1, file=config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip on Windows what fails by what is refused there in a line."""
    try:
        return (yield)
    except Exception as error:
        if sys.platform == "win32" and _is_refused(error):
            pytest.skip("refused on Windows")
        raise


def _is_refused(error: BaseException | None) -> bool:
    if error is None:
        return False
    return any(one in str(error) for one in REFUSED_ON_WINDOWS) or _is_refused(error.__cause__)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Watch on after a failure: pytest and its plug-ins stop at one, as for a debugger.

    What hangs once a test has failed, in its teardown, would hang for ever and name nothing.
    """
    _watch(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Watch the end of the process as well, which belongs to no test."""
    _watch(session.config)


def _watch(config: pytest.Config) -> None:
    limit_s = float(config.getini("faulthandler_timeout"))
    faulthandler.dump_traceback_later(limit_s, file=config.stash[STDERR], exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Mark what needs torch or a browser, deselect it where there is none; set limits of hangs."""
    for item in items:
        example = item.nodeid.startswith(("nbpipe/dataloader/", "nbpipe/ranks.py"))
        if example or "torch" in getattr(item, "fixturenames", ()):
            item.add_marker("torch")
        if item.get_closest_marker("browser") and item.name != EVERYDAY_IN_A_BROWSER:
            item.add_marker("slow")
        _limit(item)
    yield
    if importlib.util.find_spec("torch") is None:
        _leave_out(config, items, _needs_torch)
    if sys.platform == "win32":
        _leave_out(config, items, _names_processes)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _limit(item: pytest.Item) -> None:
    """Give more time to what starts something large, unless the test has a limit of its own."""
    if item.get_closest_marker("timeout"):
        return
    kinds = {mark.name for mark in item.iter_markers()} | {*getattr(item, "fixturenames", ())}
    limits_s = [seconds for kind, seconds in HANGS_S.items() if kind in kinds]
    if limits_s:
        item.add_marker(pytest.mark.timeout(max(limits_s)))


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], is_one: Callable[[pytest.Item], bool]
) -> None:
    config.hook.pytest_deselected(items=[item for item in items if is_one(item)])
    items[:] = [item for item in items if not is_one(item)]


def _names_processes(item: pytest.Item) -> bool:
    return any(word in item.nodeid.lower() for word in ("process", "isolat", "worker"))


def _needs_torch(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("torch", "gpu"))


def _has_gpu() -> bool:
    with contextlib.suppress(OSError):
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        import torch  # only beside a driver: loaded here, it would be in all that is forked

        return torch.cuda.is_available()
    return False


@functools.cache
def _wake_gpus() -> None:
    """Use each GPU once: what its driver opens then stays open, and no test has leaked it."""
    import torch

    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            square = torch.ones(64, 64, pin_memory=True).to("cuda", non_blocking=True)
            (square @ square).cpu()
        torch.cuda.synchronize(device)


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over the tests themselves: a million objects."""
    gc.collect()
    gc.freeze()
