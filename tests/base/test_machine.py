"""Cores and memory of a machine that consists of files: control groups of both versions."""

import os

import pytest

from nbpipe.base.machine import Machine, release_free_memory

MB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def write(root, files):
    """Write files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path):
    """Return a machine with 1 GB free, and a process with two children and a grandchild."""
    files = {"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n"}
    for pid, pages, children in ((1, 100, "2 3"), (2, 10, "4"), (3, 1, ""), (4, 1000, "")):
        files[f"proc/{pid}/statm"] = f"99999 {pages} 5 1 0 7 0"
        files[f"proc/{pid}/task/{pid}/children"] = children
    write(tmp_path, files)
    return Machine(tmp_path, pid=1)


def test_resident_memory_of_the_tree(machine, tmp_path):
    """Children and their children count; one that has ended does not."""
    assert machine.resident_bytes() == 1111 * PAGE
    (tmp_path / "proc/4/statm").unlink()
    assert machine.resident_bytes() == 111 * PAGE


def test_a_system_that_reports_nothing(tmp_path):
    """The caller gets an error, and does not go by a wrong number."""
    (tmp_path / "proc").mkdir()
    with pytest.raises(OSError, match="statm"):
        Machine(tmp_path, pid=1).resident_bytes()


def test_free_memory_without_a_group(machine):
    """Without control groups it is what the machine has."""
    assert machine.free_bytes() == 1_000_000 * 1024


V2 = {
    "proc/1/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/job/memory.max": "max\n",
    "sys/fs/cgroup/user/job/memory.current": "100\n",
    "sys/fs/cgroup/user/memory.max": f"{500 * MB}\n",
    "sys/fs/cgroup/user/memory.current": f"{300 * MB}\n",
    "sys/fs/cgroup/user/memory.stat": f"anon 7\ninactive_file {50 * MB}\n",
    "sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user/cpu.max": "50000 100000\n",
}
V1 = {
    "proc/1/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box/inner\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{500 * MB}\n",
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{300 * MB}\n",
    "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {50 * MB}\n",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["version 2", "version 1"])
def test_the_limit_of_a_group_above(machine, tmp_path, files):
    """A limit at any level counts; files that the system can drop do not."""
    write(tmp_path, files)
    assert machine.free_bytes() == 250 * MB
    assert machine.cores() == 0.5


@pytest.mark.parametrize("text", ["max 100000", "", "1 0"])
def test_no_quota(machine, tmp_path, text):
    """Without a quota that can be read, every core counts."""
    cores = machine.cores()
    write(tmp_path, {"proc/1/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert machine.cores() == cores


def test_this_machine():
    """The system that runs this test reports all of it, in any control group."""
    release_free_memory()
    machine = Machine()
    assert machine.resident_bytes() > MB
    assert machine.free_bytes() > 0
    assert 0 < machine.cores() <= (os.cpu_count() or 1)
