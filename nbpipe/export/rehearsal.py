"""Rehearsal: in a fresh process, run the pieces of a module one by one; the first way that works.

The pieces grow into a file, and run as the module that it would be: `inspect`, dataclasses,
pickle and compilers that read a function's source find what they look for.
"""

from __future__ import annotations
import __future__

import importlib.util
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, final

from .handles import handle_in
from .portrait import difference
from .question import Question, error_line, error_words, portrayed


def rehearse(question: Question) -> None:
    """Run the imports and the pieces of a request; answer how each went."""
    os.chdir(question.cwd)
    stage = _Stage(question)
    question.step("pieces")
    for number, piece in enumerate(question.request["pieces"]):
        question.say(stage.play(number, piece))


@final
class _Stage:
    """The module as far as it has come."""

    def __init__(self, question: Question) -> None:
        name: str = question.request["name"]
        self._question = question
        self._file = str(Path(question.folder, f"{name}.py"))
        flag = __future__.annotations.compiler_flag if question.request["future"] else 0
        self._flags = flag
        self._text = ""
        self._missing: dict[str, None] = {}  # names of pieces that failed
        spec = importlib.util.spec_from_file_location(name, self._file)
        assert spec is not None
        self._module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[name] = self._module

    def play(self, at: int, piece: dict[str, Any]) -> dict[str, Any]:
        """Try the spellings of a piece in order; give the choice, or why there is none."""
        reasons: list[dict[str, Any]] = []
        for number, spelling in enumerate(piece["spellings"]):
            self._question.say({"at": at, "spelling": number})
            names = piece["names"] if piece["closed"] else []
            reason = self._attempt(spelling, piece["expected"], names)
            if reason is None:
                return {"choice": number}
            reasons.append(reason)
        self._missing |= dict.fromkeys(piece["names"])
        return {"failed": reasons}

    def _attempt(
        self, spelling: dict[str, Any], expected: dict[str, Any], names: list[str]
    ) -> dict[str, Any] | None:
        """Run one spelling; where it fails nothing of it is left bound."""
        needed = [name for name in self._missing if name in spelling["now"]]
        if needed:
            return {"reason": f"needs {needed[0]!r}", "line": None}
        bound, text = dict(vars(self._module)), self._text
        reason = self._run(spelling["text"]) or self._compared(expected) or self._living(names)
        if reason is not None:
            self._rewind(bound, text)
        return reason

    def _run(self, text: str) -> dict[str, Any] | None:
        above = self._text.count("\n")
        self._write(f"{self._text}{text}\n\n\n")
        try:
            code = compile(
                "\n" * above + text, self._file, "exec", flags=self._flags, dont_inherit=True
            )
            exec(code, vars(self._module))  # noqa: S102  that is what it is for
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            line = error_line(error, self._file)
            return {"reason": error_words(error), "line": line and line - above}
        return None

    def _compared(self, expected: dict[str, Any]) -> dict[str, Any] | None:
        words = differences(vars(self._module), expected, named=len(expected) > 1)
        return None if words is None else {"reason": words, "line": None}

    def _living(self, names: list[str]) -> dict[str, Any] | None:
        """Say what of the names lives in one process: whoever imports the module would share it."""
        namespace = vars(self._module)
        found = (handle_in(name, namespace[name]) for name in names if name in namespace)
        handle = next((one for one in found if one is not None), None)
        return None if handle is None else {"reason": handle.words, "line": None, "alive": True}

    def _rewind(self, bound: dict[str, Any], text: str) -> None:
        namespace = vars(self._module)
        namespace.clear()
        namespace.update(bound)
        self._write(text)

    def _write(self, text: str) -> None:
        self._text = text
        Path(self._file).write_text(text, encoding="utf-8", newline="\n")
        linecache.cache.pop(self._file, None)


def differences(namespace: dict[str, Any], expected: dict[str, Any], *, named: bool) -> str | None:
    """Say which name of a module is not worth what is expected; None where all are.

    Args:
        namespace: the module's names.
        expected: portraits of some of them.
        named: the words begin with the name.
    """
    for name, wanted in expected.items():
        if name not in namespace:
            return f"{name!r} is not bound"
        try:
            words = difference(wanted, portrayed(namespace[name]))
        except Exception as error:  # noqa: BLE001  a class of the user's may refuse to be read
            words = f"cannot be compared: {error_words(error)}"
        if words is not None:
            return f"{name}: {words}" if named else words
    return None
