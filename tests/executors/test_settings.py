"""Settings of this process that change results hold in its workers, too, from epoch to epoch."""

import contextlib
import csv
import decimal
import importlib
import locale
import logging
import os
import socket
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import nbpipe

pytestmark = pytest.mark.slow

WAYS = ("process", "isolate", "both")


def start(seen, way):
    """Start a run that calls a function in a worker, in the process of the run, or in its worker.

    Each of the two items of an epoch is what the function gives.
    """
    executor = "thread" if way == "isolate" else "process"
    chain = nbpipe.source(range(2)).map(lambda _: seen(), executor=executor)
    return chain.start(isolate=way != "process")


def plain_settings():
    """Return settings of Python and numpy that change results."""
    with warnings.catch_warnings(record=True) as said:
        try:
            np.float64(1) / np.zeros(1)
            warnings.warn("one of ours", UserWarning, stacklevel=1)
            told = [str(one.message) for one in said]
        except (FloatingPointError, Warning) as error:
            told = [type(error).__name__]
    return {
        "decimal": str(decimal.Decimal(1) / 3),
        "numpy": (str(np.array([1 / 3])), sorted(np.geterr().items()), told),
        "python": (sys.getrecursionlimit(), sys.get_int_max_str_digits(), csv.field_size_limit()),
        "socket": socket.getdefaulttimeout(),
        "locale": locale.localeconv()["thousands_sep"],
        "folder": str(Path.cwd()),
        "environment": (os.environ.get("NBPIPE_TEST_ONE"), os.environ.get("NBPIPE_TEST_TWO")),
        "zone": time.strftime("%H %Z", time.localtime(0)),
        "path": sys.path[-1],
    }


@contextlib.contextmanager
def other_settings(folder):
    """Change them all, and set them back."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setenv("NBPIPE_TEST_ONE", "changed")
        patched.delenv("NBPIPE_TEST_TWO", raising=False)
        patched.setenv("TZ", "XYZ-5")
        time.tzset()
        patched.syspath_prepend("first")
        sys.path.append("last")
        stack.callback(sys.path.remove, "last")
        stack.enter_context(decimal.localcontext(decimal.Context(prec=5)))
        stack.enter_context(np.errstate(divide="raise"))
        stack.enter_context(np.printoptions(precision=2))
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(3_000)
        stack.callback(sys.set_int_max_str_digits, sys.get_int_max_str_digits())
        sys.set_int_max_str_digits(10_000)
        stack.callback(csv.field_size_limit, csv.field_size_limit(1 << 20))
        stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(7.5)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error", UserWarning)
        yield
    time.tzset()


@pytest.mark.parametrize("way", WAYS)
def test_settings_of_python_and_numpy(way, tmp_path, monkeypatch):
    """A worker gives what the same function gives here, before and after they are changed."""
    monkeypatch.setenv("NBPIPE_TEST_TWO", "given")
    here = plain_settings()
    with start(plain_settings, way) as run:
        assert list(run) == [here] * 2
        with other_settings(tmp_path):
            changed = plain_settings()
            assert list(run) == [changed] * 2
        assert list(run) == [here] * 2
    same = {name for name in here if here[name] == changed[name]}
    assert same <= {"locale"}  # not every machine has a second one


def test_settings_hold_from_the_first_item_on(tmp_path):
    """So it is where they are changed before the workers start."""
    with other_settings(tmp_path), start(plain_settings, "process") as run:
        assert list(run) == [plain_settings()] * 2


def torch_settings():
    """Return settings of torch that change results."""
    import torch

    layer = torch.nn.Linear(2, 2)
    return {
        "dtype": str(torch.tensor([0.1]).dtype),
        "device": str(torch.zeros(1).device),
        "grad": layer(torch.ones(2, device=layer.weight.device)).requires_grad,
        "deterministic": torch.get_deterministic_debug_mode(),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": (torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),
    }


@contextlib.contextmanager
def other_torch_settings():
    """Change them all, and set them back."""
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(mode=True)
    torch.set_float32_matmul_precision("high")
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(mode=False)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("way", WAYS)
def test_settings_of_torch(way):
    """The default dtype, the default device, gradients, autocast and determinism."""
    pytest.importorskip("torch")
    here = torch_settings()
    with start(torch_settings, way) as run:
        assert list(run) == [here] * 2
        with other_torch_settings():
            changed = torch_settings()
            assert list(run) == [changed] * 2
        assert list(run) == [here] * 2
    assert {name for name in here if here[name] == changed[name]} == set()


def test_settings_of_torch_in_a_loader():
    """They hold in the workers of a DataLoader, epoch by epoch."""
    torch = pytest.importorskip("torch")
    from tests.loader.datasets import Made

    halves = Made(lambda index: torch.tensor(index / 2))
    loader = nbpipe.DataLoader(halves, 2, num_workers=1, persistent_workers=True)
    seen = [next(iter(loader)).dtype]
    with other_torch_settings():
        torch.set_default_device(None)
        seen.append(next(iter(loader)).dtype)
    assert seen == [torch.float32, torch.float64]


def pillow_settings():
    """Return settings of Pillow that change results."""
    from PIL import Image, ImageFile

    return Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("way", WAYS)
def test_settings_of_pillow(way, monkeypatch):
    """What is read of a damaged or a large image is the same in a worker."""
    image_file = pytest.importorskip("PIL.ImageFile")
    from PIL import Image

    here = pillow_settings()
    with start(pillow_settings, way) as run:
        assert list(run) == [here] * 2
        monkeypatch.setattr(image_file, "LOAD_TRUNCATED_IMAGES", True)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        assert list(run) == [(None, True)] * 2
        monkeypatch.undo()
        assert list(run) == [here] * 2


def test_nothing_is_imported_for_settings():
    """A worker does not import Pillow where nothing of it was set."""
    assert "PIL" in sys.modules or pytest.importorskip("PIL.ImageFile")
    with start(lambda: any(one.endswith(".ImageFile") for one in sys.modules), "process") as run:
        assert list(run) == [False, False]


def test_what_worker_init_sets_stays():
    """A setting that did not change here is left as `worker_init` has set it."""

    def prepare():
        decimal.getcontext().prec = 3
        os.environ["NBPIPE_TEST_ONE"] = "of the worker"

    def seen(_):
        return str(decimal.Decimal(1) / 3), os.environ["NBPIPE_TEST_ONE"]

    chain = nbpipe.source([0]).map(seen, executor="process", worker_init=prepare)
    with chain.start() as run:
        for _ in range(2):
            assert list(run) == [("0.333", "of the worker")]
        with np.errstate(divide="ignore"):
            assert list(run) == [("0.333", "of the worker")]


# -- variables of modules --------------------------------------------------------------------------
CONSTANTS = """
import argparse
SIZE = 1
OPTIONS = {"size": 1}
NAMES = ["one"]
ARGUMENTS = argparse.Namespace(size=1)
TRANSFORM = None
_private = 0
"""
HELPER = """
import SETTINGS_constants
import SETTINGS_constants as constants
from SETTINGS_constants import OPTIONS, NAMES
FACTOR = 1
def resize(n):
    return n * FACTOR * constants.SIZE
