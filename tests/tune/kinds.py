"""The kinds of pipelines that autotune is tried on, in virtual time; each depends on a seed.

No call takes exactly as long as another: equal calls fall into step, and then the same knobs have
several rates, by what was before.
"""

from __future__ import annotations

import math
import random

from tests.tune.model import Kind, Loop, Model, Serving, grown

MB = 1e6


def between(draw: random.Random, middle: float, spread: float = 0.3) -> float:
    """Return a number around another one."""
    return middle * draw.uniform(1 - spread, 1 + spread)


def steady(step_s: float):
    """Return a loop whose steps take about equally long."""
    return Loop(lambda model, count: step_s * model.jitter(count, 0.05))


def shared(time_s: float, cores: int, over: float = 0.0, *, later: int | None = None):
    """Return the time of calls that compute on cores, of which there are fewer later."""

    def computes(model: Model, item: int) -> float:
        now = later if later and model.phase else cores
        return model.on_cores(time_s * model.jitter(item, 0.1), now, over)

    return computes


def needed(time_s: float, step_s: float) -> int:
    """Return the calls that keep the pace of a loop."""
    return max(1, math.ceil(time_s / step_s))


def around(calls: int) -> list[int]:
    """Return values near a number of calls, for a grid."""
    return sorted({max(1, round(calls * part)) for part in (0.5, 0.85, 0.93, 1.0, 1.07, 1.15, 1.4)})


def io(seed: int) -> Kind:
    """Calls wait for a disk; many may."""
    draw = random.Random(seed)
    read_s, step_s = between(draw, 0.24), between(draw, 0.02)
    read = Serving("read", lambda model, item: read_s * model.jitter(item, 0.2))
    return Kind([read], steady(step_s), {"read.concurrency": around(needed(read_s, step_s))})


def cpu(seed: int) -> Kind:
    """Calls compute in C on two cores."""
    draw = random.Random(seed)
    time_s, step_s = between(draw, 0.064), between(draw, 0.01)
    decode = Serving("decode", shared(time_s, 2), cpu_share=1.0)
    return Kind([decode], steady(step_s), {"decode.concurrency": [1, 2, 3, 4]}, cores=2)


def python_threads(seed: int) -> Kind:
    """Calls compute in Python: one at a time, and others make it slower."""
    draw = random.Random(seed)
    time_s, step_s = between(draw, 0.04), between(draw, 0.01)
    parse = Serving("parse", shared(time_s, 1, 0.11), cpu_share=1.0)
    return Kind([parse], steady(step_s), {"parse.concurrency": [1, 2, 4]}, cores=4)


def python_processes(seed: int) -> Kind:
    """Calls compute in Python, in worker processes that start slowly."""
    draw = random.Random(seed)
    time_s, step_s, start_s = between(draw, 0.16), between(draw, 0.04), between(draw, 0.8)
    parse = Serving("parse", lambda model, item: time_s * model.jitter(item, 0.1), away=True)
    parse.start_s = start_s
    return Kind([parse], steady(step_s), {"parse.concurrency": around(needed(time_s, step_s))})


def mixed(seed: int) -> Kind:
    """One stage waits and two compute on four cores."""
    draw = random.Random(seed)
    fetch_s, decode_s, augment_s = (between(draw, one, 0.2) for one in (0.24, 0.09, 0.045))
    step_s = between(draw, 0.04, 0.2)
    servings = [
        Serving("fetch", lambda model, item: fetch_s * model.jitter(item, 0.2)),
        Serving("decode", shared(decode_s, 4), cpu_share=1.0),
        Serving("augment", shared(augment_s, 4), cpu_share=1.0),
    ]
    grid = {
        "fetch.concurrency": around(needed(fetch_s, step_s))[1:],
        "decode.concurrency": [2, 3, 4],
        "augment.concurrency": [1, 2],
    }
    return Kind(servings, steady(step_s), grid, cores=4)


def lock(seed: int) -> Kind:
    """Calls hold a lock for a part of their time, which is longer while others wait for it."""
    draw = random.Random(seed)
    free_s, held_s, step_s = between(draw, 0.032), between(draw, 0.024), between(draw, 0.005)

    def query(model: Model, item: int) -> float:
        part = model.jitter(item, 0.1)
        return model.in_turn("lock", part * free_s, part * held_s, 0.3)

    return Kind(
        [Serving("query", query)], steady(step_s), {"query.concurrency": [1, 2, 3, 4, 5, 6, 8, 12]}
    )


def bursty(seed: int) -> Kind:
    """The loop pauses for a second now and then, for a validation."""
    draw = random.Random(seed)
    read_s, step_s = between(draw, 0.16), between(draw, 0.012)
    read = Serving("read", lambda model, item: read_s * model.jitter(item, 0.2), prefetch=2)
    loop = Loop(lambda model, count: step_s * model.jitter(count, 0.05), every=40, pause_s=1.0)
    grid = {"read.concurrency": [4, 5, 6, 8, 10, 12, 14, 16], "read.prefetch": [2, 32]}
    return Kind([read], loop, grid)


def consumer(seed: int) -> Kind:
    """The loop sets the pace."""
    draw = random.Random(seed)
    read_s, step_s = between(draw, 0.02), between(draw, 0.06)
    read = Serving("read", lambda model, item: read_s * model.jitter(item, 0.2))
    return Kind([read], steady(step_s), {"read.concurrency": [1, 2]})


