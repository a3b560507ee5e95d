"""Run a command and print the memory that it and its children took: peak.py LIMIT_GB COMMAND..."""

import subprocess
import sys

import psutil

SAMPLE_S = 0.2
# What the JupyterLab server takes beside the notebook's kernel.
SERVER_BYTES = 150_000_000


def tree_bytes(root: psutil.Process) -> int:
    """Add up the memory of a process and all below it, shared pages counted once."""
    total = 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # ended by now
            continue
    return total


def main(limit_gb: float, command: list[str]) -> int:
    """Run `command`; return its exit code, or 1 where it took more than `limit_gb`."""
    process, peak_bytes = psutil.Popen(command), 0
    while process.poll() is None:
        try:
            peak_bytes = max(peak_bytes, tree_bytes(process))
            process.wait(SAMPLE_S)
        except psutil.NoSuchProcess:
            break
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            continue
    peak_gb = (peak_bytes + SERVER_BYTES) / 1e9
    code = process.wait()
    print(f"exit code {code}; peak {peak_gb:.2f} GB of {limit_gb} GB", file=sys.stderr)
    return code or int(peak_gb > limit_gb)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
