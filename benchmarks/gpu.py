"""`python -m benchmarks.gpu`: batches to a CUDA device, side by side. It needs one.

- bytes_per_s: batches are taken and dropped; `of_bare` divides by a copy of the same memory, pinned
  or not, in the loop's own thread, in the same round.
- overlap: the share of the copies that cost no time beside a step twice as long as a copy. The
  time of the steps alone and of the copies alone is measured in the same round.
- wait: the share of that time that the loop waits for its next batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, NamedTuple

from . import machine
from .report import markdown, number
from .results import say, write

SHAPE = (64, 3, 224, 224)  # float32, 38.5 MB
WARMUP = 8
STEP_OF_COPY = 2.0
_COLUMNS = ("bytes_per_s", "of_bare", "overlap", "wait")
SIDE = 1024  # of the matrices that a step multiplies

DEVICE = "cuda"
DEPTH = 2

Numbers = dict[str, float]
Step = Callable[[Any], object]
Batches = AbstractContextManager[Iterator[Any]]
Peer = Callable[[Sequence[Any], int], Batches]


# -- Peers: who brings batches from the host to the device, and how each is set up -----------------
@dataclass(frozen=True)
class Held:
    """A map-style dataset of `count` batches that are there already, given in turn."""

    batches: Sequence[Any]
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        """Give a batch."""
        if index >= self.count:
            raise IndexError(index)
        return self.batches[index % len(self.batches)]


def open_bare(batches: Sequence[Any], count: int) -> Batches:
    """Copy in the loop's own thread, on the loop's own stream."""
    held = Held(batches, count)
    return nullcontext(held[n].to(DEVICE, non_blocking=True) for n in range(count))


def open_on_device(batches: Sequence[Any], count: int) -> Batches:
    """Give batches that lie on the device already."""
    there = [batch.to(DEVICE) for batch in batches]
    return nullcontext(iter(Held(there, count)))


@contextmanager
def open_nbpipe(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Copy in a thread of the run, on the run's stream."""
    import nbpipe

    pipe = nbpipe.source(Held(batches, count)).to_device(DEVICE, depth=DEPTH)
    with pipe.start() as run:
        yield iter(run)


