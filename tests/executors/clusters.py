"""Dask clusters for tests: on this machine, quiet, and closed to the last thread."""

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from tests.gates import HANG_S, still_alive

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

QUIET = {
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.comm.timeouts.connect": HANG_S,
    "distributed.worker.memory.terminate": False,
}


@contextmanager
def cluster(*, processes=False, workers=2, threads=1, allowed_failures=1):
    """Give a client of a cluster; workers in this process take a moment, processes seconds."""
    failures = {"distributed.scheduler.allowed-failures": allowed_failures}
    before = set(threading.enumerate())
    with (
        dask.config.set(QUIET | failures),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=processes,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client
    client._loop_runner.stop()  # a client that was closed by its cluster leaves its loop running
    new = set(threading.enumerate()) - before
    names = ("IO loop", "QueueFeeder", "AsyncProcess", "Profile", "TCP-Ex")
    still_alive([one for one in new if one.name.startswith(names)])


@contextmanager
def scheduler_process():
    """Give a scheduler in a process of its own, and its address."""
    with _process("dask_scheduler", "--port", "0", "--no-dashboard") as process:
        line = next(line for line in process.stderr if "Scheduler at:" in line)
        yield process, line.split()[-1]


@contextmanager
def worker_process(address):
    """Give a worker in a process of its own."""
    with _process("dask_worker", address, "--no-dashboard", "--no-nanny") as process:
        yield process


@contextmanager
def _process(name, *arguments):
    command = [sys.executable, "-m", f"distributed.cli.{name}", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def offload_thread():
    """Start the thread that Dask pickles in, which it keeps, before leaks are counted."""
    distributed.utils._offload_executor.submit(int).result()
