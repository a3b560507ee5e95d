"""Contender: who takes part, with which settings, and what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Options = Mapping[str, Any]
FIXED = "its concurrency is fixed when it is built"
TRANSPORT = ("W6", "W6s")


@dataclass(frozen=True, slots=True)
class Contender:
    """One who takes part.

    Attributes:
        name: name in tables.
        module: module in `benchmarks.peers`.
        packages: distributions it needs; the first one is named in the pip line.
        pip: what to install.
        options: settings for a workload.
        alternatives: other settings that were tried.
        refusals: why it cannot do a workload.
        notes: what is different about the way it does a workload.
        only: workloads it takes part in; all where there are none.
        share: part of the workload's items or cycles it is given, where it is very slow.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()
    pip: str = ""
    options: Mapping[str, Options] = field(default_factory=dict)
    alternatives: Mapping[str, tuple[Options, ...]] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    share: Mapping[str, float] = field(default_factory=dict)

    def takes_part(self, workload: str) -> bool:
        """Tell whether it is asked for a workload at all."""
        return not self.only or workload in self.only

    def missing(self) -> str:
        """Name the pip line where a package is not installed; else an empty text."""
        for package in self.packages:
            if installed_version(package) is None:
                return f"{package} is not installed: pip install {self.pip}"
        return ""


def installed_version(package: str) -> str | None:
    """Give the version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
