"""Dask clusters for tests: on this machine, quiet, and closed to the last thread."""

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager

import dask
import distributed
import pytest

QUIET = {
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.scheduler.allowed-failures": 1,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.worker.memory.terminate": False,
}


@contextmanager
def cluster(*, processes=False, workers=2, threads=1, **options):
    """Give a client of a cluster; workers in this process take a moment, processes seconds."""
    before = set(threading.enumerate())
    with (
        dask.config.set(QUIET),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=processes,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
            **options,
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("IO loop", "QueueFeeder", "AsyncProcess", "Profile", "TCP-Ex")):
            thread.join()


@contextmanager
def scheduler_process():
    """Give a scheduler in a process of its own, and its address."""
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--port",
        "0",
        "--no-dashboard",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stderr if "Scheduler at:" in line)
            yield process, line.split()[-1]
        finally:
            process.kill()


@pytest.fixture(scope="module", autouse=True)
def offload_thread():
    """Start the thread that Dask pickles in, which it keeps, before leaks are counted."""
    distributed.utils._offload_executor.submit(int).result()
