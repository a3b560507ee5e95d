"""Scripts in an interpreter of their own, and who is left of them."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

from tests.gates import HANG_S, finished

ROOT = Path(__file__).absolute().parents[1]
METHODS = ["forkserver", "spawn"] if sys.platform == "linux" else ["spawn"]
# A background job of a shell ignores the stop signal, and its children inherit that.
LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


class Script:
    """A script that runs, with a session of its own.

    Args:
        text: what it does; indented as it likes.
        folder: where it runs.
        way: "file", "stdin" or "command".
        method: how workers are started, or None for the usual way.
    """

    def __init__(self, text, folder, *, way="file", method=None):
        text = LISTEN + textwrap.dedent(text)
        path = folder / "script.py"
        path.write_text(text)
        arguments = {"file": [str(path)], "stdin": ["-"], "command": ["-c", text]}[way]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("NBPIPE_START_METHOD", None)
        if method is not None:
            environment["NBPIPE_START_METHOD"] = method
        with (path if way == "stdin" else Path(os.devnull)).open("rb") as stdin:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self._seen = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self._seen:
            if one.is_running():
                one.kill()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def line(self):
        """Give the next line that it writes."""
        return finished(self.process.stdout.readline).rstrip("\n")

    def interrupt(self):
        """Interrupt the whole group of its processes, as a terminal does."""
        self.look()
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self):
        """Kill it alone."""
        self.look()
        self.process.kill()

    def look(self):
        """Note the processes that it has started; give how many there are."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self._seen |= set(found)
        return len(found)

    def end(self):
        """Wait for its end; give its exit code and what it has written since."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    def left(self):
        """Give the processes it started that do not end."""
        _, alive = psutil.wait_procs(self._seen, timeout=HANG_S)
        return alive


def executed(text, path):
    """Execute a script in this process; give its variables."""
    path.write_text(text, encoding="utf-8")
    names = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    return names


def printed(*arguments, cwd=ROOT, data="", **variables):
    """Run Python to its end, this nbpipe on its path and `data` its input; give what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        input=data,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ran(text, folder, **options):
    """Run a script to its end; give its exit code and what it has written."""
    with Script(text, folder, **options) as script:
        return script.end()
