"""What a worker takes over from its parent, and what holds before each item."""

# ruff: noqa: NPY002  numpy's global generator is what users draw from

import json
import os
import random
import textwrap
from pathlib import Path

import numpy as np
import pytest

from nbpipe.base.seeding import seed_item
from nbpipe.executors.launch import apply_environment, capture_environment
from tests.executors.conftest import output_of

SEEDS = (0, 1, 2**32, 2**64 - 1, 0x123456789ABCDEF0)


def child(code, data=b"", **environment):
    """Run code in a fresh process that gets `data` as `DATA`; give what it prints, as JSON."""
    text = "import sys\nDATA = sys.stdin.buffer.read()\n" + textwrap.dedent(code)
    return json.loads(output_of(text, data, **environment))


def test_finds_a_module_that_was_written_since(tmp_path):
    """A module in a folder that the worker has looked into before is found."""
    got = child(
        f"""
        import json
        from pathlib import Path
        from nbpipe.executors.launch import apply_environment, capture_environment
        sys.path.append({str(tmp_path)!r})
        try:
            import late_module
        except ImportError:
            pass
        Path({str(tmp_path / "late_module.py")!r}).write_text("VALUE = 7")
        apply_environment(capture_environment())
        import late_module
        print(json.dumps(late_module.VALUE))
        """
    )
    assert got == 7


def test_folder_that_is_gone(tmp_path, monkeypatch):
    """A folder that was deleted is no error, neither for the parent nor for the worker."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = capture_environment()
    folder.rmdir()
    noted = json.loads(capture_environment())["folder"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    apply_environment(there)
    assert (noted, Path.cwd()) == (None, tmp_path)


@pytest.mark.torch
def test_torch_gets_one_thread_and_no_gpu():
    """A torch that is loaded is held to one thread; its CUDA side stays asleep."""
    got = child(
        """
        import json, torch
        torch.set_num_threads(2)
        from nbpipe.base.seeding import seed_item
        from nbpipe.base.threads import hold_library_threads
        hold_library_threads()
        hold_library_threads()
        seed_item(5)
        threads = torch.get_num_threads(), torch.get_num_interop_threads()
        print(json.dumps([*threads, torch.cuda.is_initialized()]))
        """
    )
    assert got == [1, 1, False]


def test_loaded_libraries_are_told_once():
    """Each library is told when it is there; a strange one is no error; none is imported."""
    got = child(
        """
        import json
        from types import SimpleNamespace
        from nbpipe.base.threads import hold_library_threads
        calls = []
        hold_library_threads()
        none = [name for name in ("torch", "cv2", "numba") if name in sys.modules]
        sys.modules["cv2"] = SimpleNamespace(setNumThreads=calls.append)
        config = SimpleNamespace(NUMBA_NUM_THREADS=4)
        sys.modules["numba"] = SimpleNamespace(config=config, set_num_threads=calls.append)
        sys.modules["torch"] = SimpleNamespace()
        hold_library_threads()
        hold_library_threads()
        print(json.dumps([none, calls]))
        """
    )
    assert got == [[], [0, 1]]


def drawn():
    """Draw from the generators that are seeded, of every kind they offer."""
    numbers = [random.random(), random.gauss(0, 1), random.getrandbits(70)]
    legacy = [np.random.rand(), np.random.randn(), int(np.random.randint(1 << 40))]
    return [*numbers, *legacy]


def use_nothing():
    """Leave the generators alone."""


def use_half_a_pair():
    """Draw normal numbers, of which the generators keep the second one."""
    random.gauss(0, 1)
    np.random.randn()


def use_much():
    """Draw so much that a generator fills its state again."""
    random.getrandbits(100_000)
    np.random.rand(2000)


def seed_by_hand():
    """Seed as users do."""
    random.seed(3)
    np.random.seed(3)


@pytest.fixture
def states():
    """Leave the global generators as they were."""
    numpy_state, state = np.random.get_state(), random.getstate()
    yield
    np.random.set_state(numpy_state)
    random.setstate(state)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("use", [use_nothing, use_half_a_pair, use_much, seed_by_hand])
def test_numbers_depend_on_the_seed_alone(states, seed, use):
    """Whatever was drawn before, the same seed gives the same numbers."""
    seed_item(seed)
    first = drawn()
    use()
    seed_item(seed)
    assert drawn() == first


def test_seeds_differ(states):
    """Seeds that differ in one bit, low or high, give other numbers."""
    seen = []
    for seed in (0, 1, 2, 2**31, 2**32, 2**33, 2**63):
        seed_item(seed)
        seen.append(random.random())
    assert len(set(seen)) == len(seen)


def test_another_generator_of_numpy(states):
    """A user's choice of another bit generator is kept, and seeded."""
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        seed_item(2**63)
        first = np.random.randn(3).tolist()
        np.random.randn()
        seed_item(2**63)
        kept = type(np.random.get_bit_generator()).__name__
        assert (kept, np.random.randn(3).tolist()) == ("PCG64", first)
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.torch
def test_torch_depends_on_the_seed_alone():
    """Numbers of torch are a function of the seed, and share nothing with numpy's."""
    got = child(
        """
        import json, torch, numpy as np
        from nbpipe.base.seeding import seed_item
        def drawn():
            seed_item(0x1234567800000005)
            return [torch.rand(1).item(), torch.randn(3).tolist(), torch.randperm(50).tolist()]
        first = drawn()
        torch.randn(3)
        torch.manual_seed(9)
        again = drawn()
        seed_item(5)
        numpy_like_torch = np.random.randint(1 << 24) == torch.randint(1 << 24, (1,)).item()
        print(json.dumps([first == again, numpy_like_torch]))
        """
    )
    assert got == [True, False]
