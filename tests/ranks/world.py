"""World: real processes that run jobs together, each job in a process group of its own.

Importing torch takes seconds, so the processes stay for many jobs. A job that takes too long, or
a rank that fails or dies, ends all of them: nothing is left behind.
"""

import os
import socket
import subprocess
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Nearly all that a test has: all ranks load torch at once, and some may be at it when a job begins.
ANSWER_S = 100.0


class World:
    """Processes with ranks from 0.

    Args:
        size: how many.
    """

    def __init__(self, size):
        self._size = size
        self._processes, self._links = [], []
        self._job = 0
        self._open()

    def _open(self):
        for rank in range(self._size):
            self._start(rank)
        port = self._answers([0], ANSWER_S)[0]
        for link in self._links[1:]:
            link.send(port)

    def _start(self, rank):
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.ranks.world", str(rank), str(theirs.fileno())]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        with theirs:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=(theirs.fileno(),)
            )
        self._processes.append(process)
        self._links.append(Connection(ours.detach()))

    def begin(self, job, size=None, **arguments):
        """Let the first `size` ranks begin a job: a function of `tests.ranks.jobs`."""
        if any(process.poll() is not None for process in self._processes):
            self.kill()  # one has ended since the job before
        if not self._links:  # a job before ended all processes
            self._open()
        self._job += 1
        count = self._size if size is None else size
        for link in self._links[:count]:
            link.send((self._job, job, count, arguments))

    def wait(self, ranks):
        """Give what the job returned, or told, on these ranks."""
        return self._answers(ranks, ANSWER_S)

    def run(self, job, size=None, **arguments):
        """Run a job to its end; give what it returned on each rank."""
        self.begin(job, size, **arguments)
        return self.wait(range(self._size if size is None else size))

    def say(self, rank, value):
        """Say something to a rank that listens in the midst of a job."""
        self._links[rank].send(value)

    def kill(self):
        """Kill all processes, as the machine's end would."""
        for process in self._processes:
            process.kill()
            process.wait()
        for link in self._links:
            link.close()
        self._processes, self._links = [], []

    def _answers(self, ranks, limit_s):
        deadline = time.monotonic() + limit_s
        answers = [self._answer(rank, deadline) for rank in ranks]
        wrong = [text for kind, text in answers if kind == "error"]
        if wrong:
            self.kill()
            raise AssertionError("\n".join(wrong))
        return [answer for _, answer in answers]

    def _answer(self, rank, deadline):
        link = self._links[rank]
        try:
            if link.poll(max(0.0, deadline - time.monotonic())):
                return link.recv()
        except (EOFError, OSError):
            return "error", f"rank {rank} is gone"
        return "error", f"rank {rank} did not answer in time"


class Rank:
    """What a job knows of the process that it runs in.

    Attributes:
        number: from 0.
        size: number of ranks in this job.
        store: what the ranks of this job share.
    """

    def __init__(self, number, size, store, link):
        self.number, self.size, self.store = number, size, store
        self._link = link

    def tell(self, value):
        """Say something to the test in the midst of a job."""
        self._link.send(("answer", value))

    def listen(self):
        """Wait for what the test says."""
        return self._link.recv()


def serve(number, link):
    """Run jobs until the test closes its end."""
    import torch.distributed as dist

    from tests.ranks import jobs

    if number == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        link.send(("answer", server.port))
    else:
        server = dist.TCPStore("127.0.0.1", link.recv(), is_master=False)
    while True:
        job, name, size, arguments = link.recv()
        store = dist.PrefixStore(f"job{job}", server)
        dist.init_process_group("gloo", store=store, rank=number, world_size=size)
        try:
            rank = Rank(number, size, store, link)
            link.send(("answer", getattr(jobs, name)(rank, **arguments)))
            dist.barrier()
        except Exception:
            link.send(("error", f"rank {number}: {traceback.format_exc()}"))
        finally:
            dist.destroy_process_group()


def main():
    """Be a rank."""
    number, handle = map(int, sys.argv[1:])
    try:
        serve(number, Connection(handle))
    except EOFError:
        return


if __name__ == "__main__":
    main()
