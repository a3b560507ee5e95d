"""Other versions of what nbpipe runs in, on which tests run, each in a folder of its own."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = importlib.metadata.version("ipykernel")
OTHERS = ("6.29.5", "6.31.0", "7.0.1", "7.3.0", "7.4.0")
VERSIONS = sorted(
    {*OTHERS, INSTALLED}, key=lambda version: [int(n) for n in version.split(".")[:3]]
)
INSTALL_S = 50


class InstallError(Exception):
    """A version that is not at hand and cannot be fetched."""


def has_subshells(version: str) -> bool:
    """Return whether a version of ipykernel knows subshells."""
    return int(version.split(".", maxsplit=1)[0]) >= 7


def path_of(version: str) -> str:
    """Return what PYTHONPATH must begin with for a version of ipykernel."""
    return "" if version == INSTALLED else str(fetch("ipykernel", version))


def fetch(package: str, version: str) -> Path:
    """Return the folder that has a version of a package alone; fetch it where it is missing."""
    folder = cache() / f"{package}-{version}"
    if not folder.is_dir():
        _install(f"{package}=={version}", folder)
    return folder


def cache() -> Path:
    """Return the folder that keeps the versions from one run of the tests to the next."""
    return Path(os.environ.get("NBPIPE_TEST_CACHE") or ROOT / ".cache" / "versions")


def _install(wanted: str, folder: Path) -> None:
    """Install beside the place and move there: others may be doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".install-") as beside:
        fresh = Path(beside, "fresh")
        _pip(wanted, fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another was faster
            shutil.rmtree(fresh)


def _pip(wanted: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1", "--target", str(folder), wanted]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise InstallError(
            f"{wanted} is not in {cache()} and could not be fetched: {said[-1]}; fetch it "
            f"where there is a network, or point NBPIPE_TEST_CACHE at a folder that has it"
        ) from None