def memory(seed: int) -> Kind:
    """Results are large, and the ceiling leaves room for few of them."""
    draw = random.Random(seed)
    load_s, step_s = between(draw, 0.2), between(draw, 0.025)
    load = Serving("load", lambda model, item: load_s * model.jitter(item, 0.1))
    load.size = lambda _model, _item: 16 * MB
    calls = needed(load_s, step_s)
    grid = {"load.concurrency": around(calls), "load.prefetch": [1, 2, 8]}
    return Kind([load], steady(step_s), grid, memory_bytes=(calls + 5) * 16 * MB * 1.1)


def quota(seed: int) -> Kind:
    """Calls compute under a quota that the tuner does not know of."""
    draw = random.Random(seed)
    time_s, step_s, cores = between(draw, 0.08), between(draw, 0.01), draw.choice([2, 3, 4])
    decode = Serving("decode", shared(time_s, cores), cpu_share=0.6)
    return Kind([decode], steady(step_s), {"decode.concurrency": [1, 2, 3, 4, 5, 6, 8]})


def eight(seed: int) -> Kind:
    """One of eight stages is slow."""
    draw = random.Random(seed)
    slow, slow_s, step_s = draw.randrange(8), between(draw, 0.2), between(draw, 0.025)
    servings = []
    for number in range(8):
        time_s = slow_s if number == slow else between(draw, 0.008)
        servings.append(
            Serving(
                f"stage{number}",
                lambda model, item, time_s=time_s: time_s * model.jitter(item, 0.2),
            )
        )
    name = f"stage{slow}.concurrency"
    return Kind(servings, steady(step_s), {name: around(needed(slow_s, step_s))})


def remote(seed: int) -> Kind:
    """A server answers later, the more calls it has."""
    draw = random.Random(seed)
    time_s, step_s, strong = between(draw, 0.2), between(draw, 0.012), between(draw, 9)

    def answer(model: Model, item: int) -> float:
        load = model.stages[0].running / strong
        return time_s * (1 + load**2) * model.jitter(item, 0.1)

    return Kind([Serving("get", answer)], steady(step_s), {"get.concurrency": grown(2, 24)})


def changing(seed: int) -> Kind:
    """After half a minute each call takes longer, or less long."""
    draw = random.Random(seed)
    read_s, step_s = between(draw, 0.16), between(draw, 0.02)
    times_s = [read_s, read_s * draw.choice([0.4, 2.0, 3.0])]
    read = Serving("read", lambda model, item: times_s[model.phase] * model.jitter(item, 0.2))
    calls = sorted({one for time_s in times_s for one in around(needed(time_s, step_s))})
    return Kind([read], steady(step_s), {"read.concurrency": calls}, phases=2)


def growing(seed: int) -> Kind:
    """Results grow tenfold while the run goes on, and the ceiling stays."""
    draw = random.Random(seed)
    load_s, step_s = between(draw, 0.2), between(draw, 0.04)
    load = Serving("load", lambda model, item: load_s * model.jitter(item, 0.1))
    load.size = lambda _model, item: 2 * MB * min(10.0, 1 + max(0, item - 400) / 30)
    calls = needed(load_s, step_s)
    grid = {"load.concurrency": around(calls), "load.prefetch": [1, 2, 4, 8]}
    return Kind([load], steady(step_s), grid, memory_bytes=(calls + 4) * 20 * MB * 1.1)


def tail(seed: int) -> Kind:
    """A few calls take twenty times as long, and results are handed on in order."""
    draw = random.Random(seed)
    read_s, step_s, rare = between(draw, 0.06), between(draw, 0.02), draw.randint(25, 45)

    def read(model: Model, item: int) -> float:
        return read_s * model.jitter(item, 0.2) * (20 if item % rare == rare - 1 else 1)

    calls = needed(read_s * (1 + 19 / rare), step_s)
    grid = {"read.concurrency": around(2 * calls), "read.prefetch": [8, 32, 128]}
    batch = Serving("batch", lambda _model, _item: 0.0001, calls=None, prefetch=2)
    return Kind([Serving("read", read), batch], steady(step_s), grid)


def stolen(seed: int) -> Kind:
    """After half a minute others use half of the cores."""
    draw = random.Random(seed)
    time_s, step_s = between(draw, 0.08), between(draw, 0.015)
    decode = Serving("decode", shared(time_s, 4, later=2), cpu_share=1.0)
    grid = {"decode.concurrency": [1, 2, 3, 4]}
    return Kind([decode], steady(step_s), grid, phases=2, cores=4)


def slowed(seed: int) -> Kind:
    """Calls make the steps of the loop longer."""
    draw = random.Random(seed)
    read_s, step_s = between(draw, 0.06), between(draw, 0.027)
    read = Serving("read", lambda model, item: read_s * model.jitter(item, 0.1))
    loop = Loop(lambda model, _: step_s * (1 + 0.1 * (model.stages[0].concurrency - 1)))
    return Kind([read], loop, {"read.concurrency": [1, 2, 3, 4, 5]})


KINDS = {
    one.__name__: one
    for one in (
        *(io, cpu, python_threads, python_processes, mixed, lock, bursty, consumer, memory, quota),
        *(eight, remote, changing, growing, tail, stolen, slowed),
    )
}
