"""Machine: where the numbers come from."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbpipe

from .catalogue import installed_version

_PEERS = ("spdl", "spdl_core", "torch", "torchdata", "grain")
_OTHERS = ("numpy", "pillow", "scikit-learn", "scikit-image")


def cores() -> int:
    """Give the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(packages: Sequence[str] = (*_PEERS, *_OTHERS)) -> dict[str, Any]:
    """Return cores, CPU, Python, system and the versions of these packages."""
    found = {package: installed_version(package) for package in packages}
    return {
        "cores": cores(),
        "cpu": _cpu(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "switch_interval_s": sys.getswitchinterval(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"nbpipe": nbpipe.__version__, **{k: v for k, v in found.items() if v}},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
