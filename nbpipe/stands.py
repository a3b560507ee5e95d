"""Stands: where stages go on, as it comes back from a file: checked before anything uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import StateError
from .rest import Rest
from .text import shortened

_MOST = 2**53  # a number that JSON keeps
_MOST_DRAWS = 2**34  # they are drawn again, some 200 million a second
_MOST_RANKS = 2**20
_WAY_OUT = "give what run.state_dict() returned"


def check_stands(stages: Mapping[str, Any]) -> None:
    """Check what a state says of each stage.

    Raises:
        StateError: something else stands there than was written.
    """
    for address, about in stages.items():
        if not isinstance(about, Mapping):
            raise _wrong(address, "", about)
        for word, value in about.items():
            test = _TESTS.get(word)
            if test is None or not test(value):
                raise _wrong(address, word, value)


def are_inside(stages: Mapping[str, Any]) -> bool:
    """Say whether stages stand inside an epoch: what they tell of caches is no place."""
    return any(set(about) - {"rest", "by", "made"} for about in stages.values())


def check_ranks(ranks: Mapping[str, Any]) -> None:
    """Check the ranks and world sizes that a state tells of.

    Raises:
        StateError: they cannot be.
    """
    for address, told in ranks.items():
        if not _is_pair(told) or not 0 <= told[0] < told[1] <= _MOST_RANKS:
            raise StateError(
                f"a state must tell the rank and the world size of {address!r}, got "
                f"{shortened(repr(told))}; {_WAY_OUT}"
            )


def check_below(address: str, word: str, numbers: Iterable[int], end: int) -> None:
    """Check that numbers in a state name something there is.

    Raises:
        StateError: one of them does not.
    """
    beyond = [number for number in numbers if number >= end]
    if beyond:
        raise _wrong(address, word, beyond[0])


def _wrong(address: str, word: str, value: object) -> StateError:
    where = f"{address!r}, {word!r}" if word else repr(address)
    return StateError(
        f"a state must say where stage {where} goes on, got {shortened(repr(value))}; {_WAY_OUT}"
    )


def _is_number(value: object, most: int = _MOST) -> bool:
    return type(value) is int and 0 <= value < most


def _is_draws(value: object) -> bool:
    return _is_number(value, _MOST_DRAWS)


def _is_numbers(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_number, value))


def _is_rest(value: object) -> bool:
    try:
        Rest.read(value)
    except StateError:
        return False
    return True


def _is_path(value: object) -> bool:
    return _is_number(value) or _is_numbers(value)


def _are_two(value: object, one: Callable[[Any], bool], other: Callable[[Any], bool]) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:  # noqa: PLR2004
        return False
    return one(value[0]) and other(value[1])


def _is_children(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        _are_two(part, _is_path, _is_rest) for part in value
    )


def _is_pair(value: object) -> bool:
    return _are_two(value, _is_number, _is_number)


def _is_made(value: object) -> bool:
    return _are_two(value, _is_number, _is_numbers)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_word(value: object) -> bool:
    return value in ("index", "skipping", "claim", "replay")


_TESTS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("rest", "drop", "base"), _is_rest),
    **dict.fromkeys(("left", "skip", "first", "pass", "seen", "turn", "following"), _is_number),
    **dict.fromkeys(("drawn", "draws"), _is_draws),
    **dict.fromkeys(("again", "slots", "sizes", "open"), _is_numbers),
    **dict.fromkeys(("over", "padded", "moved"), _is_flag),
    "children": _is_children,
    "failed": _is_pair,
    "made": _is_made,
    "by": _is_word,
}
