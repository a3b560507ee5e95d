"""Parameters: what the parameters of `build_pipeline` are called."""

from __future__ import annotations

import keyword
import re


def identifier(text: str) -> str:
    """Make a name of a variable out of any text, as a stage's name."""
    name = re.sub(r"\W", "_", text)
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable else f"stage_{name}"


def parameter_name(address: str, knob: str) -> str:
    """Name the parameter for a knob of the stage at an address, as "decode_concurrency"."""
    return f"{identifier(address)}_{knob}"
