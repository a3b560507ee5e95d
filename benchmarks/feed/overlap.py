"""Overlap: the share of a copy to the GPU that costs no time beside a step twice as long.

Once with a step that waits for the device, and once with one that runs ahead of it. The chains of
this part are the ways to the device of `benchmarks.gpu`.
"""

from __future__ import annotations

from .. import gpu
from .job import Job, Numbers


def measure(job: Job) -> Numbers:
    """Measure copies alone, steps alone, then both."""
    scene = gpu.Scene(job.steps, pinned=True)
    bare_s = min(scene.timed(gpu.open_bare, gpu.drop).elapsed_s for _ in range(3))
    rounds = scene.rounds_for(gpu.STEP_OF_COPY * bare_s / job.steps)
    found: Numbers = {"copy_s": bare_s / job.steps}
    for name, waits in (("", True), ("_ahead", False)):
        step = scene.step(rounds, waits=waits)
        steps_s = scene.timed(gpu.open_on_device, step).elapsed_s
        beside = scene.timed(gpu.PEERS[job.chain], step)
        found[f"hidden{name}"] = gpu.hidden(beside.elapsed_s, steps_s, bare_s)
        found[f"wait{name}"] = beside.waited_s / beside.elapsed_s
        found[f"step{name}_s"] = steps_s / job.steps
    return found
