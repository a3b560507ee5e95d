"""Nursery: a process that has imported much forks kernels and scripts, each fresh and soon there.

Run as a program, it reads one job a line and answers with one line. Nothing of nbpipe is
imported in it, and it has no threads when it forks.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Job = dict[str, Any]
DEFAULT_MODULES = ("numpy", "cloudpickle", "psutil", "ipykernel.kernelapp", "ipykernel.debugger")


class Nursery:
    """Forks kernels and scripts; `close` ends all of them.

    Args:
        folder: for what IPython and matplotlib keep.
    """

    def __init__(self, folder: Path) -> None:
        env = dict(os.environ, IPYTHONDIR=str(folder), MPLCONFIGDIR=str(folder), MPLBACKEND="agg")
        env |= {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kernel(self, connection: Path, cwd: Path, modules: tuple[str, ...], **env: str) -> int:
        """Start a kernel; return the id of its process."""
        job = {"do": "kernel", "connection": str(connection), "cwd": str(cwd), "env": env}
        return self._ask({**job, "modules": modules})

    def end(self, pid: int, modules: tuple[str, ...]) -> None:
        """End a kernel."""
        self._ask({"do": "end", "pid": pid, "modules": modules})

    def script(
        self, path: Path, *arguments: str, cwd: Path, modules: tuple[str, ...], **env: str
    ) -> str:
        """Run a script to its end; return what it has printed, errors too."""
        log = cwd / "script.log"
        argv = [str(path), *arguments]
        job = {"do": "script", "argv": argv, "cwd": str(cwd), "log": str(log), "env": env}
        status = self._ask({**job, "modules": modules})
        assert status == 0, log.read_text()
        return log.read_text()

    def _ask(self, job: Job) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process and all that it has started."""
        self._process.communicate()


# -- in the process --------------------------------------------------------------------------------


class Forks:
    """Does the jobs; those that want more modules go to a fork that has imported them.

    Args:
        modules: imported in this process.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        for module in modules:
            importlib.import_module(module)
        self._others: dict[tuple[str, ...], socket.socket] = {}
        self._kernels: set[int] = set()

    def serve(self, lines: Any, answers: Any) -> None:
        """Do the jobs until there are no more."""
        for line in lines:
            job = json.loads(line)
            modules = tuple(job.pop("modules"))
            answer = self._passed_on(modules, job) if modules else self._done(job)
            print(json.dumps(answer), file=answers, flush=True)
        for pid in list(self._kernels):
            self.end(pid)

    def _passed_on(self, modules: tuple[str, ...], job: Job) -> Any:
        if modules not in self._others:
            self._others[modules] = self._raised(modules)
        with self._others[modules].makefile("rw") as file:
            print(json.dumps({**job, "modules": ()}), file=file, flush=True)
            return json.loads(file.readline())

    def _raised(self, modules: tuple[str, ...]) -> socket.socket:
        near, far = socket.socketpair()
        if os.fork():
            far.close()
            return near
        near.close()
        for other in self._others.values():  # else it would never see its end
            other.close()
        with far.makefile("rw") as file:
            Forks(modules).serve(file, file)
        os._exit(0)

    def _done(self, job: Job) -> Any:
        return getattr(self, job.pop("do"))(**job)

    def kernel(self, connection: str, cwd: str, env: dict[str, str]) -> int:
        """Fork a kernel."""
        pid = self._forked(cwd, connection + ".log", env)
        if pid:
            self._kernels.add(pid)
            return pid
        from ipykernel.kernelapp import launch_new_instance

        handle = f"--IPKernelApp.parent_handle={os.getppid()}"  # it ends when its parent does
        sys.argv = ["kernel", "-f", connection, handle, "--HistoryManager.hist_file=:memory:"]
        sys.path.insert(0, "")  # as `python -m` has it
        # The kernel takes the descriptor for its cells; its client asks where the threads are.
        faulthandler.register(signal.SIGUSR1, os.dup(2))
        launch_new_instance(sys.argv[1:])
        os._exit(0)

    def end(self, pid: int) -> None:
        """Kill a kernel, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._kernels.discard(pid)

    def script(self, argv: list[str], cwd: str, log: str, env: dict[str, str]) -> int:
        """Fork a script; return its status."""
        pid = self._forked(cwd, log, env)
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).parent))
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)

    def _forked(self, cwd: str, log: str, env: dict[str, str]) -> int:
        """Fork a process with a session and outputs of its own; return 0 in it."""
        pid = os.fork()
        if pid:
            return pid
        for other in self._others.values():
            other.close()
        os.setsid()
        os.chdir(cwd)
        os.environ.update(env)
        sys.dont_write_bytecode = True  # a folder holds what its test puts there
        time.tzset()
        sys.path = [path for path in sys.path if path != str(Path(__file__).parent)]
        sys.path[:0] = env.get("PYTHONPATH", "").split(os.pathsep)
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(nothing, 0)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.closerange(3, 64)
        return 0


if __name__ == "__main__":
    Forks(DEFAULT_MODULES).serve(sys.stdin, sys.stdout)
