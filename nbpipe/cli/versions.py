"""Versions: what a report of a bug must say of the machine that it was seen on."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from ..base.threads import FREE_THREADED
from ..version import __version__
from .terminal import printable

# What nbpipe works with, where it is installed; the last four show the panel.
_PACKAGES = (
    "numpy",
    "cloudpickle",
    "psutil",
    "torch",
    "distributed",
    "ipykernel",
    "ipywidgets",
    "anywidget",
    "jupyterlab",
    "notebook",
)


class VersionAction(argparse.Action):
    """Prints the versions and ends, as `--version` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        """Print them, a line for each."""
        sys.stdout.writelines(f"{printable(line)}\n" for line in versions())
        parser.exit()


def versions() -> Iterator[str]:
    """Yield the version of nbpipe, of Python and the system, and of each package that is there.

    Nothing is imported for it, and no path or name of this machine is among them.
    """
    build = " free-threaded" if FREE_THREADED else ""
    yield f"nbpipe {__version__}"
    yield f"{platform.python_implementation()} {platform.python_version()}{build}"
    yield f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
