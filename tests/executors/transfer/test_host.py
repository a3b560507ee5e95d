"""Real tensors on the host: what becomes a tensor, what passes, what runs where."""

import sys
import threading

import numpy as np
import pytest

import nbpipe
from nbpipe import MissingExtraError, StageError
from nbpipe.debug import leaks
from tests.gates import Calls
from tests.samples import Pair, Sample

pytestmark = pytest.mark.torch


def moved(item, device="cpu"):
    """Send one item through a pipeline."""
    (result,) = nbpipe.source([item]).to_device(device)
    return result


def test_tensors_on_the_host_are_the_same_objects(torch):
    """Nothing is copied, and nothing is rebuilt around it."""
    batch = {"x": torch.zeros(3), "y": [torch.ones(2)], "z": ("word", None)}
    assert moved(batch) is batch


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "uint32", "float16", "float32", "complex64"]
)
def test_arrays_of_numbers_become_tensors(dtype):
    """Shape and dtype are kept, and the memory is shared."""
    array = np.ones((2, 3), dtype)
    tensor = moved(array)
    array[0, 0] = 0
    found = str(tensor.dtype), tuple(tensor.shape), bool(tensor[0, 0])
    assert found == (f"torch.{dtype}", (2, 3), False)


@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(np.arange(3), (2, 3)),
        np.arange(6)[::-1],
        np.arange(6, dtype=">i4"),
        np.frombuffer(b"abcd", np.uint8),
    ],
    ids=["broadcast", "reversed", "other byte order", "read only"],
)
def test_odd_arrays_become_tensors(array):
    """Those whose memory a tensor cannot share are copied."""
    assert moved(array).tolist() == array.tolist()


@pytest.mark.parametrize(
    "leaf",
    [
        "text",
        b"bytes",
        None,
        3,
        2.5,
        np.float32(3),
        np.array(["a"]),
        np.array([object()]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.ones(2, np.longdouble),
        np.ma.masked_array([1.0, 2.0], [0, 1]),
        object(),
        {1, 2},
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_other_leaves_pass(leaf):
    """They are the same objects."""
    assert moved({"leaf": leaf})["leaf"] is leaf


def test_every_nesting_keeps_its_types():
    """Dicts, lists, tuples, named tuples and dataclasses are rebuilt around new leaves."""
    one = np.ones(2, np.float32)
    batch = moved({"a": [one, (one,)], "b": Pair(one, "right"), "c": Sample(one, "cat")})
    shapes = (batch["a"][0].shape, batch["a"][1][0].shape, batch["b"].left.shape)
    assert (shapes, batch["b"].right, batch["c"].label) == (3 * ((2,),), "right", "cat")
    assert (type(batch["b"]), type(batch["c"])) == (Pair, Sample)


def test_what_has_a_method_to_is_moved_by_it():
    """A class of one's own knows best what of it goes where."""

    class Graph:
        def __init__(self, where="host"):
            self.where = where

        def to(self, device):
            return Graph(str(device))

    assert moved({"graph": Graph()}, "meta")["graph"].where == "meta"


def test_a_device_without_streams_gets_copies():
    """They are there when the call returns."""
    batch = moved({"x": np.ones((2, 3), np.float32)}, "meta")
    assert (batch["x"].device.type, tuple(batch["x"].shape)) == ("meta", (2, 3))


def test_a_leaf_that_occurs_twice_is_one_on_a_device_without_streams(torch):
    """As on one with them: it is copied once."""
    array, tensor = np.ones(3, np.float32), torch.ones(3)
    batch = moved({"x": array, "y": [array, tensor], "z": (tensor,)}, "meta")
    same = batch["x"] is batch["y"][0], batch["y"][1] is batch["z"][0]
    assert (same, batch["x"].device.type) == ((True, True), "meta")


def test_deep_nesting_is_refused():
    """A container that contains itself is named."""
    batch = []
    batch.append(batch)
    with pytest.raises(StageError, match="nested at most 64 levels"):
        moved(batch)


def test_a_map_on_the_host_runs_in_the_threads_of_the_run():
    """Its calls run one after the other, in the order of the batches, epoch after epoch."""
    calls, threads = Calls(), set()

    def note(batch):
        calls.enter(batch)
        threads.add(threading.current_thread().name.rpartition("-")[0])
        calls.leave()
        return batch

    pipe = nbpipe.source(range(8)).to_device("cpu").map(note, device="cpu")
    with pipe.start() as run:
        given = [list(run) for _ in range(3)]
    assert (given, calls.peak, threads) == (3 * [list(range(8))], 1, {"nbpipe-worker"})


@pytest.mark.slow
def test_a_pipeline_in_a_process_of_its_own_copies_here():
    """With `isolate=True` the stages from the first `to_device` on stay with the loop."""
    pids = nbpipe.source(range(8)).map(_pid).batch(2).to_device("cpu").map(_with_pid, device="cpu")
    with pids.start(isolate=True) as run:
        batches = list(run)
        stats = run.stats()
        pids["_with_pid"].depth = 7
        turned = run.stats()["_with_pid"].prefetch
        rows = {row["stage"] for row in run.history()}
        report = leaks(run)
    there, here = batches[0]
    assert (len(batches), int(there[0]) != here, stats["_with_pid"].items_out) == (4, True, 4)
    found = turned, bool(report), list(stats)
    assert found == (7, False, ["source", "_pid", "batch", "to_device", "_with_pid", "consumer"])
    assert rows <= set(stats)


def test_leaks_are_those_of_a_run():
    """Of anything else, as of the pipeline, nothing is said to be held."""
    with pytest.raises(nbpipe.errors.ArgumentTypeError, match=r"needs a run, as pipe.start\(\)"):
        leaks(nbpipe.source(range(8)).batch(2))


def _pid(_):
    import os

    return os.getpid()


def _with_pid(batch):
    import os

    return batch, os.getpid()


def test_a_failure_behind_an_isolated_pipeline_is_kept():
    """It is remembered where it happened, and read as any other."""
    pipe = nbpipe.source(range(4)).to_device("cpu").map(_fail, device="cpu", on_error="skip")
    with pipe.start(isolate=True) as run:
        items = list(run)
        failures = [(one.stage, one.path) for one in run.failures()]
    assert (items, failures) == ([0, 1, 3], [("_fail", 2)])


def _fail(item):
    if item == 2:
        raise ValueError(item)
    return item


def test_a_missing_torch_is_named(monkeypatch):
    """With the line to type, when the run starts."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'jupyter-nbpipe\[torch\]'"):
        nbpipe.source(range(3)).to_device("cuda").start()
