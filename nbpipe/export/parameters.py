"""Parameters: what the parameters of `build_pipeline` are called."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection

from ..stage import Chain, addresses


def identifier(text: str) -> str:
    """Make a name of a variable out of any text, as a stage's name."""
    name = re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", text))
    if name.startswith("__") and name.endswith("__"):  # a method, as __getitem__
        name = name.strip("_")
    name = name or "stage"
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable else f"stage_{name}"


def stage_words(chain: Chain) -> dict[int, str]:
    """Give what the names of the parameters of each stage begin with, by the stage's id.

    Stages whose names give the same word are numbered, in the order of their addresses.
    """
    words: dict[int, str] = {}
    for stage in addresses(chain).values():
        if id(stage) not in words:
            words[id(stage)] = _free(identifier(stage.name), words.values())
    return words


def _free(word: str, taken: Collection[str]) -> str:
    found, number = word, 2
    while found in taken:
        found, number = f"{word}_{number}", number + 1
    return found
