"""The built front end: one ES module and its styles."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ..errors import FrontEndMissingError


@cache
def front_end() -> tuple[str, str]:
    """Give the panel's module and its styles as text.

    Raises:
        FrontEndMissingError: they were not built, as in a clone before `make js`.
    """
    static = resources.files(__package__) / "static"
    try:
        return (
            (static / "panel.js").read_text(encoding="utf-8"),
            (static / "panel.css").read_text(encoding="utf-8"),
        )
    except FileNotFoundError:
        raise FrontEndMissingError(
            "the panel's front end is not built; in a clone, type: make js"
        ) from None
