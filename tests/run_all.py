"""Run every check of the repository, or the parts named, and print the time of each."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("notebooks/*.ipynb"))
# The machine's Node comes first, else the one beside this Python.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
PARTS = {
    "js": ["npm", "run", "--silent", "check"],
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "tests": ["pytest", "-q", "tests"],
    "doctests": ["pytest", "-q", "nbpipe"],
    "notebooks": ["pytest", "-q", "--timeout=300", "--nbval-lax", "--nbval-current-env"],
    "browser": ["pytest", "-q", "-m", "browser", "tests/browser"],
}


def command_of(name: str) -> tuple[list[str], Path]:
    """Return the command of a part, and the folder to run it in."""
    if name == "js":
        return [shutil.which("npm", path=PATH) or "npm", *PARTS[name][1:]], ROOT / "js"
    return [sys.executable, "-m", *PARTS[name], *(NOTEBOOKS if name == "notebooks" else [])], ROOT


def run_part(name: str) -> tuple[int, float]:
    """Run one part; return its exit code and the seconds it took."""
    command, folder = command_of(name)
    print(f"\n== {name}: {' '.join([Path(command[0]).name, *command[1:]])}", flush=True)
    started_s = time.perf_counter()
    environment = os.environ | {"PATH": PATH}
    code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    return code, time.perf_counter() - started_s


def main(names: list[str]) -> int:
    """Run the parts in order, all of them even after a failure; return 1 if one failed."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        return 2
    results = {name: run_part(name) for name in names or PARTS}
    print(f"\n{'part':<12}{'result':<10}{'time':>8}")
    for name, (code, seconds) in results.items():
        print(f"{name:<12}{'failed' if code else 'passed':<10}{seconds:>6.1f} s")
    print(f"{'all':<22}{sum(seconds for _, seconds in results.values()):>6.1f} s")
    return int(any(code for code, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