@contextmanager
def open_spdl(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Copy in a thread that SPDL's own transfer keeps for its stream."""
    from spdl.io import transfer_tensor_h2d
    from spdl.pipeline import PipelineBuilder

    held = Held(batches, count)
    with ThreadPoolExecutor(1) as thread:
        pipeline = (
            PipelineBuilder[Any, Any]()
            .add_source(held[n] for n in range(count))
            .pipe(transfer_tensor_h2d, executor=thread)
            .add_sink(DEPTH)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield iter(pipeline)


@contextmanager
def open_torch(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Let a DataLoader with two workers pin the batches; the loop copies them."""
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Held([batch.clone() for batch in batches], count),  # no child can read pinned memory
        batch_size=None,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=DEPTH,
    )
    threads = torch.get_num_threads()
    yield (batch.to(DEVICE, non_blocking=True) for batch in loader)
    torch.set_num_threads(threads)  # its thread that pins leaves one to all new threads


def open_side_stream(batches: Sequence[Any], count: int) -> Batches:
    """Begin the next copy in the loop's own thread, on a second stream, before a batch is given."""
    import torch

    held, stream = Held(batches, count), torch.cuda.Stream()

    def begun(number: int) -> Any:
        with torch.cuda.stream(stream):
            return held[number].to(DEVICE, non_blocking=True)

    def each() -> Iterator[Any]:
        following = begun(0)
        for place in range(1, count + 1):
            reader = torch.cuda.current_stream()
            reader.wait_stream(stream)
            batch, following = following, begun(place) if place < count else None
            batch.record_stream(reader)
            yield batch

    return nullcontext(each())


@contextmanager
def open_pump(batches: Sequence[Any], count: int) -> Iterator[Iterator[Any]]:
    """Copy in one bare thread, on its own stream: what nbpipe's way is held to."""
    import torch

    held = Held(batches, count)
    ready: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    room, stopped = threading.Semaphore(DEPTH), threading.Event()

    def pump() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for number in range(count):
                room.acquire()
                if stopped.is_set():
                    return
                copied = torch.cuda.Event()
                batch = held[number].to(DEVICE, non_blocking=True)
                copied.record()
                ready.put((batch, copied))

    def each() -> Iterator[Any]:
        reader = torch.cuda.current_stream()
        for _ in range(count):
            batch, copied = ready.get()
            room.release()
            reader.wait_event(copied)
            batch.record_stream(reader)
            yield batch

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    yield each()
    stopped.set()
    room.release()
    thread.join()


PEERS: dict[str, Peer] = {
    "nbpipe": open_nbpipe,
    "pump": open_pump,
    "spdl": open_spdl,
    "torch": open_torch,
    "side stream": open_side_stream,
}


# -- Measuring -------------------------------------------------------------------------------------


class Timed(NamedTuple):
    """One epoch, after the warm-up.

    Attributes:
        elapsed_s: until everything was done on the device [s].
        waited_s: in which the loop waited for its next batch [s].
    """

    elapsed_s: float
    waited_s: float


class Scene:
    """What all peers are given.

    Args:
        count: batches of an epoch, the warm-up not counted.
        pinned: they lie in pinned memory from the beginning.
    """

    def __init__(self, count: int, *, pinned: bool) -> None:
        import torch

        self.count = count
        self.batches = [torch.rand(SHAPE, pin_memory=pinned) for _ in range(4)]
        self.size_bytes = self.batches[0].nbytes
        self.matrix = torch.rand(SIDE, SIDE, device=DEVICE)

    def step(self, rounds: int, *, waits: bool = True) -> Step:
        """Return a step that reads the batch and multiplies matrices.

        Args:
            rounds: multiplications.
            waits: the step waits for the device; else it only launches.
        """
        import torch

        def work(batch: Any) -> None:
            found = batch.view(-1)[0] * self.matrix
            for _ in range(rounds):
                found = self.matrix @ found
            if waits:
                torch.cuda.current_stream().synchronize()

        return work

    def rounds_for(self, step_s: float) -> int:
        """Give the multiplications that take about so long."""
        tried = 200
        once = self.timed(open_on_device, self.step(tried)).elapsed_s / self.count
        return max(1, int(tried * step_s / once))

    def timed(self, peer: Peer, step: Step) -> Timed:
        """Take an epoch from a peer; the warm-up is not counted."""
        import torch

        with peer(self.batches, WARMUP + self.count) as batches:
            for _ in range(WARMUP):
                step(next(batches))
            torch.cuda.synchronize()
            waited_s, begun_s = 0.0, time.perf_counter()
            while True:
                asked_s = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    break
                waited_s += time.perf_counter() - asked_s
                step(batch)
                del batch
            torch.cuda.synchronize()
            return Timed(time.perf_counter() - begun_s, waited_s)


def measure(scene: Scene) -> dict[str, Numbers]:
    """Measure every peer once, and what they are compared with."""
    bare_s = scene.timed(open_bare, drop).elapsed_s
    step = scene.step(scene.rounds_for(STEP_OF_COPY * bare_s / scene.count))
    steps_s = scene.timed(open_on_device, step).elapsed_s
    whole_bytes = scene.size_bytes * scene.count
    found: dict[str, Numbers] = {"bare": {"bytes_per_s": whole_bytes / bare_s}}
    for name, peer in PEERS.items():
        try:
            taken = scene.timed(peer, drop)
            beside = scene.timed(peer, step)
        except (ImportError, RuntimeError) as error:
            say(f"{name:12}not measured: {error}")
            continue
        found[name] = {
            "bytes_per_s": whole_bytes / taken.elapsed_s,
            "of_bare": bare_s / taken.elapsed_s,
            "overlap": hidden(beside.elapsed_s, steps_s, bare_s),
            "wait": beside.waited_s / beside.elapsed_s,
        }
        say(f"{name:12}{scene.size_bytes / 1e6:.0f} MB  {found[name]}")
    return found


def hidden(both_s: float, steps_s: float, copies_s: float) -> float:
    """Return the share of the copies that costs no time beside the steps."""
    return 1.0 - max(0.0, both_s - steps_s) / copies_s


def drop(batch: Any) -> None:
    """Drop the batch."""


def _medians(rounds: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
    return {
        name: {key: median(one[name][key] for one in rounds) for key in rounds[0][name]}
        for name in rounds[0]
        if all(name in one for one in rounds)
    }


def report(data: dict[str, Any]) -> str:
    """Give a table for each kind of source."""
    parts = [f"# To the device: {data['device']}, {data['machine']['versions']}"]
    for source, rounds in data["rounds"].items():
        rows = [
            [name, *(number(found.get(key)) for key in _COLUMNS)]
            for name, found in _medians(rounds).items()
        ]
        head = ("", *_COLUMNS)
        parts.append(f"## {source} source, {len(rounds)} rounds\n\n{markdown(head, rows)}")
    return "\n\n".join(parts) + "\n"


def cuda_device() -> str | None:
    """Give the name of the CUDA device, or None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def main() -> int:
    """Measure, and write `gpu-<time>.json` and `gpu-<time>.md`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    device = cuda_device()
    if device is None:
        say("no CUDA device here: these benchmarks copy to one; nothing was measured")
        return 2
    now = datetime.now(UTC)
    rounds: dict[str, list[dict[str, Numbers]]] = {"pinned": [], "pageable": []}
    for source, found in rounds.items():
        scene = Scene(given.batches, pinned=source == "pinned")
        found += [measure(scene) for _ in range(given.rounds)]
    data = {"machine": machine.describe(), "device": device, "shape": SHAPE, "rounds": rounds}
    text = json.dumps({"started": now.isoformat(" ", "minutes"), **data}, indent=1) + "\n"
    path = write(given.out, text, report(data), "gpu-")
    say(f"\n{report(data)}\nraw numbers: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
