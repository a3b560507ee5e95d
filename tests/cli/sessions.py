"""The command in a terminal: keys are pressed, and the screen is read."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios

import pyte

from tests.cli.commands import COMMAND, environment
from tests.gates import HANG_S, until


def _own_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Session:
    """A process in a terminal of its own.

    Args:
        command: what to run.
        cwd: its folder.
        columns, lines: size of the terminal.
    """

    def __init__(self, command, cwd, columns=80, lines=30):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(TERM="xterm-256color", PS1="$ "),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509  it calls the system once
        )
        self._theirs = theirs  # held, so that the settings can be read once the process has ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def pid(self):
        """Give the process."""
        return self._process.pid

    @property
    def lines(self):
        """Give the lines that can be seen now."""
        while select.select([self._ours], [], [], 0)[0]:
            self._stream.feed(os.read(self._ours, 65536))
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def text(self):
        """Give what can be seen now."""
        return "\n".join(self.lines)

    def sees(self, *words):
        """Wait until all of these words can be seen; give the screen."""

        def seen():
            text = self.text
            return text if all(word in text for word in words) else None

        return until(seen)

    def press(self, keys):
        """Press keys."""
        os.write(self._ours, keys.encode())

    def ended(self):
        """Wait for the end of the process; give its exit code."""
        until(lambda: self.lines is not None and self._process.poll() is not None)
        return self._process.wait(HANG_S)

    @property
    def hides_cursor(self):
        """Return whether the cursor cannot be seen."""
        return self._screen.cursor.hidden

    @property
    def settings(self):
        """Give the settings of the terminal."""
        return termios.tcgetattr(self._theirs)

    @property
    def echoes(self):
        """Return whether keys are shown, and lines edited, as a shell leaves a terminal."""
        both = termios.ECHO | termios.ICANON
        return self.settings[3] & both == both


def command_in_terminal(*arguments, cwd, **size):
    """Run the command in a terminal."""
    return Session([*COMMAND, *map(str, arguments)], cwd, **size)
