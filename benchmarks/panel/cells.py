"""Cells: what the kernel runs."""

from __future__ import annotations

SETUP = """
import json, threading, time
from pathlib import Path
import nbpipe
from benchmarks.tasks import burn, burn_loops

def slow(x):
    time.sleep(0.002)
    return x

class Log:
    "What the process, and the threads that serve panels, have used of the processor so far."
    def __init__(self, name):
        self.rows, self.due_s, self.items, self.name = [], 0.0, 0, name
    def over(self, items):
        self.items += items
        if time.time() < self.due_s:
            return False
        threads = {"nbpipe-panels": {}, "IOPub": {}}
        for thread in threading.enumerate():
            if thread.name in threads:
                try:
                    spent_s = time.clock_gettime((~thread.native_id << 3) | 6)
                except (OSError, AttributeError):  # it has ended, or this is not Linux
                    continue
                threads[thread.name][thread.native_id] = spent_s
        self.rows.append([time.time(), time.process_time(), self.items, threads])
        self.due_s = time.time() + 0.25
        if not Path(self.name + ".stop").exists():
            return False
        Path(self.name + ".part").write_text(json.dumps(self.rows))
        Path(self.name + ".part").rename(self.name + ".json")
        return True
"""
SIX = """
pipe = nbpipe.source(range(10**9), name="files")
for name in ("read", "decode", "resize", "augment"):
    pipe = pipe.map(slow, name=name, concurrency=2)
run = pipe.batch(4).start()
"""
PACED = """
log = Log("six")
for batch in run:
    time.sleep(0.05)
    if log.over(len(batch)):
        break
"""
W2 = """
from benchmarks.job import Job
from benchmarks.peers.ours import build
plain, run = [build(Job("W2", "nbpipe", items=10**9), "io").start() for _ in range(2)]
"""
# Two runs of the same work, one of them shown: the page says which one is iterated.
W2_LOOP = """
log, both = Log("w2"), (iter(plain), iter(run))
batches, over = both[0], False
while not over:
    before = len(log.rows)
    over = log.over(len(next(batches)))
    if len(log.rows) > before:
        batches = both[Path("shown").exists()]
"""
STEPS = {
    "sleep": "step = lambda: time.sleep(0.05)",
    "python": "loops = burn_loops(0.05)\nstep = lambda: burn(loops)",
    "torch": """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3))
images_BCHW = torch.randn(16, 3, 64, 64)
step = lambda: net(images_BCHW).square().mean().backward()
""",
}
TRAINED = """
run = nbpipe.source(range(10**9)).map(slow, concurrency=2).start()
threads = set()
def noted(change):
    threads.add(threading.current_thread().name.partition("-")[0])
run["slow"].knobs["concurrency"].watch(noted)
"""
TRAINING = """
times = []
for item in run:
    times.append(time.perf_counter())
    step()
    if Path("trained.stop").exists():
        break
took = sorted(after - before for before, after in zip(times, times[1:]))
print(json.dumps([took[len(took) // 2], sorted(threads)]))
"""
