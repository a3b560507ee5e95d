"""Trial: which spelling of each piece is true in a fresh process."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ExportError
from .fresh import Answer, Surroundings, ask
from .model import Piece, Spelling


@dataclass(frozen=True, slots=True)
class Choice:
    """A piece that runs.

    Attributes:
        spelling: number of the first spelling that runs and gives what is expected.
    """

    spelling: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A piece of which no spelling is true.

    Attributes:
        reason: what is wrong with the first: a difference in words, or "ValueError: ...".
        error_line: the line of that spelling where it was raised; None where none was.
        reasons: what is wrong with each spelling, in order.
    """

    reason: str
    error_line: int | None = None
    reasons: tuple[str, ...] = ()


def tried(
    imports: str,
    pieces: Sequence[Piece],
    where: Surroundings,
    *,
    name: str,
    future: bool,
    limit_s: float = 60.0,
) -> list[Choice | Failure]:
    """Run the imports and the pieces of a module in one fresh process.

    Args:
        imports: the import block.
        pieces: in the order in which they will stand in the module.
        where: the notebook's folder and import path; relative paths work as they do there.
        name: name of the module.
        future: it begins with `from __future__ import annotations`.
        limit_s: the most that all of it may take [s].

    Returns:
        How each piece went.

    Raises:
        ExportError: no fresh process can be started, or the import block fails in one.
    """
    _check_name(name, imports)
    block = Piece(names=(), spellings=(Spelling(imports),))
    request = {
        "name": name,
        "future": future,
        "pieces": [_as_json(piece) for piece in (block, *pieces)],
    }
    answer = ask("rehearse", request, where, limits_s={"": limit_s})
    results = _results(answer, ["the import block", *map(_called, pieces)])
    if isinstance(results[0], Failure):
        raise ExportError(_import_words(imports, results[0]))
    return results[1:]


def _check_name(name: str, imports: str) -> None:
    """Refuse a module that would be found in place of one that it needs.

    Raises:
        ExportError: it would.
    """
    found = re.findall(r"^(?:import|from) +(\w+)", imports, flags=re.MULTILINE)
    if name in sys.stdlib_module_names or name in {*found, "nbpipe", "numpy"}:
        raise ExportError(
            f"a file called {name}.py would hide the package {name!r} from the module's imports "
            "and from other code; choose another file name"
        )


def _import_words(imports: str, failure: Failure) -> str:
    lines = imports.split("\n")
    number = failure.error_line
    line = lines[number - 1].strip() if number is not None and number <= len(lines) else ""
    culprit = f"`{line}`" if line else "the import block of the module"
    return (
        f"{culprit} fails in a fresh process: {failure.reason}\n"
        "  a module must be installed, or lie in the working folder or in a folder of sys.path"
    )


def _as_json(piece: Piece) -> dict[str, Any]:
    return {
        "names": piece.names,
        "expected": piece.expected,
        "spellings": [
            {"text": spelling.text, "now": sorted(spelling.now)} for spelling in piece.spellings
        ],
    }


def _called(piece: Piece) -> str:
    return piece.words or " and ".join(map(repr, piece.names))


def _results(answer: Answer, called: list[str]) -> list[Choice | Failure]:
    """Read how the pieces went; after the one that ended the process none was tried."""
    results = [_result(line) for line in answer.lines if "at" not in line]
    if len(results) < len(called):
        culprit = called[len(results)]
        results.append(Failure(answer.explained()))
        rest = Failure(f"was not tried: {culprit} {answer.words}")
        results += [rest] * (len(called) - len(results))
    return results


def _result(line: dict[str, Any]) -> Choice | Failure:
    if "choice" in line:
        return Choice(line["choice"])
    reasons = line["failed"]
    texts = tuple(reason["reason"] for reason in reasons)
    return Failure(texts[0], reasons[0]["line"], texts)