def seen(_=None):
    return (FACTOR, constants.SIZE, OPTIONS["size"], list(NAMES), constants.ARGUMENTS.size)
"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A module of the user, which imports another one."""
    names = ("helper_of_settings", "helper_of_settings_constants")
    for name, text in zip(names, (HELPER, CONSTANTS), strict=True):
        (tmp_path / f"{name}.py").write_text(text.replace("SETTINGS", names[0]))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(names[0])
    for name in names:
        del sys.modules[name]


def change(module):
    """Set variables of both modules, as the parser of a command line would."""
    constants = module.constants
    module.FACTOR, constants.SIZE = 2, 10
    constants.OPTIONS["size"] = 3
    constants.NAMES.append("two")
    constants.ARGUMENTS.size = 4


@pytest.mark.parametrize("way", WAYS)
def test_variables_of_modules(helper, way):
    """What was set in a module at run time is so in a worker, before and between epochs."""
    helper.FACTOR = 5
    with start(helper.seen, way) as run:
        assert list(run) == [(5, 1, 1, ["one"], 1)] * 2
        change(helper)
        assert list(run) == [(2, 10, 3, ["one", "two"], 4)] * 2


def test_variables_of_a_module_that_a_lambda_names(helper):
    """So it is where the stage's own function only names the module."""
    change(helper)
    chain = nbpipe.source([1, 2]).map(lambda n: helper.resize(n) + 1, executor="process")
    assert list(chain) == [21, 41]


def test_what_cannot_be_set_is_named(helper, caplog):
    """A function or an object in the place of another one is warned of, once."""
    helper.resize = lambda n: -n
    helper.constants.TRANSFORM = np.random.default_rng(0)
    chain = nbpipe.source([1, 2]).map(
        lambda n: helper.seen(n)[0], executor="process", concurrency=2
    )
    with caplog.at_level(logging.WARNING, "nbpipe"), chain.start() as run:
        for _ in range(2):
            assert list(run) == [1, 1]
    said = [one.getMessage() for one in caplog.records if "was changed" in one.getMessage()]
    assert len(said) == 2
    assert all(one.startswith("stage 'map_1': helper_of_settings") for one in said)
    for word in ("helper_of_settings.resize", "helper_of_settings_constants.TRANSFORM"):
        assert any(word in one and "worker_init" in one for one in said)


def test_modules_as_they_were_imported_are_not_named(helper, caplog):
    """Nothing is said where nothing was changed."""
    with caplog.at_level(logging.WARNING, "nbpipe"), start(helper.seen, "process") as run:
        assert list(run) == [(1, 1, 1, ["one"], 1)] * 2
    assert caplog.records == []


def test_workers_import_no_module_that_the_functions_do_not_need(tmp_path, monkeypatch):
    """Of a package, a worker has the modules that the functions name, not all that are loaded."""
    package = tmp_path / "package_of_settings"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "training.py").write_text("RATE = 1\n")
    (package / "reading.py").write_text(
        "import sys\n\n\ndef read(_):\n    return [m for m in sys.modules if 'package_of' in m]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = ["package_of_settings", "package_of_settings.reading", "package_of_settings.training"]
    loaded = [importlib.import_module(name) for name in names]
    try:
        assert list(nbpipe.source([1]).map(loaded[1].read, executor="process")) == [names[:2]]
    finally:
        for name in names:
            del sys.modules[name]
