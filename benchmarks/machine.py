"""Machine: where the numbers come from."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .catalogue import installed_version

_PACKAGES = (
    "spdl",
    "spdl_core",
    "torch",
    "torchdata",
    "grain",
    "numpy",
    "pillow",
    "scikit-learn",
    "scikit-image",
)


def cores() -> int:
    """Give the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """Give cores, CPU, Python, system and the versions of all who take part."""
    return {
        "cores": cores(),
        "cpu": _cpu(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "switch_interval_s": sys.getswitchinterval(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"nbpipe": _nbpipe_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {package: installed_version(package) for package in _PACKAGES}
    return {package: version for package, version in found.items() if version}


def _nbpipe_version() -> str:
    import nbpipe

    return str(getattr(nbpipe, "__version__", "unknown"))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
