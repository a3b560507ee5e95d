"""Screen: a run as a table in the terminal, and what keys do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from ..base.format import shortened
from ..errors import NbpipeError
from ..run.run import Run
from ..show.controller import RunController
from ..show.terminal import RunTable
from .keys import is_ours, reading_keys

_KEYS = "up/down stage, +/- concurrency, a autotune, p pause, q quit"
_NARROW_KEYS = "up/down, +/-, a autotune, p pause, q quit"
_ENDED = ("stopped", "undone")  # states of a tuner


@final
class Screen:
    """Draws a run, and obeys keys.

    Args:
        run: the run.
        epochs: epochs that it is iterated for.
        title: stands before the state, or "".
        turns: whether keys turn knobs; otherwise only `q` does something.

    Attributes:
        quitting: `q` was pressed: start no further epoch.
        table: what is drawn.
    """

    def __init__(self, run: Run, epochs: int = 1, *, title: str = "", turns: bool = True) -> None:
        self.quitting = False
        self._run = run
        self._turns = turns
        self._reads = is_ours()
        self._controller = RunController(run, by="terminal")
        self._note = ""
        self.table = table = RunTable(self._controller, epochs, title=title, more=self._lines)
        if self._reads and turns:
            table.chosen, table.paused = 0, "Paused. Press p to continue."

    @contextmanager
    def shown(self, *, stays: bool = True) -> Iterator[None]:
        """Draw it in the `with` block, and read keys.

        Args:
            stays: the last picture stays.
        """
        from rich.console import Console

        console = Console(stderr=True)
        live = self.table.live(console, stays=stays)

        def pressed(key: str) -> None:
            self.press(key)
            if not self.table.over:
                live.refresh()

        with reading_keys(pressed, console.show_cursor), live:
            try:
                yield
            finally:
                self.table.over = True

    def _lines(self, width: int) -> Iterator[str]:
        tuner = self._run.tuner
        if tuner is not None and not self.table.over:
            yield f"autotune: {tuner.state}"
        if self._note:
            yield shortened(self._note)
        if self._reads and not self.table.over:
            keys = _KEYS if width >= len(_KEYS) else _NARROW_KEYS
            yield keys if self._turns else "q quit"

    # -- keys ---------------------------------------------------------------------------------
    def press(self, key: str) -> None:
        """Do what a key asks for; what cannot be done is written below the table."""
        actions = {
            "up": lambda: self._choose(-1),
            "down": lambda: self._choose(1),
            "+": lambda: self._turn(1),
            "=": lambda: self._turn(1),  # the same key without shift
            "-": lambda: self._turn(-1),
            "a": self._autotune,
            "p": self._pause,
        }
        self._note = ""
        try:
            if key == "q":
                self.quitting = True
                self._run.stop()
                self._run.resume()  # a paused run would still be called paused
            elif self._turns and key in actions:
                actions[key]()
        except NbpipeError as error:
            self._note = str(error)

    def _choose(self, step: int) -> None:
        last = len(self._controller.snapshot(lately=True)["stages"]) - 1
        self.table.chosen = max(0, min(last, (self.table.chosen or 0) + step))

    def _turn(self, step: int) -> None:
        stages = self._controller.snapshot(lately=True)["stages"]
        stage = stages[self.table.chosen or 0]["address"]
        value = self._controller.in_force(stage, "concurrency")
        if value is None:
            self._note = f"{stage} has no concurrency."
        else:
            self._controller.set(stage, "concurrency", value + step)

    def _autotune(self) -> None:
        tuner = self._run.tuner
        if tuner is None or tuner.state in _ENDED:
            self._run.autotune()
        else:
            tuner.stop()

    def _pause(self) -> None:
        if self._run.paused:
            self._run.resume()
        else:
            self._run.pause()
