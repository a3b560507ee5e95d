"""Trial: which spelling of each piece is true in a fresh process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ExportError
from .fresh import STARTS_S, Answer, Surroundings, ask, has_own_seed
from .hashes import may_hang_on_hashes, shows_order_of_set
from .model import Piece, Spelling
from .secrets import advice, secret_in_text, secrets_in_text

_ROUNDS = 4  # processes at most: one for all, and one more after each that a spelling ended


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
        is_alive: the first gives something that lives in one process.
    """

    reason: str
    error_line: int | None = None
    reasons: tuple[str, ...] = ()
    is_alive: bool = False


def tried(
    imports: str,
    pieces: Sequence[Piece],
    where: Surroundings,
    *,
    name: str,
    future: bool,
    limit_s: float = 60.0,
) -> list[Choice | Failure]:
    """Run the imports and the pieces of a module in a fresh process.

    Args:
        imports: the import block.
        pieces: in the order in which they will stand in the module.
        where: the notebook's folder and import path; relative paths work as they do there.
        name: name of the module.
        future: it begins with `from __future__ import annotations`.
        limit_s: the most that all of it may take once the process runs [s]; where it is over, or
            the process ends, all is tried again without the spelling at fault, if the piece has
            another.

    Returns:
        How each piece went.

    Raises:
        ExportError: no fresh process can be started, the import block fails in one, or a text
            holds what looks like a secret: the process is given a file.
    """
    _check_name(name, imports)
    _check_secrets(imports, pieces)
    tries = [Piece(names=(), spellings=(Spelling(imports),)), *pieces]
    called = ["the import block", *map(_called, pieces)]
    passed = list(map(_first_stable, tries))
    for seed in range(2):
        request = {"name": name, "future": future}
        answer = _played(tries, passed, request, where, limit_s=limit_s, seed=seed)
        results = _results(answer, called, passed)
        if has_own_seed() or not _hangs_on_hashes(tries):
            break
        chosen = zip(results, passed, strict=True)
        passed = [one.spelling if isinstance(one, Choice) else first for one, first in chosen]
    if isinstance(results[0], Failure):
        raise ExportError(_import_words(imports, results[0]))
    return results[1:]


def _played(
    tries: list[Piece],
    passed: list[int],
    request: dict[str, Any],
    where: Surroundings,
    *,
    limit_s: float,
    seed: int,
) -> Answer:
    """Run pieces, again without each spelling that ends the process or takes too long.

    Args:
        tries: the pieces.
        passed: how many spellings of each are not tried; it is brought up to date.
        request: what else the process is told.
        where: where it runs.
        limit_s: the most that all of it may take [s].
        seed: of its hashes.
    """
    for _ in range(_ROUNDS):
        given = [_as_json(piece, first) for piece, first in zip(tries, passed, strict=True)]
        limits_s = {"": STARTS_S, "pieces": limit_s}
        answer = ask("rehearse", {**request, "pieces": given}, where, limits_s=limits_s, seed=seed)
        last = _last_tried(answer)
        if last is None or last[1] + 1 >= len(given[last[0]]["spellings"]):
            break
        passed[last[0]] += last[1] + 1
    return answer


def _hangs_on_hashes(pieces: Iterable[Piece]) -> bool:
    """Say whether some text may give another order in another process."""
    texts = (spelling.text for piece in pieces for spelling in piece.spellings)
    return any(map(may_hang_on_hashes, texts))


def _first_stable(piece: Piece) -> int:
    """Count the first spellings that give another order in each process, if another follows.

    No trial can tell: of two labels, every second process has them in the same order.
    """
    shows = [shows_order_of_set(spelling.text) for spelling in piece.spellings]
    return shows.index(False) if False in shows and not has_own_seed() else 0


def _last_tried(answer: Answer) -> tuple[int, int] | None:
    """Give the piece and the spelling that ended the process; None where none did."""
    places = [(line["at"], line["spelling"]) for line in answer.lines if "at" in line]
    return places[-1] if places and answer.ending != "answered" else None


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


def _check_secrets(imports: str, pieces: Sequence[Piece]) -> None:
    """Refuse a secret that shows only when a call stands beside the function that it calls.

    Raises:
        ExportError: there is one.
    """
    texts = ["\n".join(spelling.text for spelling in piece.spellings) for piece in pieces]
    if not secret_in_text("\n".join([imports, *texts])):
        return
    culprit = "the module"
    for number in reversed(range(len(texts))):  # a call stands below its function
        if not secret_in_text("\n".join([*texts[:number], *texts[number + 1 :]])):
            culprit = _called(pieces[number])
            break
    names = [name for name, _ in secrets_in_text("\n".join([imports, *texts])) if name]
    raise ExportError(f"{culprit} {advice(names[0] if names else '')}")


def _import_words(imports: str, failure: Failure) -> str:
    lines = imports.split("\n")
    number = failure.error_line
    line = lines[number - 1].strip() if number is not None and number <= len(lines) else ""
    culprit = f"`{line}`" if line else "the import block of the module"
    return (
        f"{culprit} fails in a fresh process: {failure.reason}\n"
        "  a module must be installed, or lie in the working folder or in a folder of sys.path"
    )


def _as_json(piece: Piece, first: int) -> dict[str, Any]:
    return {
        "names": piece.names,
        "expected": piece.expected,
        "closed": piece.kind != "setup",  # a set-up cell may open what it likes
        "spellings": [
            {"text": spelling.text, "now": sorted(spelling.now)}
            for spelling in piece.spellings[first:]
        ],
    }


def _called(piece: Piece) -> str:
    return piece.words or " and ".join(map(repr, piece.names))


def _results(answer: Answer, called: list[str], passed: list[int]) -> list[Choice | Failure]:
    """Read how the pieces went; after the one that ended the process none was tried."""
    lines = [line for line in answer.lines if line.keys() & {"choice", "failed"}]
    results = [_result(line, first) for line, first in zip(lines, passed, strict=False)]
    if len(results) < len(called):
        culprit = called[len(results)]
        results.append(Failure(answer.explained()))
        rest = Failure(f"was not tried: {culprit} {answer.words}")
        results += [rest] * (len(called) - len(results))
    return results


def _result(line: dict[str, Any], passed: int) -> Choice | Failure:
    if "choice" in line:
        return Choice(line["choice"] + passed)
    reasons = line["failed"]
    texts = tuple(reason["reason"] for reason in reasons)
    return Failure(texts[0], reasons[0]["line"], texts, "alive" in reasons[0])
