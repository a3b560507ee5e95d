"""Run the checks of a tier, or the parts named, and print the time of each.

    run_all.py everyday         what a change usually breaks (`make test`)
    run_all.py everyday rest    everything (`make test-all`)
    run_all.py ruff mypy        some parts

Some parts run side by side; each line says which part it comes from.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
# The machine's Node comes first, else the one beside this Python.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
PYTEST = ["pytest", "-q", "-p", "no:nbval"]  # which takes a second to load
# Each part is one process of pytest, which collects and starts what its own folders need.
# Those that take longest come first: parts begin in this order.
FOLDERS = {
    "notebook": ["browser", "jupyter", "kernel", "show"],
    "executors": ["executors"],
    "export": ["export"],
    "run": ["run", "engine", "tune", "metrics", "profile", "trace"],
    "ops": ["base", "ops", "ranks", "recipes", "resume", "resume_tools"],
    "whole": ["cli", *sorted(path.name for path in TESTS.glob("test_*.py"))],
}
# What imports torch runs in a process of its own: what others fork would hold it too, and each of
# their fork servers would take a second to load it.
WITH_TORCH = "torch and not (kernel or browser)"
NAMES_TORCH = [
    str(path.relative_to(ROOT))
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.parent.name != "loader" and "torch" in path.read_text(encoding="utf-8")
]
NBVAL = ["pytest", "-q", "--timeout=300", "--nbval-lax", "--nbval-current-env"]
QUICKSTART, *OTHERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("notebooks/*.ipynb"))
IN_BROWSER = (TESTS / "browser" / "test_notebooks.py").read_text(encoding="utf-8")
NOTEBOOKS = [name for name in OTHERS if Path(name).stem not in IN_BROWSER]  # not run there


def parts_of(which: str, suffix: str = "") -> dict[str, list[str]]:
    """Return the parts that run tests: those of some folders, and those that import torch."""
    parts = {
        name + suffix: [
            *[*PYTEST, *(f"tests/{folder}" for folder in folders)],
            *["-m", f"{which} and not ({WITH_TORCH})"],
        ]
        for name, folders in FOLDERS.items()
    }
    with_torch = [*PYTEST, "tests/loader", *NAMES_TORCH, "-m", f"{which} and {WITH_TORCH}"]
    return {f"torch{suffix}": with_torch} | parts


TIERS = {
    "everyday": {
        **parts_of("not slow"),
        "js": ["npm", "run", "--silent", "check"],
        "mypy": ["mypy"],
        "quickstart": [*NBVAL, QUICKSTART],
        "doctests": [*PYTEST, "--doctest-modules", "nbpipe"],
        "ruff": ["ruff", "check", "."],
        "format": ["ruff", "format", "--check", "."],
    },
    # What is slow; random examples are twice as many there.
    "rest": {
        **parts_of("slow", "-slow"),
        "notebooks": [*NBVAL, *NOTEBOOKS],
    },
}
PARTS = {name: command for tier in TIERS.values() for name, command in tier.items()}
QUIET_DASK = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}  # why: tests/conftest.py
# Hundreds of processes import nbpipe: it is compiled once, even where that is not the rule.
OURS = {"PYTHONDONTWRITEBYTECODE": "", "PATH": PATH}
SHORT_NOTEBOOKS = {"NBPIPE_NOTEBOOK_SECONDS": "4"}  # so long their cells train [s]
# Profiles of tests/conftest.py.
EXAMPLES = dict.fromkeys(TIERS["rest"], "thorough")
# A third of its time a test waits: one part more than there are cores runs at once.
AT_ONCE = max(2, min(os.cpu_count() or 2, 6)) + 1
LONGEST_S = 2400.0  # a part that takes longer hangs: it prints where, and is ended
GRACE_S = 20.0  # what Ctrl-C has reached ends kernels and browsers before it ends


def command_of(name: str) -> tuple[list[str], Path]:
    """Return the command of a part, and the folder to run it in."""
    if name == "js":
        return [shutil.which("npm", path=PATH) or "npm", *PARTS[name][1:]], ROOT / "js"
    return [sys.executable, "-m", *PARTS[name]], ROOT


class Runner:
    """Runs parts, and prints what they print: a part that is alone writes where it likes.

    Args:
        names: of the parts.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._alone = len(names) == 1
        self._lock = threading.Lock()  # one line at a time, and nothing is started once stopped
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = False
        self.failed: list[str] = []  # what the parts said of each test that failed

    def run(self) -> dict[str, tuple[int, float]]:
        """Run all parts, even after a failure; return exit codes and seconds."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                return dict(zip(self._names, pool.map(self._run_part, self._names), strict=True))
            except KeyboardInterrupt:
                self._stop()
                raise

    def _run_part(self, name: str) -> tuple[int, float]:
        command, folder = command_of(name)
        self._say(f"== {name}: {' '.join([Path(command[0]).name, *command[1:]])}")
        started_s = time.perf_counter()
        process = self._start(command, folder, EXAMPLES.get(name, "everyday"))
        reader = threading.Thread(target=self._pass_on, args=(name, process), daemon=True)
        reader.start()
        code, seconds = self._wait(name, process), time.perf_counter() - started_s
        reader.join(GRACE_S)  # not for ever: a process that a part has left may hold its output
        self._say(f"== {name}: {'failed' if code else 'passed'} in {seconds:.1f} s")
        return code, seconds

    def _wait(self, name: str, process: "subprocess.Popen[str]") -> int:
        """Wait for the end of a part; end one that hangs, which has then failed."""
        try:
            return process.wait(None if self._alone else LONGEST_S)
        except subprocess.TimeoutExpired:
            words = f"{name} was not over after {LONGEST_S:.0f} s"
            self.failed.append(words)
            self._say(f"== {words}; its processes:")
            _end(process.pid)
            return process.wait() or 1

    def _start(self, command: list[str], folder: Path, examples: str) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={
                    "NBPIPE_EXAMPLES": examples,
                    **QUIET_DASK,
                    **SHORT_NOTEBOOKS,
                    **os.environ,
                    **OURS,
                },
                stdin=subprocess.DEVNULL,
                stdout=None if self._alone else subprocess.PIPE,
                stderr=None if self._alone else subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
            self._processes.append(process)
            return process

    def _pass_on(self, name: str, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._say(f"{name:<14} | {line.rstrip()}")
            if line.startswith(("FAILED ", "ERROR ")):
                self.failed.append(line.rstrip()[:300])

    def _say(self, line: str) -> None:
        with self._lock:
            print(line, flush=True)

    def _stop(self) -> None:
        """End what was not ended by the Ctrl-C that ends this."""
        with self._lock:
            self._stopped = True
        until_s = time.monotonic() + GRACE_S
        for process in self._processes:
            try:
                process.wait(max(0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _end(pid: int) -> None:
    """Let a process of pytest and those that it deals tests to print their stacks; end them."""
    part = psutil.Process(pid)
    family = part.children(recursive=True)
    with contextlib.suppress(psutil.Error):
        for process in [part, *part.children()]:
            if "python" in process.name():
                process.send_signal(signal.SIGUSR1)  # faulthandler's, by tests/conftest.py
                time.sleep(1)  # one after the other
    for process in [part, *family]:
        with contextlib.suppress(psutil.Error):
            print("  ", process.pid, " ".join(process.cmdline())[:200], flush=True)
            process.kill()


def main(names: list[str]) -> int:
    """Run tiers or parts, and print a table of them; return 1 if one failed, 2 on bad usage."""
    unknown = [name for name in names if name not in {**TIERS, **PARTS}]
    if unknown or not names:
        what = f"no part {unknown[0]!r}" if unknown else "name what to run"
        print(f"{what}; there are {', '.join(TIERS)}, or of them {', '.join(PARTS)}")
        return 2
    results: dict[str, tuple[int, float]] = {}
    started_s = time.perf_counter()
    parts = [name for name in names if name in PARTS]
    rounds = [list(TIERS[name]) for name in TIERS if name in names] + ([parts] if parts else [])
    failed: list[str] = []
    for round_ in rounds:  # one tier after the other: the first answers first
        runner = Runner(round_)
        try:
            results |= runner.run()
        except KeyboardInterrupt:
            return 130
        failed += runner.failed
        report(results, time.perf_counter() - started_s)
    for line in failed:
        print(line)
    return int(any(code for code, _ in results.values()))


def report(results: dict[str, tuple[int, float]], seconds: float) -> None:
    """Print a table of the parts that have run so far."""
    print(f"\n{'part':<15}{'result':<10}{'time':>8}")
    for name, (code, took_s) in results.items():
        print(f"{name:<15}{'failed' if code else 'passed':<10}{took_s:>6.1f} s")
    print(f"{'all':<25}{seconds:>6.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
